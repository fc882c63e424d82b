#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of cistern-gpt whose states lie in files on a drive: runs have the weights of runs with states in memory, bit for bit, also when
# the daemon is killed at random moments, after a save and a load, and when the job is reshaped. CST_TEST_KILLS: kills of each run.
# CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

need_drive

model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
n=0
write_text 400
start_keeping keeper --gpus none

# A run of $2 ranks with the options $4... has the weights of run $3.
same_there() {
    local job=$1 world=$2 as=$3
    shift 3
    same "$job" "$world" --steps 30 --disk "$drive" "$@"
    cmp "$tmp/$as.weights" "$tmp/$job.weights" || fail "$job: other weights than with states in memory"
}
begin memory 1 --steps 30
end memory
same_there disk 1 memory
begin memory-two 2 --steps 30
end memory-two
same_there disk-two 2 memory-two --disk-bytes 1M
begin memory-small 2 --steps 30 --masters split --moments mx8
end memory-small
same_there disk-small 2 memory-small --masters split --moments mx8

# The files have no names.
[ -z "$(find "$drive" -maxdepth 1 -name '#*')" ] || fail "a file is left in $drive"

# Train job $1 with $2 ranks to step $3 with the options $4...
train() {
    local job=$1 world=$2 steps=$3
    shift 3
    begin "$job" "$world" --steps "$steps" "$@"
    end "$job"
}

# Every optimizer and format, of which a part of the chunks is there, and with the schedules of updates.
options=()
if sparse; then formats=(mx8); else formats=(fp32 bf16 mx8); fi
for optimizer in adamw adam lion sgd muon; do
    for masters in fp32 split; do
        for moments in "${formats[@]}"; do
            options=(--steps 8 --optimizer "$optimizer" --masters "$masters" --moments "$moments")
            case $((n++ % 3)) in
            1) options+=(--overlap early --clip 0) ;;
            2) options+=(--overlap delayed) ;;
            esac
            begin formats 1 "${options[@]}"
            end "${options[*]}"
            begin formats-disk 1 "${options[@]}" --disk "$drive"
            end "on the drive with ${options[*]}"
            cmp "$tmp/formats.weights" "$tmp/formats-disk.weights" || fail "other weights with ${options[*]}"
            ./cistern rm formats
            ./cistern rm formats-disk
        done
    done
done

# A job that is reshaped to the drive and back has the weights of one that stays in memory.
for job in stays moves; do
    there=()
    [ $job = stays ] || there=(--disk "$drive")
    train $job 1 3
    train $job 2 6 --reshape "${there[@]}"
    train $job 2 9 --reshape "${there[@]}"
    train $job 1 12 --reshape
done
cmp "$tmp/stays.weights" "$tmp/moves.weights" || fail "other weights after moves to the drive and back"

# A checkpoint of states there is that of states in memory. The next daemon says the same of the file and its buffers.
train saved 1 5 --disk "$drive"
said() {
    ./cistern job saved --json | jq -c '[.drive_bytes, .n_stay_in_host, (.files[] | .bytes, .buffer_bytes, .n_chunks)]'
}
before=$(said)
says_the_same() { [ "$(said)" = "$before" ]; }
[ "$(jq length <<<"$before")" = 5 ] || fail "nothing is said of the file: $before"
kill_daemon keeper
(poll says_the_same) || fail "after the death of the daemon $(said), before $before"
train memory-saved 1 5
./cistern save saved "$tmp/a" >/dev/null || fail "a save of a job with states on a drive"
./cistern save memory-saved "$tmp/b" >/dev/null || fail "a save"
for file in states-00001-of-00001.safetensors model.safetensors; do
    cmp "$tmp/a/step-00000005/$file" "$tmp/b/step-00000005/$file" || fail "another checkpoint than with states in memory"
done
./cistern load "$tmp/b" loaded >/dev/null || fail "a load"
train loaded 1 8 --reshape --disk "$drive"
train memory-saved 1 8
cmp "$tmp/loaded.weights" "$tmp/memory-saved.weights" || fail "other weights after a load"

# What cannot be is refused, with a remedy.
refused() {
    local words=$1 rc=0
    shift
    ./cistern-gpt "${model[@]}" --steps 1 --data "$tmp/text" --job refused "$@" >"$tmp/refused.log" 2>&1 || rc=$?
    if [ $rc = 0 ] || ! has "$words" "$tmp/refused.log"; then
        cat "$tmp/refused.log" >&2
        fail "not refused with '$words': $*"
    fi
}
refused "directory '$tmp/none': No such file or directory" --disk "$tmp/none"
refused "is the second one on drive .*: one file for each drive" --disk "$drive,$drive"
refused "grad_over_weight cannot be combined with disk: .* Leave one of the two out" --disk "$drive" --grad-over-weight
refused "an empty or too long directory" --disk "$drive,,"
[ "$(stat -f -c %T /dev/shm)" != tmpfs ] || refused "is on no block device\|has no files with O_DIRECT" --disk /dev/shm
stop_daemon keeper

# A drive that fails in step 1 or later: the job fails, and the error has the place and the cause. Calls that do less than they were
# asked for are continued, and a slow drive is only slow.
export CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine
failing() {
    local words=$1 rc=0
    shift
    # shellcheck disable=SC2163 # assignments
    export "$@"
    start_keeping failing --gpus none
    ./cistern-gpt "${model[@]}" --steps 30 --data "$tmp/text" --job faulty --disk "$drive" >"$tmp/faulty.log" 2>&1 || rc=$?
    if [ $rc = 0 ] || ! has "$words" "$tmp/faulty.log"; then
        cat "$tmp/faulty.log" >&2
        fail "not failed with '$words': $*"
    fi
    case $(./cistern jobs --json | jq -r '.[].state') in
    '' | failed) ;; # Without a drive's space there is no job.
    *) fail "a job whose drive fails is not failed" ;;
    esac
    begin memory 1 --steps 30 # Others are not concerned.
    end "a job beside one whose drive fails"
    stop_daemon failing
}
failing 'chunk [0-9]* failed in step [0-9]*: .*ing [0-9]* bytes at [0-9]* of .* on drive [0-9:]*: Input/output error' \
    DISK_IO=fail DISK_NTH=$((200 + RANDOM % 400)) DISK_FAILS=100000 DISK_ERRNO=5
failing 'chunk 0 failed.*: Input/output error' DISK_IO=fail DISK_NTH=3 DISK_ERRNO=5
failing 'No space left on device' DISK_IO=fail DISK_NTH=1 DISK_ERRNO=28
failing 'chunk [0-9]* failed in step [0-9]*: .*reading .* of .* on drive [0-9:]*: they are not those that were written (checksum' \
    DISK_IO=fail DISK_NTH=$((200 + RANDOM % 400)) DISK_FAILS=100000 DISK_ERRNO=0 DISK_LIES=1
export DISK_LIES=0
for io in 'fail DISK_NTH=0 DISK_MOST=8192' 'slow DISK_US=300'; do
    # shellcheck disable=SC2086 # several words
    export DISK_IO=${io%% *} ${io#* }
    start_keeping slow --gpus none
    begin slow 1 --steps 30 --disk "$drive"
    end "with $io"
    cmp "$tmp/memory.weights" "$tmp/slow.weights" || fail "other weights with $io"
    stop_daemon slow
    unset DISK_MOST
done
printf 'all well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Faults of drives and files in the middle of a job: no space, a file that is cut off or loses its blocks, and errors that come once or
# stay. The job fails with the place, the cause and what to do; others go on; and what lies elsewhere can still be saved or read.
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

# shellcheck disable=SC2034 # for keeping.sh
model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
write_text 400
place='chunk [0-9]* failed in step [0-9]*: .*ing [0-9]* bytes at [0-9]* of .* on drive [0-9:]*: '

# Wait for the worker of job $1, which fails with the words $2.
failed() {
    local rc=0
    wait "${workers[0]}" || rc=$?
    if [ $rc = 0 ] || ! has "$2" "$tmp/$1.0.log"; then
        cat "$tmp/$1.0.log" >&2
        fail "$1: no '$2'"
    fi
}

# The path of the file with states, as the daemon has it. A file has no name, hence nobody can replace it.
find_file() {
    local fd
    for fd in "/proc/$daemon_pid/fd/"*; do
        case $(readlink "$fd") in "$1/#"*) file=$fd && return 0 ;; esac
    done
    fail "the daemon has no file in $1"
}

# Begin job faulty in the directory $1 with the options $2..., and wait until it trains.
begin_faulty() {
    local dir=$1
    shift
    begin faulty 1 --steps 100000 --disk "$dir" "$@"
    poll has_stepped faulty 2
    find_file "$dir"
}

# Job faulty has failed; another job trains.
others_go_on() {
    [ "$(./cistern jobs --json | jq -r '.[] | select(.name == "faulty") | .state')" = failed ] || fail "the job has not failed: $1"
    begin memory 1 --steps 5
    end "a job beside one with $1"
    ./cistern rm memory
}

# -- a file that is cut off -----------------------------------------------------------------------

start_keeping faults --gpus none
begin_faulty "$drive"
truncate -s 8192 "$file"
# A write that is under way can make it longer again, with a hole.
failed faulty "${place}\(the file was truncated to [0-9]* bytes, and states had the first [0-9]*: load the last checkpoint\|they are not those that were written\)"
others_go_on "a file that is cut off"
rc=0
./cistern save faulty "$tmp/cut" >"$tmp/save.log" 2>&1 || rc=$?
[ $rc != 0 ] || fail "a job without its states is saved"
has 'chunk\|truncated' "$tmp/save.log" || fail "a save says: $(cat "$tmp/save.log")"
./cistern rm faulty
stop_daemon faults
printf 'a file that is cut off: well\n'

# -- errors that come once or stay ---------------------------------------------------------------

export CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine DISK_IO=fail DISK_ERRNO=5
begin_reference() {
    start_keeping "reference" --gpus none
    begin reference 1 --steps 30
    end "a job in memory"
    stop_daemon reference
}
begin_reference
n_failed=0
for ((i = 0; i < 4; i++)); do
    export DISK_NTH=$((40 + RANDOM % 600))
    start_keeping "once$i" --gpus none
    rc=0
    begin faulty 1 --steps 30 --disk "$drive"
    wait "${workers[0]}" || rc=$?
    if [ $rc = 0 ]; then # What was read ahead is read again, or there were fewer calls.
        cmp "$tmp/reference.weights" "$tmp/faulty.weights" || fail "other weights after one error"
        ./cistern save faulty "$tmp/once$i" >/dev/null || fail "a save after one error"
    else
        n_failed=$((n_failed + 1))
        words="Input/output error: the kernel's log has the cause; use another drive, and load the last checkpoint"
        has "chunk [0-9]* failed.*ing [0-9]* bytes at [0-9]* of .* on drive [0-9:]*: $words" "$tmp/faulty.0.log" ||
            fail "one error: $(cat "$tmp/faulty.0.log")"
        others_go_on "one error"
    fi
    stop_daemon "once$i"
done
printf 'one error: well, %d of 4 jobs failed\n' "$n_failed"
unset CISTERN_ENGINE_HOST DISK_IO DISK_ERRNO DISK_NTH

# -- no space ------------------------------------------------------------------------------------

if ! make_loop "$tmp/small" 64M; then
    printf 'a drive without space: skipped: %s\n' "$no_loop"
    exit 0
fi
before=$(free_blocks "$tmp/small")
fill() {
    dd if=/dev/zero of="$tmp/small/filler" bs=64K 2>/dev/null || true # It ends when there is no space.
}
start_keeping small --gpus none
fill
truncate -s -1M "$tmp/small/filler"
begin faulty 1 --steps 3 --disk "$tmp/small"
remedy='free space there, or put fewer bytes there (more drives, moments bf16 or mx8)'
failed faulty "allocating [0-9]* bytes at 0 of .* on drive [0-9:]*: No space left on device: $remedy"
begin part 1 --steps 3 --disk "$tmp/small" --disk-bytes 512K # Fewer bytes.
end "a part of the states on a full drive"
./cistern rm part
rm "$tmp/small/filler"
is_free() { [ "$(free_blocks "$tmp/small")" = "$before" ]; }
poll is_free
begin_faulty "$tmp/small"
engine= # That of the drive, which is stopped lest it fills the hole.
for pid in $(children "$daemon_pid"); do
    ! tr '\0' ' ' <"/proc/$pid/cmdline" | has -e --disk || engine=$pid
done
kill -STOP "$engine"
fallocate --punch-hole -o 0 -l 1M "$file"
fill
kill -CONT "$engine"
# It reads the zeros of the hole, or writes there.
failed faulty "${place}\(No space left on device: $remedy\|they are not those that were written\)"
rm "$tmp/small/filler"
others_go_on "a drive that is full"
./cistern rm faulty
poll is_free
stop_daemon small
printf 'a drive without space: well\n'

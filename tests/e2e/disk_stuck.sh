#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of drives that do not answer. After the time in [disk] the job fails, and its error names the drive, the file, the chunk, the
# place and the time. Jobs in memory and on other drives go on, `cistern rm` and the end of the daemon wait for nobody, and the drive is
# used again when it answers. With a stand-in whose calls wait, and with a file system that is frozen, whose writers cannot be killed.
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
printf '[disk]\ntimeout = 1s\n' >"$tmp/short.conf"
late='chunk [0-9]* failed in step [0-9]*: .*ing [0-9]* bytes at [0-9]* of .* on drive [0-9:]*: the drive has not answered for [0-9]* s'
given_up='chunk [0-9]* failed in step [0-9]*: .* has not answered for [0-9]* s; it is used again when process [0-9]* has ended'

state_of() {
    ./cistern jobs --json | jq -r --arg job "$1" '.[] | select(.name == $job) | .state'
}

# Check that job $1, whose only worker is $2, has failed with the words $3.
failed() {
    local rc=0
    wait "$2" || rc=$?
    if [ $rc = 0 ] || ! has "$3" "$tmp/$1.0.log"; then
        cat "$tmp/$1.0.log" >&2
        fail "$1: no '$3'"
    fi
}

# Whether a thread of process $1 waits for a drive. (The process counts as a zombie when its first thread has ended.)
waits_for_drive() {
    grep -q '^State:.D' "/proc/$1/task/"*/status 2>/dev/null
}

# Whether the engine of a drive has the state $1.
drive_is() {
    ./cistern stat --json | jq -e --arg state "$1" 'any(.engines[]; .kind == "disk" and .state == $state)' >/dev/null
}

# Whether a checkpoint can be made of the file of the durable job; a process that has it may still be ending.
adopted() {
    ./cistern adopt "$files/faulty.0.cistern" "$tmp/adopted" >"$tmp/adopt.log" 2>&1
}

# -- calls that wait ---------------------------------------------------------------------------

export DISK_IO=stuck DISK_UNTIL=$tmp/again DISK_FAILS=100000
for nth in 1 3 $((200 + RANDOM % 400)); do
    export DISK_NTH=$nth
    rm -f "$DISK_UNTIL"
    CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine start_keeping stuck --gpus none --config "$tmp/short.conf"
    begin faulty 1 --steps 10 --disk "$drive"
    stuck=${workers[0]}
    begin memory 1 --steps 10 # Others are not concerned.
    end "a job beside one whose drive does not answer"
    case $nth in
    1) # Its file is being made.
        failed faulty "$stuck" 'allocating .* has not answered for [0-9]* s; it is used again when process [0-9]* has ended' ;;
    3) failed faulty "$stuck" 'write to chunk 0 failed: .*writing .* the drive has not answered' ;;
    *) failed faulty "$stuck" "$late" ;;
    esac
    case $(state_of faulty) in
    '') ;;
    failed) ./cistern rm faulty ;;
    *) fail "the job has not failed" ;;
    esac
    # The drive answers again, and is used again when the engine that waited has ended.
    engine=$(grep -ho 'when process [0-9]*' "$tmp"/*.log | tail -n 1 | tr -dc 0-9)
    : >"$DISK_UNTIL"
    poll gone "$engine"
    begin again 1 --steps 10 --disk "$drive"
    end "a drive that answers again"
    cmp "$tmp/memory.weights" "$tmp/again.weights" || fail "other weights on a drive that answers again"
    stop_daemon stuck
done

# A flush of a durable job's file waits, of its states (7) or of its record (8): the step before is on the drive, or the step whose record waits.
make_files
for nth in 7 8; do
    rm -f "$DISK_UNTIL" "$files"/*
    DISK_CALLS=flush DISK_NTH=$nth CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine start_keeping flush --gpus none --config "$tmp/short.conf"
    begin faulty 1 --steps 10 --disk "$files" --durable
    stuck=${workers[0]}
    begin memory 1 --steps 10
    end "a job beside one whose drive does not flush"
    failed faulty "$stuck" 'step 3 cannot be recorded on the drives, on which step 2 still is: flushing .*faulty.0.cistern. on drive .* has not answered for [0-9]* s'
    [ "$(state_of faulty)" = failed ] || fail "the job has not failed"
    ./cistern rm faulty
    stop_daemon flush # It waits for nobody.
    : >"$DISK_UNTIL"
    poll adopted
    # The record of step 3 is written before its flush (8): it may be on the drive, too.
    [ -d "$tmp/adopted/step-00000002" ] || { [ $nth = 8 ] && [ -d "$tmp/adopted/step-00000003" ]; } ||
        fail "step 2 was lost: $(ls "$tmp/adopted")"
    rm -r "$tmp/adopted"
done
unset DISK_IO DISK_UNTIL DISK_FAILS DISK_NTH
printf 'calls that wait: well\n'

# -- a file system that is frozen --------------------------------------------------------------

if ! make_loop "$tmp/small" 64M; then
    printf 'a frozen file system: skipped: %s\n' "$no_loop"
    exit 0
fi
before=$(free_blocks "$tmp/small")
start_keeping frozen --gpus none --config "$tmp/short.conf"
begin faulty 1 --steps 100000 --disk "$tmp/small"
stuck=${workers[0]}
begin second 1 --steps 100000 --disk "$tmp/small"
second=${workers[0]}
poll has_stepped faulty 2
poll has_stepped second 2
freeze "$tmp/small"
begin memory 1 --steps 10
other=("${workers[0]}")
begin disk 1 --steps 10 --disk "$drive"
other+=("${workers[0]}")
failed faulty "$stuck" "$late\|$given_up"
failed second "$second" "$late\|$given_up" # Either of the two waits, and the other one finds the engine given up.
wait "${other[0]}" || fail "a job in memory beside a drive that does not answer"
wait "${other[1]}" || fail "a job on another drive than the one that does not answer"
cmp "$tmp/memory.weights" "$tmp/disk.weights" || fail "other weights on another drive"
drive_is failed || fail "the engine of the drive is not given up"
engine=$(grep -o 'when process [0-9]*' "$tmp/frozen.log" | head -n 1 | tr -dc 0-9)
waits_for_drive "$engine" || fail "the engine could be killed: nothing is tested"
./cistern rm faulty
./cistern rm second
stop_daemon frozen
waits_for_drive "$engine" || fail "the engine has ended with the daemon: nothing is tested"
thaw "$tmp/small"
ended() { ! waits_for_drive "$engine" && gone "$engine"; }
poll ended
start_keeping after --gpus none --config "$tmp/short.conf"
begin again 1 --steps 10 --disk "$tmp/small"
end "a drive that answers again"
cmp "$tmp/memory.weights" "$tmp/again.weights" || fail "other weights on a drive that answers again"
stop_daemon after
is_free() { [ "$(free_blocks "$tmp/small")" = "$before" ]; }
poll is_free
printf 'a frozen file system: well\n'

# -- the daemon is killed meanwhile --------------------------------------------------------------

start_keeping held --gpus none
begin calm 1 --steps 5
end "a job in memory"
begin held 1 --steps 100000 --disk "$tmp/small"
worker=${workers[0]}
poll has_stepped held 2
engine=
for pid in $(children "$daemon_pid"); do
    ! tr '\0' ' ' <"/proc/$pid/cmdline" | has -e --disk || engine=$pid
done
freeze "$tmp/small"
poll waits_for_drive "$engine"
kill_daemon held
said() { has "has not ended, because a drive does not answer, and can still write to drive" "$tmp/held.log"; }
poll said
begin calm 1 --steps 8
end "a job in memory after the death of a daemon whose drive does not answer"
thaw "$tmp/small"
poll ended
kill_daemon held
poll has_stepped held 2 # It goes on in this daemon.
kill -9 "$worker" 2>/dev/null || true
wait "$worker" 2>/dev/null || true
./cistern rm held
stop_daemon held
poll is_free
printf 'the death of a daemon whose drive does not answer: well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that jobs outlive the daemon under a service manager with a store of descriptors: a run whose daemon is killed at random moments
# has the weights of an undisturbed run, bit for bit, for every kind of states, while another job is saved; a terminated daemon leaves
# its jobs to the next one; what cannot go on is named; a removed job leaves nothing behind. CST_TEST_KILLS: kills of each run.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=${CST_TEST_STEPS:-100}
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"

start_keeping keeper --config "$tmp/paced.conf" --gpus none

same adamw 1
if ! sparse; then
    same two 2
    same planned 2 --pool 300K
    same bf16 1 --moments bf16
    same mx8 1 --moments mx8
    same lion 1 --optimizer lion --moments mx8
    same micro 2 --micro-batches 2
    same dispatched 3 --micro-batches 4 --parallel dispatch
    same early 1 --overlap early --clip 0
    same over 1 --grad-over-weight
    same split 1 --masters split
    same mixture 2 --experts 4 --top-k 2
    same skipped 2 --experts 16 --top-k 1 --unused skip
    same accelerator 2 --device paced
    same reservation 1 --device-update 4M
    same split-reservation 1 --masters split --device-update 4M --overlap early --clip 0
fi
same early-two 2 --overlap early --clip 0 --moments mx8
same delayed 1 --overlap delayed
same lora 1 --lora 4
same reservation-two 2 --device paced --device-update 4M --overlap early --clip 0
same states 1 --device paced --device-update 4M --device-states 2M

# A daemon that is terminated leaves its jobs to the next one, with a step under way.
begin ended 2
end ended
begin terminated 2
poll has_stepped terminated 2
kill -USR1 "${manager_of[keeper]}"
await keeper 'EXIT=*'
[ "$line" = EXIT=0 ] || fail "the terminated daemon ended with $line"
await keeper 'PID=*'
daemon_pid=${line#PID=}
await keeper READY=1
end terminated
cmp "$tmp/ended.weights" "$tmp/terminated.weights" || fail "other weights after a termination"
has "job 'terminated' goes on after step" "$tmp/keeper.log" || fail "the terminated daemon did not say what becomes of its jobs"

# What a plan has chosen, and that there is none, remains known. The depth of prefetch is adapted to measured times, again after a start.
explained() {
    ./cistern explain "$1" wte | sed -n '/^chunks of its size class/,$p' | sed 's/ prefetch .*//'
}
begin chosen 2 --pool 300K
end chosen
begin asked 2 --chunk 16384
end asked
chosen=$(explained chosen) asked=$(explained asked)
kill_daemon keeper
[ "$(explained chosen)" = "$chosen" ] || fail "it was '$chosen', and it is '$(explained chosen)'"
[ "$(explained asked)" = "$asked" ] || fail "it was '$asked', and it is '$(explained asked)'"
./cistern rm chosen
./cistern rm asked

state_of() {
    ./cistern jobs --json | jq -r --arg job "$1" '.[] | select(.name == $job) | .state'
}

# While there is no daemon, rank 1 is stopped or killed: rank 0 waits until rank 1 goes on, or until another process is rank 1.
away() {
    local job=$1 signal=$2
    begin "$job" 2
    poll has_stepped "$job" 2
    kill -STOP "${manager_of[keeper]}"
    kill "-$signal" "${workers[1]}"
    kill -9 "$daemon_pid"
    kill -CONT "${manager_of[keeper]}"
    await keeper 'SIGNAL=9'
    await keeper 'PID=*'
    daemon_pid=${line#PID=}
    await keeper READY=1
    [ "$(state_of "$job")" != "done" ] || fail "$job is done, but its workers have not left"
    if [ "$signal" = STOP ]; then
        kill -CONT "${workers[1]}"
    else
        wait "${workers[1]}" || true
        begin_rank "$job" 2 1
    fi
    end "$job"
    cmp "$tmp/ended.weights" "$tmp/$job.weights" || fail "other weights after SIG$signal for a rank without a daemon"
    ./cistern rm "$job"
}
away stopped STOP
away gone KILL

# A pool has moved to the host, because the engine of its accelerator was given up: the job goes on there, also without the accelerator.
kill_engine() {
    local pid
    for pid in $(children "$daemon_pid"); do
        ! tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | has paced || kill -9 "$pid"
    done
    has 'paced:0): it died' "$tmp/keeper.log"
}
begin_rank moved 2 0 --device paced:0
begin_rank moved 2 1
poll has_stepped moved 2
kill -STOP "${workers[@]}"
poll kill_engine
kill -KILL "${workers[0]}" # It may have nothing to do for the accelerator, and would wait for rank 1.
wait "${workers[0]}" || true
begin_rank moved 2 0
poll has 'the pool of rank 0 moves from paced:0 to host' "$tmp/keeper.log"
kill -CONT "${workers[1]}"
poll has_stepped moved $((steps / 3))
sed -i 's/^devices = .*/devices = 0/' "$tmp/paced.conf"
kill_daemon keeper
end moved
cmp "$tmp/ended.weights" "$tmp/moved.weights" || fail "other weights of a job whose pool has moved"
./cistern rm moved

# A job that is reshaped keeps its arenas, and outlives the daemon as before.
./cistern-gpt "${model[@]}" --batch 8 --data "$tmp/text" --job terminated --reshape --steps $((steps + 1)) >"$tmp/reshaped.0.log" || fail "a reshape"
has 'is reshaped from 2 to 1 ranks, 0 B were copied' "$tmp/keeper.log" || fail "its arenas were not kept"
kill_daemon keeper
[ "$(step_of terminated)" = $((steps + 1)) ] || fail "the reshaped job stands at step $(step_of terminated)"
./cistern-gpt "${model[@]}" --batch 8 --data "$tmp/text" --job terminated --steps $((steps + 2)) >"$tmp/reshaped.0.log" || fail "a reshaped job that was kept"

# Two jobs, of which one is saved all the time: both have the same bits, and all checkpoints are whole.
begin saved 1 --save-dir "$tmp/saved" --save-every 2 --keep 3
saver=("${workers[@]}")
begin beside 2
for ((i = 0; i < n_kills; i++)); do
    poll has_stepped beside 1
    poll has_stepped saved 1 # Before its first sync a job is not kept.
    sleep "0.$(printf '%03d' $((RANDOM % 300)))"
    kill_daemon keeper
done
end beside
workers=("${saver[@]}")
end saved
cmp "$tmp/ended.weights" "$tmp/beside.weights" || fail "other weights beside a job that is saved"
cmp "$tmp/adamw.weights" "$tmp/saved.weights" || fail "other weights of the job that is saved"
[ "$(./cistern checkpoints "$tmp/saved" --check --json | jq 'length > 0 and all(.whole)')" = true ] || fail "$(./cistern checkpoints "$tmp/saved" --check)"
printf 'two jobs, one of which is saved: same bits\n'

# A job of which no whole record is left is named and does not go on; the other jobs do. Its memory stays in the store.
ledgers() {
    find "/proc/${manager_of[keeper]}/fd" -lname '*cistern-ledger*' | sort -t / -k 5n
}
has_ledgers() {
    [ "$(ledgers | wc -l)" = "$1" ]
}
has_ledgers 4 || fail "$(ledgers | wc -l) ledgers of 4 jobs are in the store"
damaged=$(ledgers | head -n 1)
head -c 1000 /dev/zero | dd of="$damaged" conv=notrunc status=none
kill_daemon keeper
has 'cannot go on: its ledger does not begin like one' "$tmp/keeper.log" || fail "a damaged ledger was not named"
three_are_done() {
    [ "$(./cistern jobs --json | jq -c 'map(.state)')" = '["done","done","done"]' ]
}
poll three_are_done

# A fresh worker goes on with a job that has outlived its workers and two daemons; removed jobs leave nothing behind.
./cistern-gpt "${model[@]}" --data "$tmp/text" --job saved --steps $((steps + 5)) >"$tmp/more.0.log" || fail "a fresh worker"
[ "$(step_of saved)" = $((steps + 5)) ] || fail "saved stands at step $(step_of saved)"
for job in $(./cistern jobs --json | jq -r '.[].name'); do
    ./cistern rm "$job"
done
poll has_ledgers 1 # the damaged one
kill_daemon keeper
[ "$(./cistern jobs --json | jq length)" = 0 ] || fail "removed jobs are back: $(./cistern jobs)"
[ "$(./cistern stat --json | jq .host_used)" = 0 ] || fail "memory in use without jobs: $(./cistern stat)"

stop_daemon keeper

# Without a service manager, a daemon takes over from another one, with a step under way, and again from that one.
take_over() {
    start "$2" ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" --gpus none --engine-threads 2 --handover
    await "$1" 'EXIT=*'
    [ "$line" = EXIT=0 ] || fail "$1 ended with $line"
    await "$2" READY=1
}
start_daemon first --engine-threads 2
begin handed 2
poll has_stepped handed 2
./cistern save --every 2 --keep 2 handed "$tmp/followed" >"$tmp/follow.log" 2>&1 &
follower=$!
managers+=("$follower")
poll has 'saved step' "$tmp/follow.log"
take_over first second
poll has_stepped handed $((steps / 2))
take_over second third
end handed
cmp "$tmp/ended.weights" "$tmp/handed.weights" || fail "other weights after two daemons took over"
wait "$follower" || fail "cistern save --every does not outlive the daemon: $(cat "$tmp/follow.log")"
[ -e "$tmp/followed/step-$(printf %08d "$steps")" ] || fail "the last step was not saved: $(cat "$tmp/follow.log")"
rc=0
./cisternd --config "$tmp/empty.conf" --socket "$tmp/nobody.sock" --gpus none --handover 2>"$tmp/nobody.log" || rc=$?
if [ $rc != 1 ] || ! has 'no daemon to take over from' "$tmp/nobody.log"; then
    fail "a handover from nobody: $rc, $(cat "$tmp/nobody.log")"
fi

# A manager saves all jobs and ends the daemon; a user may not.
rc=0
./cistern drain --manager-socket "$CISTERN_SOCKET" 2>"$tmp/denied" || rc=$?
if [ $rc != 1 ] || ! has 'a daemon is ended on its manager socket' "$tmp/denied"; then
    fail "a user ended the daemon: $rc, $(cat "$tmp/denied")"
fi
./cistern load "$tmp/followed" loaded # it has states, although no worker has made a step
./cistern drain --save "$tmp/drained" || fail "cistern drain failed"
[ "$(./cistern checkpoints "$tmp/drained/loaded" --json | jq -r '.[0].step')" = "$steps" ] || fail "drain left out a job that was loaded"
await third 'EXIT=*'
[ "$(./cistern checkpoints "$tmp/drained/handed" --check --json | jq -r '.[0] | "\(.step) \(.whole)"')" = "$steps true" ] ||
    fail "$(./cistern checkpoints "$tmp/drained/handed" --check)"
has "job 'handed' ends with it" "$tmp/third.log" || fail "the last daemon did not say that its jobs end"
printf 'all well\n'

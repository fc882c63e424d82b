#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that jobs outlive the daemon under a service manager with a store of descriptors: a run whose daemon is killed at random moments
# has the weights of an undisturbed run, bit for bit, for every kind of states, while another job is saved; a terminated daemon leaves
# its jobs to the next one; what cannot go on is named; a removed job leaves nothing behind. CST_TEST_KILLS: kills of each run.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=${CST_TEST_STEPS:-150}
n_kills=${CST_TEST_KILLS:-3}
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
RANDOM=$seed
write_text 400

# Start a daemon as $1 whose jobs are kept, with the options $2...
start_keeping() {
    local name=$1
    shift
    start "$name" --keep ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" --gpus none --engine-threads 2 "$@"
    await "$name" 'PID=*'
    daemon_pid=${line#PID=}
    await "$name" READY=1
}

# Kill daemon $1, and wait until the next one is ready.
kill_daemon() {
    kill -9 "$daemon_pid"
    await "$1" 'SIGNAL=9'
    await "$1" 'PID=*'
    daemon_pid=${line#PID=}
    await "$1" READY=1
}

# Number of steps of job $1; 0: there is no such job.
step_of() {
    { ./cistern jobs --json 2>/dev/null || echo '[]'; } | jq -r --arg job "$1" '[.[]? | select(.name == $job) | .step] | first // 0'
}

has_stepped() {
    [ "$(step_of "$1")" -ge "$2" ]
}

# Train job $1 with $2 ranks and the options $3... in the background. Sets workers.
begin() {
    local job=$1 world=$2 rank
    shift 2
    workers=()
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --world "$world" --rank "$rank" "$@" \
            $([ "$rank" != 0 ] || printf -- '--dump-weights %s' "$tmp/$job.weights") >"$tmp/$job.$rank.log" 2>&1 &
        workers+=($!)
        managers+=($!)
    done
}

end() {
    local pid
    for pid in "${workers[@]}"; do
        wait "$pid" || fail "$1: a worker failed"
    done
}

start_keeping keeper

# A run of $2 ranks with the options $3... as job $1, and the same run with kills of the daemon, have the same weights.
same() {
    local job=$1 world=$2 i done=0
    shift 2
    begin "$job" "$world" "$@"
    end "$job"
    begin "$job-killed" "$world" "$@"
    poll has_stepped "$job-killed" 1
    for ((i = 0; i < n_kills; i++)); do
        sleep "0.$(printf '%03d' $((RANDOM % 400)))"
        ! gone "${workers[0]}" || break
        kill_daemon keeper
        done=$((done + 1))
    done
    end "$job-killed"
    cmp "$tmp/$job.weights" "$tmp/$job-killed.weights" || fail "$job: other weights after $done kills with $*"
    ./cistern rm "$job"
    ./cistern rm "$job-killed"
    printf '%s: same bits after %d kills\n' "$job" "$done"
}

same adamw 1
same two 2
same bf16 1 --moments bf16
same mx8 1 --moments mx8
same lion 1 --optimizer lion --moments mx8
same micro 2 --micro-batches 2
same early 1 --overlap early --clip 0
same early-two 2 --overlap early --clip 0 --moments mx8
same delayed 1 --overlap delayed
same over 1 --grad-over-weight
same lora 1 --lora 4
same mixture 2 --experts 4 --top-k 2

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # line and model are assigned by the others
# Functions of tests whose daemon is killed and whose jobs outlive it. Sourced after lib.sh by scripts that set the array `model`, the
# options of cistern-gpt. CST_TEST_KILLS: kills of each run. CST_TEST_SEED: seed of the moments.
n_kills=${CST_TEST_KILLS:-$(if sparse; then echo 1; else echo 3; fi)}
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
RANDOM=$seed

# Daemons have the faults whose files are in $tmp/faults (tests/lib/faulty_daemon.c).
cisternd=./cisternd
allow_faults() {
    mkdir "$tmp/faults"
    export CST_TEST_FAULTS=$tmp/faults CISTERN_ENGINE_HOST=$PWD/cistern-engine-host
    cisternd=./tests/lib/faulty_daemon
}

# Start a daemon as $1 whose jobs are kept, with the options $2...
start_keeping() {
    local name=$1
    shift
    start "$name" --keep "$cisternd" --socket "$CISTERN_SOCKET" --engine-threads 2 "$@"
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

# Begin rank $3 of job $1, which has $2 ranks, with the options $4... in the background.
begin_rank() {
    local job=$1 world=$2 rank=$3 dump=()
    shift 3
    [ "$rank" != 0 ] || dump=(--dump-weights "$tmp/$job.weights")
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --world "$world" --rank "$rank" "${dump[@]}" "$@" \
        >"$tmp/$job.$rank.log" 2>&1 &
    workers[rank]=$!
    managers+=($!)
}

# Train job $1 with $2 ranks and the options $3... in the background. Sets workers.
begin() {
    local job=$1 world=$2 rank
    shift 2
    workers=()
    for ((rank = 0; rank < world; rank++)); do
        begin_rank "$job" "$world" "$rank" "$@"
    done
}

end() {
    local pid
    for pid in "${workers[@]}"; do
        wait "$pid" || fail "$1: a worker failed"
    done
}

# A run of $2 ranks with the options $3... as job $1, and the same run with kills of the daemon, have the same weights.
same() {
    local job=$1 world=$2 i done=0
    shift 2
    begin "$job" "$world" "$@"
    end "$job"
    begin "$job-killed" "$world" "$@"
    poll has_stepped "$job-killed" 1
    for ((i = 0; i < n_kills; i++)); do
        [ $i = 0 ] || sleep "0.$(printf '%03d' $((RANDOM % 400)))"
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

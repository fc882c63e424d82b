#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the death of a rank costs a job of two ranks, of which rank 1 is killed several times: with a standby (`cistern run --standby 1`),
# compared with a rank that is started again (`cistern run --restart`). Medians of 5 deaths each.
#   standby_request, standby_step               cistern-gpt: from the kill to the first request of the process that takes the place,
#                                               which opens the job, and to the next committed step
#   standby_torch_request, standby_torch_step   client/example_gpt2.py, which imports torch and transformers; needs CISTERN_PYTHON
# A death comes when the standby of the last one waits. Run from the build tree.
# shellcheck disable=SC2034 # training.sh's
daemons=own
# shellcheck source=tests/bench/training.sh
. "$(dirname "$0")/training.sh"

deaths=$(sized 5 1)
: >"$tmp/empty.conf"
./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" --gpus none 2>"$tmp/daemon.log" &
daemon=$!
until ./cistern ping >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || fail "the daemon has ended"
    sleep 0.05
done

now() {
    date +%s.%N
}

# Print the time of the $3rd line in the daemon's log that matches $1, and wait for it at most $2 seconds.
await_log() {
    local end=$((SECONDS + $2)) line
    until line=$(grep -E -- "$1" "$tmp/daemon.log" | sed -n "$3p") && [ -n "$line" ]; do
        [ $SECONDS -lt "$end" ] || fail "no '$1' number $3 in the daemon's log"
        sleep 0.01
    done
    date -d "${line%% *}" +%s.%N
}

# Print when a rank of job $1 made its first step after $2. Each of its lines in $tmp/$1.out has the time before it.
await_step() {
    local end=$((SECONDS + 300)) at
    until at=$(awk -v from="$2" -v step="$step_words" '$1 > from && index($0, step) { print $1; exit }' "$tmp/$1.out") && [ -n "$at" ]; do
        [ $SECONDS -lt "$end" ] || fail "$1: no step after the kill: $(tail -n 2 "$tmp/$1.out")"
        sleep 0.01
    done
    printf '%s\n' "$at"
}

difference() {
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f\n", b - a }'
}

# Run the command $3... as job $1 with the option $2 of `cistern run`, and kill rank 1 several times. Times go to $tmp/$1.request and .step.
measure() {
    local job=$1 option=$2 i pid began runner
    shift 2
    : >"$tmp/$job.out"
    ./cistern run -n 2 "$option" -- "$@" > >(perl -MTime::HiRes=time -pe 'BEGIN { $| = 1 } printf "%.4f ", time' >"$tmp/$job.out") 2>"$tmp/$job.log" &
    runner=$!
    await_step "$job" 0 >/dev/null
    for ((i = 1; i <= deaths; i++)); do
        [ "$option" = --restart ] || await_log "is a standby of job '$job'" 300 "$i" >/dev/null
        await_step "$job" "$(now)" >/dev/null
        sleep "0.$(printf '%03d' $((RANDOM % 300)))" # the moment
        pid=$(./cistern job "$job" --json | jq '.ranks[] | select(.rank == 1) | .pid')
        began=$(now)
        kill -KILL "$pid"
        difference "$began" "$(await_log "job '$job': rank 1 of 2 is pid" 300 $((i + 1)))" >>"$tmp/$job.request"
        difference "$began" "$(await_step "$job" "$(await_log "job '$job': rank 1 of 2 is pid" 1 $((i + 1)))")" >>"$tmp/$job.step"
    done
    kill -TERM "$runner"
    wait "$runner" || true
    ./cistern rm --force "$job" >/dev/null
}

# Compare both kinds of the command $2..., and emit rows that begin with $1. The job's name is the last argument.
compare() {
    local name=$1 what
    shift
    measure "$name-standby" --standby=1 "$@" "$name-standby"
    measure "$name-restart" --restart "$@" "$name-restart"
    for what in request step; do
        emit "${name}_$what" "$(median <"$tmp/$name-standby.$what")" s "$(median <"$tmp/$name-restart.$what")" "$deaths"
    done
}

step_words='"step"'
compare standby ./cistern-gpt --layers 4 --heads 4 --width 256 --context 64 --batch 4 --threads 1 --steps 1000000 --log-json /dev/stdout --quiet \
    --data "$tmp/text" --job

if [ -n "${CISTERN_PYTHON-}" ] && [ -e .libs/libcistern.so.0 ]; then
    export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
    step_words=': loss'
    head -c 100000 "$tmp/text" >"$tmp/part"
    compare standby_torch "$CISTERN_PYTHON" "${srcdir:-.}/client/example_gpt2.py" "$tmp/part" --steps 1000000 --job
fi

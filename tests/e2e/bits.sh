#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that cistern-gpt has losses and final weights with equal bits in all cases: with its states in the process, and in the
# daemon with pools from all weights down to the smallest accepted one, with one engine thread and with two, with a killed engine,
# and with a killed worker; and in all of these cases with gradients in weight rows.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse

world=2
model=(--layers 12 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --world "$world")
steps=12
write_text 400

# Start rank $2 of job $1 with the other arguments. Sets pid.
worker() {
    local job=$1 rank=$2
    shift 2
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --steps "$steps" --job "$job" --rank "$rank" "$@" >>"$tmp/$job.$rank.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

# Start both ranks of job $1. Rank 0 writes its losses and weights. Sets pids.
workers() {
    local job=$1
    shift
    worker "$job" 0 --loss-file "$tmp/$job.losses" --log-json "$tmp/$job.json" --dump-weights "$tmp/$job.weights" "$@"
    pids=("$pid")
    worker "$job" 1 "$@"
    pids+=("$pid")
}

# Wait for the processes pids of job $1, and compare its losses and weights with those of $2.
same() {
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$1: a worker failed"
    done
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    ./cistern rm "$1" >/dev/null || fail "cistern rm $1"
    printf '%s: same bits as %s\n' "$1" "$2"
}

# Check that both ranks of job $1 are refused a pool of $2 bytes, and that rank 0 is told the missing bytes. Sets short.
refused() {
    workers "$1" --pool "$2"
    for pid in "${pids[@]}"; do
        wait "$pid" && fail "$1: accepted"
    done
    short=$(sed -n 's/.*[ (]\([0-9]*\) bytes)\{0,1\} short; .*/\1/p' "$tmp/$1.0.log")
    [ -n "$short" ] || fail "$1: cistern-gpt does not tell the bytes that are short"
}

# The smallest pool that is accepted: with one byte less, one byte is missing. Sets least.
smallest() {
    refused "$1-1" 1
    least=$((1 + short))
    refused "$1-2" $((least - 1))
    [ "$short" = 1 ] || fail "$((least - 1)) bytes are $short short"
    [ "$((least * 4))" -lt "$(stat -c %s "$tmp/local.weights")" ] || fail "the smallest pool is none"
}

# True once job $1 has done $2 steps. Their objects are written at once, unlike their losses.
has_done() {
    [ -e "$tmp/$1.json" ] && [ "$(wc -l <"$tmp/$1.json")" -ge "$2" ]
}

./cistern-gpt "${model[@]}" --data "$tmp/text" --steps $steps --store local --loss-file "$tmp/local.losses" \
    --dump-weights "$tmp/local.weights" >"$tmp/local.log" 2>&1 || fail "--store local failed"
[ "$(sort -u "$tmp/local.losses" | wc -l)" = $steps ] || fail "losses that do not change prove nothing"

for threads in 1 2; do
    start_daemon "engine$threads" --engine-threads "$threads"
    [ $threads = 1 ] && pools=(25) || pools=(100 50 25)
    for pool in "${pools[@]}"; do
        workers "threads$threads-pool$pool" --pool "$pool%"
        same "threads$threads-pool$pool" local
    done
    smallest "threads$threads-small"
    for over in "" --grad-over-weight; do
        workers "threads$threads-smallest$over" --pool $least $over
        same "threads$threads-smallest$over" local
    done
    stop_daemon "engine$threads"
done

# A share of the weights that is less than a byte is a pool that is too small. It does not mean a pool of any size.
start_daemon small
! ./cistern-gpt "${model[@]}" --world 1 --data "$tmp/text" --steps 1 --job none --pool 0.0001% >"$tmp/none.log" 2>&1 ||
    fail "a pool of no bytes is taken"
grep -q 'pool of 1 bytes' "$tmp/none.log" || fail "a pool of no bytes is refused for another reason"
stop_daemon small

# The other runs take longer, so that they can be disturbed.
steps=40
./cistern-gpt "${model[@]}" --data "$tmp/text" --steps $steps --store local --loss-file "$tmp/long.losses" \
    --dump-weights "$tmp/long.weights" >"$tmp/long.log" 2>&1 || fail "--store local failed"
start_daemon disturbed

# The number $2 in the JSON of job $1.
number_of() {
    ./cistern job "$1" --json | tr ',' '\n' | sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" | head -n 1
}

# Start a job with the option $2, if any, and return in the middle of it. A job that is over before that is followed by another one. Sets
# job to $1 and a number.
in_the_middle_of() {
    local i
    for ((i = 0; i < 20; i++)); do
        job=$1$i
        workers "$job" --pool 50% ${2:+"$2"}
        poll has_done "$job" 10
        has_done "$job" $((steps - 10)) || return 0
        same "$job" long
    done
    fail "$1: all jobs are over before they are disturbed"
}

n_killed=0
for over in "" --grad-over-weight; do
    # A killed engine is replaced without any effect on the results.
    in_the_middle_of "engine-killed$over" $over
    read -r -a engines < <(children "$daemon_pid") || true
    kill -KILL "${engines[0]}"
    n_killed=$((n_killed + 1))
    params=$(number_of "$job" n_params)
    [ -n "$params" ] || fail "$job: no number of parameters"
    per_param=$(($(number_of "$job" arena_bytes) * 100 / params))
    same "$job" long
    [ "$(./cistern stat --json | sed -n 's/.*"restarts": *\([0-9]*\).*/\1/p' | head -n 1)" = $n_killed ] || fail "no engine was restarted"
    least=$([ -z "$over" ] && printf 1600 || printf 1400)
    ((per_param >= least && per_param <= least + 100)) || fail "$per_param/100 bytes per parameter $over"

    # A killed worker that is started again takes its place without any effect on the results.
    in_the_middle_of "worker-killed$over" $over
    kill -KILL "${pids[1]}" || fail "the worker was gone already"
    wait "${pids[1]}" 2>/dev/null || true
    worker "$job" 1 --pool 50% $over
    pids[1]=$pid
    same "$job" long
done
stop_daemon disturbed

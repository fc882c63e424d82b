#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests mixtures of experts, adapters on a frozen base, and micro-batches with the daemon: the bits are those of a run with the
# states in the process, even if processes are killed. Also tests two jobs with one base job, and the memory of a frozen base.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse

model=(--layers 4 --heads 2 --width 64 --context 32 --warmup 2 --lr 0.003 --matmul fp32 --threads 1)
steps=12
write_text 400

# Start rank $2 of $3 of job $1 with the other arguments. Sets pid.
worker() {
    local job=$1 rank=$2 world=$3
    shift 3
    [ "$rank" != 0 ] || set -- --loss-file "$tmp/$job.losses" --log-json "$tmp/$job.json" --dump-weights "$tmp/$job.weights" "$@"
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --steps "$steps" --job "$job" --rank "$rank" --world "$world" "$@" \
        >>"$tmp/$job.$rank.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

# Start all $2 ranks of job $1. Sets pids.
workers() {
    local job=$1 world=$2 rank
    shift 2
    pids=()
    for ((rank = 0; rank < world; rank++)); do
        worker "$job" "$rank" "$world" "$@"
        pids+=("$pid")
    done
}

finished() {
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$1: a worker failed"
    done
}

# Make the results of job $1 with $2 ranks without a daemon.
alone() {
    local job=$1 world=$2
    shift 2
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --steps "$steps" --store local --world "$world" --loss-file "$tmp/$job.want.losses" \
        --dump-weights "$tmp/$job.want.weights" "$@" >"$tmp/$job.want.log" 2>&1 || fail "$job: --store local failed"
}

same() {
    [ "${2:-}" = weights ] || cmp "$tmp/$1.want.losses" "$tmp/$1.losses" || fail "$1: other losses than --store local"
    cmp "$tmp/$1.want.weights" "$tmp/$1.weights" || fail "$1: other weights than --store local"
    printf '%s: same bits as --store local\n' "$1"
}

# Check that job $1 with $2 ranks has the results that it has without a daemon.
matches() {
    alone "$@"
    workers "$@"
    finished "$1"
    same "$1"
}

# The number $2 in the output of `cistern job $1`.
number() {
    ./cistern job "$1" --json | sed -n "s/.*\"$2\": *\\([0-9.]*\\).*/\\1/p" | head -n 1
}

# True once job $1 has done $2 steps. Their objects are written at once, unlike their losses.
has_done() {
    [ -e "$tmp/$1.json" ] && [ "$(wc -l <"$tmp/$1.json")" -ge "$2" ]
}

start_daemon d
matches experts1 1 --experts 4 --batch 4
matches experts2 2 --experts 8 --batch 2
matches experts4 4 --experts 8 --batch 1 --pool 60%
matches starved 2 --experts 32 --top-k 1 --batch 1 --context 8 # most experts are idle in most steps
matches micro 1 --batch 4 --micro-batches 4
matches micro2 2 --batch 2 --micro-batches 2 --pool 80%
matches micro-experts 2 --experts 4 --batch 2 --micro-batches 2
matches lora 1 --batch 2 --lora 4
matches lora2 2 --batch 2 --lora 4 --lora-alpha 8 --micro-batches 2

# A killed rank of a mixture that is started again has no effect on the results, whether or not it made the shared memory.
steps=200
killed=(--experts 8 --batch 2 --layers 1 --width 32)
alone killed0 2 "${killed[@]}"
cp "$tmp/killed0.want.losses" "$tmp/killed1.want.losses"
cp "$tmp/killed0.want.weights" "$tmp/killed1.want.weights"
for victim in 0 1; do
    workers "killed$victim" 2 "${killed[@]}"
    poll has_done "killed$victim" 20
    ! has_done "killed$victim" $((steps - 20)) || fail "all is done: more steps are wanted"
    kill -KILL "${pids[victim]}" || fail "the worker was gone already"
    wait "${pids[victim]}" 2>/dev/null || true
    worker "killed$victim" "$victim" 2 "${killed[@]}"
    pids[victim]=$pid
    finished "killed$victim"
    if [ "$victim" = 0 ]; then
        same killed0 weights # losses that were not yet in the file are lost
    else
        same killed1
    fi
done

# A frozen base has only weights, 2 bytes per parameter. A second job that uses it has no copy.
steps=6
alone tuned 1 --batch 2 --lora 4 --lr 0.01
workers tuned 1 --batch 2 --lora 4 --lr 0.01 --base lora
finished tuned
same tuned
params=$(number lora n_params)
base=$(number lora arena_bytes)
tuned=$(number tuned arena_bytes)
[ "$base" -lt $((params * 4)) ] || fail "a job with a frozen base has $base bytes for $params parameters"
[ "$tuned" -lt $((base - params)) ] || fail "a job on another's base has $tuned bytes, that one $base"
! ./cistern rm lora >"$tmp/rm.log" 2>&1 || fail "a base in use was removed"
./cistern rm tuned >/dev/null
./cistern rm lora >/dev/null || fail "a base out of use was not removed"

# Impossible options are refused.
! ./cistern-gpt "${model[@]}" --data "$tmp/text" --job lost --lora 4 --base nowhere >"$tmp/lost.log" 2>&1 || fail "a base that is not there"
grep -q nowhere "$tmp/lost.log" || fail "the words do not name the base"
stop_daemon d

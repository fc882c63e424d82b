#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel dispatch --device cuda without a GPU (tests/lib/fakecuda): the same losses, weights and bytes loaded with
# one to four workers on two GPUs, with other stages and with recomputation; and with workers and an engine that are killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
not_sparse
use_fakecuda
export CST_FAKECUDA_DEVICES=2

model=(--layers 4 --heads 2 --width 32 --context 16 --batch 4 --micro-batches 4 --warmup 2 --lr 0.003 --seed 7 --data "$tmp/text"
    --matmul plain --validate 5%)
write_text 400
start_daemon d --gpus all

# Start worker $2 of $3 of job $1 with the other arguments as options, on the GPU whose turn it is. Its process is pids[$2].
begin() {
    local name=$1 rank=$2 world=$3
    shift 3
    ./cistern-gpt --job "$name" --rank "$rank" --world "$world" "${model[@]}" --device "cuda:$((rank % 2))" --parallel dispatch \
        --loss-file "$tmp/$name.$rank.losses" --dump-weights "$tmp/$name.$rank.weights" "$@" >"$tmp/$name.$rank.out" \
        2>"$tmp/$name.$rank.log" &
    pids[rank]=$!
}

begin_all() {
    local name=$1 world=$2 rank
    shift 2
    pids=()
    for ((rank = 0; rank < world; rank++)); do
        begin "$name" "$rank" "$world" "$@"
    done
}

end_all() {
    local rank
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || fail "worker $rank of job $1 failed: $(cat "$tmp/$1.$rank.log")"
    done
}

# Job $2 has the results of job $1.
same() {
    cmp "$tmp/$1.0.weights" "$tmp/$2.0.weights" || fail "jobs $1 and $2 have different weights"
    cmp "$tmp/$1.0.losses" "$tmp/$2.0.losses" || fail "jobs $1 and $2 have different losses"
}

# Bytes of weights that the workers of job $1 have loaded.
loaded() {
    ./cistern job "$1" --json | jq '[.ranks[].bytes_up] | add'
}

# True if the job $1 has made $2 steps.
made() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

for world in 1 2 4; do
    begin_all "w$world" "$world" --steps 4
    end_all "w$world"
    same w1 "w$world"
    [ "$(loaded "w$world")" = "$(loaded w1)" ] || fail "$world workers load $(loaded "w$world") bytes, and one loads $(loaded w1)"
done
[ "$(sort -u "$tmp/w1.0.losses" | wc -l)" = 4 ] || fail "losses that do not change prove nothing"

# Two stages of two blocks each, of which a backward unit keeps the inputs alone or all activations; and pools for hardly more than
# what one operator needs.
for options in "--stages 2" "--stages 2 --recompute" "--pool 80%"; do
    # shellcheck disable=SC2086 # several words
    begin_all other 2 --steps 4 $options
    end_all other
    same w1 other
    ./cistern rm other
done

# The model is that of a worker that computes everything in turn. Only the order of some sums is another one.
./cistern-gpt --job plain "${model[@]}" --device cuda --steps 4 --loss-file "$tmp/plain.losses" >"$tmp/plain.out" 2>"$tmp/plain.log"
paste "$tmp/plain.losses" "$tmp/w1.0.losses" | while read -r one another; do
    awk -v a="$(printf '%.9f' "$one")" -v b="$(printf '%.9f' "$another")" 'BEGIN { exit !(a - b < 1e-2 && b - a < 1e-2) }' ||
        fail "the losses $one and $another are not near each other"
done

steps=60
begin_all calm 2 --steps $steps
end_all calm

# A worker is killed and comes again in the middle. Later the engine of a GPU is killed: the workers on it lose their pools.
begin_all killed 2 --steps $steps
poll made killed 3
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null || true
poll has 'rank 1 .* ended without leaving the job' "$tmp/d.log"
begin killed 1 2 --steps $steps
engine=
for pid in $(children "$daemon_pid"); do
    ! has -a engine-cuda "/proc/$pid/cmdline" || engine=$pid
done
[ -n "$engine" ] || fail "there is no engine of a GPU"
poll made killed 10
kill -KILL "$engine"
if made killed $steps; then fail "the engine was killed too late"; fi
end_all killed
same calm killed
stop_daemon d

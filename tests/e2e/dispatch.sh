#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel dispatch: the same losses, weights and bytes loaded with one to four workers; with workers that are
# killed or interrupted and come again in the middle, or do not come again; and with an engine that is killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 6 --heads 2 --width 64 --context 64 --batch 8 --micro-batches 4 --warmup 2 --matmul fp32 --threads 1 --seed 7
    --data "$tmp/text" --validate 5%)
write_text 2000
start_daemon d

# Start worker $2 of $3 of job $1 with the other arguments as options. Its process is pids[$2].
begin() {
    local name=$1 rank=$2 world=$3
    shift 3
    ./cistern-gpt --job "$name" --rank "$rank" --world "$world" "${model[@]}" --parallel dispatch --loss-file "$tmp/$name.$rank.losses" \
        --dump-weights "$tmp/$name.$rank.weights" "$@" >"$tmp/$name.$rank.out" 2>"$tmp/$name.$rank.log" &
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

# Wait for the workers, of which the one with the number $2, if given, was killed.
end_all() {
    local rank
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || [ "$rank" = "${2-}" ] || fail "worker $rank of job $1 failed"
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

# Several numbers of workers, and a stage for each block or for two.
for stages in 6 3; do
    for world in 1 2 3 4; do
        begin_all "w$world-$stages" "$world" --steps 5 --stages "$stages"
        end_all "w$world-$stages"
        same "w1-$stages" "w$world-$stages"
        [ "$(loaded "w$world-$stages")" = "$(loaded "w1-$stages")" ] ||
            fail "$world workers load $(loaded "w$world-$stages") bytes, and one loads $(loaded "w1-$stages")"
    done
done
cmp "$tmp/w1-6.0.weights" "$tmp/w1-3.0.weights" || fail "the results depend on the number of stages"

# The model is that of a worker that computes everything in turn. Only the order of some sums is another one.
./cistern-gpt --job plain "${model[@]}" --steps 5 --loss-file "$tmp/plain.losses" >"$tmp/plain.out" 2>"$tmp/plain.log"
paste "$tmp/plain.losses" "$tmp/w1-6.0.losses" | while read -r one other; do
    awk -v a="$(printf '%.9f' "$one")" -v b="$(printf '%.9f' "$other")" 'BEGIN { exit !(a - b < 1e-3 && b - a < 1e-3) }' ||
        fail "the losses $one and $other are not near each other"
done

# Adapters, whose base has no gradients; Muon; and pools that hold hardly more than what one operator needs.
for kind in "--lora 4" "--optimizer muon" "--pool 45%"; do
    for world in 1 3; do
        # shellcheck disable=SC2086 # several words
        begin_all "k$world" "$world" --steps 4 $kind
        end_all "k$world"
    done
    same k1 k3
    ./cistern rm k1
    ./cistern rm k3
done

steps=100

# True if the job $1 has made $2 steps.
made() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

begin_all calm 3 --steps $steps
end_all calm

# A worker is killed and comes again in the middle, another one is told to stop and comes again, and an engine is killed.
begin_all killed 3 --steps $steps
poll made killed 3
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null || true
poll has 'rank 1 .* ended without leaving the job' "$tmp/d.log"
begin killed 1 3 --steps $steps
poll made killed 20
kill -TERM "${pids[2]}"
wait "${pids[2]}" 2>/dev/null || true
begin killed 2 3 --steps $steps
poll made killed 40
# shellcheck disable=SC2046 # one pid
kill -KILL $(children "$daemon_pid" | awk '{ print $1 }')
if made killed $steps; then fail "the engine was killed too late"; fi
end_all killed
same calm killed

# A worker is killed and does not come again.
begin_all fewer 3 --steps $steps
poll made fewer 3
kill -KILL "${pids[2]}"
if made fewer $steps; then fail "the worker was killed too late"; fi
end_all fewer 2
same calm fewer

# What cannot be combined is refused.
for wrong in "--micro-batches 1" "--stages 7" "--experts 2" "--store local" "--overlap early --clip 0" "--activation-memory 1G"; do
    # shellcheck disable=SC2086 # several words
    if ./cistern-gpt "${model[@]}" --parallel dispatch $wrong >"$tmp/wrong.out" 2>"$tmp/wrong.log"; then fail "$wrong is not refused"; fi
    has -e "${wrong%% *}" "$tmp/wrong.log" || fail "$wrong: $(cat "$tmp/wrong.log")"
done
if ./cistern-gpt "${model[@]}" --stages 2 2>"$tmp/wrong.log"; then fail "--stages without --parallel dispatch is not refused"; fi
stop_daemon d

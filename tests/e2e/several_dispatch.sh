#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel dispatch in jobs with ranks on several nodes, each of which dispatches the units of its own rank blocks.
# Losses and states have the bits of a job with these rank blocks on one node, and of a pipeline on each node. Workers, an engine of the
# network and a daemon are killed at random moments, and losses and states are those of a job that nothing befell. CST_TEST_SEED: seed of
# the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

RANDOM=${CST_TEST_SEED:-$$}
printf 'seed %d\n' "${CST_TEST_SEED:-$$}"
model=(--layers 6 --heads 2 --width 64 --context 32 --batch 4 --micro-batches 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000)
write_text 400

# Start worker $2 of the $3 on node ${nodes[$1]}, whose first one has the number $4 in job $5 of $6 workers, with the options $7 and so on.
# Sets pids[$4 + $2].
begin() {
    local node=$1 rank=$2 world=$3 first=$4 job=$5 all=$6 out=()
    shift 6
    [ $((first + rank)) -gt 0 ] || out=(--loss-file "$tmp/$job.losses")
    LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$world RANK=$((first + rank)) WORLD_SIZE=$all \
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/${nodes[node]}/run/cistern.sock" --job "$job" "${out[@]}" "$@" \
        >>"$tmp/$job.$((first + rank)).log" 2>&1 &
    pids[first + rank]=$!
}

# Start the workers of job $1 with the options $2 and so on: ${worlds[i]} on ${nodes[i]}.
begin_all() {
    local job=$1 i rank first=0 all=0
    shift
    pids=()
    for ((i = 0; i < ${#nodes[@]}; i++)); do
        all=$((all + worlds[i]))
    done
    for ((i = 0; i < ${#nodes[@]}; i++)); do
        for ((rank = 0; rank < worlds[i]; rank++)); do
            begin "$i" "$rank" "${worlds[i]}" "$first" "$job" "$all" "$@"
        done
        first=$((first + worlds[i]))
    done
}

# Train job $1 with the options $2 and so on.
train() {
    begin_all "$@"
    end_job "$1"
}

same() {
    same_losses "$1" "$2"
    same_states "$1" "$2"
}

for node in a b c d; do
    start_node "$node" trusted --keep
done
acquaint a b c d

all_options=("" "--pool 65%" "--copies 2 --optimizer muon" "--stages 3 --masters split")
if sparse; then
    all_options=("--copies 2")
fi
for options in "${all_options[@]}"; do
    read -r -a given <<<"--parallel dispatch --steps 5 --block-ranks 1 $options"
    what="'$options'"
    nodes=(a) worlds=(4)
    train one "${given[@]}"
    nodes=(a b) worlds=(2 2)
    train two "${given[@]}"
    same one two
    nodes=(a b) worlds=(3 1)
    train unlike "${given[@]}"
    same one unlike
    if ! sparse; then
        nodes=(a b c d) worlds=(1 1 1 1)
        train four "${given[@]}"
        same one four
    fi
    rm -r "$tmp"/saved-*
    printf 'same losses and states on one, two and four nodes: %s\n' "${options:-no options}"
done

# The model is that of workers that do a batch each: these have the same texts, and only the order of some sums is another one.
what="no dispatch"
train plain --steps 5 --block-ranks 1
paste "$tmp/plain.losses" "$tmp/unlike.losses" | while read -r one another; do
    awk -v a="$(printf '%.9f' "$one")" -v b="$(printf '%.9f' "$another")" 'BEGIN { exit !(a - b < 1e-3 && b - a < 1e-3) }' ||
        fail "the losses $one and $another are not near each other"
done

# Without block_ranks the ranks of a node are one rank block, as are two ranks of one node here.
what="two ranks in a rank block"
nodes=(a) worlds=(4)
train blocks --parallel dispatch --steps 5 --block-ranks 2
nodes=(a b) worlds=(2 2)
train nodes --parallel dispatch --steps 5
same blocks nodes
# A pipeline on each node does the same work.
what="a pipeline on each node"
train pipelines --parallel pipeline --steps 5
same nodes pipelines
nodes=(a b) worlds=(1 2)
begin_all refused --parallel dispatch --steps 5
for pid in "${pids[@]}"; do
    ! wait "$pid" || fail "nodes with unlike numbers of ranks were accepted without block_ranks"
done
grep -q 'give block_ranks' "$tmp"/refused.*.log || fail "said: $(cat "$tmp"/refused.*.log)"

# -- deaths -------------------------------------------------------------------------------------------------------------------------

kill_worker() {
    kill -9 "${pids[$1]}" || fail "worker $1 has ended"
    wait "${pids[$1]}" || true
}

what=deaths
nodes=(a b c) worlds=(2 2 2)
killed=(--parallel dispatch --steps 170 --copies 2)
train calm "${killed[@]}"
begin_all killed "${killed[@]}"
# The other worker of node b does all units, in the same attempt, until it comes back.
poll has_made a killed $((10 + RANDOM % 10))
attempt=$(on a job killed --json | jq .attempt)
[ "$attempt" -gt 0 ] || fail "the attempt is $attempt"
kill_worker 3
poll has_made a killed $((30 + RANDOM % 10))
[ "$(on a job killed --json | jq .attempt)" = "$attempt" ] || fail "the death of a worker of several has interrupted the attempt"
begin 1 1 2 2 killed 6 "${killed[@]}"
# Node c has no worker for a while, and the step is done again.
poll has_made a killed $((50 + RANDOM % 10))
kill_worker 4
kill_worker 5
begin 2 1 2 4 killed 6 "${killed[@]}"
begin 2 0 2 4 killed 6 "${killed[@]}"
poll has_made a killed $((70 + RANDOM % 10))
kill_net_engine "${nodes[RANDOM % 3]}"
for steps in 90 120; do
    poll has_made a killed $((steps + RANDOM % 10))
    kill_daemons "${nodes[RANDOM % 3]}"
done
end_job killed
# The loss of a step that was committed when the daemon died is not known to its worker.
same_losses calm killed 2
same_states calm killed
printf 'after deaths of workers, an engine and daemons: the same losses and states\n'

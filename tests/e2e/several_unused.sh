#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests tensors without a gradient in jobs with ranks on several nodes (tests/lib/mixed_rank.c): some are used by one rank of one node
# alone, some by none, and some gradients are discarded. States, and the steps that each tensor has missed, have the bits of a job on
# one node, also from a checkpoint, and after a worker was killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
need jq

steps=9

# Begin job $1 with 4 ranks, as many on each of the nodes "${nodes[@]}", $2 steps and the options $3... in the background.
begin_mixed() {
    local job=$1 n=$2 node rank here=$((4 / ${#nodes[@]})) first=0
    shift 2
    pids=()
    for node in "${nodes[@]}"; do
        for ((rank = 0; rank < here; rank++)); do
            begin_rank "$job" "$n" $((first + rank)) "$@"
        done
        first=$((first + here))
    done
}

# Begin rank $3 of job $1, which makes $2 steps with the options $4... in the background.
begin_rank() {
    local job=$1 n=$2 number=$3 here=$((4 / ${#nodes[@]}))
    shift 3
    CISTERN_SOCKET=$tmp/${nodes[number / here]}/run/cistern.sock ./tests/lib/mixed_rank "$job" $((number % here)) "$here" "$n" \
        first=$((number / here * here)) all=4 block=1 unused=skip leave=1 "$@" >"$tmp/$job.$number.log" 2>&1 &
    pids[number]=$!
}

for node in a b c d; do
    start_node "$node"
done
acquaint a b c d

for options in "" "copies=2 moments=mx8" "optimizer=lion kinds=bf16 masters=split"; do
    read -r -a given <<<"$options"
    what="'$options'"
    nodes=(a)
    begin_mixed one $steps "${given[@]}"
    end_job one
    jq -e 'length > 0 and (map(select(. > 0)) | length >= 3)' <<<"$(missed_in one)" >/dev/null || fail "'$options': missed $(missed_in one)"
    nodes=(a b)
    begin_mixed two $steps "${given[@]}"
    end_job two
    same_states one two
    nodes=(a b c d)
    begin_mixed four $steps "${given[@]}"
    end_job four
    same_states one four
    printf 'same states and missed steps %s on one, two and four nodes: %s\n' "$(missed_in one)" "${options:-no options}"

    # A worker dies in the middle, and the step is made again.
    nodes=(a b)
    : >"$tmp/gate.5"
    begin_mixed killed $steps "${given[@]}" gate="$tmp/gate"
    poll has_made a killed 5
    poll has_made b killed 5
    kill -KILL "${pids[3]}"
    ! wait "${pids[3]}" || fail "a killed worker ended well"
    begin_rank killed $steps 3 "${given[@]}"
    rm "$tmp/gate.5"
    end_job killed
    same_states one killed

    # From a checkpoint of two nodes, on one and on two.
    begin_mixed half 5 "${given[@]}"
    end_job half
    for n in 1 2; do
        nodes=(a b)
        nodes=("${nodes[@]:0:n}")
        begin_mixed "on$n" $steps "${given[@]}" resume="$tmp/saved-half"
        end_job "on$n"
        same_states one "on$n"
    done
    rm -r "$tmp"/saved-*
    printf 'and after a death, and from a checkpoint\n'
done

# A rank of one node has a gradient that those of the other one discard.
nodes=(a b)
begin_mixed lone $steps keep=2
for rank in 0 1 2 3; do
    ! wait "${pids[rank]}" || fail "a gradient was discarded that rank 2 has"
    grep -q "step 3: rank 1 discards its gradient of tensor 'norm', and a rank on another machine does not" "$tmp/lone.$rank.log" ||
        fail "rank $rank said: $(cat "$tmp/lone.$rank.log")"
done
on a rm lone >"$tmp/removed.log" || fail "rm lone"

# PyTorch skips by default what has no gradient. Each of the 4 ranks uses layers of its own.
if [ -z "${CISTERN_PYTHON-}" ] || ! [ -e .libs/libcistern.so.0 ] || grep -q '^CST_SAN_CFLAGS = .' Makefile; then
    printf 'without PyTorch: CISTERN_PYTHON names no interpreter that has it, or it cannot be tested in this build\n'
    exit 0
fi
export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

# Begin job $1 of PyTorch with 4 ranks, as many on each of the nodes "${nodes[@]}", in the background.
begin_torch() {
    local number here=$((4 / ${#nodes[@]}))
    pids=()
    for ((number = 0; number < 4; number++)); do
        CISTERN_SOCKET=$tmp/${nodes[number / here]}/run/cistern.sock RANK=$number WORLD_SIZE=4 LOCAL_RANK=$((number % here)) \
            LOCAL_WORLD_SIZE=$here "$CISTERN_PYTHON" "$srcdir/tests/python/torch/nodes_rank.py" "$1" 6 "$tmp/job.json" >"$tmp/$1.$number.log" 2>&1 &
        pids[number]=$!
    done
}

what=PyTorch
printf '{"parallel": {"block_ranks": 1}}\n' >"$tmp/job.json"
for n in 1 2 4; do
    nodes=(a b c d)
    nodes=("${nodes[@]:0:n}")
    begin_torch "torch$n"
    end_job "torch$n"
    same_states torch1 "torch$n"
done
jq -e 'map(select(. > 0)) | length >= 4' <<<"$(missed_in torch1)" >/dev/null || fail "PyTorch: missed $(missed_in torch1)"
printf 'same states and missed steps %s on one, two and four nodes: PyTorch\n' "$(missed_in torch1)"

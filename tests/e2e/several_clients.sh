#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests a job whose ranks are programs in C and in PyTorch that declare the same model (tests/lib/mixed_rank.c with model=linear,
# tests/python/torch/linear_rank.py): on two nodes it has the states of the same ranks on one node, bit for bit. The node of a program in C
# begins with the weights that it writes, and that of PyTorch with those of the module.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
torch_or_skip
need jq
export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
steps=4

# Begin rank $3 of the $4 on node $2 in the background, which is the rank $5 of job $1, and a program in ${programs[$5]}.
begin_rank() {
    local job=$1 node=$2 rank=$3 here=$4 number=$5
    # PyTorch sums the gradients of ranks, has the mean of them, and has one group of parameters.
    local c=(scale="$scale" groups=1)
    [ "$here" = ${#programs[@]} ] || c+=(first=$((number - rank)) all=${#programs[@]})
    if [ "${programs[number]}" = torch ]; then
        CISTERN_SOCKET=$tmp/$node/run/cistern.sock RANK=$number WORLD_SIZE=${#programs[@]} LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$here \
            "$CISTERN_PYTHON" "$srcdir/tests/python/torch/linear_rank.py" "$job" $steps "$tmp/job.json" >"$tmp/$job.$number.log" 2>&1 &
    else
        CISTERN_SOCKET=$tmp/$node/run/cistern.sock ./tests/lib/mixed_rank "$job" "$rank" "$here" $steps \
            model=linear unused=skip "${c[@]}" "${given[@]}" >"$tmp/$job.$number.log" 2>&1 &
    fi
    pids[number]=$!
}

# Train job $1 with the next $3 ranks on node $2, the next $5 on node $4, and so on, and save it from each node.
train() {
    local job=$1 number=0 rank node nodes=()
    shift
    pids=()
    while [ $# -gt 0 ]; do
        nodes+=("$1")
        for ((rank = 0; rank < $2; rank++)); do
            begin_rank "$job" "$1" "$rank" "$2" $((number + rank))
        done
        number=$((number + $2))
        shift 2
    done
    await_ranks "$job"
    for node in "${nodes[@]}"; do
        save_on "$node" "$job" "$job.$node"
    done
    remove_job "$job"
}

start_node a
start_node b
acquaint a b

# The programs of the ranks, ranks on node a of two, options in C, and those of the file for PyTorch.
while IFS='|' read -r words on_a in_c sections; do
    read -ra programs <<<"$words"
    read -ra given <<<"$in_c block=1"
    what="$words: ${given[*]}"
    scale=$(awk -v n=${#programs[@]} 'BEGIN { printf "%.17g", 1 / n }')
    jq -n "{memory: {chunk: 12288}, parallel: {block_ranks: 1}} * $sections" >"$tmp/job.json"
    train one a ${#programs[@]}
    train two a "$on_a" b $((${#programs[@]} - on_a))
    same_states one.a two.a
    same_states one.a two.b
    rm -r "$tmp"/saved-*
    printf 'same states on one and two nodes: %s\n' "$what"
done <<'END'
torch c|1||{}
c c torch|2|copies=2 moments=mx8 optimizer=adam|{parallel: {copies: 2}, optimizer: {moments: "mx8", optimizer: "adam"}}
c torch c|1|masters=split moments=bf16|{optimizer: {masters: "split", moments: "bf16"}}
END

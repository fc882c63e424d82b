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
    workers=()
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
    workers[number]=$!
}

# Await the ranks of job $1, save it in $tmp/saved-$1, and remove it.
end_mixed() {
    local rank node
    for rank in "${!workers[@]}"; do
        wait "${workers[rank]}" || fail "$1: rank $rank: $(cat "$tmp/$1.$rank.log")"
    done
    on "${nodes[-1]}" save "$1" "$tmp/saved-$1" >"$tmp/$1.save.log" 2>&1 || fail "$1: save: $(cat "$tmp/$1.save.log")"
    on "${nodes[0]}" rm "$1" >"$tmp/removed.log" || fail "rm $1"
    for node in "${nodes[@]}"; do
        poll has_no_job "$node"
    done
}

# How many steps each tensor of the saved job $1 has missed.
missed() {
    jq -c .job.missed "$tmp/saved-$1"/*/cistern.json
}

# Job $1 has the states and the missed steps of job $2.
same() {
    local file n=0
    [ "$(missed "$1")" = "$(missed "$2")" ] || fail "$1, '$options': missed $(missed "$1"), and $2 $(missed "$2")"
    for file in "$tmp/saved-$2"/*/*.safetensors; do
        cmp "$file" "$tmp/saved-$1/${file#"$tmp/saved-$2/"}" || fail "$1, '$options': other states in ${file##*/}"
        n=$((n + 1))
    done
    [ $n -gt 0 ] || fail "job $2 has saved nothing"
}

at_step() {
    [ "$(on "$1" jobs --json | jq '.[0].step // 0')" = "$2" ]
}

for node in a b c d; do
    start_node "$node"
done
acquaint a b c d

for options in "" "copies=2 moments=mx8" "optimizer=lion kinds=bf16 masters=split"; do
    read -r -a given <<<"$options"
    nodes=(a)
    begin_mixed one $steps "${given[@]}"
    end_mixed one
    jq -e 'length > 0 and (map(select(. > 0)) | length >= 3)' <<<"$(missed one)" >/dev/null || fail "'$options': missed $(missed one)"
    nodes=(a b)
    begin_mixed two $steps "${given[@]}"
    end_mixed two
    same two one
    nodes=(a b c d)
    begin_mixed four $steps "${given[@]}"
    end_mixed four
    same four one
    printf 'same states and missed steps %s on one, two and four nodes: %s\n' "$(missed one)" "${options:-no options}"

    # A worker dies in the middle, and the step is made again.
    nodes=(a b)
    : >"$tmp/gate.5"
    begin_mixed killed $steps "${given[@]}" gate="$tmp/gate"
    poll at_step a 5
    poll at_step b 5
    kill -KILL "${workers[3]}"
    ! wait "${workers[3]}" || fail "a killed worker ended well"
    begin_rank killed $steps 3 "${given[@]}"
    rm "$tmp/gate.5"
    end_mixed killed
    same killed one

    # From a checkpoint of two nodes, on one and on two.
    begin_mixed half 5 "${given[@]}"
    end_mixed half
    for n in 1 2; do
        nodes=(a b)
        nodes=("${nodes[@]:0:n}")
        begin_mixed "on$n" $steps "${given[@]}" resume="$tmp/saved-half"
        end_mixed "on$n"
        same "on$n" one
    done
    rm -r "$tmp"/saved-*
    printf 'and after a death, and from a checkpoint\n'
done

# A rank of one node has a gradient that those of the other one discard.
nodes=(a b)
begin_mixed lone $steps keep=2
for rank in 0 1 2 3; do
    ! wait "${workers[rank]}" || fail "a gradient was discarded that rank 2 has"
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
    workers=()
    for ((number = 0; number < 4; number++)); do
        CISTERN_SOCKET=$tmp/${nodes[number / here]}/run/cistern.sock RANK=$number WORLD_SIZE=4 LOCAL_RANK=$((number % here)) \
            LOCAL_WORLD_SIZE=$here "$CISTERN_PYTHON" "$srcdir/tests/python/torch/nodes_rank.py" "$1" 6 "$tmp/job.json" >"$tmp/$1.$number.log" 2>&1 &
        workers[number]=$!
    done
}

options=PyTorch
printf '{"parallel": {"block_ranks": 1}}\n' >"$tmp/job.json"
for n in 1 2 4; do
    nodes=(a b c d)
    nodes=("${nodes[@]:0:n}")
    begin_torch "torch$n"
    end_mixed "torch$n"
    same "torch$n" torch1
done
jq -e 'map(select(. > 0)) | length >= 4' <<<"$(missed torch1)" >/dev/null || fail "PyTorch: missed $(missed torch1)"
printf 'same states and missed steps %s on one, two and four nodes: PyTorch\n' "$(missed torch1)"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests jobs with ranks on several nodes: daemons on ports of this machine, each with its ranks. Losses and weights have the bits of
# a job with all ranks on one node and the same rank blocks, and so have the states that any of the nodes saves; parts that differ
# are refused by name.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 16 --heads 2 --width 64 --context 32 --batch 2 --steps 5 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000)
write_text 400

# Train job $1 with 4 ranks, as many on each of the nodes "${nodes[@]}", and with the options "$@" from the second on.
train() {
    local job=$1 node rank first=0 here=$((4 / ${#nodes[@]})) pids=()
    shift
    for node in "${nodes[@]}"; do
        for ((rank = 0; rank < here; rank++)); do
            local out=()
            [ $((first + rank)) -gt 0 ] || out=(--loss-file "$tmp/$job.losses" --sample 64)
            LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$here RANK=$((first + rank)) WORLD_SIZE=4 \
                ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/$node/run/cistern.sock" --job "$job" --block-ranks 1 "${out[@]}" \
                "$@" >"$tmp/$job.$node.$rank.log" 2>&1 &
            pids+=($!)
        done
        first=$((first + here))
    done
    await_ranks "$job"
    if [ -n "${keeps-}" ]; then
        save_on "${nodes[-1]}" "$job"
    else
        end_job "$job"
    fi
}

# Readers of a job on the nodes a and b see the weights that a reader of the job on one node sees.
same_read() {
    local keeps=yes alone
    nodes=(a)
    train alone
    alone=$(on a reader alone)
    remove_job alone
    nodes=(a b)
    train kept
    [ "$(on a reader kept)" = "$alone" ] || fail "a reader of a job on two nodes sees other weights"
    [ "$(on b reader kept)" = "$alone" ] || fail "a reader on the second node sees other weights"
    remove_job kept
    rm -r "$tmp/saved-kept" "$tmp/saved-alone"
}

start_node a
start_node b
start_node c
start_node d
acquaint a b c d

for options in "" "--pool 40%" "--moments mx8" "--optimizer lion --moments bf16" "--optimizer muon" "--copies 2" "--masters split" \
    "--micro-batches 2"; do
    read -r -a given <<<"$options"
    what="'$options'"
    nodes=(a)
    train one "${given[@]}"
    nodes=(a b)
    train two "${given[@]}"
    same_losses one two
    same_states one two
    if ! sparse; then
        nodes=(a b c d)
        train four "${given[@]}"
        same_losses one four
        same_states one four
    fi
    # A checkpoint of one number of nodes goes on with another one.
    if [ -z "$options" ]; then
        same_read
        for n in 1 2; do
            nodes=(a b)
            nodes=("${nodes[@]:0:n}")
            train "on$n" --steps 8 --resume "$tmp/saved-two"
        done
        same_losses on1 on2
    fi
    rm -r "$tmp"/saved-*
    printf 'same losses and states on one, two and four nodes: %s\n' "${options:-no options}"
done

what=
# Parts that differ.
rank_of() {
    LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 RANK=$2 WORLD_SIZE=2 ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/$1/run/cistern.sock" \
        --job other "${@:3}" >"$tmp/other.$1.log" 2>&1
}
rank_of a 0 --optimizer lion &
pid=$!
! rank_of b 1 || fail "another optimizer on another node was accepted"
! wait "$pid" || fail "another optimizer on another node was accepted"
grep -q "node '[ab]': .*optimizer" "$tmp/other.a.log" "$tmp/other.b.log" || fail "said: $(cat "$tmp/other.a.log" "$tmp/other.b.log")"

rank_of a 0 --copies 2 &
pid=$!
! rank_of b 1 || fail "other copies on another node were accepted"
! wait "$pid" || fail "other copies on another node were accepted"
grep -q "node '[ab]': .*opened with copies [12], not [12]" "$tmp/other.a.log" "$tmp/other.b.log" ||
    fail "said: $(cat "$tmp/other.a.log" "$tmp/other.b.log")"

# The engines of e and f send to each other by TLS, and g's does not.
start_node e encrypted
start_node f encrypted
start_node g
acquaint e f g
nodes=(e)
train one
nodes=(e f)
train encrypted
same_losses one encrypted
same_states one encrypted
rank_of e 0 &
pid=$!
! rank_of g 1 || fail "a node with another network was accepted"
! wait "$pid" || fail "a node with another network was accepted"
grep -q "'network' in \[node\]" "$tmp/other.e.log" "$tmp/other.g.log" || fail "said: $(cat "$tmp/other.e.log" "$tmp/other.g.log")"

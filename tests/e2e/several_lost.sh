#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that nodes of a job are lost with all that they have in memory: all processes of a node are killed, and its daemon and worker are
# started anew, or those of another node. With two copies of the states, the part that takes the place of the lost one gets its states
# from the others, and losses and states are those of a job that nothing befell. With one copy, the job does not go on, and says why.
# CST_TEST_LOSSES: how many nodes are lost (2); CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq

n_losses=${CST_TEST_LOSSES:-2}
RANDOM=${CST_TEST_SEED:-$$}
printf 'seed %d\n' "${CST_TEST_SEED:-$$}"
model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --steps $((40 + 60 * n_losses)) --warmup 2 --lr 0.003 --matmul fp32 --threads 1
    --chunk 40000)
write_text 400
nodes=(a b c) # The node of each rank.

# True when node $2 has a part of job back that is a member, by node $1.
has_joined() {
    grep -q "job 'back': epoch .* added: $2;" "$tmp/$1.log"
}

# Kill all processes of node $1, of which rank $2 is a worker.
lose_node() {
    local node=$1 daemon=${daemon_of[$1]}
    # shellcheck disable=SC2046 # pids
    kill -9 "${manager_of[$node]}" "$daemon" "${pids[$2]}" $(children "$daemon") || true
    wait "${pids[$2]}" || true
    wait "${manager_of[$node]}" || true
    poll gone "$daemon" # It is no child of this script.
}

# Rank $1 moves to the node that has none. Sets spare.
take_spare() {
    local node
    for node in b c d; do
        [[ " ${nodes[*]} " = *" $node "* ]] || spare=$node
    done
    nodes[$1]=$spare
}

# shellcheck disable=SC2034 # of several.sh
node_wait=3
for node in a b c d; do
    start_node "$node" trusted --keep
done
acquaint a b c d

for job in calm lost; do
    begin_ranks "$job" --copies 2
    if [ "$job" = lost ]; then
        for ((i = 0; i < n_losses; i++)); do
            r=$((1 + RANDOM % 2)) # Rank 0 writes the losses.
            poll has_made a lost $((20 + 60 * i + RANDOM % 30))
            lose_node "${nodes[r]}" "$r"
            if [ $((i % 2)) = 0 ]; then # On the same node.
                again "${nodes[r]}"
            else # On another one.
                [ $((i % 4)) = 3 ] || drop a "${nodes[r]}"
                take_spare "$r"
            fi
            rank lost "$r" --copies 2
        done
    fi
    end_job "$job"
done
same_losses calm lost
same_states calm lost
printf 'after %d lost nodes: the same losses and states\n' "$n_losses"

# With one copy, states are lost with a node: the job does not go on, and says so; its last checkpoint does.
begin_ranks single
poll has_made a single 20
save_on "${nodes[1]}" single
at=$(ls "$tmp/saved-single")
at=${at#step-}
lose_node "${nodes[2]}" 2
again "${nodes[2]}"
rank single 2
! wait "${pids[2]}" || fail "a part without states has joined"
has "no node with a link has the states of tensor .*load a checkpoint" "$tmp/single.2.log" || fail "said: $(tail -n 1 "$tmp/single.2.log")"
for r in 0 1; do
    ! wait "${pids[r]}" || fail "rank $r has trained without the states of rank 2"
done
has "states" "$tmp/single.0.log" || fail "rank 0 said: $(tail -n 1 "$tmp/single.0.log")"
for node in "${nodes[@]}"; do
    on "$node" rm single >"$tmp/removed.log" 2>&1 || true
    poll has_no_job "$node"
done
begin_ranks single --resume "$tmp/saved-single"
await_ranks single
n=$(($(wc -l <"$tmp/calm.losses") - 10#$at))
tail -n $n "$tmp/single.losses" | cmp - <(tail -n $n "$tmp/calm.losses") || fail "other losses after a checkpoint"
remove_job single
printf 'one copy: a lost node ends the job, and its checkpoint of step %d goes on\n' "$((10#$at))"

# Of two nodes, the other one goes on alone when the lost one says that it has lost its part.
three=("${nodes[@]}")
nodes=("${nodes[@]:0:2}")
for job in calm-pair pair; do
    begin_ranks "$job" --copies 2
    if [ "$job" = pair ]; then
        poll has_made a pair $((20 + RANDOM % 30))
        lose_node "${nodes[1]}" 1
        again "${nodes[1]}"
        rank pair 1 --copies 2
    fi
    end_job "$job"
done
same_losses calm-pair pair
same_states calm-pair pair
printf 'of two nodes one was lost: the same losses\n'

# A node that was stopped comes back when another one has its place: its part ends, and the job goes on without it.
nodes=("${three[@]}")
begin_ranks back --copies 2
poll has_made a back 20
late=${nodes[2]} worker=${pids[2]}
signal_node "$late" STOP
take_spare 2
[ -d "/proc/${daemon_of[$spare]}" ] || again "$spare" # It was lost,
acquaint_one a "$spare"                               # and dropped.
rank back 2 --copies 2
poll has_joined a "$spare"
signal_node "$late" CONT
! wait "$worker" || fail "the worker of a node whose place was taken has ended well"
poll has_no_job "$late"
end_job back
same_losses calm back
same_states calm back
printf 'a node that came back too late has left: the same losses\n'

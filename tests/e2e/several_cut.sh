#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three nodes in network namespaces train a job, of which one is cut off or stopped. If it comes back in time, the job goes on as if
# nothing had befallen it. If it does not, the others go on, as far as they can without its ranks, and it finds that out when it is back:
# its part ends, and the one that its worker begins then gets the states of the others. Losses and states are those of a calm job. Needs
# root. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq
need ip

RANDOM=${CST_TEST_SEED:-$$}
printf 'seed %d\n' "${CST_TEST_SEED:-$$}"
model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --steps 200 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000
    --copies 2)
write_text 400
nodes=(a b c)

# A namespace for each node, and one with the bridge to which their cables go.
spaces=(cistern-$$-a cistern-$$-b cistern-$$-c cistern-$$-hub)
hub=${spaces[3]}
remove_spaces() {
    local space
    for space in "${spaces[@]}"; do
        ip netns del "$space" 2>/dev/null || true
    done
}
trap 'status=$?; remove_spaces; (exit $status); finish' EXIT
for space in "${spaces[@]}"; do
    ip netns add "$space" 2>/dev/null || skip "no network namespaces"
done
ip -n "$hub" link add bridge type bridge 2>/dev/null || skip "no bridges"
ip -n "$hub" link set bridge up
for i in 0 1 2; do
    ip -n "${spaces[i]}" link add cable type veth peer name "cable$i" netns "$hub" 2>/dev/null || skip "no veth"
    ip -n "$hub" link set "cable$i" master bridge
    ip -n "$hub" link set "cable$i" up
    ip -n "${spaces[i]}" address add "10.98.0.$((i + 1))/24" dev cable
    ip -n "${spaces[i]}" link set cable up
    ip -n "${spaces[i]}" link set lo up
done

# True when the other nodes have voted on going on without node c for the $1-th time.
is_removed() {
    [ "$(grep -c "job 'cut': epoch .* removed: c$" "$tmp/a.log")" = "$1" ]
}

# True when the worker of node c has ended.
is_told() {
    gone "${pids[2]}"
}

# Take node c away and bring it back: its cable, or its processes.
away() {
    if [ "$1" = cable ]; then
        ip -n "$hub" link set cable2 down
    else
        signal_node c STOP
    fi
}

back() {
    if [ "$1" = cable ]; then
        ip -n "$hub" link set cable2 up
    else
        signal_node c CONT
    fi
}

has_lost_link() {
    [ "$(grep -c "node 'c': the link is down" "$tmp/a.log")" -ge "$1" ]
}

# shellcheck disable=SC2034 # of several.sh
node_wait=4
for i in 0 1 2; do
    # shellcheck disable=SC2034 # of several.sh and lib.sh
    node_host=10.98.0.$((i + 1)) under=(ip netns exec "${spaces[i]}")
    start_node "${nodes[i]}" trusted --keep
done
acquaint "${nodes[@]}"

n_lost=0 n_removed=0
for job in calm cut; do
    begin_ranks "$job"
    if [ "$job" = cut ]; then
        at=20
        for how in cable processes; do
            poll has_made a cut $((at + RANDOM % 20))
            n_lost=$((n_lost + 1))
            away $how
            poll has_lost_link $n_lost
            back $how # In time.
            poll has_made a cut $((at + 40 + RANDOM % 20))
            n_lost=$((n_lost + 1)) n_removed=$((n_removed + 1))
            away $how
            poll is_removed $n_removed
            back $how # Too late.
            poll is_told
            ! wait "${pids[2]}" || fail "$how: the worker of a node that was left behind has ended well"
            has "start its workers on this node again" "$tmp/cut.2.log" || fail "$how: its worker said $(tail -n 1 "$tmp/cut.2.log")"
            rank cut 2
            at=$((at + 80))
        done
    fi
    end_job "$job"
done
same_losses calm cut
same_states calm cut
printf 'after cuts and stops, in time and too late: the same losses and states\n'

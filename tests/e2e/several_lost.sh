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
places=(a b c) # The node of each rank.
n_ranks=3

# Start rank $2 of job $1 on its node, with the options $3... Sets pids[$2].
rank() {
    local job=$1 r=$2 out=()
    shift 2
    [ "$r" -gt 0 ] || out=(--loss-file "$tmp/$job.losses")
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/${places[r]}/run/cistern.sock" --job "$job" --world 1 --all-ranks "$n_ranks" \
        --first-rank "$r" "${out[@]}" "$@" >>"$tmp/$job.$r.log" 2>&1 &
    pids[r]=$!
}

# The same in the foreground.
rank_alone() {
    rank "$@"
    wait "${pids[$2]}"
}

# True when job $1 has made $2 steps, by node $3.
has_made() {
    [ "$(on "$3" jobs --json | jq --arg job "$1" '[.[] | select(.name == $job).step] | first // 0')" -ge "$2" ]
}

# True when node $2 has a part of job back that is a member, by node $1.
has_joined() {
    grep -q "job 'back': epoch .* added: $2;" "$tmp/$1.log"
}

# Kill all processes of node $1, of which rank $2 is a worker.
lose_node() {
    local node=$1 daemon
    daemon=$(cat "$tmp/$node.pid")
    # shellcheck disable=SC2046 # pids
    kill -9 "${manager_of[$node]}" "$daemon" "${pids[$2]}" $(children "$daemon") || true
    wait "${pids[$2]}" || true
    wait "${manager_of[$node]}" || true
    poll gone "$daemon" # It is no child of this script.
}

up() {
    start_node "$1" trusted --keep
    echo "$node_pid" >"$tmp/$1.pid"
}

states_are() {
    local file
    for file in "$tmp"/saved-calm/*/*.safetensors; do
        cmp "$file" "$tmp/saved-$1/${file#"$tmp/saved-calm/"}" || fail "$1: other states"
    done
}

# shellcheck disable=SC2034 # of several.sh
node_wait=3
for node in a b c d; do
    up "$node"
done
acquaint a b c d

for job in calm lost; do
    pids=()
    for r in 0 1 2; do
        rank "$job" "$r" --copies 2
    done
    if [ "$job" = lost ]; then
        for ((i = 0; i < n_losses; i++)); do
            r=$((1 + RANDOM % 2)) # Rank 0 writes the losses.
            poll has_made lost $((20 + 60 * i + RANDOM % 30)) a
            lose_node "${places[r]}" "$r"
            if [ $((i % 2)) = 0 ]; then # On the same node.
                again "${places[r]}"
            else # On another one.
                [ $((i % 4)) = 3 ] || on a node drop "${places[r]}" >"$tmp/dropped.log" || fail "node drop ${places[r]}"
                for node in b c d; do
                    [[ " ${places[*]} " = *" $node "* ]] || spare=$node
                done
                places[r]=$spare
            fi
            rank lost "$r" --copies 2
        done
    fi
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$job: a rank failed"
    done
    on a save "$job" "$tmp/saved-$job" >"$tmp/$job.save.log" 2>&1 || fail "$job: save"
    on a rm "$job" >"$tmp/removed.log" || fail "rm $job"
    for node in "${places[@]}"; do
        poll has_no_job "$node"
    done
done
cmp "$tmp/calm.losses" "$tmp/lost.losses" || fail "other losses after a node was lost: $(diff "$tmp/calm.losses" "$tmp/lost.losses" | head -4)"
states_are lost
printf 'after %d lost nodes: the same losses and states\n' "$n_losses"

# With one copy, states are lost with a node: the job does not go on, and says so; its last checkpoint does.
pids=()
for r in 0 1 2; do
    rank single "$r"
done
poll has_made single 20 a
on "${places[1]}" save single "$tmp/saved-single" >"$tmp/single.save.log" 2>&1 || fail "single: save"
at=$(ls "$tmp/saved-single")
at=${at#step-}
lose_node "${places[2]}" 2
again "${places[2]}"
! rank_alone single 2 || fail "a part without states has joined"
has "no node with a link has the states of tensor .*load a checkpoint" "$tmp/single.2.log" || fail "said: $(tail -n 1 "$tmp/single.2.log")"
for r in 0 1; do
    ! wait "${pids[r]}" || fail "rank $r has trained without the states of rank 2"
done
has "states" "$tmp/single.0.log" || fail "rank 0 said: $(tail -n 1 "$tmp/single.0.log")"
for node in "${places[@]}"; do
    on "$node" rm single >"$tmp/removed.log" 2>&1 || true
    poll has_no_job "$node"
done
for r in 0 1 2; do
    rank single "$r" --resume "$tmp/saved-single"
done
for pid in "${pids[@]}"; do
    wait "$pid" || fail "single: a rank failed"
done
n=$(($(wc -l <"$tmp/calm.losses") - 10#$at))
tail -n $n "$tmp/single.losses" | cmp - <(tail -n $n "$tmp/calm.losses") || fail "other losses after a checkpoint"
on a rm single >"$tmp/removed.log" || fail "rm single"
for node in "${places[@]}"; do
    poll has_no_job "$node"
done
printf 'one copy: a lost node ends the job, and its checkpoint of step %d goes on\n' "$((10#$at))"

# Of two nodes, the other one goes on alone when the lost one says that it has lost its part.
n_ranks=2
for job in calm-pair pair; do
    pids=()
    for r in 0 1; do
        rank "$job" "$r" --copies 2
    done
    if [ "$job" = pair ]; then
        poll has_made pair $((20 + RANDOM % 30)) a
        lose_node "${places[1]}" 1
        again "${places[1]}"
        rank pair 1 --copies 2
    fi
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$job: a rank failed"
    done
    on a rm "$job" >"$tmp/removed.log" || fail "rm $job"
    poll has_no_job "${places[1]}"
done
cmp "$tmp/calm-pair.losses" "$tmp/pair.losses" || fail "two nodes: other losses after one was lost"
printf 'of two nodes one was lost: the same losses\n'

# A node that was stopped comes back when another one has its place: its part ends, and the job goes on without it.
n_ranks=3 pids=()
for r in 0 1 2; do
    rank back "$r" --copies 2
done
poll has_made back 20 a
late=${places[2]} worker=${pids[2]}
# shellcheck disable=SC2046 # pids
kill -STOP "$(cat "$tmp/$late.pid")" $(children "$(cat "$tmp/$late.pid")")
for node in b c d; do
    [[ " ${places[*]} " = *" $node "* ]] || spare=$node
done
places[2]=$spare
[ -d "/proc/$(cat "$tmp/$spare.pid")" ] || again "$spare" # It was lost,
acquaint_one a "$spare"                                      # and dropped.
rank back 2 --copies 2
poll has_joined a "$spare"
# shellcheck disable=SC2046 # pids
kill -CONT "$(cat "$tmp/$late.pid")" $(children "$(cat "$tmp/$late.pid")")
! wait "$worker" || fail "the worker of a node whose place was taken has ended well"
poll has_no_job "$late"
for pid in "${pids[@]}"; do
    wait "$pid" || fail "back: a rank failed"
done
cmp "$tmp/calm.losses" "$tmp/back.losses" || fail "other losses after a node came back too late"
printf 'a node that came back too late has left: the same losses\n'

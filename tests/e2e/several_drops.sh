#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a manager drops nodes of a job that trains, and adds them again. With two nodes the job waits, says for whom and what
# helps, and goes on. With three and two copies of the states, the others go on without the dropped node, whose part says what to do:
# its worker is started again, and losses and states are those of a job that nothing befell. A list of nodes that was edited, and a node
# with a new key, are like that.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq

model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000 --copies 2)
declare -A daemon
write_text 400

# Start rank $2 of job $1 on its node, with the options $3... Sets pids[$2].
rank() {
    local job=$1 r=$2
    shift 2
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/${nodes[r]}/run/cistern.sock" --job "$job" --world 1 \
        --all-ranks ${#nodes[@]} --first-rank "$r" "$@" >>"$tmp/$job.$r.log" 2>&1 &
    pids[r]=$!
}

# True when the job on node $1 has made $2 steps.
has_made() {
    [ "$(on "$1" jobs --json | jq '.[0].step // 0')" -ge "$2" ]
}

# True when node $1 explains that the job $2 waits, in the words $3.
explains() {
    on "$1" job "$2" >"$tmp/explained" 2>&1 && grep -Eq "$3" "$tmp/explained"
}

# Wait until it does.
must_explain() {
    (poll explains "$@") || fail "node $1 explains: $(cat "$tmp/explained")"
}

fingerprint_of() {
    sed -n 's/^fingerprint //p' "$tmp/$1/key"
}

# Drop node $2 from the list of node $1; add it again.
drop() {
    on "$1" node drop "$2" >"$tmp/dropped.log" || fail "node drop $2"
}
add() {
    on "$1" node add "$2" "$(address_of "$2")" "$(fingerprint_of "$2")" >"$tmp/added.log" || fail "node add $2"
}

# Let the daemon of node $1 read its files again, and wait until it has.
reload() {
    local n
    n=$(grep -c 'were read again' "$tmp/$1.log" || true)
    kill -HUP "${daemon[$1]}"
    has_reloaded() { [ "$(grep -c 'were read again' "$tmp/$1.log")" -gt "$2" ]; }
    poll has_reloaded "$1" "$n"
}

linked() {
    has_link() { ! has_no_link "$1" "$2"; }
    poll has_link "$1" "$2"
    poll has_link "$2" "$1"
}

# Wait for the ranks of job $1, save and remove it.
finish_job() {
    local pid node
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$1: a rank failed: $(tail -n 3 "$tmp/$1".*.log)"
    done
    on "${nodes[0]}" save "$1" "$tmp/saved-$1" >"$tmp/$1.save.log" 2>&1 || fail "$1: save"
    on "${nodes[0]}" rm "$1" >"$tmp/removed.log" || fail "rm $1"
    for node in "${nodes[@]}"; do
        poll has_no_job "$node"
    done
}

# The states that job $2 has saved are those of job $1.
same_states() {
    local file n=0
    for file in "$tmp/saved-$1"/*/*.safetensors; do
        cmp "$file" "$tmp/saved-$2/${file#"$tmp/saved-$1/"}" || fail "$2: other states"
        n=$((n + 1))
    done
    [ $n -gt 0 ] || fail "$1 has saved nothing"
}

for node in a b c; do
    start_node "$node"
    daemon[$node]=$node_pid
done
acquaint a b c

# Two nodes: nobody decides alone. The job waits, and goes on when the node is in the list again.
nodes=(a b)
steps=60
for job in calm2 dropped2; do
    pids=()
    rank "$job" 0 --steps $steps --loss-file "$tmp/$job.losses"
    rank "$job" 1 --steps $steps
    if [ "$job" = dropped2 ]; then
        poll has_made a 5
        for pair in 'a b' 'b a'; do
            read -r one other <<<"$pair"
            drop "$one" "$other"
            poll has_no_link "$other" "$one"
            must_explain "$one" "$job" "cistern node add $other"
            add "$one" "$other"
            linked "$one" "$other"
        done
        # A list that was edited.
        cp "$tmp/a/nodes" "$tmp/list"
        sed -i '/^b /d' "$tmp/a/nodes"
        reload a
        poll has_no_link b a
        cp "$tmp/list" "$tmp/a/nodes"
        reload a
        linked a b
        # Node b has a new key, and the manager of a says so.
        rm "$tmp/b/node.key" "$tmp/b/node.crt"
        ./cistern node key "$tmp/b" >"$tmp/b/key" || fail "cistern node key"
        reload b
        drop a b
        poll has_no_link b a
        add a b
        linked a b
        n=$(on a jobs --json | jq '.[0].step')
        [ "$n" -lt $steps ] || fail "the job has ended too early, at step $n: make it longer"
    fi
    finish_job "$job"
done
cmp "$tmp/calm2.losses" "$tmp/dropped2.losses" || fail "two nodes, dropped and added: other losses"
same_states calm2 dropped2
printf 'two nodes: dropped and added four times, the same losses and states\n'

# Three nodes: a majority goes on without the dropped one. c must know the new key of b.
on c node add b "$(address_of b)" "$(fingerprint_of b)" >"$tmp/added.log" || fail "node add b"
linked b c
nodes=(a b c)
steps=120
for job in calm3 dropped3; do
    pids=()
    for r in 0 1 2; do
        rank "$job" "$r" --steps $steps
    done
    if [ "$job" = dropped3 ]; then
        for r in 0 1 2; do # Each node is dropped by the next one.
            node=${nodes[r]}
            by=${nodes[(r + 1) % 3]}
            third=${nodes[(r + 2) % 3]}
            poll has_made "$by" $((10 + 30 * r))
            drop "$by" "$node"
            ! wait "${pids[r]}" || fail "the worker of dropped node $node has not ended"
            grep -q 'start its workers on this node again' "$tmp/$job.$r.log" || fail "$node is told: $(tail -n 3 "$tmp/$job.$r.log")"
            must_explain "$third" "$job" "$node"
            add "$by" "$node"
            linked "$by" "$node"
            rank "$job" "$r" --steps $steps
        done
    fi
    finish_job "$job"
done
same_states calm3 dropped3
printf 'three nodes: each dropped and added once, the same states\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a manager drops nodes of a job that trains, and adds them again. With two nodes the job waits, says for whom and what
# helps, and goes on. With three and two copies of the states, the others go on without the dropped node, whose part says what to do:
# its worker is started again, and losses and states are those of a job that nothing befell; also if the daemon that has dropped the node is
# killed, and the next one keeps the job. A list of nodes that was edited, and a node with a new key, have the effect of drops.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq

model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000 --copies 2)
write_text 400

# True when node $1 explains that the job $2 waits, in the words $3.
explains() {
    on "$1" job "$2" >"$tmp/explained" 2>&1 && grep -Eq "$3" "$tmp/explained"
}

# Wait until it does.
must_explain() {
    (poll explains "$@") || fail "node $1 explains: $(cat "$tmp/explained")"
}

# Let the daemon of node $1 read its files again, and wait until it has.
reload() {
    local n
    n=$(grep -c 'were read again' "$tmp/$1.log" || true)
    kill -HUP "${daemon_of[$1]}"
    has_reloaded() { [ "$(grep -c 'were read again' "$tmp/$1.log")" -gt "$2" ]; }
    poll has_reloaded "$1" "$n"
}

for node in a b c; do
    start_node "$node" trusted --keep
done
acquaint a b c

# Two nodes: nobody decides alone. The job waits, and goes on when the node is in the list again.
nodes=(a b)
steps=60
for job in calm2 dropped2; do
    begin_ranks "$job" --steps $steps
    if [ "$job" = dropped2 ]; then
        poll has_made a "$job" 5
        for pair in 'a b' 'b a'; do
            read -r one other <<<"$pair"
            drop "$one" "$other"
            poll has_no_link "$other" "$one"
            must_explain "$one" "$job" "cistern node add $other"
            acquaint_one "$one" "$other"
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
        acquaint_one a b
        linked a b
        n=$(on a jobs --json | jq '.[0].step')
        [ "$n" -lt $steps ] || fail "the job has ended too early, at step $n: make it longer"
    fi
    end_job "$job"
done
same_losses calm2 dropped2
same_states calm2 dropped2
printf 'two nodes: dropped and added four times, the same losses and states\n'

# Three nodes: a majority goes on without the dropped one. c must know the new key of b.
acquaint_one c b
linked b c
nodes=(a b c)
steps=120
for job in calm3 dropped3; do
    begin_ranks "$job" --steps $steps
    if [ "$job" = dropped3 ]; then
        for r in 0 1 2; do # Each node is dropped by the next one.
            node=${nodes[r]}
            by=${nodes[(r + 1) % 3]}
            third=${nodes[(r + 2) % 3]}
            poll has_made "$by" "$job" $((10 + 30 * r))
            drop "$by" "$node"
            ! wait "${pids[r]}" || fail "the worker of dropped node $node has not ended"
            grep -q 'start its workers on this node again' "$tmp/$job.$r.log" || fail "$node is told: $(tail -n 3 "$tmp/$job.$r.log")"
            must_explain "$third" "$job" "$node"
            if [ "$r" -gt 0 ]; then # The next daemon has a job with a node that is not in its list.
                kill_daemons "$by"
                linked "$by" "$third"
                must_explain "$by" "$job" "$node"
            fi
            acquaint_one "$by" "$node"
            linked "$by" "$node"
            rank "$job" "$r" --steps $steps
        done
    fi
    end_job "$job"
done
same_states calm3 dropped3
printf 'three nodes: each dropped and added once, and two daemons killed in between, the same states\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what is shown of a job with ranks on two nodes: bytes are those of the formula, a slow node and one that is away are named by
# all commands, and a part that could not be told that the job was removed is told when the link is up again.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq

nodes=(a b)
steps=6
model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000)
write_text 400

# What jq prints of job $2 on node $1, with the filter $3. $node is the other node.
of() {
    on "$1" job "$2" --json | jq --arg node "$([ "$1" = a ] && echo b || echo a)" "$3"
}

# Job $2 on node $1 is as the filter $3 says.
is() {
    [ "$(of "$1" "$2" "$3" 2>/dev/null)" = true ]
}

# The command "${@:3}" on node $1 prints a line that matches $2.
says() {
    on "$1" "${@:3}" >"$tmp/out" 2>&1 && grep -Eq "$2" "$tmp/out"
}

must_say() {
    says "$@" || fail "cistern ${*:3} on $1 does not say '$2': $(cat "$tmp/out")"
}

# Both nodes have received together $2 bytes for job $1, and each has sent what the other one has received.
has_moved() {
    local at_a at_b
    at_a=$(of a "$1" '.nodes[] | select(.name == "b") | [.received_bytes, .sent_bytes]')
    at_b=$(of b "$1" '.nodes[] | select(.name == "a") | [.sent_bytes, .received_bytes]')
    [ "$at_a" = "$at_b" ] && [ "$(jq add <<<"$at_a")" = "$2" ]
}

for node in "${nodes[@]}"; do
    start_node "$node"
done
acquaint "${nodes[@]}"

# In a step, each of N nodes receives (b + 2)(N - 1)/N bytes for each parameter: all of two nodes receive (b + 2) for each.
for micro in 1 2; do
    begin_ranks "job$micro" --steps $steps --micro-batches $micro
    await_ranks "job$micro"
    bytes=$((($((2 * micro)) + 2) * $(of a "job$micro" .n_params) * steps))
    poll has_moved "job$micro" $bytes
    printf '%d micro-batches: %d bytes in %d steps, as by the formula\n' $micro $bytes $steps
done

# All of a job's nodes, in numbers.
for node in "${nodes[@]}"; do
    # shellcheck disable=SC2016 # $node is a variable of jq
    is "$node" job1 '.all_ranks == 2 and .world == 1 and ([.nodes[].name] == ["a", "b"]) and ([.nodes[].number] == [0, 1])
        and ([.nodes[] | .first_rank] == [0, 1]) and all(.nodes[]; .member and .up and .n_ranks == 1)
        and (.node_state | test("^its members are .* \\(epoch [0-9]+\\)$"))
        and (.nodes[] | select(.name == $node) | (.self | not) and .since_s > 0 and .wait_seconds > 0 and .wait_share >= 0 and .wait_share <= 1)
        and (.nodes[] | select(.name != $node) | .self and .received_bytes == null and .wait_seconds == null)' ||
        fail "job1 on $node: $(of "$node" job1 .)"
done
must_say a '^NODE +RANKS +MEMBER +LINK +SINCE +RECEIVED +SENT +WAITED +STEP WAITS' job job1
must_say a '^b +1 +yes +up ' job job1
! says a '' pause job1 || fail "a job on two nodes was paused"
grep -q 'has ranks on several nodes and cannot be paused' "$tmp/out" || fail "a pause is refused as: $(<"$tmp/out")"
must_say b '^nodes +its members are a and this node \(epoch [0-9]+\)$' job job1
must_say b '^job1 .* 1 of 2 ' jobs
must_say a '^NODE +STATE +SINCE +ROUND TRIP +RECEIVED +SENT +JOBS ' node list
must_say a '^b +up .* job[12], job[12] ' node list
must_say a '^nodes +1 of 1 others have a link' stat
must_say a '^cistern_nodes_up 1$' metrics

# The engine of the network is none of a GPU, and nobody expects it to register memory. All users see it, and not the name of its job.
on a stat --json | jq -e '[.engines[] | select(.kind != "host")] | length == 2 and all(.[]; .kind == "net" and .staged != true and (.device | test("^net:[0-9]+$")))' >"$tmp/jq.log" ||
    fail "engines: $(on a stat --json | jq .engines)"
! has 'does not register host memory' "$tmp/a.log" || fail "log: $(grep 'host memory' "$tmp/a.log")"
on a node list --json >"$tmp/nodes"
moved=$(for job in job1 job2; do of a $job '.nodes[1].received_bytes'; done | jq -s add)
jq -e --argjson moved "$moved" '.[1] | .state == "up" and .job_count == 2 and (.jobs | sort == ["job1", "job2"]) and .round_trip_s > 0
    and .sent_bytes > 0 and .received_bytes > 0 and .jobs_received_bytes == $moved and .jobs_sent_bytes > 0' "$tmp/nodes" >"$tmp/jq.log" ||
    fail "node list: $(cat "$tmp/nodes")"
tensor=$(on a tensors job1 --json | jq -r '.[0].name')
must_say a '^nodes: its members are this node and b \(epoch [0-9]+\)$' explain job1 "$tensor"
must_say a '^steps here have waited [0-9.e-]+ s for node b: [0-9]+ % of the last steps$' explain job1 "$tensor"
must_say a '^cistern_job_node_up\{name="job1",uid="[0-9]+",node="b"\} 1$' metrics
must_say a "^cistern_job_node_bytes_total\{name=\"job1\",uid=\"[0-9]+\",node=\"b\",direction=\"received\"\} $(of a job1 '.nodes[1].received_bytes')\$" metrics
must_say a '^cistern_job_node_bytes_total\{name="job1",uid="[0-9]+",node="b",direction="sent"\} [0-9]+$' metrics
must_say a '^cistern_job_node_wait_seconds_total\{name="job1",uid="[0-9]+",node="b"\} [0-9.e-]+$' metrics
must_say a '^cistern_job_node_member\{name="job1",uid="[0-9]+",node="a"\} 1$' metrics
! says a 'wait_seconds_total.*node="a"' metrics || fail "a node waits for itself"
must_say a '<h2>Nodes</h2>' report job1 -o -
on a rm job1 >"$tmp/out" || fail "rm job1"
! grep -q 'no link' "$tmp/out" || fail "rm job1 said: $(cat "$tmp/out")"
on b rm job2 --json | jq -e '.left_on == []' >"$tmp/jq.log" || fail "rm job2 --json"
for node in "${nodes[@]}"; do
    poll has_no_job "$node"
done

# All of three nodes name the slow one, also if they wait for another one that waits for it.
start_node c
acquaint a b c
nodes=(a b c)
begin_ranks chain --steps 40
poll has_made a chain 2
kill -STOP "${pids[2]}"
for node in a b; do
    poll says $node '^chain .* waits for node c, for [0-9]+ s' jobs
done
began=$(date +%s%N)
for node in a b; do
    must_say $node 'step waits for node c: [0-9]+ %, now for ' job chain
done
ended=$(date +%s%N)
kill -CONT "${pids[2]}"
await_ranks chain
for node in a b; do
    is $node chain ".nodes[2].wait_seconds * 1e9 >= $((ended - began))" || fail "$((ended - began)) ns: $(of $node chain .nodes)"
done
on c rm chain >"$tmp/out" || fail "rm chain"
nodes=(a b)
for node in a b c; do
    poll has_no_job $node
done

# A slow node is named while the step waits for it and afterwards: all of the time is charged to it.
begin_ranks slow --steps 40
poll has_made a slow 2
kill -STOP "${pids[1]}"
poll is a slow '.nodes[1].waits_s > 0'
began=$(date +%s%N)
poll says a '^slow .* waits for node b, for [0-9]+ s' jobs
must_say a 'step waits for node b: [0-9]+ %, now for ' job slow
is a slow '.nodes[1] | .up and .member' || fail "a slow node is no member"
ended=$(date +%s%N)
kill -CONT "${pids[1]}"
await_ranks slow
is a slow ".nodes[1].wait_seconds * 1e9 >= $((ended - began))" || fail "$((ended - began)) ns: $(of a slow .nodes)"
# b has waited for nothing of this.
is b slow ".nodes[0].wait_seconds < $(of a slow '.nodes[1].wait_seconds')" || fail "b waited longer: $(of b slow .nodes)"

# A node that is away is named, with what a manager can do.
kill -STOP "${daemon_of[b]}"
poll is a slow '.nodes[1] | .up | not'
is a slow '(.node_wait | test("^waits for node b, away for [0-9]+ s$")) and .nodes[1].member and .nodes[1].reason != null
    and (.node_state | test("^waits for b, which is away: .*cistern node drop b"))' || fail "without b: $(of a slow .)"
must_say a '^slow .* waits for node b, away for [0-9]+ s$' jobs
must_say a '^slow .* waits for node b, away for [0-9]+ s$' stat
must_say a '^nodes +waits for b, which is away: .*cistern node drop b' job slow
must_say a '^b +1 +yes +down ' job slow
must_say a "^nodes: waits for b, which is away" explain slow "$tensor"
must_say a '^cistern_job_node_up\{name="slow",uid="[0-9]+",node="b"\} 0$' metrics
must_say a '^b +down .* slow ' node list

# What could not be told is told again, until it was answered.
on a rm slow >"$tmp/out" || fail "rm slow"
grep -q '^there is no link to node b: the part of the job there remains until there is one' "$tmp/out" || fail "rm slow said: $(cat "$tmp/out")"
has_no_job a || fail "job slow is still on a"
kill -CONT "${daemon_of[b]}"
poll has_no_job b
has "removed: node 'a': job 'slow' was removed" "$tmp/b.log" || fail "b does not say why: $(tail "$tmp/b.log")"

# The same name can be used again: the end of the earlier job is no end of this one.
begin_ranks slow --steps 2
await_ranks slow
is a slow '.step == 2 and .nodes[1].member' || fail "another job of the name: $(of a slow .)"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests `cistern run --nodes`: the numbers, the output and the command lines of ranks on two nodes, failures, and that no process is left
# after the end, whatever ended: a rank, the command by a signal, the command by SIGKILL, or a connection. A training on two daemons has
# the losses of one on one daemon, also if a rank is killed. --rsh is a script that runs the command here, with that node's socket.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"

unset OMP_NUM_THREADS OMP_WAIT_POLICY MASTER_ADDR MASTER_PORT CISTERN_SOCKET

# As ssh, which joins the words of the command. It notes its pid, and has the program's standard input.
cat >"$tmp/rsh" <<END
#!/bin/sh
node=\$1
shift
echo \$\$ >"$tmp/rsh.\$node"
export CISTERN_SOCKET="$tmp/\$node/run/cistern.sock"
cd /
sh -c "\$*"
END
chmod +x "$tmp/rsh"

# Run `cistern run` on nodes a and b with the arguments $@, its output in $tmp/out and $tmp/err. Sets status.
run() {
    status=0
    ./cistern run --nodes a,b --rsh "$tmp/rsh" "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
}

# The same in the background, with signals as in a terminal. Sets pid.
begin() {
    rm -f "$tmp/out" "$tmp/err" "$tmp/pids"
    env --default-signal=INT ./cistern run --nodes a,b --rsh "$tmp/rsh" "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    managers+=("$pid")
}

# Wait for the command of begin. Sets status.
await_end() {
    status=0
    wait "$pid" || status=$?
}

# Check that the file $1 has a line that matches $2.
says() {
    grep -qE -- "$2" "$tmp/$1" || fail "$1 has no '$2': $(cat "$tmp/out" "$tmp/err")"
}

status_is() {
    [ $status = "$1" ] || fail "status $status, not $1: $(cat "$tmp/out" "$tmp/err")"
}

# -- numbers and words --

# shellcheck disable=SC2016 # for the rank's shell
show='echo "$RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, $CISTERN_SOCKET, in $PWD"'
run --ranks-per-node 2 -- sh -c "$show"
status_is 0
for rank in 0 1 2 3; do
    node=a
    [ $rank -lt 2 ] || node=b
    says out "^\\[$node\\] \\[$rank\\] $rank $((rank % 2)) of 4 2 at a:29500, $tmp/$node/run/cistern.sock, in $PWD\$"
done
[ "$(wc -l <"$tmp/out")" = 4 ] || fail "not a line of each rank: $(cat "$tmp/out")"
MASTER_ADDR=10.0.0.1 MASTER_PORT=7 run --socket /there -- sh -c "$show"
says out '^\[b\] \[1\] 1 0 of 2 1 at 10\.0\.0\.1:7, /there,'
./cistern run --nodes me@first --rsh "$tmp/rsh" -- sh -c "$show" >"$tmp/out" 2>"$tmp/err" || fail "one node: $(cat "$tmp/err")"
says out '^\[me@first\] \[0\] 0 0 of 1 1 at first:29500'

# Words are passed on as they are, through two shells.
# shellcheck disable=SC2016 # not for this shell
odd=("it's" 'a "b"  c' '$HOME `id` \n *' '' '-x' $'two\nlines')
run -- printf '<%s>\n' "${odd[@]}"
for node in a b; do
    printf '<%s>\n' "${odd[@]}" >"$tmp/want"
    sed -n "s/^\\[$node\\] \\[[01]\\] //p" "$tmp/out" | cmp - "$tmp/want" || fail "words are changed on node $node: $(cat "$tmp/out")"
done

# Standard output and standard error stay apart.
run -- sh -c 'echo out; echo err >&2'
says out '^\[a\] \[0\] out$'
says err '^\[b\] \[1\] err$'

# The part of one node can be started by hand.
./cistern run -n 2 --first-rank 2 --all-ranks 4 --no-pin -- sh -c "$show" >"$tmp/out" 2>"$tmp/err" || fail "--first-rank: $(cat "$tmp/err")"
says out '^\[3\] 3 1 of 4 2 at :,'

# -- failures --

# The status is that of the first failure. The other ranks are asked to end, on all nodes.
# shellcheck disable=SC2016
run --ranks-per-node 2 --no-pin -- sh -c 'cd '"$tmp"'; while [ $RANK = 2 ]; do [ -e is0 ] && [ -e is1 ] && [ -e is3 ] && exit 5; sleep 0.01; done
    trap "echo asked; exit 7" TERM; : >is$RANK; while :; do sleep 0.01; done'
status_is 5
says err '^\[b\] cistern: rank 2 ended with status 5: the other ranks are asked to end$'
says err '^cistern: node b ended with status 5: the other nodes are asked to end$'
for rank in 0 1 3; do
    says out "^\\[[ab]\\] \\[$rank\\] asked\$"
done

# A rank that dies after a step is started again on its node.
# shellcheck disable=SC2016
run --restart -- sh -c 'printf 1 >"$CISTERN_STEPPED"; [ $RANK = 0 ] || [ $CISTERN_RESTARTS = 1 ] || kill -KILL $$; echo goes on $CISTERN_RESTARTS'
status_is 0
says err '^\[b\] cistern: rank 1 was killed by signal 9 \(Killed\): it is started again in 0 s'
says out '^\[b\] \[1\] goes on 1$'

# No connection.
run --rsh "$tmp/missing" -- true
status_is 126
says err "^cistern: node a: $tmp/missing cannot be started: no such file or directory; name a program .* --rsh\$"
mkdir "$tmp/bin"
printf '#!/bin/sh\necho no route >&2\nexit 255\n' >"$tmp/bin/ssh"
chmod +x "$tmp/bin/ssh"
status=0
PATH=$tmp/bin:$PATH ./cistern run --nodes a,b -- true >"$tmp/out" 2>"$tmp/err" || status=$?
status_is 255
says err '^\[a\] no route$'
says err "^cistern: node [ab] ended with status 255 \\(ssh has no connection, .*'ssh NODE true' must work without a question\\)"

# Wrong uses.
refuses() {
    status=0
    ./cistern run "${@:2}" -- true >"$tmp/out" 2>"$tmp/err" || status=$?
    status_is 2
    says err "$1"
}
refuses "^cistern: --nodes a,,b: '' is not the name of a node" --nodes a,,b
refuses "'-x' is not the name of a node" --nodes=-x
refuses "'a' is there twice: .* --ranks-per-node 2" --nodes a,b,a
refuses '-n cannot be combined with --nodes, .* --ranks-per-node N' --nodes a,b -n 2
refuses '--rsh is for ranks on several nodes: .* --nodes A,B' -n 2 --rsh ssh
refuses '--rsh is empty: name a program' --nodes a --rsh ' '
refuses '--first-rank 2 needs .* --all-ranks 4 or more' -n 2 --first-rank 2
refuses 'ranks on this node would be 3 to 4, of 4: --all-ranks 5' -n 2 --first-rank 3 --all-ranks 4
refuses 'run needs the number of ranks: -n N, or --nodes A,B'
status=0
./cistern run -n 1 --follow -- true </dev/null >"$tmp/out" 2>"$tmp/err" || status=$?
status_is 1
says err 'the standard input is not a pipe: .* leave --follow out'

# -- the end --

# Each rank has a child in a session of its own; the pids are in $tmp/pids.
# shellcheck disable=SC2016
family='setsid sh -c '\''echo $$ >>'$tmp'/pids; exec sleep 1000'\'' & echo $$ >>'$tmp'/pids; echo ready'

all_are_ready() {
    [ -e "$tmp/pids" ] && [ "$(wc -l <"$tmp/pids")" = 4 ] && [ "$(grep -c ready "$tmp/out")" = 2 ]
}

none_left() {
    local process
    while read -r process; do
        poll gone "$process"
    done <"$tmp/pids"
}

# Signals are passed on, and ranks end in good order.
for signal in INT TERM; do
    begin -- sh -c "trap 'echo got $signal; exit 3' $signal; $family; while :; do sleep 0.01; done"
    poll all_are_ready
    kill -$signal "$pid"
    await_end
    status_is 3
    [ "$(grep -c "got $signal" "$tmp/out")" = 2 ] || fail "ranks did not end in good order: $(cat "$tmp/out")"
    says err ': waiting up to 40 s for 2 nodes to end; a second signal kills them$'
    none_left
done

# Ranks that do not obey are killed by the second signal, or after --grace.
begin -- sh -c "trap '' TERM; $family; while :; do sleep 0.01; done"
poll all_are_ready
kill -TERM "$pid"
poll grep -q 'second signal' "$tmp/err"
kill -TERM "$pid"
await_end
status_is 137
none_left
begin --grace 1 -- sh -c "trap '' TERM; $family; while :; do sleep 0.01; done"
poll all_are_ready
kill -TERM "$pid"
await_end
status_is 137
says err '^\[a\] cistern: 1 rank did not end within 1 s and is killed \(--grace\)$'
none_left

# SIGKILL of the command, and of a connection.
begin -- sh -c "$family; while :; do sleep 0.01; done"
poll all_are_ready
kill -KILL "$pid"
await_end
none_left
begin -- sh -c "$family; while :; do sleep 0.01; done"
poll all_are_ready
kill -KILL "$(cat "$tmp/rsh.b")"
await_end
status_is 137
says err '^cistern: node b was killed by signal 9 \(Killed\): the other nodes are asked to end$'
none_left

# -- a training --

# True if the standby of node $1 waits for job 'three'.
has_standby() {
    has "is a standby of job 'three'" "$tmp/$1.log"
}

[ -x ./cistern-gpt ] || exit 0
need jq
model=(--layers 4 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000 --block-ranks 1
    --steps 300)
write_text 400
start_node a
start_node b
acquaint a b
# shellcheck disable=SC2016 # for the rank's shell
train='echo $$ >'$tmp'/pid$RANK; exec ./cistern-gpt "$@" --loss-file '$tmp'/losses.$WORLD_SIZE.$LOCAL_WORLD_SIZE.$RANK'

CISTERN_SOCKET=$tmp/a/run/cistern.sock ./cistern run -n 2 -- sh -c "$train" - "${model[@]}" --data "$tmp/text" --job one >"$tmp/one.log" 2>&1 ||
    fail "one node: $(cat "$tmp/one.log")"
on a rm one >"$tmp/removed.log"
poll has_no_job a
begin --restart -- sh -c "$train" - "${model[@]}" --data "$tmp/text" --job two
poll has_made a two 20
kill -KILL "$(cat "$tmp/pid1")"
await_end
status_is 0
says err '^\[b\] cistern: rank 1 was killed by signal 9'
cmp "$tmp/losses.2.2.0" "$tmp/losses.2.1.0" || fail "two nodes have other losses than one"
on b rm two >"$tmp/removed.log"

# With a standby on each node: that of node b takes the place of the rank there.
poll has_no_job a
poll has_no_job b
# shellcheck disable=SC2016 # for the shell of a process
begin --standby 1 -- sh -c '[ -z "${RANK-}" ] || exec sh -c "$0" - "$@"; exec ./cistern-gpt "$@"' "$train" "${model[@]}" --data "$tmp/text" --job three
poll has_standby a
poll has_standby b
poll has_made a three 20
kill -KILL "$(cat "$tmp/pid1")"
await_end
status_is 0
says err '^\[b\] cistern: a standby is rank 1 now$'
! grep -q 'it is started again' "$tmp/err" || fail "a rank was started again beside its standby: $(cat "$tmp/err")"
cmp "$tmp/losses.2.2.0" "$tmp/losses.2.1.0" || fail "two nodes have other losses than one, with a standby"
on b rm three >"$tmp/removed.log"

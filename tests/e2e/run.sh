#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests `cistern run`: the numbers and processors of ranks, their output, restarts, and that no process is left after the end, whatever
# ended: a rank, the command by Ctrl-C, or the command by SIGKILL. A training whose rank is killed has the bits of an undisturbed one.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1

unset OMP_NUM_THREADS OMP_WAIT_POLICY MASTER_ADDR MASTER_PORT

# Run `cistern run` with the arguments $@, its output in $tmp/out and $tmp/err. Sets status.
run() {
    status=0
    ./cistern run "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
}

# The same in the background, with signals as in a terminal. Sets pid.
begin() {
    rm -f "$tmp/out" "$tmp/err"
    env --default-signal=INT ./cistern run "$@" >"$tmp/out" 2>"$tmp/err" &
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

# -- numbers and processors --

# shellcheck disable=SC2016 # for the rank's shell
show='echo "$RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE at $MASTER_ADDR, wait $OMP_WAIT_POLICY, $CISTERN_RESTARTS restarts, socket $CISTERN_SOCKET"'
run -n 3 --socket /there -- sh -c "$show"
status_is 0
for rank in 0 1 2; do
    says out "^\\[$rank\\] $rank $rank of 3 3 at 127.0.0.1, wait passive, 0 restarts, socket /there\$"
done
[ "$(wc -l <"$tmp/out")" = 3 ] || fail "not a line of each rank: $(cat "$tmp/out")"

# Ranks have disjoint processors, which are all of this test's. Their share of the cores is the number of threads, unless that is given.
# shellcheck disable=SC2016
processors='grep Cpus_allowed: /proc/self/status; echo threads $OMP_NUM_THREADS'
n=$(nproc)
if [ "$n" -ge 2 ]; then
    run -n 2 -- sh -c "$processors"
    status_is 0
    a=$(sed -n 's/^\[0\] Cpus_allowed:\t//p' "$tmp/out" | tr -d ,)
    b=$(sed -n 's/^\[1\] Cpus_allowed:\t//p' "$tmp/out" | tr -d ,)
    own=$(sed -n 's/^Cpus_allowed:\t//p' /proc/self/status | tr -d ,)
    # Digits of wide masks one by one, because they do not fit in the shell's numbers.
    for ((i = 0; i < ${#own}; i++)); do
        [ $((0x${a:i:1} & 0x${b:i:1})) = 0 ] || fail "ranks share processors: $a $b"
        [ $((0x${a:i:1} | 0x${b:i:1})) = $((0x${own:i:1})) ] || fail "ranks do not have all processors: $a $b of $own"
    done
    [[ $a =~ [1-9a-f] && $b =~ [1-9a-f] ]] || fail "a rank without a processor: $a $b"
    says out '^\[0\] threads [0-9]+$'
    run -n 2 --no-pin -- sh -c "$processors"
    [ "$(grep -c "$(sed -n 's/^Cpus_allowed:\t//p' /proc/self/status)$" "$tmp/out")" = 2 ] || fail "--no-pin pins: $(cat "$tmp/out")"
fi
OMP_NUM_THREADS=7 OMP_WAIT_POLICY=active run -n 1 -- sh -c "$processors; echo wait \$OMP_WAIT_POLICY"
says out '^\[0\] threads 7$'
says out '^\[0\] wait active$'
if [ "$n" -lt 64 ]; then
    run -n $((n + 1)) -- true
    status_is 0
    says err "^cistern: $((n + 1)) ranks share $n processors?: they are not pinned\$"
fi

# -- output --

# Standard output and standard error stay apart, a last line without a newline gets one, and bytes are passed on as they are.
run -n 1 -- sh -c 'printf "a\n\nb\000\377\nlast"; printf "error" >&2'
printf '[0] a\n[0] \n[0] b\000\377\n[0] last\n' | cmp - "$tmp/out" || fail "output is changed: $(od -c "$tmp/out")"
printf '[0] error\n' | cmp - "$tmp/err" || fail "errors are changed: $(od -c "$tmp/err")"

# Lines of ranks that write at the same time, in parts, are not torn. Output may be opened again by its name.
# shellcheck disable=SC2016
run -n 4 -- perl -e '$| = 1; open(STDOUT, ">", "/dev/stdout") or die; $| = 1;
    for $i (1 .. 500) { $x = chr(97 + $ENV{RANK}); print $x x ($i % 50 + 1); print $x x $i, " $i\n" }'
status_is 0
perl -ne '/^\[([0-3])\] ((.)\3*) (\d+)$/ && ord($3) - 97 == $1 && length($2) == $4 % 50 + 1 + $4 && ++$n{$1} == $4 or die "torn: $_"' \
    "$tmp/out" || fail "a line is torn"
[ "$(wc -l <"$tmp/out")" = 2000 ] || fail "lines are missing"

# A reader that stops reading keeps neither the ranks from being killed nor the command from its end.
mkfifo "$tmp/fifo"
env --default-signal=INT ./cistern run -n 1 -- sh -c "trap '' INT; echo \$\$ >$tmp/pids; yes" >"$tmp/fifo" 2>"$tmp/err" &
pid=$!
exec {reader}<"$tmp/fifo"
read -r -u "$reader" line
[ "$line" = "[0] y" ] || fail "not the rank's output: $line"
kill -INT "$pid"
poll has 'a second signal kills' "$tmp/err"
kill -INT "$pid"
await_end
exec {reader}<&-
poll gone "$(cat "$tmp/pids")"
status_is 137

# If output cannot be written, the ranks go on, and the status says that output is lost.
status=0
./cistern run -n 1 -- sh -c "echo lost; echo done >$tmp/went_on" >/dev/full 2>"$tmp/err" || status=$?
status_is 1
says err 'output of ranks is lost: No space left'
[ -e "$tmp/went_on" ] || fail "the rank did not go on without a reader"

# A standard output that is closed is output that cannot be written, and nothing else gets its number.
rm "$tmp/went_on"
status=0
./cistern run -n 1 -- sh -c "echo lost; echo done >$tmp/went_on" >&- 2>"$tmp/err" || status=$?
status_is 1
says err 'output of ranks is lost: Bad file descriptor'
[ -e "$tmp/went_on" ] || fail "the rank did not go on without a standard output"

# -- failures and restarts --

# shellcheck disable=SC2016
fails_once='if [ $RANK = 1 ] && [ $CISTERN_RESTARTS = 0 ]; then echo dies; kill -KILL $$; fi; echo goes on $CISTERN_RESTARTS'
run -n 2 --restart -- sh -c "$fails_once"
status_is 0
says err '^cistern: rank 1 was killed by signal 9 \(Killed\): it is started again in 0 s \(restart 1 of at most 10 within 600 s\)$'
says out '^\[1\] dies$'
says out '^\[1\] goes on 1$'
says out '^\[0\] goes on 0$'

# Without --restart the others are asked to end. The status is that of the first failure.
# shellcheck disable=SC2016
run -n 3 -- sh -c 'cd '"$tmp"'; while [ $RANK = 1 ]; do [ -e is0 ] && [ -e is2 ] && exit 5; sleep 0.01; done
    trap "echo asked; exit 7" TERM; : >is$RANK; while :; do sleep 0.01; done'
status_is 5
says err '^cistern: rank 1 ended with status 5: the other ranks are asked to end$'
says out '^\[0\] asked$'
says out '^\[2\] asked$'
# shellcheck disable=SC2016
run -n 1 -- sh -c 'kill -SEGV $$'
status_is 139

# A rank that dies for ever is given up. What cannot succeed is not tried again.
# shellcheck disable=SC2016 # for the rank's shell
fails='printf 1 >"$CISTERN_STEPPED"; exit 3' # As libcistern does after a step.
run -n 1 --restart=2 -- sh -c "$fails"
status_is 3
[ "$(grep -c 'started again in' "$tmp/err")" = 2 ] || fail "not two restarts: $(cat "$tmp/err")"
says err '^cistern: rank 0 ended with status 3, and was started again 2 times within 600 s: it is given up \(--restart\)$'
run -n 1 --restart=1 -- sh -c "$fails"
says err '^cistern: rank 0 ended with status 3, and was started again 1 time within 600 s: it is given up \(--restart\)$'
# A rank that fails before any rank has made a step would fail again. The others hear of it at once.
# shellcheck disable=SC2016 # for the rank's shell
failed_at_start='[ $RANK = 0 ] || exit 3; exec sleep 1000'
run -n 2 --restart -- sh -c "$failed_at_start"
status_is 3
says err '^cistern: rank 1 ended with status 3 before the first step, and is not started again: the other ranks are asked to end$'
for final in 2 126 127 143; do
    run -n 1 --restart -- sh -c "exit $final"
    status_is $final
    ! grep -q again "$tmp/err" || fail "status $final is tried again"
done
run -n 1 -- ''
status_is 2
says err '^cistern: the name of the program to run is empty$'
run -n 1 --restart -- "$tmp/missing"
status_is 127
says err "^\\[0\\] cistern: cannot start $tmp/missing: No such file"
run -- true
status_is 2
says err 'run needs the number of ranks: -n N'

# -- the end --

# A rank with a child in its process group and one in a session of its own, whose pids are in $tmp/pids.
# shellcheck disable=SC2016
family='sleep 1000 & echo $! >>'$tmp'/pids; setsid sh -c '\''echo $$ >>'$tmp'/pids; exec sleep 1000'\'' & echo $$ >>'$tmp'/pids'

# Start two ranks that end with the words $1, and wait until all their processes are there. Other arguments are options.
begin_family() {
    local words=$1
    shift
    rm -f "$tmp/pids"
    begin -n 2 "$@" -- sh -c "$family; $words"
    poll family_is_there
}

family_is_there() {
    [ -e "$tmp/pids" ] && [ "$(wc -l <"$tmp/pids")" = 6 ]
}

both_are_ready() {
    [ "$(grep -c ready "$tmp/out")" = 2 ]
}

none_left() {
    local process
    while read -r process; do
        poll gone "$process"
    done <"$tmp/pids"
}

# Ctrl-C: ranks get SIGINT, and end in good order.
begin_family 'trap "echo stopped; exit 130" INT; echo ready; while :; do sleep 0.01; done'
poll both_are_ready
kill -INT "$pid"
await_end
status_is 130
[ "$(grep -c stopped "$tmp/out")" = 2 ] || fail "ranks did not end in good order: $(cat "$tmp/out")"
says err '^cistern: Interrupt: waiting up to 30 s for 2 ranks to end; a second signal kills them$'
none_left

# Ranks that do not obey are killed by the second signal, or after --grace.
begin_family 'trap "" TERM; echo ready; while :; do sleep 0.01; done'
poll both_are_ready
kill -TERM "$pid"
poll grep -q 'second signal' "$tmp/err"
kill -TERM "$pid"
await_end
status_is 137
none_left
begin_family 'trap "" TERM; echo ready; while :; do sleep 0.01; done' --grace 1
poll both_are_ready
kill -TERM "$pid"
await_end
status_is 137
says err '^cistern: 2 ranks did not end within 1 s and are killed \(--grace\)$'
none_left

# A rank that ends leaves nothing. Neither does the command when SIGKILL ends it.
# shellcheck disable=SC2016 # for the shell of a rank
begin_family 'while [ $(wc -l <'"$tmp"'/pids) -lt 6 ]; do sleep 0.01; done'
await_end
status_is 0
none_left
begin_family 'while :; do sleep 0.01; done'
kill -KILL "$pid"
await_end
none_left

# -- a training --

[ -x ./cistern-gpt ] || exit 0
need jq
steps=400
model=(--layers 2 --heads 2 --width 32 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --steps "$steps")
write_text 400
start_daemon d

has_step() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

# Rank 1 is killed in the middle, started again, and the training has the bits of an undisturbed one.
# shellcheck disable=SC2016
begin -n 2 --restart -- sh -c 'echo $$ >'"$tmp"'/pid$RANK; exec ./cistern-gpt "$@" --dump-weights '"$tmp"'/weights$RANK' - \
    "${model[@]}" --data "$tmp/text" --job run
poll has_step run 5
kill -KILL "$(cat "$tmp/pid1")"
await_end
status_is 0
says err '^cistern: rank 1 was killed by signal 9'
./cistern-gpt "${model[@]}" --data "$tmp/text" --world 2 --store local --dump-weights "$tmp/local" >/dev/null
cmp "$tmp/local" "$tmp/weights0" || fail "other weights after a restart"
cmp "$tmp/local" "$tmp/weights1" || fail "other weights in the rank that was started again"
./cistern rm run

cp "$tmp/text" "$tmp/typed0"
# A rank with a mistyped path of its data is not started again, and the other rank, which waits for it, is asked to end.
# shellcheck disable=SC2016 # for the rank's shell
run -n 2 --restart -- sh -c 'exec ./cistern-gpt --job typed --data "$0$RANK" "$@"' "$tmp/typed" "${model[@]}"
status_is 2
says err "^\\[1\\] cistern-gpt: --data: file '.*/typed1': No such file or directory: "
says err '^cistern: rank 1 ended with status 2: the other ranks are asked to end$'
! grep -q 'started again' "$tmp/err" || fail "a mistyped path is tried again: $(cat "$tmp/err")"

# A rank that fails after a step is started again.
# shellcheck disable=SC2016 # for the rank's shell
run -n 1 --restart -- sh -c './tests/lib/example; [ $CISTERN_RESTARTS = 1 ] || exit 9'
status_is 0
says err '^cistern: rank 0 ended with status 9: it is started again in 0 s'
says out '^\[0\] step 6: '

# Ctrl-C: the ranks leave the job between two steps.
begin -n 2 -- ./cistern-gpt "${model[@]}" --data "$tmp/text" --job stop --steps 1000000
poll has_step stop 3
kill -INT "$pid"
await_end
status_is 130
says err '^\[1\] cistern-gpt: stopped after step'
stop_daemon d

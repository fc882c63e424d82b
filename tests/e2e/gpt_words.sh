#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the messages of cistern-gpt to its user: the rank that it waits for, the value to type if the pool is too small, the end
# of a job, and how to go on after Ctrl-C.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need jq
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"

write_text 200
model=(--layers 2 --heads 2 --width 32 --context 32 --batch 2 --threads 1 --data "$tmp/text")

# Run cistern-gpt with the arguments $2... in the background, with its output in $tmp/$1.log. Sets pid.
worker() {
    local log=$tmp/$1.log
    shift
    env --default-signal=INT ./cistern-gpt "${model[@]}" "$@" >"$log" 2>&1 &
    pid=$!
}

# Check that the log $1 has a line that matches $2.
says() {
    grep -qE -- "$2" "$tmp/$1.log" || fail "$1: no '$2' in: $(cat "$tmp/$1.log")"
}

state_is() {
    [ "$(./cistern job "$1" --json | jq -r .state)" = "$2" ]
}

# A sample continues the last bytes of its beginning, which are as many as the context has, and no others.
sample() {
    ./cistern-gpt "${model[@]}" --store local --steps 20 --quiet --sample 100 --prompt "$1" >"$tmp/out" || fail "--prompt '$1'"
    sed '0,/^sample:$/d' "$tmp/out" >"$tmp/sample"
    [ "$(head -c ${#1} "$tmp/sample")" = "$1" ] || fail "the sample does not begin with '$1': $(cat "$tmp/sample")"
    tail -c +$((${#1} + 1)) "$tmp/sample"
}
seen=$(printf 'begat %.0s' 1 2 3 4 5 6 | tail -c 32)
sample "$seen" >"$tmp/one"
sample "not seen $seen" >"$tmp/two"
sample "${seen%?}7" >"$tmp/other"
cmp "$tmp/one" "$tmp/two" || fail "what the model does not see changes the sample"
! cmp -s "$tmp/one" "$tmp/other" || fail "the sample does not depend on its beginning"

start_daemon d

# A rank that is alone names the rank that it waits for: in the commit, and in a sync after the other rank has left.
worker alone --job two --world 2 --rank 0 --steps 3
first=$pid
poll grep -q '^cistern-gpt: rank 0 waits for rank 1 (absent)$' "$tmp/alone.log"
./cistern job two >"$tmp/job.log"
says job '^waits     for rank 1 \(absent\)$'
worker peer --job two --world 2 --rank 1 --steps 3
wait "$pid" || fail "rank 1 ended with status $?: $(cat "$tmp/peer.log")"
wait "$first" || fail "rank 0 ended with status $?: $(cat "$tmp/alone.log")"
[ "$(grep -c waits "$tmp/alone.log")" = 1 ] || fail "rank 0 says more than once that it waits: $(cat "$tmp/alone.log")"

# If the job has done its steps, the command says so, and how to go on. The given command works.
worker again --job two --world 2 --rank 0 --steps 3
wait "$pid" || fail "a finished job's worker ended with status $?"
says again "^cistern-gpt: job 'two' is finished: 3 of 3 steps are done\\. To continue: --steps 6 or more; to start again: cistern rm two\$"
worker more1 --job two --world 2 --rank 1 --steps 6
first=$pid
worker more0 --job two --world 2 --rank 0 --steps 6
wait "$pid" || fail "--steps 6 ended with status $?: $(cat "$tmp/more0.log")"
wait "$first" || fail "--steps 6 of rank 1 ended with status $?"
! grep -q finished "$tmp/more0.log" || fail "a job with steps to do is said to be finished"
./cistern rm two

# If the pool is too small, the message has the value to type, and that value is enough.
worker small --job small --pool 1% --steps 1
! wait "$pid" || fail "a pool of 1 % is taken"
value=$(sed -n 's/.* short; a pool of [^%]* \([0-9]*%\) of the job.s weights, is enough$/\1/p' "$tmp/small.log")
[ -n "$value" ] || fail "no value to type: $(cat "$tmp/small.log")"
worker enough --job small --pool "$value" --steps 1
wait "$pid" || fail "--pool $value is refused: $(cat "$tmp/enough.log")"
./cistern rm small

# On SIGINT and SIGTERM the worker leaves the job. The command can then be repeated to go on.
for signal in INT TERM; do
    worker "stop$signal" --job "stop$signal" --steps 1000000000
    poll grep -q "^step " "$tmp/stop$signal.log"
    # A job that trains is not removed by mistake.
    ! ./cistern rm "stop$signal" 2>"$tmp/rm.log" || fail "a job that trains is removed"
    says rm "job 'stop$signal' has 1 rank that trains: stop it, or remove the job all the same \\(cistern rm --force\\)"
    kill -$signal "$pid"
    status=0
    wait "$pid" || status=$?
    [ $status = $((128 + $(kill -l $signal))) ] || fail "SIG$signal: status $status: $(cat "$tmp/stop$signal.log")"
    says "stop$signal" "^cistern-gpt: stopped after step [0-9]+ of 1000000000; job 'stop$signal' keeps its states: the same command continues it, 'cistern rm stop$signal' removes it\$"
    poll state_is "stop$signal" "done"
    done_steps=$(./cistern job "stop$signal" --json | jq .step)
    says "stop$signal" "stopped after step $done_steps of"
    worker on --job "stop$signal" --steps $((done_steps + 2))
    wait "$pid" || fail "after SIG$signal the job does not go on: $(cat "$tmp/on.log")"
    [ "$(./cistern job "stop$signal" --json | jq .step)" = $((done_steps + 2)) ] || fail "after SIG$signal other steps were done"
done

# This is also true while the worker waits for other ranks.
worker waiting --job waiting --world 2 --rank 0
poll grep -q 'waits for rank 1' "$tmp/waiting.log"
kill -INT "$pid"
status=0
wait "$pid" || status=$?
[ $status = 130 ] || fail "SIGINT while it waits: status $status: $(cat "$tmp/waiting.log")"

# With --force a job is removed while it trains, and the worker is told.
worker forced --job forced --steps 1000000000
poll grep -q "^step " "$tmp/forced.log"
./cistern rm --force forced || fail "rm --force"
! wait "$pid" || fail "the worker of a job that was removed ends well"
says forced "job( 'forced')? was removed"
stop_daemon d

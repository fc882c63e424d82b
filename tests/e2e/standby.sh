#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests standbys: processes that wait to take the place of a rank that dies. A training whose ranks are killed has the bits of an
# undisturbed one: with `cistern run --standby` at seeded moments and two ranks at once, with standbys that are killed while a rank is
# reserved for them, and with a daemon that is killed meanwhile. Standbys end with success when the job ends or is removed.
# CST_TEST_KILLS: number of kills. CST_TEST_SEED: seed of their moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

unset OMP_NUM_THREADS OMP_WAIT_POLICY MASTER_ADDR MASTER_PORT
steps=${CST_TEST_STEPS:-400}
model=(--layers 2 --heads 2 --width 32 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1)
write_text 400

# -- helpers --

pid_of() {
    ./cistern job "$1" --json | jq -r --argjson rank "$2" '.ranks[] | select(.rank == $rank) | .pid // empty'
}

# True if rank $2 of job $1 is attached as another process than $3.
is_replaced() {
    local now
    now=$(./cistern job "$1" --json | jq -r --argjson rank "$2" '.ranks[] | select(.rank == $rank and .state == "attached") | .pid')
    [ -n "$now" ] && [ "$now" != "$3" ]
}

# Kill the ranks $2... of job $1 at once, and wait until others have their places.
kill_ranks() {
    local job=$1 rank pids=()
    shift
    for rank in "$@"; do
        pids+=("$(pid_of "$job" "$rank")")
    done
    kill -KILL "${pids[@]}"
    for rank in "$@"; do
        poll is_replaced "$job" "$rank" "${pids[0]}"
        pids=("${pids[@]:1}")
    done
}

# Begin `cistern run` with the options $2... as job $1: each process dumps its weights into a file of its own. Sets pid.
begin_run() {
    local job=$1
    shift
    # shellcheck disable=SC2016 # for the shell of the process
    env --default-signal=INT ./cistern run "$@" -- sh -c 'exec ./cistern-gpt --dump-weights "$0.$$" "$@"' "$tmp/weights.$job" \
        "${model[@]}" --steps "$steps" --data "$tmp/text" --job "$job" >"$tmp/$job.out" 2>"$tmp/$job.err" &
    pid=$!
    managers+=("$pid")
}

# Begin a standby of job $2, which has two ranks, by hand as $1, up to step $3. Sets pid.
begin_standby() {
    CISTERN_STANDBY=1 ./cistern-gpt "${model[@]}" --steps "$3" --data "$tmp/text" --job "$2" --world 2 --dump-weights "$tmp/weights.$2.$1" \
        >"$tmp/$1.log" 2>&1 &
    pid=$!
    managers+=("$pid")
    poll grep -q 'standby of job' "$tmp/$1.log"
}

# Check that all weights of job $1 are those of a training with one process.
same_weights() {
    local file n=0
    for file in "$tmp/weights.$1".*; do
        cmp "$tmp/local" "$file" || fail "$1: other weights in $file"
        n=$((n + 1))
    done
    [ "$n" = 2 ] || fail "$1: $n ranks have weights, not 2"
}

await_end() {
    local status=0
    wait "$1" || status=$?
    [ "$status" = "$2" ] || fail "$3 ended with status $status, not $2: $(cat "$tmp/$3".*)"
}

says() {
    grep -qE -- "$2" "$tmp/$1" || fail "$1 has no '$2': $(cat "$tmp/$1")"
}

./cistern-gpt "${model[@]}" --steps "$steps" --data "$tmp/text" --world 2 --store local --dump-weights "$tmp/local" >/dev/null
start_keeping keeper --config "$tmp/empty.conf" --gpus none

# -- cistern run --standby --

# Ranks are killed at seeded moments. Each time the standby takes the place, and another one is started.
begin_run drawn -n 2 --standby 1 --restart=100
poll has_stepped drawn 1
killed=0
for ((i = 0; i < n_kills && $(step_of drawn) < steps / 2; i++)); do
    sleep "0.$(printf '%03d' $((RANDOM % 300)))"
    kill_ranks drawn $((RANDOM % 2))
    killed=$((killed + 1))
done
await_end "$pid" 0 drawn
same_weights drawn
says drawn.err '^cistern: rank [01] was killed by signal 9 \(Killed\): a standby takes its place, and another one is started in 0 s'
says drawn.err '^cistern: a standby is rank [01] now$'
! grep -q 'it is started again' "$tmp/drawn.err" || fail "a rank was started again beside its standby: $(cat "$tmp/drawn.err")"
printf 'drawn: same bits after %d kills\n' "$killed"

# Two standbys, and two deaths at once.
begin_run both -n 2 --standby 2
poll has_stepped both 2
kill_ranks both 0 1
await_end "$pid" 0 both
same_weights both
[ "$(grep -c 'a standby is rank' "$tmp/both.err")" = 2 ] || fail "not two ranks were given away: $(cat "$tmp/both.err")"

# Two deaths with one standby: another standby, which is started then, takes the second place, or the rank is started again, because
# no standby was left.
begin_run few -n 2 --standby 1
poll has_stepped few 2
kill_ranks few 0 1
await_end "$pid" 0 few
same_weights few

# Ranks that have died before they have a job are started again, because the daemon does not know them.
status=0
# shellcheck disable=SC2016 # for the shell of the process
./cistern run -n 1 --standby 1 -- sh -c '[ "${CISTERN_STANDBY-}" = 1 ] && exec sleep 1000; [ $CISTERN_RESTARTS = 1 ] || kill -KILL $$; echo $RANK goes on' \
    >"$tmp/early.out" 2>"$tmp/early.err" || status=$?
[ $status = 0 ] || fail "status $status: $(cat "$tmp/early.err")"
says early.err '^cistern: rank 0 was killed by signal 9 \(Killed\): it is started again in 0 s'
says early.out '^\[0\] 0 goes on$'

# A standby that fails does not end the ranks.
status=0
# shellcheck disable=SC2016 # for the shell of the process
./cistern run -n 1 --standby 1 --restart=1 -- sh -c '[ "${CISTERN_STANDBY-}" = 1 ] && exit 3; sleep 2; echo done' >"$tmp/fails.out" 2>"$tmp/fails.err" || status=$?
[ $status = 0 ] || fail "status $status: $(cat "$tmp/fails.err")"
says fails.err '^cistern: a standby ended with status 3, and was started again 1 time within 600 s: it is given up'
says fails.out '^\[0\] done$'

# -- standbys by hand --

# A standby is killed while a rank is reserved for it, which is stopped before: the next one gets the rank. Both jobs and standbys may
# come first.
begin_standby first held "$steps"
first=$pid
begin_standby second held "$steps"
second=$pid
begin held 2 --steps "$steps"
poll has_stepped held 2
kill -STOP "$first"
kill -KILL "${workers[1]}"
poll has "rank 1 is given to a standby, pid $first" "$tmp/keeper.log"
kill -KILL "$first"
wait "$second" || fail "the second standby: $(cat "$tmp/second.log")"
wait "${workers[0]}" || fail "rank 0: $(cat "$tmp/held.0.log")"
cmp "$tmp/local" "$tmp/weights.held.second" || fail "other weights of the second standby"
cmp "$tmp/local" "$tmp/held.weights" || fail "other weights of rank 0"
has 'this standby is rank 1 now' "$tmp/second.log" || fail "the second standby: $(cat "$tmp/second.log")"

# Meanwhile the rank is refused to others.
begin_standby reserved reserved 1000000
standby=$pid
begin reserved 2 --steps 1000000
poll has_stepped reserved 2
kill -STOP "$standby"
kill -KILL "${workers[1]}"
poll has "'reserved': rank 1 is given to a standby" "$tmp/keeper.log"
begin_rank reserved 2 1 --steps 1000000
! wait "${workers[1]}" || fail "another process took the place of a standby"
has "is reserved for a standby, pid $standby" "$tmp/reserved.1.log" || fail "$(cat "$tmp/reserved.1.log")"
kill -CONT "$standby"
poll is_replaced reserved 1 "${workers[1]}"

# The removal of a job ends its standbys with success, and so does the end of its ranks.
begin_standby removed reserved 1000000
./cistern rm --force reserved >/dev/null
wait "$pid" || fail "a standby whose job was removed: $(cat "$tmp/removed.log")"
has "job 'reserved' has ended: job 'reserved' was removed" "$tmp/removed.log" || fail "$(cat "$tmp/removed.log")"
begin_standby idle left 5
standby=$pid
begin left 2 --steps 5
end left
wait "$standby" || fail "a standby whose job has ended: $(cat "$tmp/idle.log")"
has "job 'left' has ended: all its ranks have left" "$tmp/idle.log" || fail "$(cat "$tmp/idle.log")"

# A standby waits for the next process of the daemon. A rank that dies after that is given to it, and so is one that dies meanwhile, when
# it has not come back.
longer=$((3 * steps))
./cistern-gpt "${model[@]}" --steps "$longer" --data "$tmp/text" --world 2 --store local --dump-weights "$tmp/longer" >/dev/null
begin_standby again again "$longer"
standby=$pid
begin again 2 --steps "$longer"
poll has_stepped again 2
kill_daemon keeper
poll has_stepped again $(($(step_of again) + 1))
kill -USR1 "${manager_of[keeper]}" # It ends the daemon in good order.
await keeper 'EXIT=*'
await keeper 'PID=*'
daemon_pid=${line#PID=}
await keeper READY=1
poll has_stepped again $(($(step_of again) + 1))
kill -KILL "${workers[1]}"
wait "$standby" || fail "the standby after a restart of the daemon: $(cat "$tmp/again.log")"
wait "${workers[0]}" || fail "rank 0: $(cat "$tmp/again.0.log")"
cmp "$tmp/longer" "$tmp/again.weights" || fail "other weights after a restart of the daemon"
cmp "$tmp/longer" "$tmp/weights.again.again" || fail "other weights of the standby after a restart of the daemon"

if ! sparse; then
    wait_s=$((wait_s + 60)) # The daemon waits 30 s for the rank.
    begin_standby meanwhile meanwhile "$steps"
    standby=$pid
    begin meanwhile 2 --steps "$steps"
    poll has_stepped meanwhile 2
    kill -STOP "${manager_of[keeper]}"
    kill -KILL "${workers[1]}"
    kill -KILL "$daemon_pid"
    kill -CONT "${manager_of[keeper]}"
    await keeper READY=1
    wait "$standby" || fail "the standby of a rank that died without a daemon: $(cat "$tmp/meanwhile.log")"
    wait "${workers[0]}" || fail "rank 0: $(cat "$tmp/meanwhile.0.log")"
    cmp "$tmp/local" "$tmp/meanwhile.weights" || fail "other weights after a death without a daemon"
fi

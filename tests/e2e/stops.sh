#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that ranks which SIGINT stops at any moment end with the status of a stop, say nothing but that, and leave a job that is not
# interrupted: those of cistern-gpt, and, if CISTERN_PYTHON has torch, one of cistern.torch that handles the signal itself. The ranks
# of cistern-gpt compute in fp32 without AVX-512, because a signal's frame in one of oneDNN's products would then damage the heap.
# CST_TEST_STOPS: number of stops; CST_TEST_SEED: their moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need jq
n=${CST_TEST_STOPS:-6}
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'CST_TEST_SEED=%s\n' "$seed"
RANDOM=$seed
write_text 3000
start_daemon stops

# Start `cistern run` with the arguments $@, and send it SIGINT at a moment of the next two seconds; if $after is set, of the first
# two seconds after its output has a line that matches.
stop_run() {
    : >"$tmp/out" # The lines of the run before are not this one's.
    env --default-signal=INT ./cistern run "$@" >"$tmp/out" 2>&1 &
    pid=$!
    managers+=("$pid")
    [ -z "$after" ] || poll has "$after" "$tmp/out"
    sleep "$(printf '%d.%03d' $((RANDOM % 2)) $((RANDOM % 1000)))"
    kill -INT "$pid"
    status=0
    wait "$pid" || status=$?
}

# Check the end of stop_run: the status $1, lines that match $2 only, and job $3.
check_stop() {
    [ "$status" = "$1" ] || fail "stop of $3: status $status: $(cat "$tmp/out")"
    ! grep -vE "$2" "$tmp/out" || fail "stop of $3: $(cat "$tmp/out")"
    state=$(./cistern job "$3" --json 2>"$tmp/job.log" | jq -r .state || true)
    [ "$state" != interrupted ] || fail "stop of $3: the job is interrupted: $(cat "$tmp/out")"
    ./cistern rm "$3" 2>"$tmp/job.log" || grep -q 'no job' "$tmp/job.log" || fail "stop of $3: $(cat "$tmp/job.log")"
}

gpt=(--data "$tmp/text" --layers 2 --heads 4 --width 128 --context 64 --batch 4 --pool 100% --matmul fp32 --steps 1000000000)
for ((i = 0; i < n; i++)); do
    # Every fourth stop comes while the ranks still start.
    after='step 1/'
    [ $((i % 4)) != 3 ] || after=''
    CISTERN_ISA=avx2 stop_run -n 2 -- ./cistern-gpt --job "gpt$i" "${gpt[@]}"
    check_stop 130 'cistern: |cistern-gpt: (stopped|[0-9.]+ M parameters)|step [0-9]+/|done: |waits for' "gpt$i"
done

python=${CISTERN_PYTHON-}
if [ -e .libs/libcistern.so.0 ] && [ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] && [ -n "$python" ] &&
    "$python" -c 'import torch' 2>"$tmp/import.log"; then
    export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1
    after=ready
    for ((i = 0; i < (n + 5) / 6; i++)); do
        stop_run -n 1 -- "$python" "$srcdir/tests/python/torch/stopped_rank.py" "torch$i"
        check_stop 0 'cistern: |ready' "torch$i"
    done
fi
stop_daemon stops

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the end of a run of cistern-gpt: ranks leave after the last step and wait for no other rank. A rank that is killed at the
# end and started again finds that all is done, and ends with status 0, alone. Its output to a file is appended to the file's
# contents.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=6
model=(--layers 2 --heads 2 --width 32 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --steps "$steps")
write_text 400

# Start rank $1 of 2 of the job "ends" with the other arguments. Sets pid.
worker() {
    local rank=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --world 2 --job ends --rank "$rank" "$@" >>"$tmp/rank$rank.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

state() {
    ./cistern job ends --json | jq -r .state
}

is_done() {
    [ "$(state)" = "done" ]
}

start_daemon d

# Rank 0 has a long output after the last step, and rank 1 does not wait for it. Rank 0 is killed during the output.
worker 0 --sample 100000000
first=$pid
worker 1
wait "$pid" || fail "rank 1 ended with status $?"
poll grep -q '^done: ' "$tmp/rank0.log"
kill -0 "$first" || fail "rank 0 did not go on alone"
kill -KILL "$first"
wait "$first" 2>/dev/null || true

# Started again, rank 0 has no step to do and no rank to wait for: it prints its output and exits. So does rank 1.
worker 0 --sample 40 --dump-weights "$tmp/again.weights"
wait "$pid" || fail "rank 0, started again, ended with status $?"
grep -q '^sample:' "$tmp/rank0.log" || fail "rank 0, started again, has no sample: $(cat "$tmp/rank0.log")"
worker 1
wait "$pid" || fail "rank 1, started again, ended with status $?"
poll is_done
[ "$(./cistern job ends --json | jq .step)" = $steps ] || fail "steps were done twice"

# The sample and the weights are those of an undisturbed run.
./cistern-gpt "${model[@]}" --data "$tmp/text" --world 2 --store local --sample 40 --dump-weights "$tmp/local.weights" >"$tmp/local.out" ||
    fail "--store local failed"
cmp "$tmp/local.weights" "$tmp/again.weights" || fail "other weights"
cmp <(sed -n '/^sample:/,$p' "$tmp/local.out") <(sed -n '/^sample:/,$p' "$tmp/rank0.log") || fail "another sample"
./cistern rm ends
stop_daemon d

# Objects and lines are appended to one file.
printf 'before\n' >"$tmp/out"
# shellcheck disable=SC2094 # that it is the same file is what is tested
./cistern-gpt "${model[@]}" --data "$tmp/text" --store local --log-json /dev/stdout --loss-file "$tmp/out" >>"$tmp/out" || fail "--log-json /dev/stdout"
[ "$(head -n 1 "$tmp/out")" = before ] || fail "standard output was emptied: $(head -n 3 "$tmp/out")"
printf 'before\n' >"$tmp/out2"
./cistern-gpt "${model[@]}" --data "$tmp/text" --store local --log-json /dev/stdout 1<>"$tmp/out2" || fail "--log-json /dev/stdout"
for out in out out2; do
    [ "$(grep -c '^{"step"' "$tmp/$out")" = $steps ] || fail "$out has not an object a step: $(cat "$tmp/$out")"
    grep -q '^done: ' "$tmp/$out" || fail "$out has lost its last line: $(cat "$tmp/$out")"
done
[ "$(grep -c '^0x' "$tmp/out")" = $steps ] || fail "not a loss a step: $(cat "$tmp/out")"

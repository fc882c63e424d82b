#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a daemon is ready before it goes on with the jobs of the earlier one: small jobs go on before large ones, base jobs before
# their users; requests about a job that is not ready yet wait for it, whether it is opened, saved, removed or a base; and the jobs of a
# daemon that is killed meanwhile, again and again, go on with a later one.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

small=(--layers 1 --heads 1 --width 16 --context 16 --batch 1)
rest=(--warmup 2 --lr 0.001 --min-lr 0.001 --matmul fp32 --threads 1 --seed 7)
write_text 400
# Train job $1 up to step $2, with the options $3...
train() {
    local job=$1 steps=$2
    shift 2
    ./cistern-gpt "$@" "${rest[@]}" --data "$tmp/text" --job "$job" --steps "$steps" >>"$tmp/$job.0.log" 2>&1 || fail "$job: no $steps steps"
}

start_keeping keeper --gpus none
large=(--layers 200 --heads 1 --width 16 --context 16 --batch 1)
train large 2 "${large[@]}"
train second 2 "${large[@]}"
train tiny 2 "${small[@]}" --lora 2
train user 2 "${small[@]}" --lora 2 --base tiny
jobs=4

# Jobs go on in the order of their sizes, and a job waits for its base.
settled() {
    [ "$(grep -c 'jobs of the earlier daemon go on, after' "$tmp/keeper.log")" = "$1" ]
}
order() {
    grep 'goes on after step' "$tmp/keeper.log" | tail -n "$jobs" | sed "s/.*job '\(.*\)': goes.*/\1/" | tr '\n' ' '
}
kill_daemon keeper
poll settled 1
case $(order) in
    'tiny user large second ' | 'tiny large user second ' | 'tiny large second user ') ;; # the base may still wait for its engine
    *) fail "the jobs went on in this order: $(order)" ;;
esac

# Requests that come at once wait, and find the job as it was.
kill_daemon keeper
[ "$(./cistern jobs --json | jq -c '[.[] | .step] | add')" = 8 ] || fail "not all jobs are listed with their steps: $(./cistern jobs)"
train second 3 "${large[@]}" &
trainer=$!
managers+=("$trainer")
train user 3 "${small[@]}" --lora 2 --base tiny
wait "$trainer" || fail "second did not wait for its job"
kill_daemon keeper
./cistern save large "$tmp/large" >/dev/null || fail "a save did not wait for its job"
kill_daemon keeper
./cistern rm second || fail "a removal did not wait for its job"
jobs=3
poll settled 4
[ "$(./cistern jobs --json | jq -c 'map([.name, .step])')" = '[["large",2],["tiny",2],["user",3]]' ] || fail "other jobs: $(./cistern jobs)"

# Daemons that are killed before they are done leave all jobs to the next one.
for ((i = 0; i < 5; i++)); do
    kill_daemon keeper
done
train large 4 "${large[@]}"
train user 4 "${small[@]}" --lora 2 --base tiny
train tiny 4 "${small[@]}" --lora 2

# So does one that is ended in good order. What is left when all jobs are removed is nothing.
kill -USR1 "${manager_of[keeper]}"
await keeper 'EXIT=0'
await keeper READY=1
for job in user tiny large; do
    ./cistern rm "$job" || fail "$job was not removed"
done
[ "$(./cistern stat --json | jq .host_used)" = 0 ] || fail "memory in use without jobs: $(./cistern stat)"
stop_daemon keeper
printf 'all well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests a pause of a job on a GPU, without a GPU (tests/lib/fakecuda): its bits are those of an undisturbed run, and its pools, which the
# driver holds, are not released.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
use_fakecuda
need jq

model=(--layers 4 --heads 2 --width 64 --context 32 --batch 2 --steps 30 --warmup 2 --lr 0.003 --threads 1 --seed 7 --device cuda:0
    --matmul plain)
write_text 400

train() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$1" --dump-weights "$tmp/$1.weights" >"$tmp/$1.log" 2>&1
}
step_of() {
    ./cistern jobs --json | jq -r --arg job "$1" '[.[] | select(.name == $job) | .step] | first // 0'
}
has_stepped() {
    [ "$(step_of "$1")" -ge "$2" ]
}

start_daemon daemon --gpus all
train plain || fail "cistern-gpt failed"
train paused &
worker=$!
managers+=("$worker")
poll has_stepped paused 1
! ./cistern pause paused --release-pools 2>"$tmp/refused" || fail "the pools of a GPU were released"
grep -q 'uses a GPU whose driver holds them: pause it without --release-pools' "$tmp/refused" || fail "refused as: $(<"$tmp/refused")"
./cistern pause paused
step=$(step_of paused)
sleep 0.5
[ "$(step_of paused)" = "$step" ] || fail "the job goes on during its pause"
./cistern resume paused
wait "$worker" || fail "cistern-gpt failed after a pause"
cmp "$tmp/plain.weights" "$tmp/paused.weights" || fail "other weights after a pause"
stop_daemon daemon

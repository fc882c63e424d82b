#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests a standby of ranks with pools on a GPU, without a GPU (tests/lib/fakecuda): it has its context before it waits, takes the pool of a
# rank that is killed, and the training has the bits of an undisturbed one.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
not_sparse
use_fakecuda

model=(--layers 2 --heads 2 --width 32 --context 16 --batch 2 --warmup 2 --lr 0.003 --device cuda --matmul plain --steps 30)
write_text 400
start_daemon d --gpus all

# Train as job $1 with the options $2... of `cistern run`. Each process dumps its weights into a file of its own. Sets pid.
begin() {
    local job=$1
    shift
    # shellcheck disable=SC2016 # for the shell of the process
    ./cistern run -n 2 "$@" -- sh -c 'exec ./cistern-gpt --dump-weights "$0.$$" "$@"' "$tmp/weights.$job" "${model[@]}" --data "$tmp/text" --job "$job" \
        >"$tmp/$job.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

has_stepped() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge 3 ] 2>/dev/null
}

begin calm
wait "$pid" || fail "an undisturbed training: $(cat "$tmp/calm.log")"
begin disturbed --standby 1
poll has "is a standby of job 'disturbed'" "$tmp/d.log"
poll has_stepped disturbed
kill -KILL "$(./cistern job disturbed --json | jq '.ranks[] | select(.rank == 1) | .pid')"
wait "$pid" || fail "a training with a standby: $(cat "$tmp/disturbed.log")"
has 'a standby is rank 1 now' "$tmp/disturbed.log" || fail "no standby took the place of rank 1: $(cat "$tmp/disturbed.log")"
files=("$tmp"/weights.*.*)
[ ${#files[@]} = 4 ] || fail "not the weights of four ranks: ${files[*]}"
for file in "${files[@]}"; do
    cmp "${files[0]}" "$file" || fail "other weights in $file"
done
stop_daemon d

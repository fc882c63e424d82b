#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user would type: train, save, lose the daemon, start a fresh one, load, train on. The result is that of an undisturbed run.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
write_text 400
gpt=(./cistern-gpt --data "$tmp/text" --layers 2 --heads 2 --width 64 --context 32 --world 2 --threads 1 --job run7 --steps 12)

train() { # two ranks, with the options $@
    "${gpt[@]}" --rank 1 >"$tmp/1.log" 2>&1 &
    "${gpt[@]}" --rank 0 "$@" >"$tmp/0.log" 2>&1 || fail "rank 0: $(tail -n 1 "$tmp/0.log")"
    wait $! || fail "rank 1: $(tail -n 1 "$tmp/1.log")"
}

start_daemon before
train --save-dir "$tmp/run7" --save-every 5 --dump-weights "$tmp/undisturbed"
kill -9 "$daemon_pid"
await before 'SIGNAL=*'
start_daemon after
./cistern checkpoints "$tmp/run7"
./cistern load "$tmp/run7/step-00000005"
[ "$(./cistern jobs --json | jq -r '.[0].name')" = run7 ] || fail "$(./cistern jobs)"
train --dump-weights "$tmp/loaded"
cmp "$tmp/undisturbed" "$tmp/loaded" || fail "other weights than without interruption"

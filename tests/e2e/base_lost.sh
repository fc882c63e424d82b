#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a base job that ends although jobs use it, because there is no memory for a command to its engine, ends them, too: a job
# whose layout a thread builds with the base's, and a job of an earlier daemon whose memory is being mapped.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 1 --heads 1 --width 16 --context 16 --batch 1 --warmup 2 --lr 0.001 --min-lr 0.001 --matmul fp32 --threads 1 --seed 7)
write_text 400
# Train job $1 up to step $2, with the options $3...
train() {
    begin_rank "$1" 1 0 --steps "$2" --lora 2 "${@:3}"
    wait "${workers[0]}" || fail "$1: no $2 steps"
}
# How often the log says that the base job has ended.
ends_of_base() {
    grep -c "job 'base': removed: no memory for a command" "$tmp/keeper.log" || true
}
has_ended_again() {
    [ "$(ends_of_base)" -gt "$1" ]
}
# The base job ends, and its worker is told.
lose_base() {
    local before
    before=$(ends_of_base)
    touch "$tmp/faults/submit"
    begin_rank base 1 0 --steps 9 --lora 2
    ! wait "${workers[0]}" || fail "the base job did not end"
    poll has_ended_again "$before"
    rm "$tmp/faults/submit"
}
# A gate is a FIFO with a process that could write; who reads there waits until that process has ended.
make_gate() {
    mkfifo "$1"
    sleep infinity <>"$1" &
    keeper_of_gate=$!
    managers+=($!)
}
somebody_is_at() {
    [ -n "$(find /proc/[0-9]*/fd -lname "$1" ! -path "/proc/$keeper_of_gate/*" 2>/dev/null)" ]
}
await_somebody_at() {
    poll somebody_is_at "$1"
    rm "$1"
}
open_gate() {
    kill "$keeper_of_gate"
}

cat >"$tmp/engine" <<EOF
#!/bin/sh
case "\$*" in *paced*) [ ! -p "$tmp/engine.gate" ] || cat "$tmp/engine.gate" ;; esac
exec ./cistern-engine-host "\$@"
EOF
chmod +x "$tmp/engine"
printf '[paced]\ndevices = 1\nmemory = 64M\n' >"$tmp/keeper.conf"
allow_faults
export MALLOC_PERTURB_=165 # Freed memory has other contents.
start_keeping keeper --config "$tmp/keeper.conf" --gpus none --engine "$tmp/engine"

# A thread builds the layout of a job with that of its base.
train base 2
make_gate "$tmp/faults/layout"
begin_rank user 1 0 --steps 2 --lora 2 --base base
user=${workers[0]}
await_somebody_at "$tmp/faults/layout"
lose_base
open_gate
! wait "$user" || fail "a job without its base"
nothing_is_used() {
    [ "$(./cistern stat --json | jq .host_used)" = 0 ]
}
poll nothing_is_used

# The accelerator's engine has not begun to map the memory of a job of the earlier daemon.
train base 2
train mounted 2 --base base --device paced
make_gate "$tmp/engine.gate"
kill_daemon keeper
await_somebody_at "$tmp/engine.gate"
[ "$(./cistern jobs --json | jq -r '.[] | select(.name == "mounted") | .state')" = reviving ] || fail "not reviving: $(./cistern jobs)"
lose_base
poll has '1 of 2 jobs of the earlier daemon go on, after' "$tmp/keeper.log"
has "job 'mounted' of the earlier daemon cannot go on: its base job 'base' is not there any more" "$tmp/keeper.log" || fail "it was not named"
poll nothing_is_used
open_gate
stop_daemon keeper
printf 'all well\n'

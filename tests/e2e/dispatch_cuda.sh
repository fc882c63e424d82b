#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel dispatch --device cuda without a GPU (tests/lib/fakecuda): the same losses, weights and bytes loaded with
# one to four workers on two GPUs, with other stages and with recomputation; and with workers and an engine that are killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/dispatch_jobs.sh
. "${srcdir:-.}/tests/e2e/dispatch_jobs.sh"
not_sparse
use_fakecuda
export CST_FAKECUDA_DEVICES=2

model=(--layers 4 --heads 2 --width 32 --context 16 --batch 4 --micro-batches 4 --warmup 2 --lr 0.003 --seed 7 --data "$tmp/text"
    --matmul plain --validate 5%)
write_text 400
start_daemon d --gpus all

# Two GPUs in turns.
device_of() {
    printf 'cuda:%d\n' $(($1 % 2))
}

for world in 1 2 4; do
    begin_all "w$world" "$world" --steps 4
    end_all "w$world"
    same w1 "w$world"
    [ "$(loaded "w$world")" = "$(loaded w1)" ] || fail "$world workers load $(loaded "w$world") bytes, and one loads $(loaded w1)"
done
[ "$(sort -u "$tmp/w1.0.losses" | wc -l)" = 4 ] || fail "losses that do not change prove nothing"

# Two stages of two blocks each, of which a backward unit keeps the inputs alone or all activations; and pools for hardly more than
# what one operator needs.
for options in "--stages 2" "--stages 2 --recompute" "--pool 80%"; do
    # shellcheck disable=SC2086 # several words
    begin_all other 2 --steps 4 $options
    end_all other
    same w1 other
    ./cistern rm other
done

# The model is that of a worker that computes everything in turn.
near_plain w1 1e-2 --device cuda --steps 4

steps=30
begin_all calm 2 --steps $steps
end_all calm

# A worker is killed and comes again in the middle. Later the engine of a GPU is killed: the workers on it lose their pools.
begin_all killed 2 --steps $steps
poll made killed 3
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null || true
poll has 'rank 1 .* ended without leaving the job' "$tmp/d.log"
begin killed 1 2 --steps $steps
engine=
for pid in $(children "$daemon_pid"); do
    ! has -a engine-cuda "/proc/$pid/cmdline" || engine=$pid
done
[ -n "$engine" ] || fail "there is no engine of a GPU"
poll made killed 10
kill -KILL "$engine"
if made killed $steps; then fail "the engine was killed too late"; fi
end_all killed
same calm killed
stop_daemon d

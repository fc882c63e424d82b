#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel dispatch: the same losses, weights and bytes loaded with one to four workers; with workers that are
# killed or interrupted and come again in the middle, or do not come again; and with an engine that is killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/dispatch_jobs.sh
. "${srcdir:-.}/tests/e2e/dispatch_jobs.sh"
start_on_host

# Several numbers of workers, and a stage for each block or for two.
worlds=(1 2 3 4)
kinds=("--lora 4" "--optimizer muon" "--pool 45%")
steps=60
moments=(3 10 20) # Steps after which something is killed.
if sparse; then
    worlds=(1 3)
    kinds=("--pool 45%")
fi
for stages in 6 3; do
    for world in "${worlds[@]}"; do
        begin_all "w$world-$stages" "$world" --steps 5 --stages "$stages"
        end_all "w$world-$stages"
        same "w1-$stages" "w$world-$stages"
        [ "$(loaded "w$world-$stages")" = "$(loaded "w1-$stages")" ] ||
            fail "$world workers load $(loaded "w$world-$stages") bytes, and one loads $(loaded "w1-$stages")"
    done
done
cmp "$tmp/w1-6.0.weights" "$tmp/w1-3.0.weights" || fail "the results depend on the number of stages"

# The model is that of a worker that computes everything in turn.
near_plain w1-6 1e-3 --steps 5

# Adapters, whose base has no gradients; Muon; and pools that hold hardly more than what one operator needs.
for kind in "${kinds[@]}"; do
    for world in 1 3; do
        # shellcheck disable=SC2086 # several words
        begin_all "k$world" "$world" --steps 4 $kind
        end_all "k$world"
    done
    same k1 k3
    ./cistern rm k1
    ./cistern rm k3
done

begin_all calm 3 --steps $steps
end_all calm

# A worker is killed and comes again in the middle, another one is told to stop and comes again, and an engine is killed.
begin_all killed 3 --steps $steps
poll made killed "${moments[0]}"
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null || true
poll has 'rank 1 .* ended without leaving the job' "$tmp/d.log"
begin killed 1 3 --steps $steps
poll made killed "${moments[1]}"
kill -TERM "${pids[2]}"
wait "${pids[2]}" 2>/dev/null || true
begin killed 2 3 --steps $steps
poll made killed "${moments[2]}"
# shellcheck disable=SC2046 # one pid
kill -KILL $(children "$daemon_pid" | awk '{ print $1 }')
if made killed $steps; then fail "the engine was killed too late"; fi
end_all killed
same calm killed

# A worker is killed and does not come again.
begin_all fewer 3 --steps $steps
poll made fewer 3
kill -KILL "${pids[2]}"
if made fewer $steps; then fail "the worker was killed too late"; fi
end_all fewer 2
same calm fewer

# What cannot be combined is refused.
for wrong in "--micro-batches 1" "--stages 7" "--experts 2" "--store local" "--overlap early --clip 0" "--activation-memory 1G"; do
    # shellcheck disable=SC2086 # several words
    if ./cistern-gpt "${model[@]}" --parallel dispatch $wrong >"$tmp/wrong.out" 2>"$tmp/wrong.log"; then fail "$wrong is not refused"; fi
    has -e "${wrong%% *}" "$tmp/wrong.log" || fail "$wrong: $(cat "$tmp/wrong.log")"
done
if ./cistern-gpt "${model[@]}" --stages 2 2>"$tmp/wrong.log"; then fail "--stages without --parallel dispatch is not refused"; fi
stop_daemon d

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests deaths in a job with ranks on three nodes: workers, engines of the network and daemons are killed at random moments, one or two
# at once, and losses and states are those of a job that nothing befell. CST_TEST_DEATHS: how many of each (2); CST_TEST_SEED: seed of the
# moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq

nodes=(a b c)
deaths=${CST_TEST_DEATHS:-2}
RANDOM=${CST_TEST_SEED:-$$}
printf 'seed %d\n' "${CST_TEST_SEED:-$$}"
model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --steps $((60 + 90 * deaths)) --warmup 2 --lr 0.003 --matmul fp32 --threads 1
    --chunk 40000 --copies 2)
write_text 400

# Start rank $2 of job $1, on its node. Sets pids[$2].
rank() {
    local out=()
    [ "$2" -gt 0 ] || out=(--loss-file "$tmp/$1.losses")
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/${nodes[$2]}/run/cistern.sock" --job "$1" --world 1 --all-ranks 3 \
        --first-rank "$2" "${out[@]}" >>"$tmp/$1.$2.log" 2>&1 &
    pids[$2]=$!
}

step_of() {
    on a jobs --json | jq '.[0].step // 0'
}

# True when the job has made $1 steps.
has_made() {
    [ "$(step_of)" -ge "$1" ]
}

# Kill the engine of the network of node $1, if there is one now.
kill_engine() {
    local engine
    for engine in $(children "$(cat "$tmp/$1.pid")"); do
        if has -z engine-net "/proc/$engine/cmdline" 2>/dev/null; then
            kill -9 "$engine" || true
        fi
    done
}

# Kill the daemons of the nodes "$@" at once, and wait until the next ones are ready.
kill_daemons() {
    local node
    for node in "$@"; do
        kill -9 "$(cat "$tmp/$node.pid")"
    done
    for node in "$@"; do
        await_node "$node"
        echo "$node_pid" >"$tmp/$node.pid"
    done
}

for node in "${nodes[@]}"; do
    start_node "$node" trusted --keep
    echo "$node_pid" >"$tmp/$node.pid"
done
acquaint "${nodes[@]}"

for job in calm killed; do
    pids=()
    for r in 0 1 2; do
        rank "$job" "$r"
    done
    if [ "$job" = killed ]; then
        for ((i = 0; i < deaths; i++)); do
            poll has_made $((20 + 90 * i + RANDOM % 20))
            kill_engine "${nodes[RANDOM % 3]}"
            poll has_made $((50 + 90 * i + RANDOM % 20))
            r=$((1 + RANDOM % 2))
            kill -9 "${pids[r]}" || fail "rank $r has ended"
            wait "${pids[r]}" || true
            rank "$job" "$r"
            poll has_made $((80 + 90 * i + RANDOM % 20))
            r=$((RANDOM % 3))
            if [ $((RANDOM % 2)) = 0 ]; then
                kill_daemons "${nodes[r]}"
            else
                kill_daemons "${nodes[r]}" "${nodes[(r + 1) % 3]}"
            fi
        done
    fi
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$job: a rank failed"
    done
    on b save "$job" "$tmp/saved-$job" >"$tmp/$job.save.log" 2>&1 || fail "$job: save"
    on a rm "$job" >"$tmp/removed.log" || fail "rm $job"
    for node in "${nodes[@]}"; do
        poll has_no_job "$node"
    done
done

# The loss of a step that was committed when the daemon died is not known to its worker.
[ "$(grep -c nan "$tmp/killed.losses")" -le "$deaths" ] || fail "more than $deaths losses are not known"
awk 'NR == FNR { calm[FNR] = $0; next } $0 != "nan" && $0 != calm[FNR] { exit 1 } END { exit FNR == length(calm) ? 0 : 1 }' \
    "$tmp/calm.losses" "$tmp/killed.losses" || fail "other losses after deaths: $(diff "$tmp/calm.losses" "$tmp/killed.losses" | head -4)"
for file in "$tmp"/saved-calm/*/*.safetensors; do
    cmp "$file" "$tmp/saved-killed/${file#"$tmp/saved-calm/"}" || fail "other states after deaths"
done
printf 'after %d deaths of each kind: the same losses and states\n' "$deaths"

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

for node in "${nodes[@]}"; do
    start_node "$node" trusted --keep
done
acquaint "${nodes[@]}"

for job in calm killed; do
    begin_ranks "$job"
    if [ "$job" = killed ]; then
        for ((i = 0; i < deaths; i++)); do
            poll has_made a killed $((20 + 90 * i + RANDOM % 20))
            kill_net_engine "${nodes[RANDOM % 3]}"
            poll has_made a killed $((50 + 90 * i + RANDOM % 20))
            r=$((1 + RANDOM % 2))
            kill -9 "${pids[r]}" || fail "rank $r has ended"
            wait "${pids[r]}" || true
            rank "$job" "$r"
            poll has_made a killed $((80 + 90 * i + RANDOM % 20))
            r=$((RANDOM % 3))
            if [ $((RANDOM % 2)) = 0 ]; then
                kill_daemons "${nodes[r]}"
            else
                kill_daemons "${nodes[r]}" "${nodes[(r + 1) % 3]}"
            fi
        done
    fi
    end_job "$job"
done

# The loss of a step that was committed when the daemon died is not known to its worker.
same_losses calm killed "$deaths"
same_states calm killed
printf 'after %d deaths of each kind: the same losses and states\n' "$deaths"

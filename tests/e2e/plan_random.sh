#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random small jobs keep to plans that were made before: chunks, blocks and bytes down are exact, and bytes up are within 5 %, or
# at most 1 % above the plan's without experts. The jobs have micro-batches, several ranks, stages that are dispatched, pools of any
# size, and the options of states and updates.
# CST_PLAN_RUNS is the number of jobs (6), CST_TEST_SEED the seed (1), which is printed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

runs=${CST_PLAN_RUNS:-6}
seed=${CST_TEST_SEED:-1}
RANDOM=$seed
echo "seed $seed: CST_TEST_SEED=$seed CST_PLAN_RUNS=$runs"
steps=3 # of the plan's simulation
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 17179869184, "up": 8e9, "down": 8e9, "memory": 2e10, "flops": 6e10}],
 "nodes": [{"cores": 2, "memory_bytes": 17179869184, "pass": 2e10, "update": 7e8, "reduce": 3e9, "copy": 8e9, "products": 5e10}],
 "request_s": 3e-5}
RATES
seq 20000 >"$tmp/text"
start_daemon d

# Set variable $1 to one of the other arguments. A subshell would draw other numbers than those of the seed.
pick() {
    local -n to=$1
    local at=$((2 + RANDOM % ($# - 1)))
    # shellcheck disable=SC2034 # the caller's variable
    to=${!at}
}

# Draw a job into the arrays `model`, for cistern-gpt, and `how`, for both cistern-gpt and cistern plan.
draw() {
    local micro layers width context options kind n
    pick world 1 2 2 3
    pick micro 1 1 2 3 6
    pick layers 2 3 5
    pick width 32 64 96
    pick context 16 24
    pick options "" "" "" "--masters split" "--moments mx8" "--moments bf16 --optimizer lion" "--optimizer muon" "--overlap early"
    pick kind plain plain dispatch experts lora
    model=(--layers "$layers" --heads 2 --width "$width" --context "$context" --batch 6 --world "$world" --threads 1)
    read -ra how <<<"$options"
    case $kind in
    dispatch)
        pick micro 2 3 6
        model+=(--parallel dispatch --stages 2)
        [ "$options" != "--overlap early" ] || how=()
        ;;
    experts)
        pick n 2 4
        model+=(--experts "$n")
        ;;
    lora) model+=(--lora 3) ;;
    esac
    how+=(--micro-batches "$micro")
    [ "$micro" -gt 1 ] || [ "${how[0]}" = --overlap ] || [ "${how[0]}" = --masters ] || [ $((RANDOM % 4)) -gt 0 ] || how+=(--grad-over-weight)
}

# Plan the job with a pool between the smallest possible one and one for everything.
plan() {
    local make=(./cistern plan "$tmp/model.json" --json --rates "$tmp/rates.json" --on host --ranks "$world" "${how[@]}") least weights
    ./cistern-gpt "${model[@]}" "${how[@]}" --describe "$tmp/model.json"
    "${make[@]}" --device 1 >"$tmp/least.json" 2>"$tmp/plan.log" && fail "there is a plan with a pool of one byte"
    least=$(jq .least.device_bytes "$tmp/least.json")
    weights=$(jq '[.tensors[].shape | reduce .[] as $n (2; . * $n)] | add' "$tmp/model.json")
    device=$((least + weights * (RANDOM % 130) / 100))
    rm -f "$tmp/plan"
    "${make[@]}" --device "$device" --save "$tmp/plan" >"$tmp/planned.json" || fail "no plan for ${model[*]} ${how[*]} --device $device"
}

train() {
    local rank pids=()
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt "${model[@]}" "${how[@]}" --clip 0 --data "$tmp/text" --job random --rank $rank --steps $steps --plan "$tmp/plan" --quiet \
            >"$tmp/gpt$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank failed: ${model[*]} ${how[*]} --device $device: $(tail -n 1 "$tmp/gpt$rank.log")"
    done
    ./cistern job random --json >"$tmp/job.json"
    ./cistern rm random
}

for ((run = 0; run < runs; run++)); do
    draw
    plan
    train
    jq -c '{chunks: .plan.n_chunks, blocks: [.plan.classes[].n_blocks], down: .plan.predicted.total_bytes_down, up: .plan.predicted.total_bytes_up}' \
        "$tmp/planned.json" >"$tmp/wanted"
    # A rank that holds fewer chunks of a size class than others may have other blocks.
    jq -c '{chunks: .n_chunks, blocks: ([.ranks[].classes | map(.n_blocks)] | unique),
        down: ([.ranks[].bytes_down] | add), up: ([.ranks[].bytes_up] | add)}' "$tmp/job.json" >"$tmp/had"
    echo "$run: ${model[*]} ${how[*]} --device $device: planned $(cat "$tmp/wanted"), had $(cat "$tmp/had")"
    # What is loaded for the step after the last one, before a worker leaves, depends on times. It is at most what the pools hold, and
    # the plan counts it. Data decide which experts are used: a load of one that is expected and does not come is in vain, and a gradient
    # of one that is not used does not come. Both are 5 % in pools that hold a quarter of the weights and passes of 16 tokens.
    # In nearly all other jobs the loads are exact; on a busy machine, one of 60 (three ranks, six micro-batches, pools for six of eight
    # chunks, seed 5) had 5 to 9 % less, which is too few at times, and another one 0.7 % more in one of four runs.
    experts=$(printf '%s\n' "${model[@]}" | grep -c experts || true)
    jq -ne --slurpfile w "$tmp/wanted" --slurpfile h "$tmp/had" --argjson experts "$experts" \
        --argjson pools "$((world * $(jq .plan.pool_bytes "$tmp/planned.json")))" '$w[0] as $w | $h[0] as $h |
            $w.chunks == $h.chunks and any($h.blocks[]; . == $w.blocks) and ($w.down - $h.down | fabs) <= 0.05 * $experts * $w.down
            and $h.up - $w.up <= (0.01 + 0.05 * $experts) * $w.up
            and $w.up - $h.up <= 0.05 * (1 + $experts) * $w.up + $pools' >"$tmp/same" || {
        echo "DIFFERS"
        bad=$((${bad:-0} + 1))
    }
done
[ "${bad:-0}" -eq 0 ] || fail "$bad of $runs jobs differ from their plans"
stop_daemon d

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests plans that are made before their job with cistern plan --save: a job with such a plan has it exactly, whatever rates the
# daemon knows, and a job that differs from the plan's is refused with the difference. Without a plan the daemon finds an equal
# layout from equal rates and budgets.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=6
# Rates that are very different from those of a daemon without a file.
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9}], "request_s": 3e-5}
RATES
printf '[plan]\nrates = %s\nsearch_time = 10m\n' "$tmp/rates.json" >"$tmp/rates.conf"
seq 20000 >"$tmp/text"

# Put the options of a model of $1 ranks, with the other arguments, into the array `model`, and plan it into $tmp/plan.json and
# $tmp/planned.
plan() {
    local world=$1
    shift
    model=(--layers 6 --heads 4 --width 128 --context 32 --batch 4 --threads 1 --world "$world" "$@")
    ./cistern-gpt "${model[@]}" --describe "$tmp/model.json"
    ./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device "$pool" --save "$tmp/plan.json" --simulate --json >"$tmp/planned" ||
        fail "no plan for $*"
}

# Train the planned model as job $1 with the other arguments. $tmp/job receives the job's statistics.
train() {
    local job=$1 rank pids=()
    shift
    for ((rank = 0; rank < $(jq .model.world "$tmp/planned"); rank++)); do
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --rank $rank --steps $steps --quiet "$@" >"$tmp/gpt$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank failed"
    done
    poll updated "$job"
}

updated() {
    ./cistern job "$1" --json >"$tmp/job"
    [ "$(jq .n_updates "$tmp/job")" -ge $((steps * $(jq .plan.n_chunks "$tmp/planned"))) ]
}

# Check that the job has the planned chunks, blocks of every rank, and memory.
same_layout() {
    local planned had
    planned=$(jq -c '.model.world as $n | [.plan.n_chunks, .plan.host_bytes, [range($n) as $r | .plan.classes]]' "$tmp/planned")
    had=$(jq -c '[.n_chunks, .arena_bytes + ([.ranks[].classes[] | .chunk_elems * 2 * .n_blocks] | add), [.ranks[].classes | map({chunk_elems, n_blocks})]]' "$tmp/job")
    [ "$planned" = "$had" ] || fail "$1: planned $planned (chunks, bytes of the host, blocks), had $had"
}

# One rank moves the planned bytes.
same_bytes() {
    local up down
    read -r up down < <(jq -r '.simulated[] | select(.step == '$steps').played | "\(.total_bytes_up) \(.total_bytes_down)"' "$tmp/planned")
    [ "$(jq '.ranks[0].bytes_up' "$tmp/job") $(jq '.ranks[0].bytes_down' "$tmp/job")" = "$up $down" ] ||
        fail "$1: planned $up bytes up and $down down, moved $(jq -c '.ranks[0] | [.bytes_up, .bytes_down]' "$tmp/job")"
}

start_daemon guesses
pool=1M
plan 1
train dense --plan "$tmp/plan.json"
same_layout dense
same_bytes dense
# A worker that returns gets the plan, with or without naming it.
steps=7
train dense
same_layout dense
steps=8
train dense --plan "$tmp/plan.json"
same_layout dense
steps=6
pool=3M
plan 2 --experts 4
train mixture --plan "$tmp/plan.json"
same_layout mixture

# A wrong plan is refused with the field and both values.
refuses() {
    local words=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job other --steps 1 --quiet --plan "$tmp/plan.json" "$@" >"$tmp/out" 2>&1 &&
        fail "a plan of another job was taken: $*"
    grep -q "$words" "$tmp/out" || fail "no '$words' in: $(cat "$tmp/out")"
}
pool=1M
plan 1
train found --pool 1M
refuses 'the plan was made for moments fp32, the job has bf16' --moments bf16
refuses 'the plan was made for micro_batches 1, the job has 2' --micro-batches 2
refuses 'the plan was made for n_params [0-9]*, the job has [0-9]*' --layers 5
refuses 'the plan has pool_bytes [0-9]*, but rank 0 asks for 2097152' --pool 2M
refuses "job 'found': it was opened without the plan that rank 0 gives" --job found
jq '.for.fingerprint += 1' "$tmp/plan.json" >"$tmp/other.json"
refuses 'the plan was made for another model (fingerprint' --plan "$tmp/other.json"
jq '.plan.n_chunks += 1' "$tmp/plan.json" >"$tmp/other.json"
refuses 'the plan has [0-9]* chunks of .* size class.*, but the job' --plan "$tmp/other.json"
refuses "job 'dense': the job's plan has n_chunks" --job dense --plan "$tmp/other.json"
# A plan with too many blocks, which the daemon would simulate when the steps drift.
jq '.plan.classes[0].n_blocks = 40000000' "$tmp/plan.json" >"$tmp/other.json"
refuses 'the plan has 40000000 blocks of [0-9]* elements, but the job can use at most [0-9]*' --plan "$tmp/other.json"
jq '.cistern_plan = 9' "$tmp/plan.json" >"$tmp/other.json"
refuses 'other.json: cistern_plan: a plan of version 9, this program reads version 1' --plan "$tmp/other.json"
refuses 'there is no plan in .*none.json' --plan "$tmp/none.json"
stop_daemon guesses

# From equal rates and budgets the daemon finds an equal layout itself.
start_daemon knows --config "$tmp/rates.conf"
for world in 1 2; do
    pool=$((world * 3 / 2))M
    plan $world
    train "found$world" --pool $((world * 3 / 2 << 20))
    same_layout "found $world"
    pool=3M
    plan $world --experts 4
    train "found-experts$world" --pool $((3 << 20))
    same_layout "found with experts $world"
done
stop_daemon knows

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job outlives the daemon whatever it was opened with: of random combinations of options, a run in whose middle the daemon is
# killed, restarted or replaced by another one has the losses and weights of an undisturbed run, bit for bit, or the options were refused.
# CST_TEST_COMBINATIONS: how many. CST_TEST_SEED: seed of the options; CST_TEST_FIRST: the first combination to run of those of the seed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/disturbed.sh
. "${srcdir:-.}/tests/e2e/disturbed.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

n_combinations=${CST_TEST_COMBINATIONS:-$(if sparse; then echo 2; else echo 4; fi)}
first=${CST_TEST_FIRST:-0}
steps=100
write_text 400

start_both_kinds

# Choose the options of a combination into the arrays `model`, `options` and `of_rank`, which has those of rank 1 alone; `world`; `before`,
# the options of a run of one rank before the job is reshaped; and `base`, the job whose weights it uses. Most can be combined.
choose() {
    local device pool overlap micro moments kinds=()
    model=(--heads 2 --width 64 --context 16 --batch 6 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed $((RANDOM % 100)))
    options=() of_rank=() before=() base='' world=2
    pick 3 5 8
    model+=(--layers "$picked")
    pick host host paced
    device=$picked
    [ "$device" = host ] || options+=(--device "$device")
    pick '' '' 60% 80% 100% 300% 600K 1M
    pool=$picked
    pick adamw adamw adamw adam lion sgd muon
    [ "$picked" = adamw ] || kinds+=(--optimizer "$picked")
    pick fp32 fp32 bf16 mx8
    moments=$picked
    pick commit commit early delayed
    overlap=$picked
    [ "$overlap" = commit ] || options+=(--overlap "$overlap")
    [ "$overlap" != early ] || options+=(--clip 0)
    [ "$overlap" != delayed ] || ! maybe 2 || options+=(--delay-from 7)
    pick 1 1 2 3
    micro=$picked
    [ "$micro" = 1 ] || options+=(--micro-batches "$micro")
    pick data data data dispatch
    if [ "$picked" = dispatch ] && [ "$micro" != 1 ] && [ "$overlap" = commit ]; then
        options+=(--parallel dispatch)
        ! maybe 2 || options+=(--stages 2)
    elif maybe 5; then
        kinds+=(--experts 4)
    elif maybe 3; then
        kinds+=(--lora 4)
        ! maybe 2 || base=base
    elif maybe 3; then
        options+=(--activation-memory 1600K)
    fi
    if [ "$micro" = 1 ] && [ "$overlap" = commit ] && maybe 3; then
        options+=(--grad-over-weight)
    elif maybe 3; then
        kinds+=(--masters split)
    fi
    ! maybe 4 || options+=(--chunk $((4096 << RANDOM % 4)))
    [ "$device" = host ] || choose_reservations
    ! maybe 6 || options+=(--save-dir "$tmp/saved" --save-every 7 --keep 1)
    options+=("${kinds[@]}")
    [ -n "$base" ] || ! maybe 4 || before=("${kinds[@]}" --moments mx8)
    [ "$moments" = fp32 ] || options+=(--moments "$moments")
    ! maybe 5 || options+=(--rounding nearest)
    if [ -z "$base" ] && maybe 4; then
        plan_options
    else
        [ -z "$pool" ] || options+=(--pool "$pool")
        [[ ${options[*]} == *auto* ]] || ! maybe 4 || of_rank=(--pool 90%)
    fi
}

# Choose what ranks have on accelerators besides their pools. The plan does not choose it if a size of the pool is given.
choose_reservations() {
    local update states
    pick '' 4M 4M lent auto
    update=$picked
    pick '' 1M auto
    states=$picked
    [ -z "$pool" ] || update=${update/auto/4M} states=${states/auto/1M}
    [ -z "$update" ] || options+=(--device-update "$update")
    if [ -n "$states" ] && [ -n "$update" ] && [ "$update" != lent ] && [ "$moments" = fp32 ] && [[ ${kinds[*]} != *split* ]]; then
        options+=(--device-states "$states")
    fi
}

# Let the options name a plan that was made before, for at most a pool of the size $pool.
plan_options() {
    local form=()
    [ -z "$pool" ] || form=(--device "${pool/%*%/1M}")
    ./cistern-gpt "${model[@]}" "${options[@]}" --world "$world" --describe "$tmp/model.json" >"$tmp/plan.log" 2>&1 || return 0
    ./cistern-gpt "${model[@]}" "${options[@]}" --world "$world" --data "$tmp/text" --print-config >"$tmp/job.json" 2>"$tmp/plan.log" || return 0
    ./cistern plan "$tmp/model.json" --config "$tmp/job.json" --rates "$tmp/rates.json" "${form[@]}" --save "$tmp/plan.json" >"$tmp/plan.log" 2>&1 || return 0
    options+=(--plan "$tmp/plan.json")
}

# Start rank $2 of job $1 for the steps up to $3 with the options $4...
start_rank() {
    local job=$1 rank=$2 until=$3 own=()
    shift 3
    [ "$rank" != 1 ] || own=("${of_rank[@]}")
    [ "$rank" != 0 ] || own=(--dump-weights "$tmp/$job.weights")
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --rank "$rank" --steps "$until" \
        --loss-file "$tmp/$job.$rank.losses" "$@" "${own[@]}" >>"$tmp/$job.$rank.log" 2>&1 &
    workers[rank]=$!
    managers+=($!)
}

# Start job $1, first as one rank if it is to be reshaped. The status is that of this rank.
begin_job() {
    local job=$1 rank more=()
    rm -rf "$tmp/saved" "$tmp/$job".*
    workers=()
    if [ ${#before[@]} -gt 0 ]; then
        start_rank "$job" 0 3 --world 1 "${before[@]}"
        wait "${workers[0]}" || return 1
        rm -f "$tmp/$job".*
        more+=(--reshape)
    fi
    [ -z "$base" ] || more+=(--base "$base")
    for ((rank = 0; rank < world; rank++)); do
        start_rank "$job" "$rank" "$steps" --world "$world" "${options[@]}" "${more[@]}"
    done
}

# Start rank $2 of job $1 again, which has died.
again_rank() {
    start_rank "$1" "$2" "$steps" --world "$world" "${options[@]}" ${base:+--base "$base"}
}

make_base() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$base" --lora 2 --steps 1 >"$tmp/base.log" 2>&1
}

for ((i = 0; i < first + n_combinations; i++)); do
    RANDOM=$((seed + i))
    choose
    choose_disturbances
    [ "$i" -ge "$first" ] || continue
    run_combination "${model[@]}" "${options[@]}" ${of_rank[0]+"rank 1:" "${of_rank[@]}"} ${before[0]+"reshaped from" "${before[@]}"} ${base:+--base}
done
stop_both_kinds
end_combinations

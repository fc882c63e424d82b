#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests device updates in lent memory on simulated accelerators: the losses and final weights are those of a run without them,
# bit for bit, whether pools lend much memory, little or none, and with each time of updates.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

world=2
model=(--layers 16 --heads 2 --width 64 --context 32 --batch 2 --steps 6 --warmup 2 --lr 0.003 --matmul fp32 --threads 1
    --world "$world" --seed 7 --chunk 36864)
write_text 400

# Train job $1 with the options $2..., and keep its results.
train() {
    local job=$1 rank pids=() more
    shift
    for ((rank = 0; rank < world; rank++)); do
        more=()
        [ "$rank" != 0 ] || more=(--loss-file "$tmp/$job.losses" --dump-weights "$tmp/$job.weights")
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --rank "$rank" "${more[@]}" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        pids+=($!)
        managers+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$job: a worker failed with $*: $(cat "$tmp/$job".*.log)"
    done
}

# Check that the results of job $1 are those of job $2.
same() {
    cmp "$tmp/$1.losses" "$tmp/$2.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$1.weights" "$tmp/$2.weights" || fail "$1: other weights than $2"
}

# Check that jq's filter $2 is true for the output of `cistern job $1`.
holds() {
    ./cistern job "$1" --json | jq -e "$2" >/dev/null || fail "$1: not '$2': $(./cistern job "$1" --json)"
}

printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
start_daemon paced --config "$tmp/paced.conf"

# With the largest pool, half of the chunks are updated in lent memory, and nothing is reserved.
train plain --device paced
train lent --device paced --device-update lent
same lent plain
holds lent '.n_lent_updates > 0 and .n_lent_updates == .n_device_updates and (has("device_update_bytes") | not)'
holds plain '.n_device_updates == 0 and (has("n_lent_updates") | not)'

# A smaller pool is wanted back now and then, and the smallest one lends nothing.
for pool in 150% 100% 60%; do
    train "lent-${pool%\%}" --device paced --device-update lent --pool "$pool"
    same "lent-${pool%\%}" plain
done
holds lent-60 '.n_device_updates == 0'

# The other kinds of updates and gradients.
train early --device paced --clip 0
train lent-early --device paced --clip 0 --overlap early --device-update lent
same lent-early early
train delayed --device paced --overlap delayed
train lent-delayed --device paced --overlap delayed --device-update lent
same lent-delayed delayed
train lent-over --device paced --grad-over-weight --device-update lent
same lent-over plain
train micro --device paced --micro-batches 2
train lent-micro --device paced --micro-batches 2 --device-update lent
same lent-micro micro
holds lent-micro '.n_lent_updates > 0'

# Engines are killed in the middle of a long run: the node's, and those of the accelerators. Each kill must come after another
# number of steps.
reached() {
    ./cistern job killed --json 2>/dev/null | jq -e ".step >= $1" >/dev/null
}
model+=(--steps 120)
train long --device paced
train killed --device paced --device-update lent &
training=$!
for i in {1..6}; do
    poll reached $((15 * i))
    kill -KILL "$(./cistern stat --json | jq ".engines[$((i % 3))].pid")"
done
wait "$training" || fail "training with engines that are killed failed"
same killed long
holds killed '.n_lent_updates > 0 and .reservations_given_up == null'
all_restarted() {
    [ "$(./cistern stat --json | jq '[.engines[].restarts] | add')" = 6 ]
}
poll all_restarted

# What cannot be is refused.
refused() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job refused --rank 0 --device-update lent "${@:2}" >"$tmp/other.log" 2>&1 && fail "${*:2} is taken"
    grep -q "$1" "$tmp/other.log" || fail "said: $(cat "$tmp/other.log")"
}
refused 'only a pool on an accelerator can lend memory' --device host
refused 'device_states cannot be combined with CST_DEVICE_UPDATE_LENT' --device paced --device-states 1M

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests device updates in lent memory on simulated accelerators: the losses and final weights are those of a run without them,
# bit for bit, whether pools lend much memory, little or none, and with each time of updates.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

world=2
common=(--layers 16 --heads 2 --width 64 --context 32 --batch 2 --steps 6 --warmup 2 --lr 0.003 --matmul fp32 --threads 1
    --world "$world" --seed 7)
model=("${common[@]}" --chunk 36864)
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
if ! sparse; then # tests/unit/check_lent_deaths tries more moments.
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
fi

# What cannot be is refused.
refused() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job refused --rank 0 --device-update lent "${@:2}" >"$tmp/other.log" 2>&1 && fail "${*:2} is taken"
    grep -q "$1" "$tmp/other.log" || fail "said: $(cat "$tmp/other.log")"
}
refused 'only a pool on an accelerator can lend memory' --device host
refused 'device_states cannot be combined with device_update_bytes of lent memory' --device paced --device-states 1M

# A job whose chunks are given has no plan, and so no choice. The ranks of a job have one plan. If only some of them lend, the job has none, and the log says so.
train unplanned --device paced --device-update auto
holds unplanned '.n_device_updates == 0'
./cistern explain unplanned wte | has 'no updates on accelerators: no plan: this job needs no search' || fail "explain: $(./cistern explain unplanned wte)"
model=("${common[@]}")
pids=()
for entry in "0 --device-update 0" "1 --device-update lent"; do
    read -ra options <<<"$entry"
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job some --device paced --rank "${options[@]}" >"$tmp/some.${options[0]}.log" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid" || fail "ranks of which one lends: $(cat "$tmp"/some.*.log)"
done
has 'no plan: the pool of rank 1 lends memory for updates, and that of rank 0 does not' "$tmp/paced.log" || fail "no words about the plan"
stop_daemon paced

# A plan chooses lent memory by itself where steps are as short as with a reservation, or where there is no room for one. It can be
# saved, and given to another job.
printf '[engine]\nupdate_rate = 5M\n[paced]\ndevices = 2\nup = 6400M\ndown = 6400M\nupdate = 200M\nmemory = 6M\n' >"$tmp/fast.conf"
start_daemon fast --config "$tmp/fast.conf"
train chosen --device paced --device-update auto
same chosen plain
holds chosen '.n_lent_updates > 0 and (has("device_update_bytes") | not)'
./cistern explain chosen wte | has 'with updates in lent memory a step takes .* ms' ||
    fail "explain: $(./cistern explain chosen wte)"
./cistern-gpt "${model[@]}" --device paced --describe "$tmp/model.json" || fail "--describe"
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "paced:0", "memory_bytes": 6291456, "up": 6.4e9, "down": 6.4e9, "memory": 2e10, "flops": 3e10, "update": 2e8}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e6, "reduce": 3e9, "copy": 1e9}], "request_s": 3e-5}
RATES
./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device 6M --device-update auto --save "$tmp/plan.json" >"$tmp/planned" || fail "no plan"
has '^chosen    with updates in lent memory a step takes ' "$tmp/planned" || fail "the plan does not say why: $(cat "$tmp/planned")"
train given --device paced --plan "$tmp/plan.json"
same given plain
holds given '.n_lent_updates > 0 and (has("device_update_bytes") | not)'
! ./cistern-gpt "${model[@]}" --data "$tmp/text" --job wrong --rank 0 --device paced --plan "$tmp/plan.json" --device-update 8M >"$tmp/wrong.log" 2>&1 ||
    fail "a reservation is taken with a plan that lends"
has 'the plan has updates in lent memory, but rank 0 asks for device_update_bytes 8388608' "$tmp/wrong.log" || fail "$(cat "$tmp/wrong.log")"

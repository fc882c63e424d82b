#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --device cuda without a GPU (tests/lib/fakecuda). Losses and final weights have equal bits with all states in
# the GPU's memory, and in the daemon with pools from all weights down to the smallest accepted one; with recomputation; and with
# micro-batches. They are near those of the host. Also tests calls of the driver that fail.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
not_sparse
use_fakecuda

steps=3
model=(--layers 6 --heads 2 --width 32 --context 16 --batch 4 --warmup 2 --lr 0.003 --quiet --steps "$steps")
gpu=(--device cuda --matmul plain)
write_text 400

# Run cistern-gpt with the options after $1, which names its losses and weights.
train() {
    local name=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --loss-file "$tmp/$name.losses" --dump-weights "$tmp/$name.weights" "$@" \
        >>"$tmp/$name.log" 2>&1
}

# Check that losses and weights of $1 are equal to those of $2.
same() {
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    printf '%s: same bits as %s\n' "$1" "$2"
}

# Run a job $1 in the daemon and compare it with $2. The other arguments are options.
job() {
    local name=$1 like=$2
    shift 2
    train "$name" "${gpu[@]}" --job "$name" "$@" || fail "$name: cistern-gpt failed"
    same "$name" "$like"
    ./cistern rm "$name" >/dev/null || fail "cistern rm $name"
}

train local "${gpu[@]}" --store local || fail "--store local failed"
[ "$(sort -u "$tmp/local.losses" | wc -l)" = $steps ] || fail "losses that do not change prove nothing"
train again "${gpu[@]}" --store local --recompute || fail "--recompute failed"
same again local
train parts "${gpu[@]}" --store local --micro-batches 2 || fail "--micro-batches failed"

# The host rounds differently, but learns equally.
train host --store local --matmul bf16 --threads 1 || fail "the host failed"
paste "$tmp/local.losses" "$tmp/host.losses" | while read -r a b; do
    printf '%.6f %.6f\n' "$a" "$b"
done | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.005) { print "losses", $0; exit 1 } }' || fail "losses far from the host's"

# If any call of the driver fails, the worker ends with a message and leaves nothing behind, or the call only freed something.
for ((n = 4; n < 220; n += 9)); do
    rm -f "$tmp/leaks"
    status=0
    CST_FAKECUDA_FAIL="*:$n=2" CST_FAKECUDA_LEAKS=$tmp/leaks ./cistern-gpt "${gpu[@]}" --store local --layers 1 --heads 1 --width 16 \
        --context 8 --batch 1 --steps 1 --quiet --data "$tmp/text" >"$tmp/fault.log" 2>&1 || status=$?
    [ $status -le 1 ] || fail "call $n failed: status $status"
    if [ $status = 1 ]; then
        grep -q '^cistern-gpt: .*OUT_OF_MEMORY' "$tmp/fault.log" || fail "call $n failed: no sentence"
        grep -q '"leaks":0,' "$tmp/leaks" || fail "call $n failed: $(cat "$tmp/leaks")"
    fi
done

start_daemon daemon --gpus all
for pool in 100 60; do
    job "pool$pool" local --pool "$pool%"
done
job "recomputed" local --pool 60% --recompute
job "parted" parts --pool 60% --micro-batches 2
! train none "${gpu[@]}" --job none --pool 1 || fail "a pool of a byte is taken"
least=$(sed -n 's/.*[ (]\([0-9]*\) bytes)\{0,1\} short; .*/\1/p' "$tmp/none.log")
[ -n "$least" ] || fail "cistern-gpt does not tell the bytes that are short"
job smallest local --pool $((least + 1))

# Activations of blocks wait in host memory. With recomputation, these are the blocks' inputs alone.
for options in "" --recompute; do
    ! train none "${gpu[@]}" --job none --activation-memory 1K $options || fail "activations of 1 KiB are taken"
    least=$(sed -n 's/.*at least.*[ (]\([0-9]*\) bytes.*/\1/p' "$tmp/none.log" | tail -1)
    rm -f "$tmp/none.log"
    job "stash$options" local --pool 60% --activation-memory "$least" $options
done
job stash-parts parts --micro-batches 2 --activation-memory "$((least * 2))"

# The sample depends on the weights only, wherever they are.
./cistern-gpt "${model[@]}" --data "$tmp/text" "${gpu[@]}" --store local --temperature 0 --sample 8 >"$tmp/sample1" || fail "--sample"
./cistern-gpt "${model[@]}" --data "$tmp/text" "${gpu[@]}" --job sample --temperature 0 --sample 8 >"$tmp/sample2" || fail "--sample"
[ -s "$tmp/sample1" ] || fail "no sample"
cmp "$tmp/sample1" "$tmp/sample2" || fail "other samples"
stop_daemon daemon

# Without a size for the pool, memory for the contexts, the workspace and the activations is left on the card. What a job is given
# does not depend on those that are done. If the activations do not fit, the daemon says so before the worker allocates them.
export CST_FAKECUDA_MEMORY=96M
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "Fake GPU", "memory_bytes": 100663296, "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11, "update": 1e9}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9}], "request_s": 3e-5}
RATES
printf '[plan]\nrates = %s\nsearch_time = 10m\n[quota uid:%s]\npool = 100%%\n' "$tmp/rates.json" "$(id -u)" >"$tmp/small.conf"
large=("${gpu[@]}" --layers 2 --heads 2 --width 64 --context 24 --batch 256 --warmup 2 --quiet --data "$tmp/text")
start_daemon small --config "$tmp/small.conf" --gpus all
for job in one two; do
    ./cistern-gpt "${large[@]}" --steps 1 --job $job >"$tmp/$job.log" 2>&1 || fail "job $job, with a pool of what is left"
done
for_the_engine() { # and for nobody else, once the daemon has seen the last worker's end
    ./cistern stat | grep -q 'set aside: 12.0 MiB for 1 context$'
}
poll for_the_engine
# The pools of a job that was done are made again beside what others have now, and not what they had.
is_done() {
    [ "$(./cistern jobs --json | jq -r ".[] | select(.name == \"$1\").state")" = "done" ]
}
deep=("${large[@]}" --layers 40 --width 128 --context 4 --batch 1 --pool 100% --job deep)
./cistern-gpt "${deep[@]}" --steps 1 >"$tmp/deep.log" 2>&1 || fail "a job with many weights: $(cat "$tmp/deep.log")"
poll is_done deep
./cistern-gpt "${large[@]}" --batch 350 --steps 1 --job wide >"$tmp/wide.log" 2>&1 || fail "a job with more activations: $(cat "$tmp/wide.log")"
poll is_done wide
./cistern-gpt "${deep[@]}" --steps 2 >"$tmp/deep.log" 2>&1 || fail "a job that was done cannot go on: $(cat "$tmp/deep.log")"
./cistern rm deep >/dev/null
start busy ./cistern-gpt "${large[@]}" --steps 100000 --job busy
told() {
    ./cistern explain busy wte >"$tmp/explained" 2>/dev/null
}
poll told
grep -q 'cuda:0: set aside of 96.0 MiB: 24.0 MiB for 2 CUDA contexts, 1.5 MiB for workspaces of libraries, .* for activations' \
    "$tmp/explained" || fail "cistern explain does not tell what is set aside: $(cat "$tmp/explained")"
# A quota in percent is of what the card has for pools now, and not of what it had before the job.
limit=$(./cistern quota --json | jq '.[].uses[] | select((.device // "") | startswith("pools of cuda:0")).limit')
[ "$limit" = "$(./cistern stat --json | jq '.gpus[0].pool_budget')" ] ||
    fail "100 % are $limit bytes of $(./cistern stat --json | jq -c '.gpus[0]'): $(./cistern quota --json)"
# The engine and the worker share the card.
./cistern stat | grep -q 'shared by 2 processes, without MPS: their kernels run in turns$' || fail "who shares the card is not said: $(./cistern stat)"
# `cistern plan` leaves the same memory of the card free as the daemon, and finds the same plan.
./cistern-gpt "${large[@]}" --describe "$tmp/large.json" || fail "--describe"
./cistern plan "$tmp/large.json" --rates "$tmp/rates.json" --json >"$tmp/planned" || fail "no plan for the card"
[ "$(jq '.budget.device_bytes - .plan.activation_bytes' "$tmp/planned")" = "$(./cistern stat --json | jq '.gpus[0].pool_budget')" ] ||
    fail "plan's pool is not the daemon's: $(jq -c .budget "$tmp/planned"), $(./cistern stat --json | jq -c .gpus)"
./cistern job busy --json >"$tmp/had"
[ "$(jq -c '[.plan.n_chunks, [.plan.classes[].chunk_elems]]' "$tmp/planned")" = "$(jq -c '[.n_chunks, [.ranks[0].classes[].chunk_elems]]' "$tmp/had")" ] ||
    fail "another plan: $(jq -c .plan "$tmp/planned"), $(jq -c '.ranks[0].classes' "$tmp/had")"
! ./cistern-gpt "${large[@]}" --steps 1 --job three >"$tmp/three.log" 2>&1 || fail "activations of two jobs fit"
grep -q 'of the card.s 96.0 MiB (36.0 MiB for 3 CUDA contexts, 3.0 MiB for workspaces of libraries, .* for activations)' \
    "$tmp/three.log" || fail "the error does not have the parts of the sum: $(cat "$tmp/three.log")"
# shellcheck disable=SC2046 # several words
kill -KILL $(children "${manager_of[busy]}")
stop_daemon small

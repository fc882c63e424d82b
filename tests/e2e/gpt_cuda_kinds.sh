#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests mixtures of experts, adapters on a frozen base, and Muon, with cistern-gpt --device cuda without a GPU (tests/lib/fakecuda). The
# bits are equal with all states in the GPU's memory and in the daemon, and near those of the host. Also tests the exchange of
# tokens between two ranks, and two jobs with one base job.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
use_fakecuda
export LD_LIBRARY_PATH=$PWD/tests/lib/fakenccl/.libs:$LD_LIBRARY_PATH

steps=3
model=(--layers 3 --heads 2 --width 32 --context 16 --batch 4 --warmup 2 --lr 0.003 --quiet --steps "$steps")
gpu=(--device cuda --matmul plain)
write_text 400

# Run cistern-gpt with the options after $1, which names its losses and weights.
train() {
    local name=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --loss-file "$tmp/$name.losses" --dump-weights "$tmp/$name.weights" "$@" \
        >>"$tmp/$name.log" 2>&1 || fail "$name: cistern-gpt failed"
}

# Check that losses and weights of $1 are equal to those of $2.
same() {
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    printf '%s: same bits as %s\n' "$1" "$2"
}

# Check that the losses of $1 are near those of $2, and change.
near() {
    [ "$(sort -u "$tmp/$1.losses" | wc -l)" = $steps ] || fail "$1: losses that do not change prove nothing"
    paste "$tmp/$1.losses" "$tmp/$2.losses" | while read -r a b; do
        printf '%.6f %.6f\n' "$a" "$b"
    done | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.005) { print "losses", $0; exit 1 } }' || fail "$1: far from $2"
}

# Start rank $2 of 2 of job $1 in the daemon, on a GPU of its own, or on the one that $device names. Rank 0 writes losses and weights as
# train does. Sets pid.
worker() {
    local name=$1 rank=$2
    shift 2
    [ "$rank" != 0 ] || set -- --loss-file "$tmp/$name.losses" --dump-weights "$tmp/$name.weights" "$@"
    CST_FAKECUDA_LEAKS=$tmp/leaks ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$name" --world 2 --rank "$rank" --device "${device:-cuda:$rank}" --matmul plain "$@" \
        >>"$tmp/$name.$rank.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

# Start both ranks of job $1. Sets pids.
workers() {
    local name=$1 rank
    shift
    pids=()
    for rank in 0 1; do
        worker "$name" $rank "$@"
        pids+=("$pid")
    done
}

# Check how the daemon says that rows of job $1 went: $2.
goes_by() {
    grep "communicator of group 0: 2 ranks" "$tmp/daemon.log" | grep -F "$1" | has -F "by $2" || fail "$1: the rows do not go by $2"
}

# True once job $1 has committed $2 steps.
has_done() {
    local step
    step=$(./cistern job "$1" --json 2>/dev/null | sed -n 's/.*"step": *\([0-9]*\).*/\1/p' | head -n 1)
    [ "${step:-0}" -ge "$2" ]
}

finished() {
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$1: a worker failed"
    done
}

pair() {
    workers "$@"
    finished "$1"
}

export CST_FAKECUDA_DEVICES=2
start_daemon daemon --gpus all --log-level debug

moe=(--experts 4 --top-k 2)
train moe.host --store local --matmul bf16 --threads 1 "${moe[@]}"
train moe "${gpu[@]}" --store local "${moe[@]}" --temperature 0 --sample 3
near moe moe.host
train moe.job "${gpu[@]}" --job moe "${moe[@]}" --temperature 0 --sample 3
same moe.job moe
cmp "$tmp/moe.log" "$tmp/moe.job.log" || fail "other samples"
./cistern rm moe >/dev/null || fail "cistern rm"
train moe.tight "${gpu[@]}" --job moe --pool 70% "${moe[@]}"
same moe.tight moe

# Two ranks with two experts each have the host's results with any pool; and so have many experts, most of which are idle.
train pair.host --store local --matmul bf16 --threads 1 --world 2 --batch 2 "${moe[@]}"
pair pair --batch 2 "${moe[@]}"
near pair pair.host
pair pair.tight --batch 2 --pool 70% "${moe[@]}"
same pair.tight pair
goes_by pair NCCL

# Rows that go through host memory, pinned or not, or through memory of one GPU or both, make no difference.
CST_FAKECUDA_PEERS=none pair pair.staged --batch 2 "${moe[@]}"
goes_by pair.staged "staging in host memory: GPU-"
same pair.staged pair
CST_FAKECUDA_PEERS=none CST_FAKECUDA_PINNED=32K pair pair.pageable --batch 2 "${moe[@]}"
same pair.pageable pair
device=cuda:0 pair pair.card --batch 2 --pool 70% "${moe[@]}"
goes_by pair.card "memory of the GPUs: ranks 0 and 1 are both on"
same pair.card pair
CST_FAKENCCL_VERSION=21304 pair pair.peers --batch 2 "${moe[@]}" # too old
goes_by pair.peers "memory of the GPUs: rank 0 cannot use NCCL"
same pair.peers pair
train starved.host --store local --matmul bf16 --threads 1 --world 2 --batch 1 --experts 32 --top-k 1
pair starved --batch 1 --experts 32 --top-k 1
near starved starved.host

# A rank is killed in the middle and started again, without any effect on the results.
killed=(--layers 1 --batch 1 --experts 4 --steps 40)
pair whole "${killed[@]}"
workers killed "${killed[@]}"
poll has_done killed 3
kill -KILL "${pids[0]}" || fail "the worker was gone already"
wait "${pids[0]}" 2>/dev/null || true
! has_done killed 40 || fail "all is done: more steps are wanted"
worker killed 0 "${killed[@]}"
pids[0]=$pid
finished killed
cmp "$tmp/whole.weights" "$tmp/killed.weights" || fail "killed: other weights than whole"

[ "$(wc -l <"$tmp/leaks")" -ge 12 ] || fail "who says what the workers left behind?"
! grep -v '"leaks":0,"misuses":0,' "$tmp/leaks" || fail "workers leave something behind"

# If any call of the driver fails, a mixture ends with a message and leaves nothing behind, or the call only freed something.
n_ended=0
for ((n = 150; n < 330; n += 40)); do
    rm -f "$tmp/leaks"
    status=0
    CST_FAKECUDA_FAIL="*:$n=2" CST_FAKECUDA_LEAKS=$tmp/leaks ./cistern-gpt "${gpu[@]}" --store local --layers 1 --heads 1 --width 16 \
        --context 8 --batch 1 --steps 1 --experts 3 --quiet --data "$tmp/text" >"$tmp/fault.log" 2>&1 || status=$?
    [ $status -le 1 ] || fail "call $n failed: status $status"
    if [ $status = 1 ]; then
        grep -q '^cistern-gpt: .*OUT_OF_MEMORY' "$tmp/fault.log" || fail "call $n failed: no sentence"
        grep -q '"leaks":0,' "$tmp/leaks" || fail "call $n failed: $(cat "$tmp/leaks")"
        n_ended=$((n_ended + 1))
    fi
done
[ $n_ended -gt 0 ] || fail "no call that failed ended the worker"

# A rank on the host and one on a GPU exchange rows of different forms: they cannot train together, and say so.
worker mixed 0 --batch 1 --experts 4 --device host --matmul bf16 --threads 1
first=$pid
worker mixed 1 --batch 1 --experts 4
! wait "$first" || fail "ranks on other devices trained together"
! wait "$pid" || fail "ranks on other devices trained together"
grep -q 'rank 1 exchanges rows of a GPU' "$tmp/mixed.0.log" || fail "ranks on other devices do not say so"
lora=(--lora 4 --lora-alpha 8 --lr 0.03)
train lora.host --store local --matmul bf16 --threads 1 "${lora[@]}"
train lora "${gpu[@]}" --store local "${lora[@]}"
near lora lora.host
train lora.again "${gpu[@]}" --store local --recompute "${lora[@]}"
same lora.again lora
train lora.job "${gpu[@]}" --job base --pool 80% "${lora[@]}"
same lora.job lora

# A second job with other adapters uses the base job, neither writing it nor having a copy.
train tuned "${gpu[@]}" --store local --lora 8
train tuned.job "${gpu[@]}" --job tuned --base base --lora 8
same tuned.job tuned
stop_daemon daemon

# Muon updates all chunks on the GPU, with the bits of the node's engine.
printf '[plan]\ninterleave = 1\n' >"$tmp/muon.conf"
start_daemon muon --gpus all --config "$tmp/muon.conf"
for moments in fp32 bf16; do
    train muon.node "${gpu[@]}" --job muon --optimizer muon --moments $moments
    ./cistern job muon --json | grep -q '"n_device_updates": 0' || fail "Muon: updates in device memory that was not reserved"
    ./cistern rm muon >/dev/null || fail "cistern rm"
    train muon.gpu "${gpu[@]}" --job muon --optimizer muon --moments $moments --device-update 4M
    same muon.gpu muon.node
    ./cistern job muon --json >"$tmp/muon.json"
    [ "$(sed -n 's/.*"n_device_updates": *\([0-9]*\).*/\1/p' "$tmp/muon.json")" = "$(sed -n 's/.*"n_updates": *\([0-9]*\).*/\1/p' "$tmp/muon.json")" ] ||
        fail "Muon: not all chunks were updated on the GPU: $(cat "$tmp/muon.json")"
    ./cistern rm muon >/dev/null || fail "cistern rm"
done
stop_daemon muon

# A rank that hangs between two exchanges of rows: the other one ends at its time limit, and says for whom it has waited. Its stream
# would wait for ever.
printf '[job]\ntimeout = %d\n' $((wait_s / 3)) >"$tmp/impatient.conf"
start_daemon impatient --gpus all --config "$tmp/impatient.conf"
worker hangs 0 "${killed[@]}" --layers 3
first=$pid
CST_FAKENCCL_STOP=work:2 worker hangs 1 "${killed[@]}" --layers 3
hangs() {
    grep -q '^State:.*stopped' "/proc/$pid/status"
}
poll hangs
! wait "$first" || fail "a rank trained without the other one"
kill -KILL "$pid"
wait "$pid" 2>/dev/null || true
grep -q "rank 0 waited $((wait_s / 3))000 ms for rank 1" "$tmp/hangs.0.log" || fail "the rank that waited does not say for whom"
stop_daemon impatient

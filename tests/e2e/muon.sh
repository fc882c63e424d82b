#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests Muon: cistern-gpt has losses and final weights with equal bits with one engine thread and with two, with large and small
# pools, with updates before the commit, with gradients in weight rows, with device updates of the other chunks, with engines that
# are killed all the time, and after a save and a load. Only matrices lack the second moment. What Muon cannot do is refused in words.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

world=2
model=(--layers 3 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --world "$world" --seed 7 --optimizer muon)
steps=8
write_text 400

# Start rank $2 of job $1 with the other arguments. Sets pid.
worker() {
    local job=$1 rank=$2
    shift 2
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --steps "$steps" --job "$job" --rank "$rank" "$@" >>"$tmp/$job.$rank.log" 2>&1 &
    pid=$!
    managers+=("$pid")
}

# Start both ranks of job $1. Rank 0 writes its losses and weights. Sets pids.
workers() {
    local job=$1
    shift
    worker "$job" 0 --loss-file "$tmp/$job.losses" --dump-weights "$tmp/$job.weights" "$@"
    pids=("$pid")
    worker "$job" 1 "$@"
    pids+=("$pid")
}

ended() {
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$1: a worker failed: $(cat "$tmp/$1".*.log)"
    done
}

train() {
    workers "$@"
    ended "$1"
}

# Compare the losses and weights of job $1 with those of $2.
equal() {
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    printf '%s: same bits as %s\n' "$1" "$2"
}

# Train job $2 with the options $3..., compare it with $1, and remove it.
same() {
    local reference=$1
    shift
    train "$@"
    equal "$1" "$reference"
    ./cistern rm "$1" >/dev/null
}

# Check that jq's filter $2 is true for the output of `cistern job $1`.
holds() {
    ./cistern job "$1" --json | jq -e "$2" >/dev/null || fail "$1: not '$2': $(./cistern job "$1" --json)"
}

start_daemon one --engine-threads 1
train plain --pool 100%
holds plain '.optimizer == "muon" and .state_bytes_per_param > 12 and .state_bytes_per_param < 16'
for moments in bf16 mx8; do
    train $moments --moments $moments
    ./cistern rm $moments >/dev/null
done
train unclipped --clip 0
train micro --micro-batches 2
train split --masters split
for job in unclipped micro 'split'; do
    ./cistern rm "$job" >/dev/null
done
# The daemon learns the rate of the products, with which it makes plans.
products_are_seen() {
    ./cistern stat --json | jq -e '.engines[0].product_rate > 0' >/dev/null
}
poll products_are_seen
[ "$(sha256sum "$tmp"/{plain,bf16,mx8,unclipped,micro,split}.weights | cut -d' ' -f1 | sort -u | wc -l)" = 6 ] || fail "two options do the same"
[ "$(sort -u "$tmp/plain.losses" | wc -l)" = $steps ] || fail "losses that do not change prove nothing"
awk 'NR == 1 { first = $NF } END { exit !($NF < first) }' "$tmp/plain.losses" || fail "nothing is learned: $(cat "$tmp/plain.losses")"

# A checkpoint has second moments for the other tensors alone, and another job goes on from it.
steps=12
train long --save-dir "$tmp/saved" --save-every 8
./cistern rm long >/dev/null
find "$tmp/saved" -name '*.safetensors' -exec strings {} + | tr ',' '\n' >"$tmp/names"
grep -q 'h1\.fc\.w\.exp_avg"' "$tmp/names" || fail "no momentum is saved: $(grep -m 9 exp_avg "$tmp/names")"
! grep -q 'h1\.fc\.w\.exp_avg_sq"' "$tmp/names" || fail "a matrix has a second moment"
for other in wte h1.fc.b lnf.w; do
    grep -q "\"$other\.exp_avg_sq\"" "$tmp/names" || fail "$other has no second moment"
done
train loaded --resume "$tmp/saved/step-00000008"
cmp "$tmp/long.weights" "$tmp/loaded.weights" || fail "other weights after a load"
./cistern rm loaded >/dev/null
steps=8
stop_daemon one

start_daemon two --engine-threads 2
for pool in 100% 60%; do
    same plain "two-${pool%\%}" --pool "$pool"
done
same bf16 two-bf16 --moments bf16
same plain over --grad-over-weight
same unclipped early --clip 0 --overlap early
same micro two-micro --micro-batches 2
if ! sparse; then
    same 'split' two-split --masters 'split'
    same plain small-chunks --chunk 36864
fi
./cistern-gpt "${model[@]}" --data "$tmp/text" --steps 1 --store local --world 1 >"$tmp/local.log" 2>&1 && fail "the local store has Muon"
grep -q -- '--optimizer muon is for the daemon' "$tmp/local.log" || fail "said: $(cat "$tmp/local.log")"

# True once job $1 has done $2 steps, or is over.
has_done() {
    gone "${pids[0]}" || [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

# Train as job $1 with the other arguments, kill all engines again and again, and compare with the job `undisturbed`. Killed engines are
# replaced without any effect on the results, in whichever stage of an update they were.
disturb() {
    local job=$1 n=0 at engines
    workers "$@"
    for ((at = 5; at < steps - 15; at += 15)); do
        poll has_done "$job" $at
        engines=$(children "$daemon_pid")
        if gone "${pids[0]}" || [ -z "$engines" ]; then
            continue
        fi
        # shellcheck disable=SC2086 # one word for each engine; one may have just gone
        kill -KILL $engines || true
        n=$((n + 1))
    done
    ended "$job"
    equal "$job" undisturbed
    [ "$n" -ge 1 ] || fail "$job: no engine was killed"
}

if ! sparse; then
    steps=150
    train undisturbed
    disturb disturbed
fi
stop_daemon two

# Accelerators make the same products, also if engines are killed, and if half of the chunks stay with the nodes.
for interleave in 1 2; do
    printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = %s\n' $interleave >"$tmp/paced.conf"
    start_daemon "paced$interleave" --config "$tmp/paced.conf"
    steps=8
    train "reserved$interleave" --device-update 8M --chunk 36864
    equal "reserved$interleave" plain
    if [ $interleave = 1 ]; then
        holds reserved1 '.n_device_updates == .n_updates'
        train micro-reserved --micro-batches 2 --device-update 8M
        equal micro-reserved micro
        train split-reserved --masters 'split' --device-update 8M
        equal split-reserved 'split'
        train bf16-reserved --moments bf16 --device-update 8M
        equal bf16-reserved bf16
        train staying --device-update 8M --device-states 4M
        equal staying plain
        holds staying '.n_device_updates == .n_updates'
        if ! sparse; then
            steps=150
            disturb there --device-update 8M
        fi
    else
        holds reserved2 '.n_device_updates > 0 and .n_device_updates < .n_updates'
    fi
    stop_daemon "paced$interleave"
done

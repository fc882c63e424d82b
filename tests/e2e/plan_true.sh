#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that plans are exact: cistern-gpt on the host moves exactly the bytes that a simulation of its layout and pool predicts,
# and has exactly the predicted memory. Any rates can be used: the moved bytes do not depend on them if a rank is alone and has
# one micro-batch, or if all pools hold all weights.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=6
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 8e9, "down": 8e9, "memory": 2e10, "flops": 3e10},
  {"name": "paced:0", "up": 8e9, "down": 8e9, "update": 5e8, "memory": 2e10}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 8e9}], "request_s": 3e-5}
RATES
# More elements than a run reads, whatever the seed is.
seq 20000 >"$tmp/text"
# Every second chunk that can use a reservation is updated there.
printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
start_daemon d --config "$tmp/paced.conf"

# Wait for the end of the last step's updates, for which no worker waits: $1 in all.
updated() {
    ./cistern job true --json >"$tmp/job.json"
    [ "$(jq .n_updates "$tmp/job.json")" -ge "$1" ]
}

# Run one configuration: world, micro-batches, pool, capacity of chunks, and options of states and updates.
holds() {
    local world=$1 micro=$2 pool=$3 chunk=$4 states=("${@:5}") rank pids=() bytes
    local model=(--layers 6 --heads 4 --width 128 --context 32 --batch 4 --threads 1 --world "$world" --micro-batches "$micro")
    local play=(./tests/lib/predict "$tmp/model.json" "$tmp/rates.json" --chunk "$chunk" --steps "$steps" --micro-batches "$micro" --interleave 2 "${states[@]}")
    ./cistern-gpt "${model[@]}" --describe "$tmp/model.json"
    "${play[@]}" --pool "$pool" >"$tmp/played" || fail "no prediction for $*"
    bytes=$(sed -n 's/^pool_bytes //p' "$tmp/played")
    [ -n "$bytes" ] || fail "no prediction for $*"
    for ((rank = 0; rank < world; rank++)); do
        # Pools are so small that all weights prefetched for the step after the last are under way when the last step ends.
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job true --rank $rank --steps $steps --pool "$bytes" --chunk "$chunk" --quiet \
            "${states[@]}" --clip 0 >"$tmp/gpt$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank failed"
    done
    poll updated "$(sed -n 's/^updates //p' "$tmp/played")"
    ./cistern rm true
    "${play[@]}" --pool "$bytes" --job "$tmp/job.json" >"$tmp/both" || fail "$*: predicted and counted: $(cat "$tmp/both")"
}

holds 1 1 100% 208896
holds 1 1 50% 69632
holds 1 1 min 69632
holds 1 2 250% 208896
holds 2 1 250% 208896
# Early updates need not wait for the commit, and delayed ones come a step later: the moved bytes and the memory are as predicted.
# Delayed updates are run with pools for all weights. Otherwise the prefetches before the commit, which makes them stale, would
# depend on the speeds.
holds 1 1 100% 208896 --overlap early
holds 1 1 50% 69632 --overlap early --moments mx8
holds 1 1 min 69632 --overlap early
holds 1 1 250% 208896 --overlap delayed --optimizer lion
holds 2 1 250% 208896 --overlap early --moments bf16
holds 1 2 250% 208896 --overlap early
holds 1 1 50% 69632 --grad-over-weight
# Reservations have the predicted copies, and hold states. The weights that are prefetched after the last updates depend on when workers
# leave.
holds 1 1 100% 69632 --device-update 8388608
holds 2 1 250% 69632 --device-update 4194304 --moments bf16 --overlap early
holds 1 1 100% 69632 --device-update 8388608 --device-states 4194304
stop_daemon d

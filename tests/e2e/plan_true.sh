#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What was planned is what happens: cistern-gpt on the host device moves exactly the bytes that a replay of its layout and pool says, and has exactly
# the memory. The rates are anybody's: what is moved does not depend on them where a rank is alone and has one micro-batch, or where all have room.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=6
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 8e9, "down": 8e9, "memory": 2e10, "flops": 3e10},
  {"name": "paced:0", "up": 8e9, "down": 8e9, "update": 5e8, "memory": 2e10}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 8e9}], "request_s": 3e-5}
RATES
# More than a run reads, whatever the seed.
seq 20000 >"$tmp/text"
# Every second chunk of those that have a room is updated there.
printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
start_daemon d --config "$tmp/paced.conf"

# The updates of the last step have ended, which nobody waits for: $1 in all.
updated() {
    ./cistern job true --json >"$tmp/job.json"
    [ "$(jq .n_updates "$tmp/job.json")" -ge "$1" ]
}

# One configuration: world, micro-batches, pool, capacity of chunks; options of how states are kept and updated.
holds() {
    local world=$1 micro=$2 pool=$3 chunk=$4 states=("${@:5}") rank pids=() bytes
    local model=(--layers 6 --heads 4 --width 128 --context 32 --batch 4 --threads 1 --world "$world" --micro-batches "$micro")
    local play=(./tests/lib/predict "$tmp/model.json" "$tmp/rates.json" --chunk "$chunk" --steps "$steps" --micro-batches "$micro" --interleave 2 "${states[@]}")
    ./cistern-gpt "${model[@]}" --describe "$tmp/model.json"
    "${play[@]}" --pool "$pool" >"$tmp/played" || fail "no prediction for $*"
    bytes=$(sed -n 's/^pool_bytes //p' "$tmp/played")
    [ -n "$bytes" ] || fail "no prediction for $*"
    for ((rank = 0; rank < world; rank++)); do
        # Pools are small enough that all that is loaded for a step beyond the last is on its way when that ends.
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
# Early updates need not wait for the commit, delayed ones come a step later: what is moved and kept is as predicted. Delayed ones with room for all: else
# what is loaded for the next step before the commit, which makes it stale, depends on who is faster.
holds 1 1 100% 208896 --overlap early
holds 1 1 50% 69632 --overlap early --moments mx8
holds 1 1 min 69632 --overlap early
holds 1 1 250% 208896 --overlap delayed --optimizer lion
holds 2 1 250% 208896 --overlap early --moments bf16
holds 1 2 250% 208896 --overlap early
holds 1 1 50% 69632 --grad-over-weight
# Rooms take what comes to them, and keep states where they are. (Which weights come up behind the last updates depends on when workers leave.)
holds 1 1 100% 69632 --update-room 8388608
holds 2 1 250% 69632 --update-room 4194304 --moments bf16 --overlap early
holds 1 1 100% 69632 --update-room 8388608 --device-states 4194304
stop_daemon d

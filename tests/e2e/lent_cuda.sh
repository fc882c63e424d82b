#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests device updates in lent memory on a GPU without a GPU (tests/lib/fakecuda): the bits are those of a run without them.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
use_fakecuda
need jq

model=(--layers 16 --heads 2 --width 64 --context 32 --batch 2 --steps 4 --warmup 2 --lr 0.003 --threads 1 --seed 7 --chunk 36864
    --device cuda:0 --matmul plain)
write_text 400

train() {
    local job=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --loss-file "$tmp/$job.losses" --dump-weights "$tmp/$job.weights" "$@" \
        >"$tmp/$job.log" 2>&1 || fail "$job: cistern-gpt failed"
}

printf '[plan]\ninterleave = 2\n' >"$tmp/cuda.conf"
start_daemon daemon --config "$tmp/cuda.conf" --gpus all
train plain
train lent --device-update lent
cmp "$tmp/plain.losses" "$tmp/lent.losses" || fail "other losses"
cmp "$tmp/plain.weights" "$tmp/lent.weights" || fail "other weights"
./cistern job lent --json | jq -e '.n_lent_updates > 0 and .n_lent_updates == .n_device_updates' >/dev/null ||
    fail "updates: $(./cistern job lent --json)"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of durable jobs: runs have the weights of runs with states in memory, bit for bit, also when the daemon is killed at random
# moments; after the death of everything `cistern adopt` makes a checkpoint of the last step, with the bytes of one that was saved then.
# CST_TEST_KILLS: kills of each run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
write_text 400
start_keeping keeper --gpus none
mkdir "$drive/files"
files=$drive/files

# The steps do the same as without files, and daemons are killed meanwhile.
begin memory 1 --steps 30
end memory
same durable 1 --steps 30 --disk "$files" --durable
cmp "$tmp/memory.weights" "$tmp/durable.weights" || fail "other weights than with states in memory"

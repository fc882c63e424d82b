#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job of 96 ranks outlives the daemon: a run whose daemon is killed at random moments has the weights of a run that was
# left alone, bit for bit. CST_TEST_KILLS: kills of the run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
model=(--layers 1 --heads 1 --width 16 --context 8 --batch 96 --steps 6 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
printf '[device host]\npool = 256M\n[job]\nmax_sessions = 300\n' >"$tmp/many.conf"
start_keeping keeper --config "$tmp/many.conf" --gpus none
same many 96
stop_daemon keeper
printf 'all well\n'

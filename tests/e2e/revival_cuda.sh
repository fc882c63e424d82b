#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests without a GPU (tests/lib/fakecuda) that jobs with memory on GPUs outlive the daemon: a run whose daemon is killed has the
# weights of an undisturbed run, bit for bit, with its pool on a GPU, with updates there, also in memory that the pool lends, with states that stay there, with ranks
# whose experts are on the NUMA nodes next to their GPUs, and with GPUs that cannot access each other's memory.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
not_sparse
use_fakecuda
export LD_LIBRARY_PATH=$PWD/tests/lib/fakenccl/.libs:$LD_LIBRARY_PATH

model=(--layers 2 --heads 1 --width 32 --context 16 --batch 2 --steps 12 --warmup 2 --lr 0.003 --seed 7 --device cuda --matmul plain)
write_text 400
printf '[plan]\ninterleave = 2\n' >"$tmp/cuda.conf"
start_keeping keeper --config "$tmp/cuda.conf" --gpus all

same pool 1 --pool 200%
same updates 1 --device-update 4M
same states 1 --device-update 4M --device-states 2M
same lent 1 --layers 8 --heads 2 --width 64 --chunk 36864 --device-update lent
stop_daemon keeper

export HWLOC_XMLFILE=${srcdir:-.}/tests/lib/superchips.xml CST_FAKECUDA_DEVICES=2
start_keeping keeper --config "$tmp/cuda.conf" --gpus all
same experts 2 --batch 1 --experts 4 --top-k 1 --pool 200%
stop_daemon keeper

# GPUs that cannot access each other's memory.
export CST_FAKECUDA_PEERS=none
start_keeping keeper --config "$tmp/cuda.conf" --gpus all
same apart 2 --batch 1 --device-update 4M
stop_daemon keeper
printf 'all well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job with states in a tier that only copies outlives the daemon: a run whose daemon is killed at random moments has the
# weights of a run with states in host memory, bit for bit. CST_TEST_KILLS: kills of each run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --steps 40 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7
    --chunk 36864)
write_text 400
printf '[paced]\ndevices = 1\nmemory = 64M\nup = 64M\ndown = 64M\n' >"$tmp/slow.conf"
cisternd=./tests/lib/slow_daemon
export CISTERN_ENGINE_HOST=$PWD/tests/lib/slow_engine
start_keeping keeper --config "$tmp/slow.conf" --gpus none

# A run of $2 ranks with the options $4... has the weights of run $3, with all states in the tier or some of them.
same_there() {
    local job=$1 world=$2 as=$3
    shift 3
    same "$job" "$world" --device-update 4M --device-states 8M "$@"
    cmp "$tmp/$as.weights" "$tmp/$job.weights" || fail "$job: other weights than with states in host memory"
    same "$job-some" "$world" --device-update 4M --device-states 1M "$@"
    cmp "$tmp/$as.weights" "$tmp/$job-some.weights" || fail "$job-some: other weights than with states in host memory"
}

same memory 1
same_there slow 1 memory
same memory-two 2
same_there slow-two 2 memory-two
if ! sparse; then
    same memory-early 2 --overlap early --clip 0
    same_there slow-early 2 memory-early --overlap early --clip 0
    same memory-muon 1 --optimizer muon
    same_there slow-muon 1 memory-muon --optimizer muon
fi
stop_daemon keeper
printf 'all well\n'

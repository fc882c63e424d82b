#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests a machine that hwloc shows as two NUMA nodes: each has its own engine with its own threads, both engines update and sum a
# job's chunks, and the bits are those of one node. On a machine with GPUs whose memories are NUMA nodes, only the processors' nodes
# have engines and arenas, and a GPU's engine is on the node next to it.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 4 --heads 2 --width 64 --context 32 --batch 2 --steps 6 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400

./cistern-gpt "${model[@]}" --data "$tmp/text" --store local --dump-weights "$tmp/local.weights" >"$tmp/local.log" 2>&1 || fail "--store local failed"

HWLOC_SYNTHETIC='pack:2 [numa] core:2 pu:1' HWLOC_COMPONENTS=synthetic start_daemon two
./cistern-gpt "${model[@]}" --data "$tmp/text" --job two --dump-weights "$tmp/two.weights" >"$tmp/two.job.log" 2>&1 || fail "--job two failed"
cmp "$tmp/local.weights" "$tmp/two.weights" || fail "two nodes have other bits than one"

# Counters of both engines. The daemon asks engines once a second, and once more when they become idle.
counted() {
    ./cistern stat --json >"$tmp/stat" && jq -e '[.engines[] | .update_elems > 0 and .reduce_elems > 0] == [true, true]' "$tmp/stat" >/dev/null
}
poll counted
jq -e '[.engines[] | [.node, .threads]] == [[0, 2], [1, 2]]' "$tmp/stat" >/dev/null || fail "engines: $(cat "$tmp/stat")"
jq -e '[.engines[].update_elems] | max < 2 * min' "$tmp/stat" >/dev/null || fail "one node did most: $(cat "$tmp/stat")"
jq -e 'all(.engines[]; .update_bytes == 28 * .update_elems)' "$tmp/stat" >/dev/null || fail "28 bytes an element: $(cat "$tmp/stat")"
stop_daemon two

export HWLOC_XMLFILE=${srcdir:-.}/tests/lib/superchips.xml
start_daemon super
./cistern-gpt "${model[@]}" --data "$tmp/text" --job super --dump-weights "$tmp/super.weights" >"$tmp/super.job.log" 2>&1 || fail "--job super failed"
cmp "$tmp/local.weights" "$tmp/super.weights" || fail "other bits on a machine with nodes without processors"
./cistern stat --json >"$tmp/stat"
jq -e '[.engines[] | [.node, .threads]] == [[0, 2], [1, 2]]' "$tmp/stat" >/dev/null || fail "engines: $(cat "$tmp/stat")"
stop_daemon super

printf '[host]\nnodes = 1, 8\n' >"$tmp/gpu.conf"
! ./cisternd --config "$tmp/gpu.conf" --socket "$CISTERN_SOCKET" --gpus none 2>"$tmp/refused.log" || fail "a node without processors was accepted"
grep -q "names 2 NUMA nodes, but only 1 of them exist and have processors and memory" "$tmp/refused.log" || fail "said: $(cat "$tmp/refused.log")"

# What follows needs GPUs, which tests/lib/fakecuda stands in for.
[ -x ./cistern-engine-cuda ] || exit 0
use_fakecuda
gpu_nodes() {
    ./cistern stat --json | jq -e '[.engines[] | select(.kind == "cuda") | .node] == [1, 0]' >/dev/null
}
CST_FAKECUDA_DEVICES=2 start_daemon gpus --gpus all
poll gpu_nodes
stop_daemon gpus

# The engine knows whether processes share a GPU by MPS: the driver says so; if it is too old for that, it is a client of MPS if the
# control daemon has its socket in the directory of the pipes.
mps() {
    ./cistern-engine-cuda --probe | jq -c '[.gpus[].mps]'
}
mkdir "$tmp/pipes"
export CUDA_MPS_PIPE_DIRECTORY=$tmp/pipes
[ "$(mps)" = '[false]' ] || fail "MPS without MPS"
[ "$(CST_FAKECUDA_ATTRIBUTES=133=1 mps)" = '[true]' ] || fail "the driver uses MPS, and the engine does not know"
export CST_FAKECUDA_FAIL=cuDeviceGetAttribute:1=1
[ "$(mps)" = '[false]' ] || fail "MPS without a control daemon"
: >"$tmp/pipes/control"
[ "$(mps)" = '[true]' ] || fail "an old driver connects to the control daemon, and the engine does not know"
unset CST_FAKECUDA_FAIL
CST_FAKECUDA_ATTRIBUTES=133=1 start_daemon mps --gpus all
says_mps() {
    ./cistern stat --json | jq -e '.gpus[0].mps' >/dev/null
}
poll says_mps
stop_daemon mps

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern plan --parallel auto: products of data, tensor and pipeline parallelism, and their refusals.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need jq
# shellcheck source=tests/e2e/expect.sh
. "${srcdir:-.}/tests/e2e/expect.sh"
export HOME=$tmp XDG_STATE_HOME=$tmp/state
command=(plan)

# All products of 8 ranks, once each, the fastest first; none needs more memory than there is; each has all units.
box=(preset:opt-13b --rates a100 --parallel auto)
expect 0 "${box[@]}" --ranks 8 --device 12G --micro-batches 16 --json --schedule "$tmp/best.csv"
holds '(.products | length) + (.refused | length) == 10'
holds '[.products[], .refused[] | .data * .tensor * .pipeline] | all(. == 8)'
holds '[.products[], .refused[] | [.data, .tensor, .pipeline]] | unique | length == 10'
holds '(.products | length) >= 3 and ([.products[].step_s] | . == sort)'
holds '.products | all(([.stages[].units] | add) == 82 and .micro_batches * .data == 16)'
holds '.products | all((.stages[0].from == "embed") and (.stages[-1].to == "head"))'
holds ".products | all(.rank_bytes <= 12884901888)"
holds '[.refused[].why] | all(test("each of [0-9]+ stages needs"))'
ranks=$(jq '.products[0].pipeline' "$tmp/out")
./cistern schedule check "$tmp/best.csv" --json | jq -e ".micro_batches == 16 and (.ranks | length) == $ranks" >/dev/null ||
    fail "another schedule: $(cat "$tmp/best.csv")"

# With little memory, stages repeat forward passes, the first ones more.
expect 0 preset:opt-175b --rates a100 --parallel auto --ranks 64 --device 24G --json
holds '[.products[] | select(.pipeline == 32)][0].stages | (.[0].recomputed > 0) and (.[0].recomputed >= .[-1].recomputed)'

# Only what is asked for: shifted recomputes all but the last stage, in less time than 1f1b.
expect 0 "${box[@]}" --ranks 8 --pp 4 --tp 2 --kind shifted --recompute --json
holds '.products | length == 1 and (.[0] | .schedule == "shifted" and .data == 1)'
holds '.products[0].stages | .[3].recomputed == 0 and all(.[:3][]; .recomputed == .units)'
shifted=$(jq '.products[0].pipeline_s' "$tmp/out")
expect 0 "${box[@]}" --ranks 8 --pp 4 --tp 2 --kind 1f1b --recompute --json
holds ".products[0].pipeline_s > 1.02 * $shifted"
holds '.products[0].stages | all(.recomputed == .units)'

# Text for people.
expect 0 "${box[@]}" --ranks 8
says '^predicted data [0-9]+ x tensor [0-9]+ x pipeline [0-9]+: [0-9.]+ s, [0-9.]+ k tokens/s$'
says '^assumed '
says '^DATA +TENSOR +PIPELINE +SCHEDULE'
says '^machine +8 ranks on A100-40GB, 64 micro-batches'
expect 0 preset:gpt2-1.5b --rates a100 --parallel auto --ranks 8
says '^4 +2 +1 +25 heads do not divide into 2 parts$'

# Ranks that compute on the processor share it: two replicas take as long as one, apart from the sum of their gradients.
printf '{"devices": [{"name": "host", "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11}],
 "nodes": [{"cores": 2, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9}], "request_s": 3e-5}' >"$tmp/host.json"
expect 0 preset:gpt2-124m --rates "$tmp/host.json" --parallel auto --ranks 1 --micro-batches 4 --json
one=$(jq '.products[0].pipeline_s' "$tmp/out")
expect 0 preset:gpt2-124m --rates "$tmp/host.json" --parallel auto --ranks 2 --micro-batches 4 --dp 2 --json
holds ".products[0] | (.pipeline_s / $one - 1) * 1e6 | fabs < 1"

# A description of the worker's model can be cut and divided; one that says nothing of it cannot.
if [ -x ./cistern-gpt ]; then
    ./cistern-gpt --layers 4 --heads 2 --width 64 --context 32 --batch 4 --describe "$tmp/model.json"
    expect 0 "$tmp/model.json" --rates a100 --parallel auto --ranks 4 --json
    holds '[.products[] | [.tensor, .pipeline]] | contains([[2, 2], [1, 4]])'
    # The plan is a file of the worker, and of the next plan, which has the same product.
    expect 0 "$tmp/model.json" --rates a100 --parallel auto --ranks 2 --pp 2 --micro-batches 4 --save "$tmp/job.json"
    jq -e '.parallel | .dp == 1 and .tp == 1 and .pp == 2 and .micro_batches == 4 and (.borders | length) == 1 and
        (.recompute | length) == 2 and (.schedule | type) == "string"' <"$tmp/job.json" >/dev/null || fail "$(cat "$tmp/job.json")"
    jq '.parallel += {"parallel": "auto", "world": 2} | del(.parallel.recompute)' <"$tmp/job.json" >"$tmp/again.json"
    expect 0 "$tmp/model.json" --rates a100 --config "$tmp/again.json" --save "$tmp/second.json"
    cmp "$tmp/job.json" "$tmp/second.json" || fail "another product: $(cat "$tmp/second.json")"
    jq '.parallel.recompute = true' <"$tmp/job.json" >"$tmp/run.json"
    ./cistern-gpt --config "$tmp/run.json" --world 2 --layers 4 --data x --print-config >"$tmp/out"
    holds '.parallel | .parallel == "pipeline" and .pp == 2 and .stages == 2'
    expect 0 "$tmp/model.json" --rates a100 --parallel auto --ranks 2 --dp 2 --save "$tmp/data.json"
    [ "$(jq -c .parallel.recompute <"$tmp/data.json")" = '[0]' ] || fail "what recomputes: $(cat "$tmp/data.json")"
    ./cistern-gpt --config "$tmp/data.json" --world 2 --layers 4 --data x --print-config >"$tmp/out" ||
        fail "cistern-gpt does not take a plan without pipelines"
    printf '{"parallel": {"parallel": "auto", "dp": 8, "micro_batches": 1000}}' >"$tmp/many.json"
    expect 2 "$tmp/model.json" --rates a100 --config "$tmp/many.json"
    complains '1000 micro_batches of each of dp 8 replicas: plan takes at most 1024 in all'
    printf '{"parallel": {"parallel": "auto", "cp": 2}}' >"$tmp/cp.json"
    expect 2 "$tmp/model.json" --rates a100 --config "$tmp/cp.json"
    complains 'section parallel, cp 2: plan does not share sequences'
    jq 'del(.heads) | del(.operators[].out_bytes)' "$tmp/model.json" >"$tmp/plain.json"
    expect 0 "$tmp/plain.json" --rates a100 --parallel auto --ranks 4 --json
    holds '[.products[] | [.tensor, .pipeline]] == [[1, 1]]'
    holds '.refused | all(.why | test("number of heads|1 units can be cut into 1 to 1"))'
    jq 'del(.operators[].flops)' "$tmp/model.json" >"$tmp/slow.json"
    expect 1 "$tmp/slow.json" --rates a100 --parallel auto --ranks 4
    complains 'does not say the flops'
fi

# Meshes of 8 ranks: the bytes are those that runs of PyTorch's collectives had; 1, 0.5 and 0.375 times M K are kept.
meshes() {
    ./cistern meshes "$@" >"$tmp/out" 2>"$tmp/err" || fail "cistern meshes $*: $(cat "$tmp/err")"
}
meshes 32 24 16 --ranks 8 --json
holds '[.meshes[] | select(.mode == "column" or .mode == "row" or .mode == "zero3") | .received_elems] == [896, 1008, 1344]'
holds '[.meshes[] | select(.mode == "2.5d" or .mode == "3d") | [.mesh, .received_elems]] == [["2 x 2 x 2", 528], ["2 x 2 x 2", 576]]'
holds '[.meshes[].received_elems] | . == sort'
meshes 4K 4K 4K --ranks 8 --json
holds '[.meshes[] | select(.mode == "column" or .mode == "2.5d" or .mode == "3d") | (.x_elems + .w_elems + .y_elems) / 16777216] | sort == [0.375, 0.5, 1.25]'
meshes 4K 16K 4K --ranks 6
says '^3d +3d: wanted a mesh of 3 axes with at least 2 ranks each; no mesh of 6 ranks does; one of 8 ranks does$'
says '^column +column on 6: N = 16384 does not divide into 6 parts; .*one of 4 ranks does; one of 8 ranks does$'
got=0
./cistern meshes 4K x 4K --ranks 8 >"$tmp/out" 2>"$tmp/err" || got=$?
[ $got = 2 ] || fail "a dimension that is none: status $got"
got=0
./cistern meshes 4K 4K 67108865 --ranks 8 >"$tmp/out" 2>"$tmp/err" || got=$?
[ $got = 2 ] || fail "a dimension that is too large: status $got"
meshes 64M 64M 64M --ranks 64 --json
holds '[.meshes[] | select(.mode == "column") | .received_elems] == [8866461766385664]'
got=0
./cistern meshes 4K 4K 4K >"$tmp/out" 2>"$tmp/err" || got=$?
[ $got = 2 ] || fail "no ranks: status $got"

# What cannot be planned is refused with the cause.
expect 1 preset:opt-175b --rates a100 --parallel auto --ranks 4 --device 24G
complains 'no product of 4 ranks works; data 1 x tensor [0-9] x pipeline [0-9]: each of [0-9] stages needs .* and has 24'
expect 1 preset:opt-175b --rates a100 --parallel auto --ranks 4 --device 24G --json
holds '.products == [] and (.refused | length == 6)'
expect 1 preset:moe-8x124m --rates a100 --parallel auto --ranks 4
complains 'this one is divided among ranks'
expect 1 "${box[@]}" --ranks 8 --simulate
complains '--parallel cannot be combined with --timeline'
expect 1 "${box[@]}" --ranks 8 --kind 2f2b
complains "no schedule '2f2b'; there are gpipe"
expect 1 "${box[@]}" --ranks 8 --tp 3
complains 'no product of 8 ranks has the given degrees'
expect 2 preset:opt-13b --rates a100 --schedule "$tmp/best.csv"
complains 'are for plans with --parallel auto'
expect 2 preset:opt-13b --rates a100 --pp 2
expect 2 preset:opt-13b --rates a100 --parallel all
complains 'parallel'

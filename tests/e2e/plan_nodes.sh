#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern plan --nodes: what a node receives and has is the sum that the numbers of nodes and copies give, the times are those of
# the link, the tokens from which on all is hidden do not depend on the size of the model, and wrong uses are told.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/expect.sh
. "${srcdir:-.}/tests/e2e/expect.sh"
need jq
command=(plan)

# Tensors of one size, so that a chunk has one of them: twelve chunks are dealt evenly to 2, 3, 4, 6 and 12 nodes.
n=$((12 * 262144))
jq -n '{name: "even", world: 1, tensors: [range(12) | {name: "t\(.)", shape: [512, 512]}],
    operators: [range(12) | {name: "o\(.)", tensors: ["t\(.)"], flops: 1e9}]}' >"$tmp/model.json"
box=("$tmp/model.json" --rates a100 --device 1G --host 1G --chunk 262144)

for nodes in 2 3 4 6 12; do
    for copies in 1 2; do
        expect 0 "${box[@]}" --nodes $nodes --link 100 --copies $copies --json
        holds ".plan.n_chunks == 12"
        holds ".nodes | .sum_bytes == 2 * $n * ($nodes - 1) / $nodes and .copy_bytes == 2 * $n * ($copies - 1) / $nodes
            and .weight_bytes == 2 * $n * ($nodes - $copies) / $nodes and .row_bytes == 4 * $n + 12 * $n * $copies / $nodes"
        holds '.nodes | .link_bytes_per_s == 12.5e9 and (.sum_s * 12.5e9 - .sum_bytes - .copy_bytes | fabs) < 1
            and (.weight_s * 12.5e9 - .weight_bytes | fabs) < 1 and (.sum_under_s / .weight_under_s - 2 | fabs) < 1e-9'
    done
done
expect 0 "${box[@]}" --nodes 4 --link 100 --micro-batches 2 --json
holds ".nodes | .sum_bytes == 4 * $n * 3 / 4 and .weight_bytes == 2 * $n * 3 / 4"
expect 0 "${box[@]}" --json
holds '.nodes == null'

# The step. A fast link adds one chunk of sums and of weights; a slow one adds all of its time but what hides under the other chunks.
# Each of two nodes updates half of the chunks.
for link in 1000000 1; do
    expect 0 "${box[@]}" --nodes 2 --link $link --json
    holds 'def near(x; y): x > y * (1 - 1e-9) and x < y * (1 + 1e-9);
        def exposed(link; under): [link / 12, link - under * 11 / 12] | max;
        near(.nodes.sum_exposed_s; .nodes | exposed(.sum_s; .sum_under_s)) and
        near(.nodes.weight_exposed_s; .nodes | exposed(.weight_s; .weight_under_s)) and
        near(.nodes.step_s; (.plan.predicted | .step_s - .update_exposed_s / 2) + (.nodes | .sum_exposed_s + .weight_exposed_s))'
done
holds '.nodes | .sum_exposed_s > .sum_s / 2 and .weight_exposed_s > .weight_s / 2'

# Chunks of two sizes in turns: one of two nodes receives the sums of the large ones, and the other one their weights, so that either
# takes the time of the large ones, and both nodes receive as much in a step.
jq '.tensors |= [to_entries[] | .value.shape[1] = 512 - 256 * (.key % 2) | .value]' "$tmp/model.json" >"$tmp/uneven.json"
expect 0 "$tmp/uneven.json" "${box[@]:1}" --nodes 2 --link 100 --json
holds '.plan.n_chunks == 12'
holds "(.nodes | .sum_bytes + .weight_bytes == 2 * $n * 3 / 4) and (.nodes | (.sum_s * 12.5e9 - $n | fabs) < 1 and (.weight_s * 12.5e9 - $n | fabs) < 1)"

# What is frozen does not move, and every node has it.
jq '.tensors[3].pattern = "frozen"' "$tmp/model.json" >"$tmp/frozen.json"
expect 0 "$tmp/frozen.json" "${box[@]:1}" --nodes 2 --link 100 --json
holds ".nodes | .sum_bytes + .weight_bytes == 2 * 262144 * 11 and .row_bytes == 2 * $n + 2 * 262144 * 11 + 12 * 262144 * 6"

# The tokens from which on all is hidden do not depend on the size of the model: x F / B with x = (N - 1) / N, but for
# attention and for parameters that are in no product.
printf '{"devices": [{"name": "GPU", "memory_bytes": 0, "up": 2e10, "down": 2e10, "memory": 1e13, "flops": 1e14}],
 "nodes": [{"cores": 8, "memory_bytes": 0, "pass": 1e11, "update": 1e9, "reduce": 1e10, "copy": 1e10}], "request_s": 3e-5}' >"$tmp/rates.json"
for preset in gpt2-1.5b llama-7b; do
    expect 0 preset:$preset --rates "$tmp/rates.json" --device 32G --host 256G --context 128 --nodes 2 --link 100 --json
    jq .nodes.hidden_tokens "$tmp/out" | awk '{ rule = 0.5 * 1e14 / 12.5e9; exit !($1 > 0.7 * rule && $1 < 1.3 * rule) }' ||
        fail "$preset: hidden from $(jq .nodes.hidden_tokens "$tmp/out") tokens on"
done

expect 0 preset:gpt2-124m --rates a100 --device 2G --host 64G --nodes 4 --link 100 --copies 2 --ranks 2
says '^nodes +4, each with 2 ranks, and 2 copies of the states; links of 100 Gbit/s$'
says '^link +a node receives [0-9.]+ MiB in a step: [0-9.]+ MiB of sums, [0-9.]+ MiB of copies, [0-9.]+ MiB of weights$'
says '^hidden +sums and copies .* of the last backward pass, .* too long; weights .* of the next forward pass'
says '^step +.* on each node: links add .* of sums and copies, and .* of weights$'
says '^tokens +all is hidden if a node has [0-9.]+ k in a micro-batch; it has 2\.05 k$'
says '^rows +[0-9.]+ GiB on each node: all weights and gradients, and states of 2 of 4 parts$'

expect 2 "${box[@]}" --nodes 4
complains '--link 100 for 100 Gbit/s'
expect 2 "${box[@]}" --link 100
complains '--link is for a job on several nodes: .* --nodes'
expect 2 "${box[@]}" --copies 2
complains '--copies is for a job on several nodes'
expect 2 "${box[@]}" --nodes 3 --link 100 --copies 4
complains '3 nodes can have 3 copies at most: --copies 3'
expect 2 "${box[@]}" --nodes 1 --link 100
complains 'nodes'
expect 2 "${box[@]}" --nodes 2 --link 100 --parallel auto
complains '--nodes is not for plans with --parallel auto'
printf 'all well\n'

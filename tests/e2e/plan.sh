#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern plan without a daemon: presets and files, rates by name and from files, tables, JSON, timelines, and errors in
# each.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/expect.sh
. "${srcdir:-.}/tests/e2e/expect.sh"
need jq
export HOME=$tmp XDG_STATE_HOME=$tmp/state

command=(plan)

# A model with a known name, on a published machine.
expect 0 preset:gpt2-124m --rates a100 --device 2G --host 64G --batch 4 --ranks 2 --timeline "$tmp/timeline.json" --simulate
says '^model +gpt2-124m: 124 M parameters'
says '^machine +2 ranks on A100'
says '^MEMORY +EACH DEVICE +HOST$'
says '^together .* 100\.0 %$'
says '^binds +[a-z]'
says '^RUNNER-UP '
says '^fits +yes: [0-9.]+ [MG]iB of 2\.00 GiB on each device, [0-9.]+ GiB of 64\.0 GiB of the host$'
says '^step +[0-9.]+ m?s, [0-9.]+ [kM] tokens/s; the rates do not say how much they vary$'
says '^6 +[0-9]'
cp "$tmp/timeline.json" "$tmp/out"
holds '.traceEvents | all((.ph == "X" and .ts >= 0 and .dur >= 0 and (.name | length > 0) and .pid > 0 and .tid > 0) or .ph == "M")'
holds '[.traceEvents[] | select(.ph == "X") | .cat] | unique | contains(["compute", "copies up", "updates"])'
# Intervals on a lane do not overlap.
holds '[.traceEvents[] | select(.ph == "X")] | group_by(.tid) | all(sort_by(.ts) | [., .[1:]] | transpose
    | all(.[1] == null or .[0].ts + .[0].dur <= .[1].ts + 0.0011))'

# Rates without `peer` are of devices that cannot access each other's memory. The plan says so, if there are several ranks.
printf '{"devices": [{"name": "GPU", "memory_bytes": 0, "up": 2e10, "down": 2e10, "memory": 1e12, "flops": 1e14}],
 "nodes": [{"cores": 8, "memory_bytes": 0, "pass": 1e11, "update": 1e9, "reduce": 1e10, "copy": 1e10}], "request_s": 3e-5}' >"$tmp/apart.json"
jq '.devices[0].peer = 2e10' "$tmp/apart.json" >"$tmp/peers.json"
expect 0 preset:gpt2-124m --rates "$tmp/apart.json" --device 2G --host 64G --batch 4 --ranks 2
says "^peers     no access between devices: the rates of 'GPU' have no 'peer'; gradients are summed in host memory\$"
expect 0 preset:gpt2-124m --rates "$tmp/apart.json" --device 2G --host 64G --batch 4 --ranks 2 --json
holds '.rates.peer_access == false and .plan.predicted.bytes_peer == 0'
expect 0 preset:gpt2-124m --rates "$tmp/peers.json" --device 2G --host 64G --batch 4 --ranks 2 --json
holds '.rates.peer_access and .plan.predicted.bytes_peer > 0'
expect 0 preset:gpt2-124m --rates "$tmp/apart.json" --device 2G --host 64G --batch 4 --json
holds '.rates.peer_access'

# Options of the job can be in a file. The command line overrides it, keys that do not matter to plans are checked, and mistakes are
# named with their place.
box=(preset:gpt2-124m --rates a100 --device 2G --host 64G)
printf '{"optimizer": {"masters": "split", "moments": "bf16", "lr": 0.1},\n "parallel": {"world": 2, "micro_batches": 3, "recompute": true}}' >"$tmp/job.json"
expect 0 "${box[@]}" --config "$tmp/job.json" --moments mx8
cp "$tmp/out" "$tmp/of_file"
expect 0 "${box[@]}" --masters split --moments mx8 --ranks 2 --micro-batches 3 --recompute
cmp "$tmp/of_file" "$tmp/out" || fail "--config gives another plan than the options"
expect 0 "${box[@]}"
! cmp -s "$tmp/of_file" "$tmp/out" || fail "--config changes nothing"
expect 0 "${box[@]}" --chunk 1048576 --json
holds '.plan.classes[0].chunk_elems == 1048576'
printf '{"memory": {"chunk": 1048576}}' >"$tmp/job.json"
cp "$tmp/out" "$tmp/of_option"
expect 0 "${box[@]}" --config "$tmp/job.json" --json
cmp "$tmp/of_option" "$tmp/out" || fail "--config gives another plan than --chunk"
printf '{"optimizer": {\n"lr": "high"}}' >"$tmp/job.json"
expect 2 "${box[@]}" --config "$tmp/job.json"
complains "^cistern: $tmp/job.json:2: section optimizer, lr: the value is a text, and must be a number from 0 to 1000\$"
printf '{"parallel": {"micro_batches": 1025}}' >"$tmp/job.json"
expect 2 "${box[@]}" --config "$tmp/job.json"
complains 'plan takes at most 1024 micro_batches, not 1025'
expect 1 "${box[@]}" --config "$tmp/missing.json"
complains "^cistern: $tmp/missing.json: No such file or directory\$"
# cistern-gpt ends with the same statuses.
for file in job missing; do
    got=0 want=$([ $file = job ] && echo 2 || echo 1)
    printf '{"model": {"layers": 0}}' >"$tmp/job.json"
    ./cistern-gpt --config "$tmp/$file.json" --print-config >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || fail "cistern-gpt --config $file.json: exit status $got, expected $want: $(cat "$tmp/err")"
done

# With rates that have a spread, the step has an error bar. Rates of a busy machine cause a warning. Sizes have binary units
# everywhere, and no runner-up is as fast as the plan, except for noise.
cat >"$tmp/spread.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 8e9, "down": 8e9, "memory": 2e10, "flops": 4e10}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 8e9}], "spread": 0.05, "busy_cores": 1.25}
RATES
expect 0 preset:cistern-gpt --rates "$tmp/spread.json" --device 1M --batch 8
says '^step +[0-9.]+ m?s, [0-9.]+ [kM]? ?tokens/s; [0-9.]+ m?s to [0-9.]+ m?s by the spread of the rates, 5\.0 %$'
says '^warning +the rates were measured while other programs used 1\.2 cores'
grep -qE '[0-9] [kMG]?B( |$)' <(grep -v ' 0 B' "$tmp/out") && fail "decimal units in: $(cat "$tmp/out")"
expect 0 preset:cistern-gpt --rates "$tmp/spread.json" --device 1M --batch 8 --json
holds '[.plan.predicted.step_s] + [.runners_up[].plan.predicted.step_s] | sort | [., .[1:]] | transpose | all(.[1] == null or .[1] / .[0] >= 1.01)'
holds '.plan.tokens_per_s > 0 and .plan.spread == 0.05'

# The plan as JSON: memory and time add up.
expect 0 preset:gpt2-124m --rates a100 --device 2G --host 64G --json
holds '.fits and .model.n_params > 124000000 and .plan.predicted.step_s >= .plan.predicted.compute_s and .plan.predicted.compute_s > 0'
holds '.plan.pool_bytes + .plan.state_bytes + .plan.activation_bytes <= .budget.device_bytes and .plan.host_bytes <= .budget.host_bytes'
holds '(.rows.host | add) <= .plan.host_bytes and ((.runners_up | length) <= 3)'
holds '([.plan.predicted.step_s] + [.runners_up[].plan.predicted.step_s]) | .[0] == min'
jq '.plan' "$tmp/out" >"$tmp/first"
expect 0 preset:gpt2-124m --rates a100 --device 2G --host 64G --json
jq '.plan' "$tmp/out" | cmp -s - "$tmp/first" || fail "another plan the second time"
expect 0 preset:gpt2-124m --rates a100 --device 2G --host 64G --json
holds '.plan.state_bytes == 0 and .plan.gradient == "beside"'

# Six simulated steps are in the JSON, too. The order of a step is learned.
expect 0 preset:gpt2-124m --rates a100 --device 2G --json --simulate
holds '.simulated | all(.played.step_s > 0) and [.[].step] == [1, 2, 3, 4, 5, 6] and (.[5].played | .hits + .late) >= (.[0].played | .hits + .late)'

# A plan that cannot fit is refused with the limit and the bytes.
expect 1 preset:opt-30b --rates a100 --device 4G --host 512G
complains 'device memory .* bytes\) short'
expect 1 preset:opt-30b --rates a100 --device 40G --host 100G
complains 'host memory .* bytes\) short \(--masters split and --moments mx8 take less, and --disk least\): a plan needs --host [0-9]+G$'
expect 1 preset:opt-30b --rates a100 --device 40G --host 100G --json
complains 'host memory .* bytes\) short \(--masters split and --moments mx8 take less, and --disk least\): a plan needs --host [0-9]+G$'
holds '.fits == false and (.why | test("bytes\\) short [(].* least[)]$")) and .least.device_bytes == 40 * 1073741824 and .least.host_bytes > 100 * 1073741824'
# These bytes are enough. The named limit is the one that no plan meets, even if some plans lack fewer bytes of the device.
size=$(sed -n 's/.*--host \([0-9]*G\)$/\1/p' "$tmp/err")
expect 0 preset:opt-30b --rates a100 --device 40G --host "$size"
expect 1 preset:opt-6.7b --rates a100 --device 4G --host 80G --recompute
complains '^cistern: host memory .* a plan needs --host 100G$'
expect 1 preset:opt-6.7b --rates a100 --device 1G --host 80G --recompute
complains 'device memory .* bytes\) short; host memory .* bytes\) short.*: a plan needs --device [0-9]+M and --host 100G$'

# A model from a file or from standard input; rates from a file that is found where cistern probe writes it.
cat >"$tmp/model.json" <<'MODEL'
{"name": "two", "world": 2, "groups": [[0], [1]],
 "tensors": [{"name": "a", "shape": [512, 512]}, {"name": "base", "shape": [512, 512], "pattern": "frozen"},
  {"name": "e0", "shape": [512, 512], "group": 1, "pattern": "expert"}, {"name": "e1", "shape": [512, 512], "group": 2, "pattern": "expert"}],
 "operators": [{"name": "x", "tensors": ["a", "base"], "flops": 1e9, "activation_bytes": 4096},
  {"name": "y0", "tensors": ["e0"], "flops": 1e9, "expected_uses": 0.5}, {"name": "y1", "tensors": ["e1"], "flops": 1e9, "expected_uses": 0.5}]}
MODEL
expect 1 "$tmp/model.json"
complains 'no rates: run .cistern probe.'
mkdir -p "$tmp/state/cistern"
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 8e9, "down": 8e9, "memory": 2e10}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 8e9}]}
RATES
expect 1 "$tmp/model.json" --rates "$tmp/rates.json"
complains 'use --flops'
expect 0 "$tmp/model.json" --rates "$tmp/rates.json" --flops 4e10
says '^machine +2 ranks on host'
if [ "$(id -u)" != 0 ]; then
    cp "$tmp/rates.json" "$tmp/state/cistern/rates.json"
    expect 0 "$tmp/model.json" --flops 4e10
fi
expect 0 - --rates "$tmp/rates.json" --flops 4e10 --on host --json <"$tmp/model.json"
holds '.model.name == "two" and .rates.device == "host"'
expect 1 - --rates "$tmp/rates.json" --flops 4e10 <"$tmp"
complains 'standard input: Is a directory'
expect 2 --config - <<<'{"model": '
complains 'standard input:2:0: '
# Frozen weights have no states: four tensors have weights, and only the three trained ones have master weights.
holds '.rows.host | .weight == 2 * 4 * 512 * 512 and .master == 4 * 3 * 512 * 512'
# The weights of an fp32 tensor are its master weights.
jq '.tensors[0].dtype = "fp32"' "$tmp/model.json" >"$tmp/fp32.json"
expect 0 "$tmp/fp32.json" --rates "$tmp/rates.json" --flops 4e10 --on host --json
holds '.rows.host | .weight == 2 * 5 * 512 * 512 and .master == 4 * 2 * 512 * 512'
jq '.tensors[0].dtype = "fp8"' "$tmp/model.json" >"$tmp/fp8.json"
expect 1 "$tmp/fp8.json" --rates "$tmp/rates.json" --flops 4e10
complains "tensors.0..dtype: no type 'fp8' .there are: bf16, fp32."
expect 0 "$tmp/model.json" --rates "$tmp/rates.json" --flops 4e10 --ranks 3 --micro-batches 4
jq '.tensors[2].group = 0' "$tmp/model.json" >"$tmp/warned.json"
expect 0 "$tmp/warned.json" --rates "$tmp/rates.json" --flops 4e10
says '^warning +1 tensors of pattern expert'
expect 0 "$tmp/warned.json" --rates "$tmp/rates.json" --flops 4e10 --json
holds '.warnings | length == 1 and (.[0] | startswith("1 tensors of pattern expert"))'

# States in other formats have the bytes of these formats, and updates of fewer bytes take less time. Memory of a reservation is not
# available for blocks.
states() {
    expect 0 preset:gpt2-124m --rates a100 --host 64G --json "$@"
}
states --device 2G
holds '.rows.host | .exp_avg == .master and .exp_avg_sq == .master and .weight_other == 0'
full=$(jq '.plan.host_bytes' "$tmp/out") all_updates=$(jq '.plan.predicted.step_s' "$tmp/out")
states --device 2G --moments bf16
holds '.rows.host | .exp_avg * 2 == .master and .exp_avg_sq * 2 == .master'
jq -e ".plan.host_bytes < $full and .plan.predicted.step_s <= $all_updates" "$tmp/out" >/dev/null || fail "bf16 moments cost as much as fp32"
states --device 2G --optimizer lion --moments mx8 --overlap early
holds '.rows.host | .exp_avg_sq == 0 and .exp_avg * 128 == .master * 33 and .weight_other == .weight'
states --device 2G --optimizer muon
holds '.rows.host | .exp_avg == .master and .exp_avg_sq > 0 and .exp_avg_sq < .exp_avg'
holds '.plan.predicted.update_s > 0.4'
expect 1 preset:gpt2-124m --rates "$tmp/rates.json" --flops 4e10 --device 2G --optimizer muon
complains 'nodes\[0\].products, the rate of Muon.s products, is not known: measure with cistern probe'
states --device 2G --device-update 1G
one=$(jq '.plan.pool_bytes' "$tmp/out")
[ "$one" -le $((1 << 30)) ] || fail "blocks of $one bytes in 1 GiB"
holds '.plan.device_update_bytes == 1073741824 and .plan.n_buffers > 0 and (.plan.pool_bytes + .plan.device_update_bytes + .plan.activation_bytes) <= .budget.device_bytes'
expect 0 preset:gpt2-124m --rates a100 --device 2G --device-update 1G --moments mx8 --overlap delayed
says '^for updates +1\.00 GiB '
says '^weight_other '
says '^updates +delayed, adamw with moments in mx8: .* hidden$'
says '^reserved +1\.00 GiB for updates on each accelerator, [1-3] chunks? at a time; '
expect 1 preset:gpt2-124m --rates a100 --device 1G --device-update 1G
complains 'updates 1.0 GiB, the smallest pool .* bytes\) short'

# Device memory is allocated in multiples of the granularity, and reservations and states hold whole chunks. A size that is too small is
# refused with a sufficient one.
expect 1 preset:gpt2-124m --rates a100 --device 4G --device-update 1M
complains "device_update_bytes.* of 1.0 MiB .*'A100-40GB' allocates memory in multiples of 2.0 MiB"
expect 0 preset:gpt2-124m --rates a100 --device 4G --device-update 4M
says '^reserved +4\.00 MiB for updates on each accelerator, too small for any chunk: the smallest takes .* \(--device-update [0-9]+M\)$'
expect 0 preset:gpt2-124m --rates a100 --device 4G --device-update 300M --device-states 500K
says "^states +none stay on accelerators: 500 KiB hold no chunk's states, the smallest takes .* \(--device-states [0-9]+M\)$"
size=$(sed -n 's/.*--device-states \([0-9]*M\))$/\1/p' "$tmp/out")
expect 0 preset:gpt2-124m --rates a100 --device 4G --device-update 300M --device-states "$size"
says "^states +[0-9.]+ MiB of [0-9.]+ MiB on each accelerator, of 1 of [0-9]+ chunks$"
# Gradients that take the place of weights are shown in the output.
expect 0 preset:gpt2-124m --rates a100 --device 4G --grad-over-weight
says "^gradient +in the place of the weight$"
expect 0 preset:gpt2-124m --rates a100 --device 4G --grad-over-weight --json
holds '.plan.gradient == "over"'

# If updates take long, a reservation in which a faster device makes some of them shortens the step, and the plan has one if it may
# choose. This is also true of states in device memory.
jq '.nodes[0].update = 4e8 | .nodes[0].cores = 16 | .nodes[0].pass = 1e11 | .devices[0].flops = 1e12
    | .devices += [{"name": "fast", "memory_bytes": 8589934592, "up": 2.4e10, "down": 2.4e10, "update": 8e9, "memory": 1e12, "flops": 1e14}]' \
    "$tmp/rates.json" >"$tmp/fast.json"
fast() {
    expect 0 preset:gpt2-124m --rates "$tmp/fast.json" --json "$@"
    step=$(jq '.plan.predicted.step_s' "$tmp/out")
}
for on in host fast; do
    fast --on $on --device 4G
    without=$step
    holds '.plan.device_update_bytes == 0 and .plan.interleave == 0 and .plan.predicted.states_up == 0'
    fast --on $on --device 4G --device-update auto
    holds '.plan.device_update_bytes > 0 and .plan.interleave > 0 and .plan.predicted.states_up > 0 and .plan.predicted.update_s > 0'
    jq -ne "$step < $without" >/dev/null || fail "$on: $step s with a reservation, $without s without"
    fast --on $on --device 4G --device-update 1G --device-states 600M
    holds '(.rows.each_device | .master == .exp_avg and .master > 0 and .gradient == 0) and .plan.state_bytes >= .rows.each_device.master * 3'
    holds '.plan.state_bytes <= 600 * 1024 * 1024 and .plan.predicted.device_updates > 0'
    holds '.plan.device_states == 600 * 1024 * 1024 and .states.why == null'
    with=$step
    fast --on $on --device 4G --device-states auto
    holds '.plan.device_states >= .plan.state_bytes and .plan.state_bytes > 0 and .plan.n_staying > 0 and .plan.device_update_bytes > 0'
    holds '.plan.predicted.step_s < .states.step_without_s and (.states.why | contains("without them"))'
    jq -ne "$step <= $with * 1.01" >/dev/null || fail "$on: $step s with states as the plan likes, $with s with 600 MiB"
done
expect 0 preset:gpt2-124m --rates "$tmp/fast.json" --on host --device 1G --device-update 1G --device-states 600M --overlap early \
    --timeline "$tmp/timeline.json"
says '^MEMORY +EACH DEVICE +HOST +EACH ACCELERATOR$'
cp "$tmp/timeline.json" "$tmp/out"
holds '[.traceEvents[] | select(.name == "process_name") | .args.name] | contains(["rank 0", "node 0", "device 0"])'
expect 0 preset:gpt2-124m --rates a100 --device 2G --json --grad-over-weight
jq -e ".plan.host_bytes < $full * 0.9" "$tmp/out" >/dev/null || fail "gradients over weights spare nothing"
expect 1 preset:gpt2-124m --rates a100 --grad-over-weight --overlap early
complains 'grad_over_weight cannot be combined with overlap early'
expect 0 preset:gpt2-124m --rates "$tmp/fast.json" --on fast --device 4G --device-states auto
says '^states +[0-9.]+ [MG]iB \([0-9]+ bytes\) on each accelerator, of [0-9]+ of [0-9]+ chunks: a step takes .* ms, without them .* ms$'
expect 0 preset:gpt2-124m --rates "$tmp/rates.json" --flops 1e11 --device-states auto
says '^states +none stay on accelerators: the rates have no accelerator$'
expect 1 preset:gpt2-124m --rates a100 --device-states auto --moments mx8
complains 'moments that are not fp32'
expect 1 preset:gpt2-124m --rates a100 --device-states 1G
complains 'need memory for updates there'
expect 1 preset:gpt2-124m --rates "$tmp/rates.json" --flops 1e11 --device-update 1G
complains 'device_update_bytes.*the rates have no accelerator'

# Errors are reported with their place.
printf '{"name": "x",\n "tensors": [}' >"$tmp/broken.json"
expect 1 "$tmp/broken.json" --rates a100
complains 'broken\.json:2:1[0-9]: '
jq '.tensors[1].shapes = 1' "$tmp/model.json" >"$tmp/broken.json"
expect 1 "$tmp/broken.json" --rates a100
complains "broken\\.json: tensors\\[1\\]: unknown key 'shapes'"
jq '.operators[0].tensors[1] = "b"' "$tmp/model.json" >"$tmp/broken.json"
expect 1 "$tmp/broken.json" --rates a100
complains "operators\\[0\\]\\.tensors\\[1\\]: no tensor 'b'"
expect 1 "$tmp/model.json" --rates a100 --ranks 1
complains '1 ranks: group 2 of the model has a higher rank'
expect 1 "$tmp/none.json" --rates a100
complains 'none\.json'
expect 1 "$tmp/model.json" --rates a100 --batch 4
complains 'for presets'
expect 1 "$tmp/model.json" --rates a100 --on H200
complains "no device 'H200'; they have A100"
expect 1 preset:gpt2 --rates a100
complains "no preset 'gpt2'; there are gpt2-124m, "
jq '.nodes[0].update = -1' "$tmp/rates.json" >"$tmp/broken.json"
expect 1 "$tmp/model.json" --rates "$tmp/broken.json"
complains 'nodes\[0\]\.update: -1 is negative'
expect 1 preset:gpt2-124m --rates a100 --timeline "$tmp/no/where"
complains 'no/where'
for line in "" "a b" "x --device 40X" "x --device -1" "x --ranks 0" "x --ranks 513" "x --share 0" "x --share 2" "x --flops x" \
    "x --micro-batches 0" "x --batch 0" "x -o file" "x --uid 0" "x --moments int8" "x --optimizer adamax" "x --overlap late" \
    "x --device-update 1Q" "x --device-update all" "x --device-states all"; do
    # shellcheck disable=SC2086 # words
    expect 2 $line
done

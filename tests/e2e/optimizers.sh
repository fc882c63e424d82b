#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests every optimizer, format of moments and time of updates: cistern-gpt with its states in the daemon has the losses and final
# weights of its own store, bit for bit, with pools that are too small to keep weights, with one engine thread and with two, and
# with device updates of some chunks.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

world=2
model=(--layers 3 --heads 2 --width 64 --context 32 --batch 2 --steps 8 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --world "$world" --seed 7)
write_text 400

# Write losses and weights of the local store with the options $2... to $tmp/$1.{losses,weights}.
local_run() {
    local name=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --store local --loss-file "$tmp/$name.losses" --dump-weights "$tmp/$name.weights" "$@" \
        >"$tmp/$name.log" 2>&1 || fail "$name: --store local $* failed"
}

# Train job $1 with the options $2... in the daemon, and compare its results with those of the run $reference. The job stays.
reference=
same() {
    local job=$1 rank pids=() more
    shift
    for ((rank = 0; rank < world; rank++)); do
        more=()
        [ "$rank" != 0 ] || more=(--loss-file "$tmp/$job.losses" --dump-weights "$tmp/$job.weights")
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --rank "$rank" "${more[@]}" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        pids+=($!)
        managers+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "$job: a worker failed with $*"
    done
    cmp "$tmp/$reference.losses" "$tmp/$job.losses" || fail "$job: other losses than $reference with $*"
    cmp "$tmp/$reference.weights" "$tmp/$job.weights" || fail "$job: other weights than $reference with $*"
    printf '%s: same bits as %s\n' "$job" "$reference"
}

# Check that jq's filter $2 is true for the output of `cistern job $1`.
holds() {
    ./cistern job "$1" --json | jq -e "$2" >/dev/null || fail "$1: not '$2': $(./cistern job "$1" --json)"
}

# Run each combination once, and check that the results differ from each other.
start_daemon plain --engine-threads 2
runs=()
for optimizer in adamw adam lion sgd; do
    for moments in fp32 bf16 mx8; do
        if sparse && [ $optimizer-$moments != lion-mx8 ] && [ $optimizer != adamw ]; then
            continue
        fi
        runs+=("$tmp/$optimizer-$moments.weights")
        reference=$optimizer-$moments
        local_run "$reference" --optimizer $optimizer --moments $moments
        same "job-$reference" --optimizer $optimizer --moments $moments --pool 90%
        holds "job-$reference" ".optimizer == \"$optimizer\" and .moments == \"$moments\""
        ./cistern rm "job-$reference"
    done
done
[ "$(cat "${runs[@]}" | wc -c)" -gt 0 ] || fail "no weights were written"
[ "$(sha256sum "${runs[@]}" | cut -d' ' -f1 | sort -u | wc -l)" = ${#runs[@]} ] || fail "two optimizers or formats do the same"

# Check that the daemon $1 searched for a plan for job $2, and found one.
planned() {
    grep -q "job '$2': planned with the rates " "$tmp/$1.log" || fail "$2: $(grep "job '$2'" "$tmp/$1.log")"
}

# Check that the output of `cistern explain` for job $1 contains $2.
explains() {
    ./cistern explain "$1" wte | has -E "$2" || fail "explain: $(./cistern explain "$1" wte)"
}

# Rounding is as requested, and depends on a seed.
local_run nearest --moments mx8 --rounding nearest
reference=nearest
same job-nearest --moments mx8 --rounding nearest
cmp -s "$tmp/nearest.weights" "$tmp/adamw-mx8.weights" && fail "both ways to round do the same"
local_run seeded --moments mx8 --seed 8
cmp -s "$tmp/seeded.weights" "$tmp/adamw-mx8.weights" && fail "the seed has no effect"

# Early updates have the bits of updates at the commit. With clipping they are made at the commit.
local_run unclipped --clip 0
reference=unclipped
same early --overlap early --clip 0
holds early '.overlap == "early" and .state_bytes_per_param == 18 and .chunks_ahead == 0 and .grads_dropped == 0'
./cistern job early | has '^updates   early, 0 of [0-9]* chunks ahead of the commit, 0 gradients dropped' || fail "early: $(./cistern job early)"
./cistern stat | sed -n '/^JOB .* AHEAD  DROPPED /,$p' | has '^early .* 0  *0  ' || fail "stat: $(./cistern stat)"
same early-small --overlap early --clip 0 --pool 110%
same commit --overlap commit --clip 0
reference=adamw-fp32
same early-clipped --overlap early
local_run unclipped-mx8 --clip 0 --moments mx8
reference=unclipped-mx8
same early-mx8 --overlap early --clip 0 --moments mx8
local_run unclipped-micro --clip 0 --micro-batches 2
reference=unclipped-micro
same early-micro --overlap early --clip 0 --micro-batches 2

# Delayed updates train differently, but equally in both stores.
local_run delayed --overlap delayed
reference=delayed
same delayed --overlap delayed
holds delayed '.overlap == "delayed" and .delay_from == 0 and .update_seconds > 0 and (.exposed_seconds | type) == "number"'
same delayed-small --overlap delayed --pool 110%
cmp -s "$tmp/delayed.weights" "$tmp/adamw-fp32.weights" && fail "delayed updates are not"
local_run delayed-from --overlap delayed --delay-from 3 --moments bf16
reference=delayed-from
same delayed-from --overlap delayed --delay-from 3 --moments bf16
head -n 4 "$tmp/delayed-from.losses" | cmp - <(head -n 4 "$tmp/adamw-bf16.losses") || fail "delayed before its step"
cmp -s "$tmp/delayed-from.losses" "$tmp/adamw-bf16.losses" && fail "never delayed"

# Gradients in weight rows.
reference=adamw-bf16
same over --grad-over-weight --moments bf16
for job in early early-micro delayed over; do
    planned plain $job
done
holds over '.grad_over_weight and .state_bytes_per_param == 10'

# Split masters, with each kind of update. Their master weights are those of whole ones until a weight is a tie.
local_run split --masters split
reference='split'
same split --masters split
holds split '.masters == "split" and .state_bytes_per_param == 14'
./cistern job split | has '^states    adamw, split masters, moments in fp32, 14 B/parameter' || fail "split: $(./cistern job split)"
same split-small --masters split --pool 110%
local_run split-unclipped --masters split --clip 0
reference=split-unclipped
same split-early --masters split --clip 0 --overlap early
holds split-early '.state_bytes_per_param == 16'
local_run split-delayed --masters split --overlap delayed --optimizer lion --moments bf16
reference=split-delayed
same split-delayed --masters split --overlap delayed --optimizer lion --moments bf16
local_run split-micro --masters split --micro-batches 2 --moments mx8
reference=split-micro
same split-micro --masters split --micro-batches 2 --moments mx8
cmp -s "$tmp/split-micro.weights" "$tmp/split.weights" && fail "mx8 is fp32"
./cistern-gpt "${model[@]}" --data "$tmp/text" --job no --rank 0 --masters split --grad-over-weight >"$tmp/other.log" 2>&1 &&
    fail "gradients take the place of a part of the master weights"
grep -q 'grad_over_weight cannot be combined with masters split' "$tmp/other.log" || fail "said: $(cat "$tmp/other.log")"

# A rank with other options than the first one is refused with the difference.
./cistern-gpt "${model[@]}" --data "$tmp/text" --job over --rank 0 --moments bf16 --grad-over-weight --optimizer lion >"$tmp/other.log" 2>&1 && fail "lion is adamw"
grep -q "job 'over' was opened with optimizer adamw, not lion as rank 0 wants" "$tmp/other.log" || fail "said: $(cat "$tmp/other.log")"
stop_daemon plain

# Device updates of every second chunk do not change the results. They are shown in the job's statistics, and as lanes of their
# own.
printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
start_daemon paced --config "$tmp/paced.conf"
for moments in fp32 mx8; do
    reference=adamw-$moments
    same "reservation-$moments" --moments $moments --device-update 8M --chunk 36864
    holds "reservation-$moments" '.n_device_updates > 0 and .n_device_updates < .n_updates and .device_update_bytes == 16777216'
done
# Split masters are copied up with their weights.
reference='split'
same reservation-split --masters split --device-update 8M --chunk 36864
holds reservation-split '.n_device_updates > 0 and .n_device_updates < .n_updates'
./cistern stat | has -E '^reservation-mx8 .* 2 +[0-9.]+ [mu]?s +[0-9.]+ [mu]?s +- +- ' || fail "stat: $(./cistern stat)"
reference=adamw-fp32
same reservation-planned --device-update 8M --device-states 1M
planned paced reservation-planned

# Choices of the plan do not change the results. A daemon that does not plan has none, and says so. An impossible choice is
# refused.
same reservation-chosen --device-states auto
planned paced reservation-chosen
same reservation-unplanned --device-states auto --chunk 36864
holds reservation-unplanned '(has("device_states") or has("device_update_bytes")) | not'
explains reservation-unplanned "0 bytes of each rank's accelerator are for states: no plan: "
refused() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job refused --rank 0 --device-states auto "${@:2}" >"$tmp/other.log" 2>&1 && fail "${*:2} is taken"
    grep -q "$1" "$tmp/other.log" || fail "said: $(cat "$tmp/other.log")"
}
refused 'cannot be combined with moments that are not fp32' --moments mx8
refused 'a pool of 1.0 MiB .* cannot be combined with device_update_bytes or device_states that the plan chooses' --device paced --pool 1M
./cistern trace reservation-mx8 -o "$tmp/trace.json"
jq -e '[.traceEvents[] | select(.name == "process_name") | .args.name] | contains(["reservation-mx8", "node 0", "paced:0", "rank 0"])' "$tmp/trace.json" >/dev/null ||
    fail "lanes of $(jq -c '[.traceEvents[] | select(.name == "process_name") | .args.name]' "$tmp/trace.json")"
jq -e '[.traceEvents[] | select(.ph == "X") | .cat] | unique | contains(["states up", "states down", "update"])' "$tmp/trace.json" >/dev/null ||
    fail "kinds of $(jq -c '[.traceEvents[] | select(.ph == "X") | .cat] | unique' "$tmp/trace.json")"
# The counters of copies in both directions and of updates. Engines report them once a second.
has_bandwidth() {
    ./cistern stat | has -E '^paced:0 +[0-9.]+ [KMG]iB/s +[0-9.]+ [KMG]iB/s +- +[0-9.]+ [KMG]iB/s +[0-9.]+ +[0-9.]+ '
}
poll has_bandwidth
stop_daemon paced

# A choice for fast accelerators with slow links does not change the results either, also with pools there, and Explain mentions
# it. With little device memory less is chosen, and with almost none, nothing.
memories=(64M 8M 1M)
! sparse || memories=(8M)
for memory in "${memories[@]}"; do
    printf '[engine]\nupdate_rate = 5M\n[paced]\ndevices = 2\nup = 64M\ndown = 64M\nupdate = 200M\nmemory = %s\n' "$memory" >"$tmp/fast.conf"
    start_daemon "fast-$memory" --config "$tmp/fast.conf"
    for device in host paced; do
        same "$device-$memory" --device $device --device-states auto
        planned "fast-$memory" "$device-$memory"
        [ "$memory" = 1M ] || holds "$device-$memory" '.device_states > 0 and .device_update_bytes > 0 and .n_device_updates > 0'
        [ "$memory" = 1M ] || explains "$device-$memory" "[1-9][0-9]* bytes of each rank's accelerator are for states: a step takes "
        [ "$memory" != 1M ] || holds "$device-$memory" '(has("device_states") or has("device_update_bytes")) | not'
        ./cistern rm "$device-$memory"
    done
    stop_daemon "fast-$memory"
done

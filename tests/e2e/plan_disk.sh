#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests plans of cistern plan for jobs with states on drives: a job with the same rates and budgets has the chunks, files and buffers
# of the plan, and its drives read and write exactly the bytes of the plan. Also what plan prints of drives, and what it refuses.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
find_drive
[ -n "$drive" ] || skip "no directory on a drive that has O_DIRECT"

cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9, "products": 1e10}],
 "disk_read": 2e9, "disk_write": 1.5e9, "disk_mixed": 1.7e9, "request_s": 3e-5}
RATES
printf '[plan]\nrates = %s\nsearch_time = 10m\n' "$tmp/rates.json" >"$tmp/rates.conf"
seq 20000 >"$tmp/text"
model=(--layers 4 --heads 4 --width 128 --context 32 --batch 4 --threads 1)
steps=5
pool=1M

# Plan a job of $1 ranks with the options $2... into $tmp/planned.
plan() {
    local world=$1
    shift
    ./cistern-gpt "${model[@]}" --world "$world" --describe "$tmp/model.json"
    ./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device $pool --json "$@" >"$tmp/planned" || fail "no plan for $*"
}

# Train job $1 of $2 ranks with the options $3...
train() {
    local job=$1 world=$2 rank pids=()
    shift 2
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt "${model[@]}" --world "$world" --rank $rank --data "$tmp/text" --job "$job" --steps $steps --pool $pool --quiet \
            "$@" >"$tmp/gpt$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank of $job failed"
    done
}

# Bytes that all drives have read and written, as the daemon knows so far.
drives() {
    ./cistern stat --json | jq -r '[.drives[].read_bytes, 0] as $r | [.drives[].written_bytes, 0] as $w | "\($r | add) \($w | add)"'
}

# The drives have read and written $1 and $2 bytes since $3 and $4. Engines report their counters every second.
moved() {
    local read written
    read -r read written < <(drives)
    last="$((read - $3)) $((written - $4))"
    [ "$last" = "$1 $2" ]
}

# A job with the options $4... whose states are on $3 drives of directory $drive has what is planned for $2 ranks. Besides its steps,
# the masters are written at the beginning, and what an update reads before its commit is read once more at the end.
same() {
    local job=$1 world=$2 n=$3 list=$drive i before reads writes used
    shift 3
    for ((i = 1; i < n; i++)); do list+=,$drive; done
    plan "$world" --disk "$n" "$@"
    read -r reads writes < <(jq -r ".plan.predicted as \$p | \"\(\$p.disk_read * $steps + \$p.disk_ahead) \(\$p.disk_written * $steps +
        .rows.drives.master)\"" "$tmp/planned")
    [ "$writes" -gt 0 ] || fail "$job: nothing is planned to be written"
    before=$(drives)
    train "$job" "$world" --disk "$list" "$@"
    ./cistern job "$job" --json >"$tmp/job"
    used=$(jq -c '[.n_chunks, .drive_bytes, ([.files[].buffer_bytes] | add), .arena_bytes]' "$tmp/job")
    [ "$used" = "$(jq -c "[.plan.n_chunks, .disk.bytes, .disk.window_bytes, .plan.host_bytes - .disk.window_bytes - $world * .plan.pool_bytes]" \
        "$tmp/planned")" ] || fail "$job has $used chunks, bytes on drives, of buffers and in arenas: $(jq -c '.disk, .plan' "$tmp/planned")"
    last=
    # shellcheck disable=SC2086 # two words
    (poll moved "$reads" "$writes" $before) || {
        moved "$reads" "$writes" ${before} || true
        fail "$job: planned $reads bytes read and $writes written, the drives have done $last"
    }
    ./cistern rm "$job"
}

export CISTERN_ENGINE_HOST=$PWD/cistern-engine-host
use_drives_daemon
start daemon "$cisternd" --config "$tmp/rates.conf" --socket "$CISTERN_SOCKET" --gpus none
await daemon READY=1
same one 1 1
same two 1 2 --masters split --moments mx8
# A large vocabulary, whose states stay in memory: buffers of its size for each drive would take more. The plan and the job tell it.
small=("${model[@]}")
model+=(--vocab 8192)
pool=8M
same large 1 1
jq -e '.disk | .chunks_in_memory > 0 and .bytes_in_memory > 0 and .window_bytes < .bytes' "$tmp/planned" >/dev/null ||
    fail "a large tensor is on drives: $(jq -c .disk "$tmp/planned")"
jq -e --slurpfile plan "$tmp/planned" '.n_stay_in_host == $plan[0].disk.chunks_in_memory and .stay_bytes == $plan[0].disk.bytes_in_memory and
    .n_stay_in_host + ([.files[].n_chunks] | add) == .n_chunks' "$tmp/job" >/dev/null || fail "the job tells something else: $(cat "$tmp/job")"
./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device $pool --disk 1 >"$tmp/out"
grep -qE '^in memory the states of 1 chunk, .*: buffers of their size for each drive would take more$' "$tmp/out" || fail "not told: $(cat "$tmp/out")"
model=("${small[@]}")
pool=1M
if ! sparse; then
    same part 1 1 --disk-bytes 4M
    same ranks 2 1 --moments bf16
    same early 1 2 --overlap early
fi

# A drive's line has what it has moved, and how fast.
./cistern stat >"$tmp/out"
grep -qE '^drive .*: .* of files with states, .* read \([0-9.]+ [kMG]?B/s\), .* written \([0-9.]+ [kMG]?B/s\)$' "$tmp/out" || fail "no drive in: $(cat "$tmp/out")"
./cistern stat --json | jq -e '.drives | length > 0 and all(.read_seconds > 0 and .write_seconds > 0 and .in_flight == 0)' >/dev/null ||
    fail "drives: $(./cistern stat --json | jq -c .drives)"

# A durable job: two places of each row are planned. Its steps have a record in addition, which the daemon writes.
mkdir "$drive/lasts.$$"
finish_lasts() {
    local status=$?
    set +e # The status that is set again must not end this.
    rm -rf "$drive/lasts.$$"
    (exit $status)
    finish
}
trap finish_lasts EXIT
plan 1 --disk 1
jq -c '.rows.drives | map_values(. * 2)' "$tmp/planned" >"$tmp/twice"
plan 1 --disk 1 --durable
jq -c '.rows.drives' "$tmp/planned" | cmp - "$tmp/twice" || fail "rows of a durable job do not have two places"
jq -e '.disk | .durable and .record_bytes % 4096 == 0 and .seal_s > 0.01 and .seal_s < 0.011' "$tmp/planned" >/dev/null ||
    fail "no flushes: $(jq -c .disk "$tmp/planned")"

# Number $2 of 8 bytes of the head of file $1 (proto/durable.h).
head_of() {
    od -A n -t u8 -j $(($2 * 8)) -N 8 "$1" | tr -d ' '
}

# A durable job $1 of $2 ranks with its states on $3 drives and the options $4... writes what is planned for its steps: rows and, if they
# are a part of the master weights, weights; and a record of each step. Before the first one it writes the masters, frozen weights, and
# what describes the job; and reads what the file has.
lasts() {
    local job=$1 world=$2 n=$3 list=$drive/lasts.$$ first=$drive/lasts.$$/$1.0.cistern i before reads writes used
    shift 3
    for ((i = 1; i < n; i++)); do list+=,$drive/lasts.$$; done
    plan "$world" --disk "$n" --durable "$@"
    before=$(drives)
    train "$job" "$world" --disk "$list" --durable "$@"
    ./cistern job "$job" --json >"$tmp/job"
    used=$(jq -c '[.n_chunks, .drive_bytes, .arena_bytes]' "$tmp/job")
    [ "$used" = "$(jq -c "[.plan.n_chunks, .disk.bytes, .plan.host_bytes - .disk.window_bytes - $world * .plan.pool_bytes]" "$tmp/planned")" ] ||
        fail "$job has $used chunks, bytes on drives and in arenas: $(jq -c '.disk, .plan' "$tmp/planned")"
    read -r reads writes < <(jq -r ".plan.predicted as \$p | .disk.record_bytes as \$record | .rows.drives as \$rows |
        \"\(\$p.disk_read * $steps + \$p.disk_ahead + 8192 + 2 * \$record) \(\$p.disk_written * $steps + \$record * $steps +
        \$rows.master / 2 + \$rows.weight_other - 2 * (\$p.disk_written - \$p.disk_read))\"" "$tmp/planned")
    i=$(($(head_of "$first" 8) + $(head_of "$first" 9))) # The description.
    writes=$((writes + (i + 4095) / 4096 * 4096 + 2 * 4096 * n))
    # shellcheck disable=SC2086 # two words
    (poll moved "$reads" "$writes" $before) || {
        moved "$reads" "$writes" ${before} || true
        fail "$job: planned $reads bytes read and $writes written, the drives have done $last"
    }
    ./cistern rm "$job"
}
lasts whole 1 1
lasts split 1 2 --masters split --moments mx8
model+=(--lora 4)
lasts frozen 1 2
sparse || lasts both 2 1 --masters split --moments bf16
model=("${small[@]}")
plan 1 --disk 1 --durable
# A trace shows what a drive reads and writes, by chunk.
train traced 1 --disk "$drive"
./cistern trace traced -o "$tmp/trace.json"
jq -e '[.traceEvents[] | select(.ph == "X" and .name == "read 0") | .args.bytes] | length > 0 and all(. > 0)' "$tmp/trace.json" >/dev/null ||
    fail "no reads of chunk 0 in the trace"
jq -e '[.traceEvents[] | select(.name == "thread_name") | .args.name] | contains(["reads", "writes"])' "$tmp/trace.json" >/dev/null ||
    fail "no lanes of drives in the trace"

# The step waits for flushes that take longer than its passes.
jq '.disk_flush_s = 5' "$tmp/rates.json" >"$tmp/slow.json"
./cistern plan "$tmp/model.json" --rates "$tmp/slow.json" --device 1M --json --disk 1 --durable >"$tmp/planned" || fail "no plan"
jq -e '.plan.predicted.step_s >= 10 and .disk.seal_s >= 10' "$tmp/planned" >/dev/null || fail "slow flushes: $(jq -c '.disk, .plan' "$tmp/planned")"
stop_daemon daemon

# What is printed: a line of each subject, and days with --tbw. The drives of a file of a job are those of its list.
./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device 1M --disk /mnt/a,/mnt/b --tbw 600 --timeline "$tmp/timeline.json" >"$tmp/out"
for words in '^drives +2: .* of states in all, of .* chunks; .* of host memory for their updates; .* bytes of host memory per parameter' \
    '^disk +a step reads .* and writes .* at 3.40 GB/s for reads and writes together' '^hidden +reads after the commit .*; writes ' \
    '^wear +.* days of training write 600 TB to each drive' 'ALL DRIVES$'; do
    grep -qE "$words" "$tmp/out" || fail "no '$words' in: $(cat "$tmp/out")"
done
jq -e '[.traceEvents[] | select(.name == "process_name") | .args.name] | contains(["drive 0", "drive 1"])' "$tmp/timeline.json" >/dev/null ||
    fail "no drives in the timeline"
./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --device 1M --disk 2 --durable >"$tmp/out"
for words in 'writes and flushes .* under .* of forward and backward passes' \
    '^durable +two places .* a record of .* and flushes it: 10 ms after its writes, with 5 ms for a flush, which is assumed$'; do
    grep -qE "$words" "$tmp/out" || fail "no '$words' in: $(cat "$tmp/out")"
done
plan 1 --disk 2 --tbw 600
jq -e '.disk | .tbw == 600 and .days > 0 and .drives == 2' "$tmp/planned" >/dev/null || fail "no days: $(jq -c .disk "$tmp/planned")"
jq -e '(.plan.predicted.disk_written / 2 / .plan.predicted.step_s * .disk.days * 86400 / 6e14 - 1) | fabs < 1e-6' "$tmp/planned" >/dev/null ||
    fail "other days than those of the bytes: $(jq -c .disk "$tmp/planned")"
jq -c .disk "$tmp/planned" >"$tmp/disk"
printf '{"memory": {"disk": "/mnt/a,/mnt/b"}}' >"$tmp/job.json"
plan 1 --config "$tmp/job.json" --tbw 600
jq -c .disk "$tmp/planned" | cmp - "$tmp/disk" || fail "another plan with the drives of a file"
plan 1
jq -e '.disk == null and .rows.drives.master == 0' "$tmp/planned" >/dev/null || fail "drives in a plan without"

# $2... is refused with the words $1. The exit status is $status: 2 if the command line alone is wrong.
refused() {
    local words=$1 got=0
    shift
    ./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" "$@" >"$tmp/out" 2>&1 || got=$?
    [ $got = $status ] || fail "exit status $got, not $status: $*"
    grep -qE -- "$words" "$tmp/out" || fail "no '$words' in: $(cat "$tmp/out")"
}
status=2
for wrong in 0 /a,,/b -1 1.5 ','; do
    refused "'$wrong' is neither a number of drives, 1 to 8, nor a list of directories" --disk "$wrong"
done
refused "on 8 drives at most" --disk 9
refused "name them with --disk" --tbw 600
refused "name them with --disk" --disk-bytes 1G
refused "name them with --disk" --durable
refused "tbw" --disk 1 --tbw -1
refused "disk is not for plans with --parallel auto, .*: leave it out" --disk 1 --parallel auto
printf '{"memory": {"disk": "/mnt/a"}, "parallel": {"parallel": "auto", "world": 2}}' >"$tmp/auto.json"
refused "disk is not for plans with --parallel auto" --config "$tmp/auto.json"
status=1
refused "grad_over_weight cannot be combined with disk" --disk 1 --grad-over-weight
refused "durable cannot be combined with disk_bytes 1048576: .* leave disk_bytes out" --disk 1 --durable --disk-bytes 1M
refused "A100 .* know no drives: measure one with 'cistern probe --disk DIR'" --disk 1 --rates a100
jq 'del(.disk_read, .disk_write, .disk_mixed)' "$tmp/rates.json" >"$tmp/none.json"
refused "none.json know no drives: measure one with 'cistern probe --disk DIR'" --disk 1 --rates "$tmp/none.json"
printf 'all well\n'

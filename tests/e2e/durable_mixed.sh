#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of durable jobs with split master weights, fp32 tensors and frozen tensors (tests/lib/mixed_rank.c): each step has the states of a
# job in memory, bit for bit, also when the daemon is killed; `cistern adopt` makes a checkpoint of them that is one that was saved, byte
# for byte; the drives write the bytes of the formula; and after a loss of power the last recorded step, or the one after it, is there.
# CST_TEST_CRASHES: losses of power of each combination. CST_TEST_SEED: seed of these, and of combinations that are drawn.
# CST_TEST_COMBINATIONS: instead, one in each line, as RANKS DRIVES NAME=VALUE...
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
need jq
need_drive
make_files
use_drives_daemon
export CISTERN_ENGINE_HOST=$PWD/cistern-engine-host
n_crashes=${CST_TEST_CRASHES:-$(if sparse; then echo 10; else echo 60; fi)}
steps=8

# Begin the $2 ranks of job $1 with $3 steps and the options $4... in the background.
begin_mixed() {
    local job=$1 world=$2 n=$3 rank
    shift 3
    workers=()
    for ((rank = 0; rank < world; rank++)); do
        ./tests/lib/mixed_rank "$job" "$rank" "$world" "$n" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        workers[rank]=$!
        managers+=($!)
    done
}

end_mixed() {
    local pid rank=0
    for pid in "${workers[@]}"; do
        wait "$pid" || fail "$1: $(cat "$tmp/$1.$rank.log")"
        rank=$((rank + 1))
    done
}

# Save each step of a job in memory of $1 ranks with the options $2... in $tmp/reference.
make_reference() {
    local world=$1 step
    shift
    rm -rf "$tmp/reference"
    for ((step = 1; step <= steps; step++)); do
        begin_mixed memory "$world" "$step" "$@"
        end_mixed memory
        ./cistern save memory "$tmp/reference" >/dev/null || fail "a save"
    done
    ./cistern rm memory
}

# Checkpoints $1 and $2 have the same tensors.
same_tensors() {
    local file n=0
    for file in "$1"/*.safetensors; do
        cmp "$file" "$2/${file##*/}" || fail "$3: other states than in memory"
        n=$((n + 1))
    done
    [ "$n" -gt 0 ] || fail "no files in $1"
}

unused() {
    ./cistern adopt "$1" "$tmp/none" >"$tmp/unused.log" 2>&1 || ! has 'is used by a daemon' "$tmp/unused.log" || return 1
    rm -rf "$tmp/none"
}

adopt() {
    poll unused "$files/$1.0.cistern"
    rm -rf "$tmp/adopted"
    ./cistern adopt "$files/$1".*.cistern "$tmp/adopted" >"$tmp/adopt.log" 2>&1 || fail "adopt: $(cat "$tmp/adopt.log")"
}

# A combination: $1 ranks, $2 drives and the options $3..., which are those of a line.
combination() {
    local world=$1 n=$2 list=$files i job=mixed last work
    local -a options=("${@:3}")
    for ((i = 1; i < n; i++)); do list+=,$files; done
    last=$tmp/reference/step-$(printf %08d $steps)
    rm -f "$files"/*.cistern "$tmp/record"
    start_keeping plain --gpus none
    make_reference "$world" "${options[@]}"
    stop_daemon plain
    # Everything that is written is recorded. The daemon is killed twice, and once the engine of the last drive.
    DISK_IO=record DISK_RECORD=$tmp/record CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine start_keeping recorder --gpus none
    for i in 1 4 5; do : >"$tmp/gate.$i"; done
    begin_mixed $job "$world" $steps "${options[@]}" disk="$list" durable=1 gate="$tmp/gate"
    for i in 1 4 5; do
        poll has_stepped $job $i
        rm "$tmp/gate.$i"
        if [ $i = 4 ]; then
            kill -9 "$(./cistern stat --json | jq '[.engines[].pid][-1]')" || fail "no engine of a drive"
        else
            kill_daemon recorder
        fi
    done
    end_mixed $job
    ./cistern save $job "$tmp/saved" >/dev/null || fail "a save of a durable job"
    ./cistern rm $job
    stop_daemon recorder
    adopt $job
    diff -r "$tmp/saved" "$tmp/adopted" || fail "$*: another checkpoint than a save"
    same_tensors "$last" "$tmp/adopted/${last##*/}" "$*"
    rm -rf "$tmp/saved" "$tmp/adopted"
    # In memory, where a checkpoint need not be flushed.
    work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d -p "$tmp")
    ./tests/lib/crash_states "$tmp/record" "$tmp/reference" "$work" "$n_crashes" "$seed" "$files/$job".?.cistern >"$tmp/crashes" || i=failed
    rm -rf "$work"
    cat "$tmp/crashes"
    [ "$i" != failed ] || fail "$*: a state was recovered wrongly"
    # A job that goes on from what was adopted makes the same steps.
    rm -f "$files"/*.cistern
    start_keeping resumer --gpus none
    begin_mixed $job "$world" 4 "${options[@]}" disk="$list" durable=1
    end_mixed $job
    ./cistern rm $job
    adopt $job
    rm "$files"/*.cistern
    begin_mixed $job "$world" $steps "${options[@]}" disk="$list" durable=1 resume="$tmp/adopted"
    end_mixed $job
    ./cistern rm $job
    adopt $job
    same_tensors "$last" "$tmp/adopted/${last##*/}" "$* resumed"
    stop_daemon resumer
    printf '%s: same bits\n' "$*"
}

# Bytes that all drives have written, as the daemon knows so far: $1, apart from what they had.
wrote() {
    written=$(($(./cistern stat --json | jq '[.drives[].written_bytes, 0] | add') - written_before))
    [ "$written" = "$1" ]
}

# Change two bytes at the first place in $1 that filter $2 prints, as file and offset. After an even number of steps the last one's states
# are at `offset`.
change() {
    local file at
    read -r file at < <(jq -r "$2" "$1" | head -n 1)
    printf '\x55\xaa' | dd of="$files/counted.$file.cistern" bs=1 seek=$((at + 100)) conv=notrunc status=none
}

# A job with tensors of all kinds writes exactly the rows that have two places, and a record, in each step; and once master weights, the
# weights of frozen tensors, heads and the description.
count_bytes() {
    local job=counted tensor first=$files/counted.0.cistern bytes description
    start_keeping counting --gpus none
    written_before=$(./cistern stat --json | jq '[.drives[].written_bytes, 0] | add')
    begin_mixed $job 1 $steps masters=split moments=mx8 disk="$files,$files" durable=1
    end_mixed $job
    while read -r tensor; do
        ./cistern explain $job "$tensor" --json | jq '.places[]'
    done < <(./cistern tensors $job --json | jq -r '.[].name') >"$tmp/places"
    description=$(od -A n -t u8 -j 64 -N 16 "$first" | awk '{print int(($1 + $2 + 4095) / 4096) * 4096}') # proto/durable.h
    bytes=$(jq -s --argjson steps $steps --argjson record "$(od -A n -t u8 -j 48 -N 8 "$first")" 'unique_by([.file, .offset]) |
        (map(select(.twin_offset) | .bytes) | add) * $steps + $record * $steps + (map(select(.twin_offset | not) | .bytes) | add) +
        2 * 2 * 4096' "$tmp/places")
    # The remainder of an element has as many bytes as its weight.
    bytes=$((bytes + $(./cistern tensors $job --json | jq '[.[] | select(.dtype == "bf16" and .pattern == "shard") | .weight_bytes] | add')))
    (poll wrote $((bytes + description))) || {
        wrote 0 || true
        fail "$written bytes were written, not $((bytes + description))"
    }
    printf '%d bytes written, as by the formula\n' $((bytes + description))
    stop_daemon counting
    # Weights that change on the drive are found: those of the last step, for which the step before is taken, and frozen ones.
    adopt $job
    change "$tmp/places" 'select(.row == "weight" and .twin_offset) | "\(.file) \(.offset)"'
    ./cistern adopt "$files/$job".*.cistern "$tmp/older" >"$tmp/adopt.log" 2>&1 || fail "adopt: $(cat "$tmp/adopt.log")"
    has "step $((steps - 1)) is taken" "$tmp/adopt.log" || fail "changed weights were taken: $(cat "$tmp/adopt.log")"
    change "$tmp/places" 'select(.twin_offset | not) | "\(.file) \(.offset)"'
    ! ./cistern adopt "$files/$job".*.cistern "$tmp/none" >"$tmp/adopt.log" 2>&1 || fail "changed frozen weights were adopted"
    has 'are damaged (checksum' "$tmp/adopt.log" || fail "not told: $(cat "$tmp/adopt.log")"
    rm -rf "$files"/*.cistern "$tmp/older" "$tmp/adopted"
}

draw() {
    local -a of=("$@")
    printf '%s ' "${of[RANDOM % $#]}"
}

# Print $1 combinations that are drawn. A first step that is skipped leaves the states of the beginning to be recorded.
draw_combinations() {
    local i
    for ((i = 0; i < $1; i++)); do
        draw 1 2 3
        draw 1 2
        draw optimizer={adamw,adam,lion,sgd,muon}
        draw moments={fp32,bf16,mx8}
        draw masters={fp32,split}
        draw kinds={all,fp32,frozen}
        draw '' nan=0 nan=3
        echo
    done
}

count_bytes
while read -r line; do
    # shellcheck disable=SC2086 # words
    combination $line
done <<<"${CST_TEST_COMBINATIONS:-2 2 masters=split moments=mx8
$(draw_combinations "$(if sparse; then echo 1; else echo 3; fi)")}"

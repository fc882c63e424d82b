#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what `cistern job`, `cistern jobs` and `cistern explain` say of states in files: the drive, the file and the places in it, at which
# the states are. Also what a worker of a durable job is told when the daemon ends.
# shellcheck disable=SC2016 # filters of jq
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

model=(--layers 2 --heads 2 --width 64 --context 16 --batch 2 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
seq 4000 >"$tmp/text"
files=$(mktemp -d -p "$drive" cistern-files.XXXXXX)
finish_files() {
    local status=$?
    set +e # The status that is set again must not end this.
    rm -rf "$files"
    (exit $status)
    finish_drives
}
trap finish_files EXIT
start_daemon keeper --engine-threads 2 --gpus none

train() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" "$@" >"$tmp/gpt.log" 2>&1 || fail "$*: $(cat "$tmp/gpt.log")"
}

says() {
    ./cistern "${@:2}" >"$tmp/out" || fail "cistern ${*:2}"
    has -E "$1" "$tmp/out" || fail "no '$1' in: $(cat "$tmp/out")"
}

# $1 holds of the output of `cistern $2... --json`.
holds() {
    ./cistern "${@:2}" --json >"$tmp/out" || fail "cistern ${*:2} --json"
    jq -e --arg files "$files" --arg name "$name" "$1" "$tmp/out" >/dev/null || fail "not '$1': $(cat "$tmp/out")"
}

# Write $2 bytes at $1 of file $3.
cut_out() {
    dd if="$3" iflag=skip_bytes,count_bytes bs=64K skip="$1" count="$2" status=none
}

# Files without a name: the directory is named.
train --job quiet --steps 2 --disk "$files"
name=$(./cistern stat --json | jq -r '.drives[0].name')
says "^file      $files/#[0-9]+ on drive $name, without a name: .*, states of ([0-9]+) of \\1 chunks, updated in .* of host memory\$" job quiet
says '^states .* on drives$' job quiet
! has '^recorded' "$tmp/out" || fail "a step is recorded: $(cat "$tmp/out")"
holds '.durable == null and .recorded_step == null and .device_states == null and .device_update_bytes == null' job quiet
holds '.files | length == 1 and (.[0] | .drive == $name and (.path | startswith($files)) and .unnamed and .buffer_bytes > 0)' job quiet
holds '.drive_bytes == .files[0].bytes and .n_chunks == .files[0].n_chunks' job quiet
holds '.[0].drive_bytes > 0' jobs
says '^JOB .* DRIVES$' jobs
says "^its states are in a file on drive $name " explain quiet wte
says "^exp_avg of the chunk: [0-9]+ bytes at byte [0-9]+ of $files/#[0-9]+ on drive $name, without a name\$" explain quiet wte
./cistern rm quiet

# Those of a durable job: what is at a place is what a save finds there.
train --job lasts --steps 3 --disk "$files" --durable
says "^file      $files/lasts.0.cistern on drive $name: " job lasts
says "^recorded  step 3: 'cistern adopt FILE... DIR' " job lasts
holds '.durable and .recorded_step == 3 and .files[0].path == $files + "/lasts.0.cistern" and .files[0].unnamed == null' job lasts
says '^the last step that is recorded on the drives is 3$' explain lasts wte
holds '.files[.places[0].file].path == $files + "/lasts.0.cistern" and .recorded_step == 3 and (.places | map(.row)) ==
    ["master", "exp_avg", "exp_avg_sq"]' explain lasts wte
./cistern save lasts "$tmp/saved" >/dev/null || fail "a save"
states=$tmp/saved/step-00000003/states-00001-of-00001.safetensors
head_bytes=$(od -An -t u8 -N 8 "$states" | tr -d ' ')
for row in master exp_avg exp_avg_sq; do
    read -r first bytes < <(cut_out 8 "$head_bytes" "$states" | jq -r ".[\"wte.$row\"].data_offsets | \"\\(.[0]) \\(.[1] - .[0])\"")
    cut_out $((8 + head_bytes + first)) "$bytes" "$states" >"$tmp/state"
    found=
    for place in offset twin_offset; do
        at=$(jq ".offset * 4 + (.places[] | select(.row == \"$row\") | .$place)" "$tmp/out")
        ! cut_out "$at" "$bytes" "$files/lasts.0.cistern" | cmp -s - "$tmp/state" || found+=$place
    done
    [ -n "$found" ] || fail "wte.$row is not where explain says: $(cat "$tmp/out")"
done

# A file that was removed.
rm "$files/lasts.0.cistern"
says "^file      $files/lasts.0.cistern on drive $name, which was removed: nothing will be left of it: " job lasts
./cistern rm lasts

# A worker of a durable job is told how to go on, and one of another job that its states are lost.
for job in told lost; do
    options=(--job "$job" --steps 100000)
    [ $job = lost ] || options+=(--disk "$files" --durable)
    ./cistern-gpt "${model[@]}" --data "$tmp/text" "${options[@]}" >"$tmp/$job.log" 2>&1 &
    managers+=($!)
    workers+=($!)
done
stepped() {
    ./cistern jobs --json | jq -e 'length == 2 and all(.step > 0)' >/dev/null
}
poll stepped
stop_daemon keeper
for pid in "${workers[@]}"; do
    ! wait "$pid" || fail "a worker ended well without its daemon"
done
has "job 'told' ends with it at step [0-9]*: 'cistern adopt FILE... DIR' makes a checkpoint of its files" "$tmp/told.log" ||
    fail "not told: $(cat "$tmp/told.log")"
has "job 'lost' ends with it at step [0-9]*: its states are lost" "$tmp/lost.log" || fail "not told: $(cat "$tmp/lost.log")"
printf 'all well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests `cistern clone` on two drives with XFS: a durable job is cloned while it trains and after, also by a daemon that was killed. What is
# adopted of a clone has the bytes of a save of its step, and goes on with the bits of a job that was not disturbed; the job has them, too.
# CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

one=$tmp/one two=$tmp/two clones=()
for dir in "$one" "$two"; do
    make_loop "$dir" 320M xfs || skip "no XFS can be mounted: $no_loop"
    mkdir "$dir/clones"
done

model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --min-lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
durable=(--disk "$one,$two" --durable)
n_steps=60
write_text 400
start_keeping keeper --gpus none

begin memory 1 --steps $n_steps
end memory

# Clone job $1, and set step and clones.
clone() {
    ./cistern clone "$1" "$one/clones" "$two/clones" --json >"$tmp/clone.json" 2>"$tmp/clone.log" || return 1
    step=$(jq .step "$tmp/clone.json")
    mapfile -t clones < <(jq -r '.files[]' "$tmp/clone.json")
    [ "${clones[*]}" = "$one/clones/$1.step-$(printf %08d "$step").0.cistern $two/clones/$1.step-$(printf %08d "$step").1.cistern" ] ||
        fail "other files: $(cat "$tmp/clone.json")"
}

adopt() {
    rm -rf "$tmp/adopted"
    ./cistern adopt "$@" "$tmp/adopted" >"$tmp/adopt.log" 2>&1 || fail "adopt: $(cat "$tmp/adopt.log")"
    ! has warning "$tmp/adopt.log" || fail "not whole: $(cat "$tmp/adopt.log")"
}

# A clone waits for the record of a step that a drive holds up.
job_says() {
    ./cistern job run --json | jq -e "$1" >/dev/null
}
begin run 1 --steps $((1 + RANDOM % 5)) "${durable[@]}"
end run
freeze "$two"
begin run 1 --steps $n_steps "${durable[@]}"
poll job_says '.recorded_step < .step'
./cistern clone run "$one/clones" "$two/clones" >"$tmp/killed.log" 2>&1 &
killed=$!
poll job_says .saving
! gone $killed || fail "a clone of a step that is not recorded: $(cat "$tmp/killed.log")"
kill -9 $killed
poll job_says '.saving | not'
clone run & # Another one is not in its way.
cloner=$!
poll job_says .saving
! gone $cloner || fail "a clone of a step that is not recorded: $(cat "$tmp/clone.log")"
thaw "$two"
wait $cloner || fail "a clone that waits: $(cat "$tmp/clone.log")"
steps=("$(jq .step "$tmp/clone.json")")
# Clones of a job in training.
old=${steps[0]}
while [ ${#steps[@]} -lt 8 ]; do
    if clone run; then
        steps+=("$step")
        old=$step
    else
        has 'exists already: the step was cloned' "$tmp/clone.log" || fail "a clone: $(cat "$tmp/clone.log")"
    fi
    gone_or_stepped() {
        gone "${workers[0]}" || has_stepped run $((old + 1 + RANDOM % 4))
    }
    poll gone_or_stepped
    ! gone "${workers[0]}" || break
done
end run
cmp "$tmp/memory.weights" "$tmp/run.weights" || fail "clones have changed the job"
if [ "$old" = $n_steps ]; then # The last clone is of the last step: that one is made again below.
    rm "$one/clones/run.step-$(printf %08d "$old")".* "$two/clones/run.step-$(printf %08d "$old")".*
    unset 'steps[-1]'
fi
printf 'cloned at steps %s of %d\n' "${steps[*]}" $n_steps

# The job has ended: a clone takes hardly any space, and has the states of one step, where the job's files have two.
sync -f "$one"
before=$(free_blocks "$one")
clone run || fail "a clone of a job that has ended: $(cat "$tmp/clone.log")"
sync -f "$one"
taken=$(((before - $(free_blocks "$one")) * $(stat -f -c %S "$one") / 1024))
size=$(du -k "$one/run.0.cistern" | cut -f1)
part=$(du -k "${clones[0]}" | cut -f1)
printf 'a file of %d KiB: its clone has %d KiB, and takes %d KiB\n' "$size" "$part" $taken
[ $((taken * 10)) -lt "$size" ] || fail "a clone takes $taken KiB of $size"
[ $((part * 10)) -lt $((size * 7)) ] || fail "a clone has $part KiB of $size"
./cistern save run "$tmp/saved" >/dev/null || fail "a save"
adopt "${clones[@]}"
diff -r "$tmp/saved" "$tmp/adopted" || fail "a clone is another checkpoint than a save"

# What cannot be is refused, and leaves nothing.
refused() {
    local words=$1 there
    shift
    there=$(ls -A "$one/clones" "$two/clones" "$one" "$two")
    ! ./cistern clone "$@" >"$tmp/refused.log" 2>&1 || fail "cloned: $*"
    has "$words" "$tmp/refused.log" || fail "not refused with '$words': $(cat "$tmp/refused.log")"
    [ "$there" = "$(ls -A "$one/clones" "$two/clones" "$one" "$two")" ] || fail "something is left of: $*"
}
refused 'exists already: the step was cloned' run "$one/clones" "$two/clones"
refused "no directory is in the file system of '$two/run.1.cistern': name one there" run "$one/clones" "$tmp"
refused 'No such file' run "$one/clones" "$two/nothing"
refused "job 'memory' is not durable: .* save it" memory "$one/clones"
refused "nobody" nobody "$one/clones"
# The drive is full: the job could not go on. XFS still gives back blocks that it has set aside for files.
refused_full() {
    local left
    left=$(($(stat -f -c %a "$one") - 200))
    [ $left -le 0 ] || fallocate -l $((left * $(stat -f -c %S "$one"))) "$(mktemp "$one/full.XXXXXX")"
    ! ./cistern clone run "$one/" "$two/" >"$tmp/refused.log" 2>&1 || { rm "$one"/run.step-* "$two"/run.step-*; return 1; }
}
poll refused_full
has 'would write [0-9]* bytes anew .* has [0-9]* free: free space there, or save' "$tmp/refused.log" ||
    fail "not refused for its space: $(cat "$tmp/refused.log")"
rm "$one"/full.*
# One file of the clone exists already: the other one is not left behind.
echo text >"$one/run.step-$(printf %08d "$step").0.cistern"
refused 'exists already' run "$one/" "$two/clones/"
rm "${clones[1]}"
refused 'exists already' run "$one/" "$two/clones/"
# Files of a clone and of the job, or of two clones, are not of one step.
clone_of() {
    printf '%s/clones/run.step-%08d.%d.cistern' "$1" "$2" "$3"
}
for other in "$two/run.1.cistern" "$(clone_of "$two" "${steps[0]}" 1)"; do
    ! ./cistern adopt "$(clone_of "$one" $n_steps 0)" "$other" "$tmp/none" >"$tmp/mixed.log" 2>&1 || fail "adopted: $other"
    has 'of another job\|is used by a daemon' "$tmp/mixed.log" || fail "not refused: $(cat "$tmp/mixed.log")"
done
mv "$one/run.0.cistern" "$one/moved" # A file that was moved is found; one in its place is not taken for it.
clone run || true
has 'exists already' "$tmp/clone.log" || fail "a file that was moved: $(cat "$tmp/clone.log")"
mv "$one/moved" "$one/run.0.cistern"

# The next daemon clones, too: the record of the step is there when it has gone on.
kill_daemon keeper
rm "$(clone_of "$one" $n_steps 0)"
clone run || fail "a clone after the daemon's death: $(cat "$tmp/clone.log")"
adopt "${clones[@]}"
diff -r "$tmp/saved" "$tmp/adopted" || fail "another checkpoint after the daemon's death"

# A file without its name.
rm "$two/run.1.cistern"
refused 'was removed and has no name: save the job' run "$one/" "$two/"
./cistern rm run

# Clones of steps in the middle are checkpoints of a job in memory at that step, and its next steps have the same bits.
for step in "${steps[0]}" "${steps[-1]}"; do
    adopt "$(clone_of "$two" "$step" 1)" "$(clone_of "$one" "$step" 0)"
    begin run 1 --steps "$step"
    end run
    ./cistern save run "$tmp/reference" >/dev/null || fail "a save"
    ./cistern rm run
    for file in "$tmp/reference/step-$(printf %08d "$step")"/*.safetensors; do
        cmp "$file" "$tmp/adopted/step-$(printf %08d "$step")/${file##*/}" || fail "step $step: another ${file##*/}"
    done
done
rm "$one"/run.*
adopt "$(clone_of "$one" "${steps[0]}" 0)" "$(clone_of "$two" "${steps[0]}" 1)"
begin again 1 --steps $n_steps --resume "$tmp/adopted" "${durable[@]}"
end again
cmp "$tmp/memory.weights" "$tmp/again.weights" || fail "other weights after a clone of step ${steps[0]}"
stop_daemon keeper

# A file system that cannot clone.
make_files
start_keeping ext4 --gpus none
begin plain 1 --steps 2 --disk "$files" --durable
end plain
if cp --reflink=always "$files/plain.0.cistern" "$files/copy" 2>/dev/null; then
    printf 'the file system of %s can clone\n' "$files"
else
    rm -f "$files/copy"
    refused "the file system of '$files/plain.0.cistern' cannot clone files, .*: save the job" plain "$files"
    [ "$(ls -A "$files")" = plain.0.cistern ] || fail "something is left: $(ls -A "$files")"
fi
stop_daemon ext4

# A step that cannot be recorded is not cloned.
export CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine
DISK_IO=fail DISK_CALLS=flush DISK_NTH=7 DISK_FAILS=100000 DISK_ERRNO=5 start_keeping flush --gpus none
! ./cistern-gpt "${model[@]}" --data "$tmp/text" --job flushed --steps 3 --disk "$one" --durable >"$tmp/flushed.log" 2>&1 ||
    fail "a step that cannot be recorded"
refused 'recorded' flushed "$one/clones"
stop_daemon flush
printf 'all well\n'

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of durable jobs: runs have the weights of runs with states in memory, bit for bit, also when the daemon is killed at random
# moments; after the death of everything `cistern adopt` makes a checkpoint of the last step, with the bytes of one that was saved then.
# CST_TEST_KILLS: kills of each run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
write_text 400
start_keeping keeper --gpus none
make_files

# The steps do the same as without files, and daemons are killed meanwhile.
begin memory 1 --steps 30
end memory
same durable 1 --steps 30 --disk "$files" --durable
cmp "$tmp/memory.weights" "$tmp/durable.weights" || fail "other weights than with states in memory"

# Make a checkpoint of the files of job $1. The daemon closes the files of a job that was removed a little later.
adopt() {
    poll unused "$files/$1.0.cistern"
    ./cistern adopt "$files/$1".*.cistern "$tmp/adopted" >"$tmp/adopt.log" 2>&1 || fail "adopt: $(cat "$tmp/adopt.log")"
}
unused() {
    ./cistern adopt "$1" "$tmp/none" >"$tmp/unused.log" 2>&1 || ! has 'is used by a daemon' "$tmp/unused.log" || return 1
    rm -rf "$tmp/none"
}

# After the end of everything, the checkpoint of a durable job is, byte for byte, the one that was saved before: with every format of
# moments, and every optimizer.
n=0
for optimizer in adamw lion sgd muon; do
    for moments in fp32 bf16 mx8; do
        rm -f "$files"/*.cistern
        begin "d$n" $((1 + n % 2)) --steps $((5 + n)) --disk "$files" --durable --optimizer "$optimizer" --moments "$moments"
        end "$optimizer $moments"
        cp "$files/d$n.0.cistern" "$tmp/copy" # When the workers have ended, the last step is there.
        ./cistern save "d$n" "$tmp/saved" >/dev/null || fail "a save of a durable job"
        ./cistern rm "d$n"
        adopt "d$n"
        diff -r "$tmp/saved" "$tmp/adopted" || fail "another checkpoint than a save with $optimizer, $moments"
        rm -r "$tmp/adopted"
        mv "$tmp/copy" "$files/d$n.0.cistern"
        adopt "d$n"
        diff -r "$tmp/saved" "$tmp/adopted" || fail "another checkpoint than a save with $optimizer, $moments"
        rm -r "$tmp/saved" "$tmp/adopted"
        n=$((n + 1))
    done
done

# The daemon plans such a job as it plans others.
./cistern-gpt "${model[@]:0:${#model[@]}-2}" --data "$tmp/text" --job planned --steps 2 --disk "$files" --durable >"$tmp/planned.log" 2>&1 ||
    fail "a job that is planned: $(cat "$tmp/planned.log")"
has "job 'planned': planned with" "$tmp/keeper.log" || fail "a durable job is not planned: $(grep "job 'planned'" "$tmp/keeper.log")"
./cistern rm planned

# What is not possible is refused, with a remedy, and a file of an earlier job is not lost.
refused() {
    local words=$1 rc=0
    shift
    ./cistern-gpt "${model[@]}" --steps 1 --data "$tmp/text" --job refused --durable "$@" >"$tmp/refused.log" 2>&1 || rc=$?
    if [ $rc = 0 ] || ! has "$words" "$tmp/refused.log"; then
        cat "$tmp/refused.log" >&2
        fail "not refused with '$words': $*"
    fi
    ./cistern rm refused 2>/dev/null || true
}
refused "set 'disk' to a directory"
refused 'cannot be combined with --store=local' --disk "$files" --store local
refused 'durable cannot be combined with disk_bytes 1048576: .* leave disk_bytes out' --disk "$files" --disk-bytes 1M
refused 'overlap commit is possible' --disk "$files" --overlap delayed
cp "$files/d$((n - 1)).0.cistern" "$files/refused.0.cistern"
refused "has the last step of an earlier job of this name: make a checkpoint of it with 'cistern adopt FILE... DIR'" --disk "$files"
cmp -s "$files/d$((n - 1)).0.cistern" "$files/refused.0.cistern" || fail "the file of an earlier job was changed"
echo text >"$files/refused.0.cistern"
refused 'exists, and is no file of cistern' --disk "$files"
: >"$files/refused.0.cistern"
begin refused 1 --steps 2 --disk "$files" --durable # A start that failed has left it.
end refused
for job in refused memory; do
    what=()
    [ $job = refused ] || what=(--durable --disk "$files")
    ! ./cistern-gpt "${model[@]}" --steps 40 --data "$tmp/text" --job $job --world 2 --rank 0 --reshape "${what[@]}" >"$tmp/refused.log" 2>&1 ||
        fail "reshaped: $job"
    has "job '$job' cannot be reshaped: it .* durable" "$tmp/refused.log" || fail "not refused: $(cat "$tmp/refused.log")"
done
stop_daemon keeper
cp "$files/refused.0.cistern" "$tmp/other"

# The space of what describes a job is taken when the job is committed, so that no step fails because there is none.
end=$(od -A n -t u8 -j 56 -N 8 "$files/refused.0.cistern" | tr -d ' ') # Where the rows end: `description` of the head (proto/durable.h).
cat >"$tmp/limited" <<EOF
#!/usr/bin/env bash
[ "\$1" != --disk ] || ulimit -f $((end / 1024)) || exit 1
exec "$PWD/cistern-engine-host" "\$@"
EOF
chmod +x "$tmp/limited"
CISTERN_ENGINE_HOST=$tmp/limited start_keeping limited --gpus none
! ./cistern-gpt "${model[@]}" --data "$tmp/text" --job full --steps 2 --disk "$files" --durable >"$tmp/full.log" 2>&1 ||
    fail "a job whose description has no space"
has "allocating [0-9]* bytes at $end of '.*/full.0.cistern' on drive .*: File too large: free space there" "$tmp/full.log" ||
    fail "not refused for its space: $(cat "$tmp/full.log")"
! has '^step 1' "$tmp/full.log" || fail "a step was made"
[ -z "$(./cistern jobs --json | jq -r '.[].name')" ] || fail "a job without space"
stop_daemon limited

# Everything is killed in the middle of a run: workers, daemon and, with it, its engines. The last step is there; the job goes on from it
# with the bits of one that was not killed. Each file is on a drive of its own.
use_drives_daemon
export CISTERN_ENGINE_HOST=$PWD/cistern-engine-host
for ((i = 0; i < n_kills; i++)); do
    rm -f "$files"/*.cistern
    start "all$i" "$cisternd" --socket "$CISTERN_SOCKET" --engine-threads 2 --gpus none
    await "all$i" 'PID=*'
    daemon_pid=${line#PID=}
    await "all$i" READY=1
    begin killed 2 --steps 30 --disk "$files,$files" --durable
    poll has_stepped killed $((1 + RANDOM % 20))
    kill -9 "$daemon_pid" "${workers[@]}" 2>/dev/null || true
    for pid in "${workers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    adopt killed
    start_keeping "again$i" --gpus none
    [ "$i" -gt 0 ] || {
        begin memory-two 2 --steps 30
        end memory-two
    }
    begin killed 2 --steps 30 --resume "$tmp/adopted"
    end killed
    cmp "$tmp/memory-two.weights" "$tmp/killed.weights" || fail "other weights after the death of everything: $(cat "$tmp/adopt.log")"
    stop_daemon "again$i"
    rm -r "$tmp/adopted"
done

# What cannot be adopted is refused, and names the file.
not_adopted() {
    local words=$1
    shift
    ! ./cistern adopt "$@" "$tmp/none" >"$tmp/adopt.log" 2>&1 || fail "adopted: $*"
    has "$words" "$tmp/adopt.log" || fail "not refused with '$words': $(cat "$tmp/adopt.log")"
    [ ! -d "$tmp/none" ] || fail "a directory for nothing"
}
last=$files/killed
not_adopted 'file 1 is missing' "$last.0.cistern"
not_adopted 'are the same file of the job' "$last.0.cistern" "$last.0.cistern"
not_adopted 'is of another job' "$last.0.cistern" "$tmp/other"
not_adopted 'has no record of a durable job' "$tmp/text"
not_adopted 'No such file' "$files/nothing"
head -c 70000 "$last.0.cistern" >"$tmp/short"
not_adopted 'was cut off\|damaged\|cannot be' "$tmp/short" "$last.1.cistern"
# One of the two heads is enough.
cp "$last.0.cistern" "$tmp/headless"
dd if=/dev/zero of="$tmp/headless" bs=4096 count=1 conv=notrunc status=none
./cistern adopt "$tmp/headless" "$last.1.cistern" "$tmp/adopted" >/dev/null || fail "a file whose first block is lost"
rm -r "$tmp/adopted"
# A byte that changes on the drive is found. States of the step before were there before the last one.
cp "$last.0.cistern" "$tmp/changed"
size=$(stat -c %s "$tmp/changed")
for ((i = 0; i < 100; i++)); do
    printf '\x55' | dd of="$tmp/changed" bs=1 seek=$((size / 4 + i * size / 200)) conv=notrunc status=none
done
not_adopted 'are damaged (checksum' "$tmp/changed" "$last.1.cistern"

# A drive that fails when a step is flushed: the worker is told, also if it was the last step, and the step before is there.
cisternd=./cisternd
export CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine
for i in 5 6; do # Four are of step 1, and two of step 2.
    rm -f "$files"/*.cistern
    DISK_IO=fail DISK_CALLS=flush DISK_NTH=$i DISK_FAILS=100000 DISK_ERRNO=5 start_keeping "flush$i" --gpus none
    rc=0
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job flushed --steps 2 --disk "$files" --durable >"$tmp/flushed.log" 2>&1 || rc=$?
    if [ $rc = 0 ] || ! has 'cannot be recorded on the drives.*flushed.0.cistern.*Input/output error' "$tmp/flushed.log"; then
        fail "a step that was not flushed: $rc, $(cat "$tmp/flushed.log")"
    fi
    stop_daemon "flush$i"
    adopt flushed
    # The record that was not flushed may be there all the same.
    [ -d "$tmp/adopted/step-00000001" ] || [ $i = 6 ] || fail "step 1 was lost"
    rm -r "$tmp/adopted"
done

# The power is lost: of what was written and not flushed, any part is there. The reference are checkpoints of each step of a job in memory.
n_crashes=${CST_TEST_CRASHES:-400}
steps=12
if ! sparse; then # Nothing of it runs under a sanitizer that the others do not run.
    rm -f "$files"/*.cistern
    start_keeping keeper --gpus none
    constant=(--min-lr 0.003) # A job that goes on has the learning rates of one that was to make more steps.
    for ((step = 1; step <= steps; step++)); do
        begin memory 1 --steps $step "${constant[@]}"
        end memory
        ./cistern save memory "$tmp/reference" >/dev/null || fail "a save"
    done
    stop_daemon keeper
    use_drives_daemon
    export DISK_IO=record DISK_RECORD=$tmp/record
    start_keeping recorder --gpus none
    # The record of a step is longer than a sector here, each file is on a drive of its own, and daemons are killed meanwhile.
    begin recorded 1 --steps $steps "${constant[@]}" --chunk 16384 --disk "$files,$files" --durable
    for step in 3 7; do
        poll has_stepped recorded $step
        kill_daemon recorder
    done
    end recorded
    stop_daemon recorder
    # In memory, where a checkpoint need not be flushed.
    work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d -p "$tmp")
    ./tests/lib/crash_states "$tmp/record" "$tmp/reference" "$work" "$n_crashes" "$seed" "$files"/recorded.[01].cistern ||
        failed=yes
    rm -rf "$work"
    [ -z "${failed-}" ] || fail "a state was recovered wrongly"
fi

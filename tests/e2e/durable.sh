#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of durable jobs: runs have the weights of runs with states in memory, bit for bit, also when the daemon is killed at random
# moments; after the death of everything `cistern adopt` makes a checkpoint of the last step, with the bytes of one that was saved then.
# CST_TEST_KILLS: kills of each run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
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
mkdir "$drive/files"
files=$drive/files

# The steps do the same as without files, and daemons are killed meanwhile.
begin memory 1 --steps 30
end memory
same durable 1 --steps 30 --disk "$files" --durable
cmp "$tmp/memory.weights" "$tmp/durable.weights" || fail "other weights than with states in memory"

# Kill the daemon, its engines and all workers.
kill_all() {
    local pid
    kill -9 "$daemon_pid" "${workers[@]}" 2>/dev/null || true
    for pid in "${workers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
}

# Make a checkpoint of the files of job $1. The daemon closes the files of a job that was removed a little later.
adopt() {
    poll unused "$files/$1.0.cistern"
    ./cistern adopt "$files/$1".*.cistern "$tmp/adopted" >"$tmp/adopt.log" 2>&1 || fail "adopt: $(cat "$tmp/adopt.log")"
}
unused() {
    ! ./cistern adopt "$1" "$tmp/none" 2>&1 | grep -q 'is used by a daemon' && rm -rf "$tmp/none"
}

# After the end of everything, the checkpoint of a durable job is, byte for byte, the one that was saved before: with every format of
# moments, and every optimizer.
n=0
for optimizer in adamw lion sgd muon; do
    for moments in fp32 bf16 mx8; do
        rm -f "$files"/*.cistern
        begin "d$n" $((1 + n % 2)) --steps $((5 + n)) --disk "$files" --durable --optimizer "$optimizer" --moments "$moments"
        end "$optimizer $moments"
        ./cistern save "d$n" "$tmp/saved" >/dev/null || fail "a save of a durable job"
        ./cistern rm "d$n"
        adopt "d$n"
        diff -r "$tmp/saved" "$tmp/adopted" || fail "another checkpoint than a save with $optimizer, $moments"
        rm -r "$tmp/saved" "$tmp/adopted"
        n=$((n + 1))
    done
done
stop_daemon keeper

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
    cisternd=./tests/lib/recording_daemon
    export CISTERN_ENGINE_HOST=$PWD/tests/lib/disk_engine DISK_IO=record DISK_RECORD=$tmp/record
    start_keeping recorder --gpus none
    begin recorded 1 --steps $steps "${constant[@]}" --disk "$files" --durable
    end recorded
    stop_daemon recorder
    # In memory, where a checkpoint need not be flushed.
    work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d -p "$tmp")
    ./tests/lib/crash_states "$tmp/record" "$tmp/reference" "$work" "$n_crashes" "$seed" "$files/recorded.0.cistern" ||
        failed=yes
    rm -rf "$work"
    [ -z "${failed-}" ] || fail "a state was recovered wrongly"
    cisternd=./cisternd
    unset CISTERN_ENGINE_HOST DISK_IO DISK_RECORD
fi

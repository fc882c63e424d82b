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
        ./cistern adopt "$files/d$n.0.cistern" "$tmp/adopted" >"$tmp/adopt.log" || fail "adopt: $(cat "$tmp/adopt.log")"
        diff -r "$tmp/saved" "$tmp/adopted" || fail "another checkpoint than a save with $optimizer, $moments"
        rm -r "$tmp/saved" "$tmp/adopted"
        n=$((n + 1))
    done
done

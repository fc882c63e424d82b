#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job with device updates in lent memory outlives the daemon: a run whose daemon is killed while results are only in blocks
# of a pool has the weights of an undisturbed run, bit for bit. Copies from the simulated accelerators are so slow that most kills come
# at such a moment. CST_TEST_KILLS: kills that must come then, in each run. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 16 --heads 2 --width 64 --context 16 --batch 2 --steps 8 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7
    --chunk 36864 --device paced)
write_text 400
printf '[paced]\ndevices = 2\nmemory = 64M\ndown = 12M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
start_keeping keeper --config "$tmp/paced.conf" --gpus none

# Kills after which results were copied from pools.
kills_with_results() {
    grep -c 'results of updates are copied from its pools' "$tmp/keeper.log" || true
}

# A run of $2 ranks with the options $3... as job $1, and the same run with kills of the daemon, have the same weights. The daemon is
# killed until results were in lent blocks $n_kills times. The time between kills grows, so that on a slow machine the job gets on, too.
same_with_results() {
    local job=$1 world=$2 n=0 before limit=200
    shift 2
    before=$(kills_with_results)
    begin "$job" "$world" "$@"
    end "$job"
    begin "$job-killed" "$world" "$@"
    poll has_stepped "$job-killed" 1
    until [ "$(kills_with_results)" -ge $((before + n_kills)) ] || gone "${workers[0]}"; do
        sleep "$(awk -v ms=$((RANDOM % limit)) 'BEGIN { print ms / 1000 }')"
        kill_daemon keeper
        n=$((n + 1))
        limit=$((limit + limit / 10))
    done
    [ "$(kills_with_results)" -gt "$before" ] || fail "$job: no results were in lent blocks at any of $n kills"
    end "$job-killed"
    cmp "$tmp/$job.weights" "$tmp/$job-killed.weights" || fail "$job: other weights after $n kills with $*"
    ./cistern rm "$job"
    ./cistern rm "$job-killed"
    printf '%s: same bits after %d kills, %d of them while results were in lent blocks\n' "$job" "$n" $(($(kills_with_results) - before))
}

same_with_results lent 2 --device-update lent
sparse || same_with_results early 1 --device-update lent --overlap early --clip 0

# When the job is done its pools are free, and with it its descriptors leave the store.
train_and_leave() {
    begin left 1 --device-update lent
    end left
}
slabs() {
    find "/proc/${manager_of[keeper]}/fd" -lname '*memfd:*' 2>/dev/null | wc -l
}
before=$(slabs)
train_and_leave
./cistern rm left
forgotten() {
    [ "$(slabs)" -le "$before" ]
}
poll forgotten
[ "$(./cistern stat --json | jq .host_used)" = 0 ] || fail "memory in use without jobs: $(./cistern stat)"
stop_daemon keeper

# Another daemon takes over, with a step under way.
start_daemon first --config "$tmp/paced.conf"
begin handed 2 --device-update lent
poll has_stepped handed 2
start second ./cisternd --config "$tmp/paced.conf" --socket "$CISTERN_SOCKET" --gpus none --engine-threads 2 --handover
await first 'EXIT=*'
[ "$line" = EXIT=0 ] || fail "first ended with $line"
await second READY=1
end handed
cmp "$tmp/lent.weights" "$tmp/handed.weights" || fail "other weights after another daemon took over"
printf 'all well\n'

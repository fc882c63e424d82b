#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks train with states on drives while one kind of process is killed at random moments: workers, engines (those of nodes and
# drives), or the daemon; and while a durable job loses engines. The weights are those of a calm run in memory, and nothing is left on the
# drive. CST_TEST_KILLS: kills of each kind. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

# shellcheck disable=SC2034 # for keeping.sh
model=(--layers 4 --heads 2 --width 64 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7 --chunk 36864)
write_text 400
if make_loop "$tmp/small" 64M; then
    drive=$tmp/small
else
    printf 'what is left on the drive is not counted: %s\n' "$no_loop"
fi
before=$(free_blocks "$drive")
start_keeping keeper --gpus none

# Kill one process of the kind $1 in round $2 of job $3 with the options $4...
kill_one() {
    local kind=$1 round=$2 job=$3 rank pids
    shift 3
    case $kind in
    daemon) kill_daemon keeper ;;
    engine)
        read -r -a pids <<<"$(children "$daemon_pid")"
        [ ${#pids[@]} = 0 ] || kill -9 "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null || true
        ;;
    worker)
        rank=$((RANDOM % 2))
        kill -9 "${workers[rank]}" 2>/dev/null || true
        wait "${workers[rank]}" 2>/dev/null || true
        begin_rank "$job" 2 $rank --steps $((10 * round)) "$@"
        ;;
    esac
}

# Train job $1 in rounds, with $2 kills of the kind $3 and the options $4... Sets rounds.
disturb() {
    local job=$1 most=$2 kind=$3 done=0
    shift 3
    rounds=0
    while [ $done -lt "$most" ]; do
        rounds=$((rounds + 1))
        begin "$job" 2 --steps $((10 * rounds)) "$@"
        # A worker that has not joined its job yet ends with the daemon.
        if [ "$kind" = daemon ] || [ $rounds = 1 ]; then
            poll has_stepped "$job" $((10 * rounds - 9))
        fi
        while [ $done -lt "$most" ] && ! gone "${workers[0]}" && ! gone "${workers[1]}"; do
            kill_one "$kind" $rounds "$job" "$@"
            done=$((done + 1))
            sleep "0.$(printf '%03d' $((RANDOM % 400)))"
        done
        end "$job"
    done
}

for job in worker engine daemon lasting; do
    kind=$job options=(--disk "$drive")
    [ "$job" != lasting ] || kind=engine options+=(--durable)
    disturb "$job" "$n_kills" $kind "${options[@]}"
    ! [ $kind = engine ] || ./cistern stat --json | jq -r '[.engines[] | .restarts] | "restarts of engines: \(.)"'
    for ((i = 1; i <= rounds; i++)); do
        begin calm 2 --steps $((10 * i))
        end "a calm job"
    done
    cmp "$tmp/calm.weights" "$tmp/$job.weights" || fail "$job: other weights after $n_kills kills"
    ./cistern rm calm
    ./cistern rm "$job"
    printf '%s: same bits after %d kills in %d steps\n' "$job" "$n_kills" $((10 * rounds))
done
stop_daemon keeper
rm "$drive/lasting.0.cistern"
is_free() { [ "$(free_blocks "$drive")" = "$before" ]; }
[ "$drive" != "$tmp/small" ] || poll is_free

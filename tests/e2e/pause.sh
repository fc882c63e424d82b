#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests `cistern pause` and `cistern resume`: a run that is paused at random moments has the weights of an undisturbed run, bit for bit, for
# all times of updates, kinds of pools, with and without a release of the pools; a job that is paused can be read, saved, left and removed,
# and stays paused when engines, workers or the daemon die; other jobs can take the memory of its pools. CST_TEST_SEED: seed of the moments.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=${CST_TEST_STEPS:-100}
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
printf '[device host]\npool = 1M\n[paced]\ndevices = 2\nmemory = 8M\n[plan]\ninterleave = 2\n' >"$tmp/pause.conf"

start_keeping keeper --config "$tmp/pause.conf" --gpus none

job_field() {
    ./cistern job "$1" --json | jq -r ".$2"
}

is_in_state() {
    [ "$(job_field "$1" state)" = "$2" ]
}

# Whether the workers of job $1 make no step in a while.
stands_still() {
    local step
    step=$(step_of "$1")
    sleep 0.2
    [ "$(step_of "$1")" = "$step" ]
}

# Bytes of pools that are charged, and bytes of memory that all files of the daemon have.
pools_used() {
    ./cistern stat --json | jq '.pool_used + ([.gpus[]? | .used // 0] | add // 0)'
}
memory_used() {
    local fd sum=0 blocks
    for fd in "/proc/$daemon_pid/fd"/*; do
        [[ $(readlink "$fd") == /memfd:cistern-* ]] || continue
        blocks=$(stat -L -c %b "$fd")
        sum=$((sum + blocks * 512))
    done
    echo $sum
}

# True if the workers of job $1 have ended.
ended() {
    local pid
    for pid in "${workers[@]}"; do
        gone "$pid" || return 1
    done
}

# True if the daemon has revived job $1.
is_known() {
    [[ $(job_field "$1" state) != @(reviving|) ]]
}

# A run of $2 ranks with the options $3... as job $1, and one with pauses, have the same weights.
same_paused() {
    local job=$1 world=$2 release i n=0
    shift 2
    begin "$job" "$world" "$@"
    end "$job"
    for release in "" --release-pools; do
        begin "$job-paused" "$world" "$@"
        poll has_stepped "$job-paused" 1
        for ((i = 0; i < 3; i++)); do
            ! ended || break
            sleep "0.$(printf '%03d' $((RANDOM % 100)))"
            # shellcheck disable=SC2086 # no option, or one
            ./cistern pause "$job-paused" $release >"$tmp/paused" || fail "pause of $job-paused"
            [ "$(job_field "$job-paused" state)" = paused ] || fail "$job-paused is not paused"
            if [ -n "$release" ] && [ "$(job_field "$job-paused" released_bytes)" != null ]; then
                [ "$(pools_used)" = 0 ] || fail "$job-paused has pools: $(pools_used)"
            fi
            stands_still "$job-paused" || fail "$job-paused goes on"
            ./cistern resume "$job-paused" >"$tmp/resumed" || fail "resume of $job-paused"
            n=$((n + 1))
        done
        end "$job-paused"
        cmp "$tmp/$job.weights" "$tmp/$job-paused.weights" || fail "$job: other weights after pauses with $* $release"
        ./cistern rm "$job-paused"
    done
    ./cistern rm "$job"
    printf '%s: same bits after %d pauses; the last: %s; %s\n' "$job" "$n" "$(<"$tmp/paused")" "$(<"$tmp/resumed")"
}

same_paused commit 2
same_paused early 2 --overlap early --clip 0
if ! sparse; then
    same_paused delayed 1 --overlap delayed
    same_paused small 2 --pool 300K
    same_paused micro 2 --micro-batches 2
    same_paused dispatched 3 --micro-batches 4 --parallel dispatch
    same_paused over 1 --grad-over-weight
    same_paused accelerator 2 --device paced
    same_paused early-accelerator 2 --device paced --overlap early --clip 0 --pool 300K
    same_paused reservation 1 --device paced --device-update 2M
    same_paused lent 1 --device paced --device-update lent
fi
same_paused delayed-accelerator 2 --device paced --overlap delayed

# What a pause says when it changes nothing, and that a job which is not paused is not resumed. Who may not use the job may not pause it.
refused() {
    local words=$1
    shift
    ! ./cistern "$@" >"$tmp/refused" 2>&1 || fail "not refused: $*"
    has "$words" "$tmp/refused" || fail "$*: no '$words' in: $(<"$tmp/refused")"
}
begin paused 2
poll has_stepped paused 1
refused "is not paused" resume paused
refused "no job" pause nothing
./cistern pause paused
is_in_state paused paused || fail "not paused"
./cistern pause paused | has "paused already" || fail "the second pause does not say so"
./cistern jobs | has "paused since" || fail "jobs does not say since when"
./cistern job paused | has "paused since" || fail "job does not say since when"
./cistern explain paused wte | has "has been paused for" || fail "explain does not say that the job is paused"

# Its pools can be released later, and their memory goes back to the system.
before=$(memory_used)
./cistern pause paused --release-pools
released=$(job_field paused released_bytes)
[[ $released -gt 0 && $(pools_used) = 0 ]] || fail "released $released bytes, and $(pools_used) are in use"
after=$(memory_used)
[ $((before - after)) -ge "$released" ] || fail "$released bytes were released, and the files have $before bytes, then $after"

# The job can be saved and read, and engines may die.
./cistern save paused "$tmp/checkpoint"
for pid in $(children "$daemon_pid"); do kill -9 "$pid"; done
./cistern save paused "$tmp/again"
again=$(memory_used) # Engines have memory of their own there.
[ $((again - after)) -lt $((released / 4)) ] || fail "new engines have added pages: $again bytes, not $after"

# Another job takes the memory. The job stays paused until it is available again, and nothing is lost.
workers_of_paused=("${workers[@]}")
begin other 2 --steps 400
poll has_stepped other 1
refused "short" resume paused
refused "stays paused" resume paused
is_in_state paused paused || fail "not paused after a resume that failed"
./cistern resume paused --wait >"$tmp/waited" 2>"$tmp/waits" &
waiter=$!
managers+=("$waiter")
end other
wait "$waiter" || fail "resume --wait"
has "waiting: " "$tmp/waits" || fail "resume --wait did not say for what it waits"
cat "$tmp/waited"
workers=("${workers_of_paused[@]}")
end paused
cmp "$tmp/commit.weights" "$tmp/paused.weights" || fail "other weights after another job had the pools"
./cistern rm other

# Workers die and join during a pause; a new one waits for the resume.
for release in "" --release-pools; do
    begin "deaths$release" 2
    poll has_stepped "deaths$release" 2
    # shellcheck disable=SC2086 # no option, or one
    ./cistern pause "deaths$release" $release
    kill -9 "${workers[1]}"
    wait "${workers[1]}" || true
    begin_rank "deaths$release" 2 1
    sleep 0.3
    stands_still "deaths$release" || fail "a worker that joins goes on"
    is_in_state "deaths$release" paused || fail "not paused after a death"
    ./cistern resume "deaths$release"
    end "deaths$release"
    cmp "$tmp/commit.weights" "$tmp/deaths$release.weights" || fail "other weights after a death in a pause $release"
    ./cistern rm "deaths$release"
done

# The daemon is killed during a pause, at random moments: a job of which it was said that it is paused is paused again.
for release in "" --release-pools; do
    job=killed$release
    begin "$job" 2
    poll has_stepped "$job" 1
    # shellcheck disable=SC2086 # no option, or one
    ./cistern pause "$job" $release
    sleep "0.$(printf '%03d' $((RANDOM % 100)))"
    kill_daemon keeper
    poll is_in_state "$job" paused
    stands_still "$job" || fail "$job goes on after the end of the daemon"
    [ -z "$release" ] || [ "$(pools_used)" = 0 ] || fail "$job has pools again"
    ./cistern resume "$job"
    # The asker may be killed with it: the job is paused, or it is not.
    # shellcheck disable=SC2086 # no option, or one
    ./cistern pause "$job" $release >"$tmp/asker" 2>&1 &
    asker=$!
    managers+=("$asker")
    sleep "0.$(printf '%03d' $((RANDOM % 60)))"
    kill_daemon keeper
    if wait "$asker"; then
        poll is_in_state "$job" paused
    fi
    poll is_known "$job"
    ! is_in_state "$job" paused || ./cistern resume "$job"
    end "$job"
    cmp "$tmp/commit.weights" "$tmp/$job.weights" || fail "$job: other weights after kills of the daemon in a pause"
    ./cistern rm "$job"
done

# A job that is paused can be removed. Its workers are told.
begin removed 2
poll has_stepped removed 1
./cistern pause removed --release-pools
refused "train" rm removed
./cistern rm removed --force
for pid in "${workers[@]}"; do
    ! wait "$pid" || fail "a worker of a removed job has ended well"
done
[ "$(pools_used)" = 0 ] || fail "a removed job has left $(pools_used) bytes of pools"

# A job that is done has no pools. It stays paused for those who open it again.
begin over 1
end over
./cistern pause over --release-pools
is_in_state over paused || fail "a job that is done is not paused"
! ./cistern-gpt "${model[@]}" --data "$tmp/text" --job over --reshape --world 2 --rank 0 >"$tmp/refused" 2>&1 ||
    fail "a job that is paused was reshaped"
has "cannot be reshaped while it is paused" "$tmp/refused" || fail "a reshape is refused as: $(<"$tmp/refused")"
begin over 1
sleep 0.3
is_in_state over paused || fail "a worker has ended the pause"
./cistern resume over
end over

stop_daemon keeper

# No wait for other ranks ends during a pause: neither in the daemon nor in memory that ranks share, as those of a pipeline do.
timeout=$((wait_s / 10))
printf '[job]\ntimeout = %d\n' $timeout >"$tmp/timeout.conf"
start_keeping patient --config "$tmp/timeout.conf" --gpus none
begin plain-chain 2 --parallel pipeline --micro-batches 4
end plain-chain
begin chain 2 --parallel pipeline --micro-batches 4
poll has_stepped chain 1
./cistern pause chain
sleep $((timeout + 1))
./cistern resume chain
end chain
cmp "$tmp/plain-chain.weights" "$tmp/chain.weights" || fail "other weights of a pipeline after a pause"
stop_daemon patient

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a worker outlives a daemon that dies when the worker has committed: before its first sync, or when the sync is complete
# and not answered yet. Its weights are those of an undisturbed run. The worker of a job that is not kept yet is told that it is lost.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"

model=(--layers 1 --heads 1 --width 16 --context 16 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
allow_faults
start_keeping keeper --gpus none

deaths=0
# The next daemon says that it has all jobs again. A death before that would leave no such line.
has_revived() {
    [ "$(grep -c 'jobs of the earlier daemon go on, after' "$tmp/keeper.log")" = "$deaths" ]
}
await_revival() {
    deaths=$((deaths + 1))
    poll has_revived
}

# Train job $1 with $2 ranks up to step $3, and once more up to step $4. If $5 is given, the daemon dies in this way in the second run,
# and $1 has the weights of job $6.
dies() {
    local job=$1 world=$2 half=$3 steps=$4 fault=${5-} whole=${6-}
    if [ "$half" != 0 ]; then
        begin "$job" "$world" --steps "$half"
        end "$job"
    fi
    [ -z "$fault" ] || touch "$tmp/faults/$fault"
    begin "$job" "$world" --steps "$steps"
    end "$job"
    if [ -n "$fault" ]; then
        [ ! -e "$tmp/faults/$fault" ] || fail "$job: the daemon did not die"
        cmp "$tmp/$whole.weights" "$tmp/$job.weights" || fail "other weights of $job"
        await_revival
    fi
}

dies one 1 3 6
dies two 2 3 6
dies one-committed 1 3 6 committed one
dies one-synced 1 3 6 synced one
dies two-synced 2 3 6 synced two
# The first sync of the job: the daemon keeps it before it answers.
dies fresh 1 0 6
dies fresh-synced 1 0 6 synced fresh
dies fresh-two 2 0 6
dies fresh-two-synced 2 0 6 synced fresh-two

# It is not kept before the first sync.
touch "$tmp/faults/committed"
begin lost 1 --steps 6
! wait "${workers[0]}" || fail "a job that is not kept outlives the daemon"
[ ! -e "$tmp/faults/committed" ] || fail "lost: the daemon did not die"
await_revival
stop_daemon keeper
printf 'all well\n'

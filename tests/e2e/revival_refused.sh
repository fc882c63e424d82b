#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job with which a daemon cannot go on is not harmed by the jobs of that daemon, and goes on with a later daemon that
# can, also if another job has had its name meanwhile.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=60
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
set_accelerators() {
    printf '[paced]\ndevices = %d\nmemory = 64M\n' "$1" >"$tmp/keeper.conf"
}

# Train job $1 as `begin` does, up to half of the steps.
halves() {
    begin "$@" --steps $((steps / 2))
    end "$1"
}

set_accelerators 1
start_keeping keeper --config "$tmp/keeper.conf" --gpus none
halves whole 1
begin whole 1
end whole

# The accelerator of two jobs is not there while other jobs come and train. The job that was at rest goes on when the accelerator is
# back. The job that was at work may have had tiles in the undo slots: then it is named.
halves away 1 --device paced
begin work 1 --device paced
poll has_stepped work 20
set_accelerators 0
kill_daemon keeper
for job in away work; do
    poll has "job '$job' of the earlier daemon cannot go on: its accelerator .* is not there" "$tmp/keeper.log"
done
! wait "${workers[0]}" || fail "a worker of a job that is lost"
others=(first second third)
for job in "${others[@]}"; do
    begin "$job" 1
    end "$job"
done
# Meanwhile another job has the name. The first one goes on when that job is removed.
begin away 1
end away
set_accelerators 1
kill_daemon keeper
poll has "job 'away' of the earlier daemon cannot go on: a later job has its name" "$tmp/keeper.log"
./cistern rm away
kill_daemon keeper
for job in "${others[@]}"; do
    [ "$(step_of "$job")" = "$steps" ] || fail "$job did not go on: $(./cistern jobs)"
done
begin away 1 --device paced
end away
cmp "$tmp/whole.weights" "$tmp/away.weights" || fail "other weights of a job with which a daemon could not go on"
if ! has "job 'work' of the earlier daemon cannot go on: an update of chunk .* was cut off" "$tmp/keeper.log"; then
    [ "$(step_of work)" -ge 20 ] || fail "work did not go on: $(./cistern jobs)"
    begin straight 1
    end straight
    begin work 1 --device paced
    end work
    cmp "$tmp/straight.weights" "$tmp/work.weights" || fail "other weights of a job that was at work"
fi
for job in "${others[@]}"; do
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --steps $((steps + 2)) >"$tmp/$job.more.log" 2>&1 || fail "$job: no more steps"
done
stop_daemon keeper
printf 'all well\n'

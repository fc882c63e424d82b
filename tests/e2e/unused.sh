#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests tensors without a gradient that are skipped, with experts of which each step uses a few: the weights have the same bits with the
# smallest pool, with killed engines, after the daemon was killed, from a checkpoint, and after the job was reshaped.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=$(if sparse; then echo 20; else echo 40; fi)
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --min-lr 0.003 --matmul fp32 --threads 1 --seed 7
    --experts 16 --top-k 1)
write_text 400
start_keeping keeper --gpus none

# Job $1 has the weights of an undisturbed run.
same_as_whole() {
    cmp "$tmp/whole.weights" "$tmp/$1.weights" || fail "$1: other weights"
    ./cistern rm "$1"
}

begin zero 2 --steps "$steps"
end zero
model+=(--unused skip)
begin whole 2 --steps "$steps"
end whole
! cmp -s "$tmp/zero.weights" "$tmp/whole.weights" || fail "nothing was skipped"
./cistern job whole | grep -q "tensors without a gradient are skipped" || fail "cistern job does not say what is skipped"

begin small 2 --steps "$steps" --pool 1M --chunk 20000
end small
same_as_whole small

begin engine 2 --steps "$steps"
for ((i = 0; i < n_kills; i++)); do
    poll has_stepped engine $((2 * i + 1))
    read -r -a engines < <(children "$daemon_pid") || true
    ! gone "${workers[0]}" || break
    kill -KILL "${engines[0]}"
done
end engine
same_as_whole engine

begin daemon 2 --steps "$steps"
poll has_stepped daemon 3
kill_daemon keeper
end daemon
same_as_whole daemon

begin half 2 --steps $((steps / 2)) --save-dir "$tmp/saved" --save-every $((steps / 2))
end half
jq -e '[.job.missed[] | select(. > 0)] | length > 0' "$tmp"/saved/*/cistern.json >/dev/null || fail "the checkpoint does not say what was skipped"
begin resumed 2 --steps "$steps" --resume "$tmp/saved"
end resumed
same_as_whole resumed
begin half 2 --steps "$steps" --reshape --chunk 20000
end half
same_as_whole half
stop_daemon keeper

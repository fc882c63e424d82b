#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests readers of weights (cistern/reader.h): a reader sees each step with the bytes that a checkpoint of the step has, whatever the
# updates, formats and pools are; readers that are killed at random leave nothing behind; a reader that keeps versions delays steps and
# changes none; others lose a version and say so.
# CST_TEST_SEED: seed of the kills. CST_TEST_STEPS: steps of each run.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=${CST_TEST_STEPS:-$(if sparse; then echo 100; else echo 400; fi)}
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --min-lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
start_keeping keeper --gpus none

# Start reader $1 of job $2 with the options $3..., which writes to $tmp/$1.read.
read_job() {
    local name=$1 job=$2
    shift 2
    ./cistern reader "$job" --steps 1000000 "$@" >"$tmp/$name.read" 2>"$tmp/$name.err" &
    readers[$name]=$!
    managers+=($!)
}

is_committed() {
    ./cistern reader "$1" >/dev/null 2>&1
}

# The lines with digests of reader $1.
digests() {
    grep -v lost "$tmp/$1.read" || true
}

# Train job $1 with $2 ranks and the options $3..., with a reader that keeps each version and three that do not, of which one after the
# other is killed. $tmp/$1.steps has the digests of all steps then.
train_read() {
    local job=$1 world=$2 i victim
    shift 2
    declare -gA readers=()
    begin "$job" "$world" --steps "$steps" "$@"
    poll is_committed "$job"
    read_job "$job.all" "$job" --keep-version
    for i in 1 2 3; do
        read_job "$job.$i" "$job"
    done
    for ((i = 1; i <= n_kills; i++)); do
        poll has_stepped "$job" $((i * steps / (n_kills + 1)))
        victim=$job.$((RANDOM % 3 + 1))
        kill -KILL "${readers[$victim]}" 2>/dev/null || true
        wait "${readers[$victim]}" 2>/dev/null || true
        cat "$tmp/$victim.read" >>"$tmp/$job.killed"
        read_job "$victim" "$job"
    done
    end "$job"
    poll digested "$job" "$steps"
    for i in all 1 2 3; do
        kill "${readers[$job.$i]}" 2>/dev/null || true
        wait "${readers[$job.$i]}" 2>/dev/null || true
    done
    digests "$job.all" >"$tmp/$job.steps"
    check_steps "$job"
}

digested() {
    grep -q "^step $2 " "$tmp/$1.all.read"
}

# The reader that keeps versions has missed no step from its first one on, and all readers agree.
check_steps() {
    local job=$1
    awk '$2 != last + 1 && last != "" { exit 1 } { last = $2 } END { exit NR < 2 }' "$tmp/$job.steps" ||
        fail "$job: the reader that keeps versions has missed steps: $(tr '\n' ' ' <"$tmp/$job.steps")"
    # The last line of a reader that was killed can be cut.
    for i in 1 2 3; do
        digests "$job.$i"
    done | cat - "$tmp/$job.killed" 2>/dev/null | grep -E '^step [0-9]+  [0-9a-f]{16}$' | sort -u >"$tmp/$job.others" || true
    sort -u "$tmp/$job.steps" >"$tmp/$job.sorted"
    awk 'NR == FNR { of[$2] = $3; next } $2 in of && of[$2] != $3 { print; bad = 1 } END { exit bad }' \
        "$tmp/$job.sorted" "$tmp/$job.others" >"$tmp/$job.bad" || fail "$job: readers differ: $(cat "$tmp/$job.bad")"
    printf '%s: %d steps, %d versions of other readers, %d of them lost\n' "$job" "$(wc -l <"$tmp/$job.steps")" \
        "$(cat "$tmp/$job".[123].read | wc -l)" "$(cat "$tmp/$job".[123].read | grep -c lost || true)"
}

# Job $1 has had the same weights as job $2 in all steps that both readers have seen.
same_steps() {
    awk 'NR == FNR { of[$2] = $3; next } $2 in of { n++; if (of[$2] != $3) { print; bad = 1 } } END { exit bad || n < 2 }' \
        "$tmp/$2.steps" "$tmp/$1.steps" >"$tmp/bad" || fail "$1 differs from $2: $(cat "$tmp/bad")"
}

# A job that is loaded from a checkpoint of $1 has the weights that a reader sees in it.
same_as_checkpoint() {
    ./cistern save "$1" "$tmp/saved.$1" >/dev/null
    ./cistern load "$tmp/saved.$1" loaded >/dev/null
    [ "$(./cistern reader "$1")" = "$(./cistern reader loaded)" ] || fail "$1: a reader sees other weights than a checkpoint has"
    ./cistern rm loaded
}

train_read one 2
same_as_checkpoint one
train_read two 2 --versions 2
same_steps two one
same_as_checkpoint two
train_read small 2 --versions 2 --pool 1M --chunk 20000
same_steps small one
train_read early 2 --overlap early
train_read delayed 2 --overlap delayed
train_read split 2 --masters split --versions 2
train_read split1 2 --masters split
same_steps split split1
train_read muon 1 --versions 2 --optimizer muon --moments mx8
same_as_checkpoint muon
train_read idle1 2 --experts 4 --top-k 1 --unused skip
train_read idle2 2 --experts 4 --top-k 1 --unused skip --versions 2
same_steps idle2 idle1
find_drive
if [ -n "$drive" ]; then
    train_read disk 2 --disk "$drive" --versions 2
    same_steps disk one
fi

# -- the daemon is killed ---------------------------------------------------------------------------

# A reader says so, and the next one reads what the next daemon has.
declare -A readers=()
begin killed 2 --steps "$steps" --versions 2
poll is_committed killed
read_job killed.0 killed --keep-version
for ((i = 1; i <= n_kills; i++)); do
    poll has_stepped killed $((i * steps / (n_kills + 1)))
    kill_daemon keeper
    wait "${readers[killed.$((i - 1))]}" && fail "a reader goes on without a daemon"
    grep -q "open the reader again" "$tmp/killed.$((i - 1)).err" || fail "a reader says: $(cat "$tmp/killed.$((i - 1)).err")"
    read_job "killed.$i" killed --keep-version
done
end killed
kill "${readers[killed.$n_kills]}"
cat "$tmp"/killed.*.read | grep -E '^step [0-9]+  [0-9a-f]{16}$' >"$tmp/killed.steps"
same_steps killed two

# -- simulated accelerators -------------------------------------------------------------------------

printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n' >"$tmp/paced.conf"
export CISTERN_SOCKET=$tmp/run/paced.sock
start paced --keep ./cisternd --socket "$CISTERN_SOCKET" --manager-socket "$tmp/run/paced-manager.sock" --engine-threads 2 --gpus none \
    --config "$tmp/paced.conf"
await paced READY=1
train_read device 2 --device paced --device-update 8M --versions 2
same_steps device one
train_read lent 2 --device paced --device-update lent
same_steps lent one

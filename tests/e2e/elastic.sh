#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job is opened again in place with other numbers of ranks: four, two, three and one have the states of the same run
# through files, bit for bit, and the losses of a run of four, for every kind of states; a job whose new workers are killed at any
# moment is the old one or the new one, with the same bits. CST_TEST_SAVES: number of kills.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 2 --heads 2 --width 64 --context 32 --warmup 2 --lr 0.003 --min-lr 0.003 --matmul fp32 --threads 1 --seed 7)
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
RANDOM=$seed
write_text 400

# Train job $1 with $2 ranks, which share a batch of 12, up to step $3, with the options $4... The losses
# are added to $tmp/$1.losses.
train() {
    local job=$1 world=$2 steps=$3 rank pids=()
    shift 3
    for ((rank = world - 1; rank >= 0; rank--)); do
        ./cistern-gpt "${model[@]}" --batch $((12 / world)) --steps "$steps" --data "$tmp/text" --job "$job" --world "$world" \
            --rank "$rank" --loss-file "$tmp/$job$([ "$rank" = 0 ] || printf .%s "$rank").losses" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        pids+=($!)
        managers+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || fail "$job: $world ranks up to step $steps: cistern-gpt $* failed: $(tail -n 2 "$tmp/$job".?.log)"
    done
}

# The states of the jobs $1 and $2 are the same.
same_states() {
    local job file
    for job in "$1" "$2"; do
        rm -rf "$tmp/save-$job"
        ./cistern save "$job" "$tmp/save-$job" >/dev/null
    done
    for file in model.safetensors states-00001-of-00001.safetensors; do
        cmp "$tmp/save-$1"/step-*/$file "$tmp/save-$2"/step-*/$file || fail "$1 and $2: other $file"
    done
    [ "$(./cistern job "$1" --json | jq -c '[.step, .last_loss]')" = "$(./cistern job "$2" --json | jq -c '[.step, .last_loss]')" ] ||
        fail "$1 and $2: other steps, or another loss of the last one: $(./cistern jobs)"
}

# Train with four, two, three and one ranks and the options $2...: in place, and through files. Three ranks have other chunks, so
# that states are copied; before, they stay where they are.
elastic() {
    local job=$1 world steps=3 from chunk=()
    shift
    train "$job" 4 $steps "$@"
    train "$job-files" 4 $steps "$@"
    for world in 2 3 1; do
        rm -rf "$tmp/step"
        ./cistern save "$job-files" "$tmp/step" >/dev/null
        ./cistern rm "$job-files"
        from=$(./cistern checkpoints "$tmp/step" --json | jq -r '.[0].name')
        steps=$((steps + 2))
        chunk=()
        [ $world != 3 ] || chunk=(--chunk 40000)
        train "$job-files" $world $steps --resume "$tmp/step/$from" "${chunk[@]}" "$@"
        train "$job" $world $steps --reshape "${chunk[@]}" "$@"
        [ "$(./cistern job "$job" --json | jq .world)" = $world ] || fail "$job: $(./cistern jobs)"
        cmp "$tmp/$job.losses" "$tmp/$job-files.losses" || fail "$job: $world ranks have other losses than through files"
        same_states "$job" "$job-files"
    done
    train "$job-four" 4 $steps "$@"
    paste "$tmp/$job-four.losses" "$tmp/$job.losses" |
        perl -MPOSIX -ane '$a = POSIX::strtod($F[0]); $b = POSIX::strtod($F[1]); exit 1 if abs($a - $b) > 1e-3 * $b' ||
        fail "$job: $(paste "$tmp/$job-four.losses" "$tmp/$job.losses")"
    ./cistern rm "$job-files"
    ./cistern rm "$job"
    ./cistern rm "$job-four"
    printf '%s: four, two, three and one ranks: the bits of files, the losses of four\n' "$job"
}

start_daemon daemon --engine-threads 2
elastic mx8 --moments mx8
elastic over --grad-over-weight
if ! sparse; then
    elastic adamw
    elastic bf16 --moments bf16
    elastic lion --optimizer lion --moments mx8
    elastic split --masters split
    elastic early --overlap early --clip 0
    elastic lora --lora 4
fi

has 'from 4 to 2 ranks, 0 B were copied' "$tmp/daemon.log" || fail "states did not stay: $(grep copied "$tmp/daemon.log")"
has 'from 2 to 3 ranks, .* MiB were copied' "$tmp/daemon.log" || fail "states were not copied: $(grep copied "$tmp/daemon.log")"

# As many ranks in other chunks and pools, with gradients elsewhere, have the bits of an undisturbed run.
train plain 4 6
train other 4 2
train other 4 3 --reshape --pool 150%
for engine in $(children "$daemon_pid"); do
    kill -9 "$engine" # The next one finds the memory that the job has inherited.
done
train other 4 4 --reshape --chunk 40000
train other 4 5 --reshape
train other 4 6 --reshape --grad-over-weight
cmp "$tmp/plain.losses" "$tmp/other.losses" || fail "other chunks: $(paste "$tmp/plain.losses" "$tmp/other.losses")"
printf 'other chunks and pools: same bits\n'

# Without the flag another world is refused, and the words name the flag.
rc=0
./cistern-gpt "${model[@]}" --data "$tmp/text" --job plain --steps 7 >"$tmp/refused.log" 2>&1 || rc=$?
if [ $rc = 0 ] || ! has "has 4 ranks, not 1 as rank 0 wants.*'reshape'" "$tmp/refused.log"; then
    fail "another world: $rc, $(cat "$tmp/refused.log")"
fi

# While one of two ranks is missing, the job is shown as reshaping; when the other one is killed, it is as it was.
./cistern-gpt "${model[@]}" --data "$tmp/text" --job plain --world 2 --rank 0 --steps 7 --reshape >"$tmp/alone.log" 2>&1 &
alone=$!
reshaping() {
    ./cistern job plain --json | jq -e '.state == "reshaping" and .world == 4 and .waits_for == "rank 1 (absent)"' >/dev/null
}
poll reshaping
[ "$(./cistern jobs --json | jq '[.[] | select(.name == "plain")] | length')" = 1 ] || fail "$(./cistern jobs)"
kill -9 $alone
wait $alone 2>/dev/null || true
settled() {
    ./cistern job plain --json | jq -e '.state == "done" and .world == 4' >/dev/null
}
poll settled

# Workers that are killed at any moment: the job is one of four or of two ranks, with the same bits.
train killed 4 6
sparse && kills=4 || kills=12
for ((i = 0; i < ${CST_TEST_SAVES:-$kills}; i++)); do
    world=$((2 + i % 2))
    pids=()
    chunk=()
    [ $((i % 4)) -lt 2 ] || chunk=(--chunk 40000) # The states are copied then.
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt "${model[@]}" --batch $((12 / world)) --data "$tmp/text" --job killed --world $world --rank $rank --steps 6 \
            --reshape "${chunk[@]}" >"$tmp/killed.$rank.log" 2>&1 &
        pids+=($!)
    done
    # The moment of the kill is random; nothing waits for it.
    perl -e 'select(undef, undef, undef, rand(0.08))' || true
    kill -9 "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    ended() {
        ./cistern job killed --json | jq -e '(.state | IN("reviving", "reshaping") | not) and all(.ranks[]; .state != "attached")' >/dev/null
    }
    poll ended
    same_states killed plain
done
./cistern job killed --json | jq -c '{world, state, step}'
train killed 4 8 --reshape
train plain 4 8
cmp "$tmp/killed.losses" "$tmp/plain.losses" || fail "killed: $(paste "$tmp/killed.losses" "$tmp/plain.losses")"
same_states killed plain
stop_daemon daemon
printf 'all well\n'

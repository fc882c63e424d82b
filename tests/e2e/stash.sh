#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a training whose activations wait in the daemon's memory has the same losses as one that holds all of them: with evictions,
# micro-batches, validation, two ranks, and kills of a rank and of an engine in the middle of it. What is held and what is stashed is
# what the program says, to the byte.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

layers=6
model=(--layers "$layers" --heads 2 --width 64 --context 64 --batch 4 --micro-batches 2 --warmup 2 --matmul fp32 --threads 1 --seed 7
    --data "$tmp/text" --validate 5%)
write_text 2000
start_daemon d

# Run as $1 with the other arguments as options.
train() {
    local name=$1
    shift
    ./cistern-gpt --job "$name" "${model[@]}" --loss-file "$tmp/$name.losses" "$@" >"$tmp/$name.out" 2>"$tmp/$name.log"
}

# The plan of a run with the limit $1: sets held, n_stashed and stashed.
read_plan() {
    local words
    words=$(grep 'of activations' "$1") || fail "$1: does not say where the activations are"
    [[ $words =~ ([0-9]+)\ bytes\)?\ of\ activations\;\ those\ of\ ([0-9]+)\ of\ $layers\ blocks\ wait\ in\ .*[^0-9]?([0-9]+)\ bytes ]] ||
        fail "not understood: $words"
    held=${BASH_REMATCH[1]} n_stashed=${BASH_REMATCH[2]}
    words=${words##*wait in }
    words=${words##*(}
    stashed=${words%% *}
}

# One rank. All blocks, and then as few as possible.
train all --steps 5
train most --steps 5 --activation-memory 1G
read_plan "$tmp/most.out"
[ "$n_stashed" = 0 ] || fail "with 1 GiB, $n_stashed blocks are stashed"
everything=$held
if train none --steps 5 --activation-memory 1M; then fail "a limit that is too small is not refused"; fi
grep -q 'at least' "$tmp/none.log" || fail "a limit that is too small: $(cat "$tmp/none.log")"
least=$(sed -n 's/.*at least.*[^0-9]\([0-9]*\) bytes.*/\1/p' "$tmp/none.log")
for limit in $((everything - 1)) "$least"; do
    train "run$limit" --steps 5 --activation-memory "$limit" --chunk 20480 --pool 70%
    read_plan "$tmp/run$limit.out"
    [ "$held" -le "$limit" ] || fail "with a limit of $limit bytes, $held bytes are held"
    [ $((held + stashed)) = "$everything" ] || fail "$held bytes held and $stashed bytes stashed, of $everything"
    [ $((held + stashed / n_stashed)) -gt "$limit" ] || fail "with a limit of $limit bytes, a block more could be held"
    cmp "$tmp/all.losses" "$tmp/run$limit.losses" || fail "with a limit of $limit bytes the losses differ"
    grep validation "$tmp/run$limit.out" | sed 's/.*loss//' >"$tmp/validation"
    grep validation "$tmp/all.out" | sed 's/.*loss//' | cmp - "$tmp/validation" || fail "the loss of the validation differs"
done
[ "$n_stashed" = $((layers - 2)) ] || fail "with the smallest limit, $n_stashed blocks are stashed"

sparse && steps=60 || steps=150

# Two ranks, of which one is killed, and an engine.
run_pair() {
    local name=$1
    shift
    train "$name" --world 2 --rank 0 --steps "$steps" "$@" &
    first=$!
    ./cistern-gpt --job "$name" "${model[@]}" --world 2 --rank 1 --steps "$steps" "$@" >"$tmp/$name.1.out" 2>"$tmp/$name.1.log" &
    second=$!
}

# True if the job $1 has made $2 steps.
made() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

run_pair two --quiet
wait $first $second
run_pair killed --activation-memory "$least"
poll made killed 5
bytes=$(./cistern job killed --json | jq .edge_bytes)
[ "$bytes" -ge $((2 * stashed)) ] || fail "edges of $bytes bytes, for two stashes of $stashed bytes"
kill -KILL $second
if made killed "$steps"; then fail "the rank was killed too late"; fi
wait $second 2>/dev/null || true
./cistern-gpt --job killed "${model[@]}" --world 2 --rank 1 --steps "$steps" --activation-memory "$least" >"$tmp/again.out" 2>"$tmp/again.log" &
second=$!
poll made killed 10
# shellcheck disable=SC2046 # one pid
kill -KILL $(children "$daemon_pid" | awk '{ print $1 }')
if made killed "$steps"; then fail "the engine was killed too late"; fi
wait $first || fail "rank 0 failed"
wait $second || fail "rank 1 failed"
cmp "$tmp/two.losses" "$tmp/killed.losses" || fail "after kills the losses differ"
stop_daemon d

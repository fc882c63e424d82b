#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests checkpoints: a run that is killed and loaded into a fresh daemon has the losses and weights of an undisturbed run, bit for
# bit, for every kind of states; a save that fails or is killed leaves the training and the earlier checkpoints as they were; a
# checkpoint that is torn, altered or of another model is refused with the reason. CST_TEST_SAVES: number of saves that are killed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

steps=9
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
RANDOM=$seed
write_text 400

# Train job $1 with the options $2... Its losses go to $tmp/$1.losses, its weights to $tmp/$1.weights.
train() {
    local job=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --loss-file "$tmp/$job.losses" --dump-weights "$tmp/$job.weights" "$@" \
        >"$tmp/$job.log" 2>&1 || fail "$job: cistern-gpt $* failed: $(tail -n 2 "$tmp/$job.log")"
}

# The name of the first checkpoint in $1.
first_of() {
    ./cistern checkpoints "$1" --json | jq -r '.[0].name'
}

# Kill the daemon and all its processes, and start a fresh one.
fresh_daemon() {
    if [ -n "${daemon-}" ]; then
        kill -9 "$daemon_pid"
        await "$daemon" 'SIGNAL=*' # all its threads are gone, and with them the lock on the socket
    fi
    daemon=${daemon-}x
    start_daemon "$daemon" --engine-threads 2
}

# A run with the options $2..., which is saved every three steps, and one from its first checkpoint in a fresh daemon, with another
# chunk size, have the same losses and weights.
same() {
    local job=$1 from n
    shift
    fresh_daemon
    train "$job" --save-dir "$tmp/$job" --save-every 3 "$@"
    ! has 'was not saved' "$tmp/$job.log" || fail "$job: $(grep 'was not saved' "$tmp/$job.log")"
    [ "$(./cistern checkpoints "$tmp/$job" --check --json | jq 'length > 0 and all(.whole)')" = true ] || fail "$job: $(./cistern checkpoints "$tmp/$job" --check)"
    from=$(first_of "$tmp/$job")
    n=$((10#${from#step-}))
    [ "$n" -lt $steps ] || fail "$job: the first checkpoint is $from"
    fresh_daemon
    train "$job-again" --resume "$tmp/$job/$from" --chunk 40000 "$@"
    tail -n $((steps - n)) "$tmp/$job.losses" | cmp - "$tmp/$job-again.losses" || fail "$job: other losses after $from with $*"
    cmp "$tmp/$job.weights" "$tmp/$job-again.weights" || fail "$job: other weights after $from with $*"
    printf '%s: same bits after %s\n' "$job" "$from"
}

same adamw
same mx8 --moments mx8
if ! sparse; then
    same bf16 --moments bf16
    same lion --optimizer lion --moments mx8
    same sgd --optimizer sgd
    same early --overlap early --clip 0
    same over --grad-over-weight
    same split --masters split --moments bf16
    same mixture --experts 4 --top-k 2
fi
same micro --micro-batches 2
same early-mx8 --overlap early --clip 0 --moments mx8
same lora --lora 4

# Train job $1 with $2 ranks, which share a batch of 12, and the options $3...
train_ranks() {
    local job=$1 world=$2 rank pids=()
    shift 2
    for ((rank = world - 1; rank > 0; rank--)); do
        ./cistern-gpt "${model[@]}" --batch $((12 / world)) --data "$tmp/text" --job "$job" --world "$world" --rank "$rank" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        pids+=($!)
        managers+=($!)
    done
    train "$job" --batch $((12 / world)) --world "$world" "$@"
    for rank in "${pids[@]}"; do
        wait "$rank" || fail "$job: a worker failed with $*"
    done
}

# A job of four ranks goes on with two, three, one and four: with four it has the same bits, otherwise the sums have another order.
fresh_daemon
train_ranks four 4 --save-dir "$tmp/four" --save-every 3
from=$(first_of "$tmp/four")
for world in 2 3 1 4; do
    train_ranks "from-four-$world" "$world" --resume "$tmp/four/$from"
    tail -n "$(wc -l <"$tmp/from-four-$world.losses")" "$tmp/four.losses" | paste - "$tmp/from-four-$world.losses" |
        perl -MPOSIX -ane '$a = POSIX::strtod($F[0]); $b = POSIX::strtod($F[1]); exit 1 if abs($a - $b) > 1e-4 * $b' ||
        fail "$world ranks: $(tail -n 9 "$tmp/four.losses" | paste - "$tmp/from-four-$world.losses")"
done
cmp "$tmp/four.weights" "$tmp/from-four-4.weights" || fail "other weights with as many ranks"
printf 'four ranks: same losses with two, three, one and four\n'
# Ranks end, and none waits for another, if the checkpoint has as many steps as they were to do.
n=$((10#${from#step-}))
train_ranks finished 2 --resume "$tmp/four/$from" --steps "$n"
for rank in '' .1; do
    has "job 'finished' is finished: $n of $n steps" "$tmp/finished$rank.log" || fail "a rank does not tell that all is done: $(cat "$tmp/finished$rank.log")"
done

# A job of another format of moments goes on with nearly the same losses, and says that its bits are others.
for moments in bf16 mx8; do
    from=$(first_of "$tmp/adamw")
    train "to-$moments" --resume "$tmp/adamw/$from" --moments "$moments"
    has 'moments were converted' "$tmp/to-$moments.log" || fail "$(cat "$tmp/to-$moments.log")"
    tail -n "$(wc -l <"$tmp/to-$moments.losses")" "$tmp/adamw.losses" | paste - "$tmp/to-$moments.losses" |
        perl -MPOSIX -ane '$a = POSIX::strtod($F[0]); $b = POSIX::strtod($F[1]); exit 1 if abs($a - $b) > 1e-2 * $b' ||
        fail "$moments: $(tail -n 9 "$tmp/adamw.losses" | paste - "$tmp/to-$moments.losses")"
done
# The master weights of a checkpoint can be split, and joined.
train to-split --resume "$tmp/adamw/$from" --masters split
tail -n "$(wc -l <"$tmp/to-split.losses")" "$tmp/adamw.losses" | paste - "$tmp/to-split.losses" |
    perl -MPOSIX -ane '$a = POSIX::strtod($F[0]); $b = POSIX::strtod($F[1]); exit 1 if abs($a - $b) > 1e-4 * $b' ||
    fail "split: $(tail -n 9 "$tmp/adamw.losses" | paste - "$tmp/to-split.losses")"
! has 'moments were converted' "$tmp/adamw-again.log" || fail "no moments were converted: $(cat "$tmp/adamw-again.log")"

! has 'warning' "$tmp/adamw-again.log" || fail "the same options are another job: $(cat "$tmp/adamw-again.log")"

# What differs from the saved job, and would change the training silently, is named.
from=$(first_of "$tmp/mx8")
warned() {
    local words=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job warned --resume "$tmp/mx8/$from" --moments mx8 "$@" >"$tmp/warned.log" 2>&1 || fail "$*: $(cat "$tmp/warned.log")"
    has "warning: .*$words" "$tmp/warned.log" || fail "no warning for $*: $(cat "$tmp/warned.log")"
    ./cistern rm warned
}
warned 'the seed was 7, now 9' --seed 9
warned 'rounding was stochastic, now nearest' --rounding nearest
warned 'masters were fp32, now split' --masters split
warned 'updates were not delayed, now they are' --overlap delayed
warned 'the learning rate was' --lr 0.01
warned 'beta1 was 0.9 .* 0.5' --beta1 0.5
warned 'weight decay was 0.1 .* 0' --weight-decay 0
warned 'norm of gradients was 1 .* 0' --clip 0
from=$(first_of "$tmp/lora")
./cistern-gpt "${model[@]}" --data "$tmp/text" --job warned --resume "$tmp/lora/$from" --lora 4 --lora-alpha 16 >"$tmp/warned.log" 2>&1 || fail "$(cat "$tmp/warned.log")"
has 'lora_alpha of adapter_config.json was 4.0, now 16.0' "$tmp/warned.log" || fail "$(cat "$tmp/warned.log")"
./cistern rm warned

# A directory is of one job: another one neither saves there nor goes on from there by itself.
rc=0
./cistern-gpt "${model[@]}" --data "$tmp/text" --job another --save-dir "$tmp/adamw" --save-every 3 --resume auto >"$tmp/another.log" 2>&1 || rc=$?
if [ $rc != 1 ] || ! has "has checkpoints of job 'adamw': job 'another' needs a directory of its own" "$tmp/another.log"; then
    fail "$rc, $(cat "$tmp/another.log")"
fi
! ./cistern job another >/dev/null 2>&1 || fail "the job was made"

# A run that begins before the checkpoints of its directory is warned; the last step is saved although the save before is under way.
train adamw --steps 2 --save-dir "$tmp/adamw" --save-every 1
has 'has checkpoints of later steps, up to step-00000009' "$tmp/adamw.log" || fail "$(cat "$tmp/adamw.log")"
[ -e "$tmp/adamw/step-00000002" ] || fail "the last step was not saved: $(cat "$tmp/adamw.log")"

# A finished job is saved from outside; --keep removes older checkpoints; a step is saved once.
fresh_daemon
train ended
./cistern save ended "$tmp/outside" || fail "cistern save failed"
rc=0
./cistern save ended "$tmp/outside" 2>"$tmp/twice" || rc=$?
if [ $rc != 1 ] || ! has "checkpoint of step $steps already" "$tmp/twice"; then
    fail "a second save of one step: $rc, $(cat "$tmp/twice")"
fi
cp -r "$tmp/outside/step-0000000$steps" "$tmp/outside/step-00000001"
cp -r "$tmp/outside/step-0000000$steps" "$tmp/outside/step-00000002"
rm "$tmp/outside/step-00000002/model.safetensors"
rm -r "$tmp/outside/step-0000000$steps"
./cistern save ended "$tmp/outside" --keep 1
[ "$(ls "$tmp/outside")" = "step-0000000$steps" ] || fail "kept: $(ls "$tmp/outside")"

# What is wrong is named, and nothing is touched: the job begins with the loss of its own initial weights afterwards.
refused() {
    local what=$1 words=$2
    rc=0
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --job refused --resume "$what" "${@:3}" >"$tmp/refused.log" 2>&1 || rc=$?
    ! ./cistern job refused >/dev/null 2>&1 || fail "$what: a job without weights remains"
    if [ $rc = 0 ] || ! has "$words" "$tmp/refused.log"; then
        fail "$what: $rc, $(tail -n 2 "$tmp/refused.log")"
    fi
}
good=$tmp/outside/step-0000000$steps
for file in model.safetensors states-00001-of-00001.safetensors cistern.json; do
    rm -rf "$tmp/bad"
    cp -r "$good" "$tmp/bad"
    bytes=$(stat -c %s "$tmp/bad/$file")
    printf '\377' | dd of="$tmp/bad/$file" bs=1 seek=$((RANDOM % bytes)) conv=notrunc status=none
    cmp -s "$good/$file" "$tmp/bad/$file" || refused "$tmp/bad" "$file"
    cp "$good/$file" "$tmp/bad/$file"
    truncate -s -$((2 + RANDOM % 98)) "$tmp/bad/$file" # cistern.json is whole without its last newline
    refused "$tmp/bad" "$file"
    rm "$tmp/bad/$file"
    if [ $file = cistern.json ]; then
        refused "$tmp/bad" "no whole checkpoint"
    else
        refused "$tmp/bad" "$file"
    fi
done
rm -rf "$tmp/bad"
cp -r "$good" "$tmp/bad"
sed -i 's/"adam_step": 9/"adam_step": 8/' "$tmp/bad/cistern.json"
refused "$tmp/bad" "cistern.json was altered"
refused "$good" "tensor 'wte' has the shape 256x[0-9]* in the checkpoint and 256x128 in the job" --width 128
refused "$good" "is not in the job" --layers 1
refused "$good" "lion" --optimizer lion
refused "$good" "a model with 2 heads, --heads is 1" --heads 1
refused "$tmp/nowhere" "No such file"
refused "$tmp" "no whole checkpoint"

# A checkpoint that cannot be loaded leaves no job; a newer one that is torn is named when an older one is loaded.
rm "$tmp/bad/states-00001-of-00001.safetensors"
mkdir "$tmp/two"
cp -r "$good" "$tmp/two/step-0000000$steps"
mv "$tmp/bad" "$tmp/two/step-00000010"
rc=0
./cistern load "$tmp/two/step-00000010" unloaded 2>"$tmp/load.err" || rc=$?
if [ $rc != 1 ] || ! has "two/step-00000010: cistern.json was altered" "$tmp/load.err"; then
    fail "$rc, $(cat "$tmp/load.err")"
fi
cp "$good/cistern.json" "$tmp/two/step-00000010"
! ./cistern load "$tmp/two/step-00000010" unloaded 2>"$tmp/load.err" || fail "a torn checkpoint was loaded"
has "two/step-00000010: states-00001-of-00001.safetensors: No such file" "$tmp/load.err" || fail "$(cat "$tmp/load.err")"
! ./cistern job unloaded >/dev/null 2>&1 || fail "a load that failed left a job"
./cistern load "$tmp/two" unloaded 2>"$tmp/load.err" || fail "$(cat "$tmp/load.err")"
has "warning: step-00000010 is newer but not whole" "$tmp/load.err" || fail "$(cat "$tmp/load.err")"
./cistern rm unloaded
[ "$(./cistern checkpoints "$tmp/two" --json | jq -r 'map(.job) | join(" ")')" = "ended ended" ] || fail "$(./cistern checkpoints "$tmp/two")"

# A worker of another model, whose tensors have the same shapes, is refused.
rc=0
./cistern-gpt "${model[@]}" --data "$tmp/text" --job ended --heads 1 --steps 12 >"$tmp/heads.log" 2>&1 || rc=$?
if [ $rc != 1 ] || ! has "opened with another model" "$tmp/heads.log"; then
    fail "$rc, $(cat "$tmp/heads.log")"
fi

# A save that cannot write names the file and the reason, and the job stays as it was.
full() {
    local words=$1
    shift
    rc=0
    "$@" >"$tmp/full.log" 2>&1 || rc=$?
    if [ $rc != 1 ] || ! has "$words" "$tmp/full.log"; then
        fail "$*: $rc, $(cat "$tmp/full.log")"
    fi
    [ "$(./cistern checkpoints "$tmp/outside" --json | jq 'map(select(.whole)) | length')" = 1 ] || fail "$(./cistern checkpoints "$tmp/outside")"
}
# shellcheck disable=SC2016 # expanded by the inner shell
full 'safetensors: write at byte.*File too large' bash -c 'trap "" XFSZ; ulimit -f 100; exec ./cistern save ended "$0"' "$tmp/limited"
[ -z "$(ls -A "$tmp/limited")" ] || fail "a failed save left $(ls -A "$tmp/limited")"
full 'Not a directory' ./cistern save ended "$tmp/text/x"
if unshare -rm true 2>/dev/null; then
    mkdir "$tmp/small"
    # shellcheck disable=SC2016
    full 'No space left' unshare -rm bash -c 'mount -t tmpfs -o size=256k none "$0" && exec ./cistern save ended "$0"' "$tmp/small"
fi
./cistern save ended "$tmp/after" || fail "the job cannot be saved after failed saves"

# Saves that are killed at any moment leave the earlier checkpoint whole, and the next save removes what they left.
./cistern-gpt "${model[@]}" --data "$tmp/text" --job long --steps 100000 >"$tmp/long.log" 2>&1 &
pid=$!
managers+=("$pid")
until ./cistern job long --json 2>/dev/null | jq -e '.step > 0' >/dev/null; do
    kill -0 "$pid" 2>/dev/null || fail "the long run ended: $(cat "$tmp/long.log")"
done
./cistern save long "$tmp/killed" >/dev/null
first=$(ls "$tmp/killed")
for ((i = 0; i < ${CST_TEST_SAVES:-12}; i++)); do
    ./cistern save long "$tmp/killed" >/dev/null 2>&1 &
    victim=$!
    # The moment of the kill is random; nothing waits for it.
    perl -e 'select(undef, undef, undef, rand(0.03))' || true
    kill -9 "$victim" 2>/dev/null || true
    wait "$victim" 2>/dev/null || true
    ./cistern checkpoints "$tmp/killed" --check --json | jq -e 'all(.whole) and length > 0' >/dev/null || fail "after kill $i: $(./cistern checkpoints "$tmp/killed" --check)"
done
until ./cistern save long "$tmp/killed" >/dev/null 2>"$tmp/save.err"; do
    # The daemon may not have seen the end of the last killed process yet.
    has 'is being saved\|already' "$tmp/save.err" || fail "$(cat "$tmp/save.err")"
done
[ -e "$tmp/killed/$first" ] || fail "$first is gone"
[ -z "$(find "$tmp/killed" -name '.*.tmp')" ] || fail "left: $(find "$tmp/killed" -name '.*.tmp')"
./cistern rm --force long
wait "$pid" 2>/dev/null || true
printf 'all well\n'

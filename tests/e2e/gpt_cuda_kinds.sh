#!/usr/bin/env bash
# Adapters on a frozen base with cistern-gpt --device cuda, without a GPU (tests/lib/fakecuda): the same bits with all states in the
# GPU's memory and in the daemon, near those of the host; two jobs on one base.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
fake=$PWD/tests/lib/fakecuda/.libs
[ -e "$fake/libcuda.so.1" ] || skip "built without the driver that needs no GPU"
export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

steps=3
model=(--layers 3 --heads 2 --width 32 --context 16 --batch 4 --warmup 2 --lr 0.003 --quiet --steps "$steps")
gpu=(--device cuda --matmul plain)
for ((i = 0; i < 400; i++)); do
    printf 'and %d begat %d, and %d begat sons and daughters. ' $((i * i % 97)) $((i * 7 % 31)) $i
done >"$tmp/text"

# cistern-gpt with the options behind $1; leaves $1's losses and weights.
train() {
    local name=$1
    shift
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --loss-file "$tmp/$name.losses" --dump-weights "$tmp/$name.weights" "$@" \
        >>"$tmp/$name.log" 2>&1 || fail "$name: cistern-gpt failed"
}

# $1 left what $2 did.
same() {
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    printf '%s: same bits as %s\n' "$1" "$2"
}

# The losses of $1 are those of $2 but for the rounding, and change.
near() {
    [ "$(sort -u "$tmp/$1.losses" | wc -l)" = $steps ] || fail "$1: losses that do not change prove nothing"
    paste "$tmp/$1.losses" "$tmp/$2.losses" | while read -r a b; do
        printf '%.6f %.6f\n' "$a" "$b"
    done | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.005) { print "losses", $0; exit 1 } }' || fail "$1: far from $2"
}

start_daemon daemon --gpus all

lora=(--lora 4 --lora-alpha 8 --lr 0.03)
train lora.host --store local --matmul bf16 "${lora[@]}"
train lora "${gpu[@]}" --store local "${lora[@]}"
near lora lora.host
train lora.again "${gpu[@]}" --store local --recompute "${lora[@]}"
same lora.again lora
train lora.job "${gpu[@]}" --job base --pool 80% "${lora[@]}"
same lora.job lora

# A second job of other adapters on the same base, which it neither writes nor has of its own.
train tuned "${gpu[@]}" --store local --lora 8
train tuned.job "${gpu[@]}" --job tuned --base base --lora 8
same tuned.job tuned
stop_daemon daemon

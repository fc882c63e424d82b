#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests model files of other programs with cistern-gpt: a GPT-2 in the files of Hugging Face has the logits of an implementation
# in numpy (tests/outside/gpt2.py), trains, and is saved under its own names, from inside and from outside, in bf16 and fp32, and
# with adapters in PEFT's layout. Wrong sizes are refused. Text comes as tokens, and a part of it is for validation.
# make check-outside does the same with PyTorch, transformers and peft.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
python=${CST_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import numpy' 2>/dev/null || skip "no numpy for $python: NOTHING was compared with another implementation (Debian: python3-numpy)"
gpt2=$srcdir/tests/outside/gpt2.py
steps=20
lora=(--lora 4 --lora-alpha 6 --lr 0.02)

mkdir "$tmp/model" "$tmp/short"
"$python" "$gpt2" make "$tmp/model" transformer.
"$python" "$gpt2" make "$tmp/short" ""
start_daemon d --engine-threads 2

# Train job $1 for $2 steps with the options $3... Its logits go to $tmp/$1.logits.
train() {
    local job=$1 steps=$2
    shift 2
    ./cistern-gpt --data "$tmp/model/tokens" --tokens uint16 --batch 4 --threads 1 --matmul fp32 --lr 0.003 --warmup 2 --job "$job" \
        --steps "$steps" --dump-logits "$tmp/$job.logits" "$@" >"$tmp/$job.log" 2>&1 || fail "$job: $(tail -n 2 "$tmp/$job.log")"
}

# The logits of job $2 are those of the model in $1.
same() {
    "$python" "$gpt2" logits "$1" "$tmp/model/tokens" "$tmp/$2.logits" 1e-5 || fail "$2: other logits than $1"
}

# A new job has the logits of the files, whose names may lack the beginning.
train new 0 --init "$tmp/model"
same "$tmp/model" new
train measured 0 --init "$tmp/model" --validate 5%
has 'step 0/0  validation loss 7' "$tmp/measured.log" || fail "validation without steps: $(cat "$tmp/measured.log")"
has 'loaded 28 tensors from .*; ignored 2: lm_head.weight, transformer.h.0.attn.bias' "$tmp/new.log" || fail "$(cat "$tmp/new.log")"
train short 0 --init "$tmp/short"
cmp "$tmp/new.logits" "$tmp/short.logits" || fail "other logits without the beginning of the names"

# It trains, and what is saved has the logits of the trained model: from the worker, and from outside, in both formats.
train long $steps --init "$tmp/model" --validate 5% --validate-every 10 --save-dir "$tmp/inside" --save-every $steps
same "$tmp/inside/step-000000$steps" long
./cistern save long "$tmp/outside" --weights fp32
[ "$(jq -c '[.n_layer, .n_head, .n_embd, .n_positions, .vocab_size]' "$tmp/outside/step-000000$steps/config.json")" = '[2,4,64,32,777]' ] ||
    fail "config.json: $(cat "$tmp/outside/step-000000$steps/config.json")"
cmp "$tmp/outside/step-000000$steps/config.json" "$tmp/inside/step-000000$steps/config.json"
train again 0 --init "$tmp/inside/step-000000$steps"
cmp "$tmp/again.logits" "$tmp/long.logits" || fail "other logits after --init of what was saved"
train exact 0 --init "$tmp/outside/step-000000$steps"
cmp "$tmp/exact.logits" "$tmp/long.logits" || fail "other logits after --init of fp32 weights"
[ "$(grep -c 'validation loss' "$tmp/long.log")" = 2 ] || fail "validations: $(cat "$tmp/long.log")"
awk '/validation loss/ { loss[++n] = $NF } END { exit !(loss[2] < loss[1]) }' "$tmp/long.log" || fail "validation: $(cat "$tmp/long.log")"

# Adapters of the model in the file, and of a frozen job that other jobs share.
train lora $steps --init "$tmp/model" "${lora[@]}"
./cistern save lora "$tmp/lora"
same "$tmp/lora/step-000000$steps" lora
train shared $steps --init "$tmp/model" "${lora[@]}" --seed 3
train user $steps --base shared --layers 2 --width 64 --context 32 --vocab 777 "${lora[@]}"
./cistern save user "$tmp/user"
[ ! -e "$tmp/user/step-000000$steps/model.safetensors" ] || fail "the base model was saved with its adapters"
cp "$tmp/model"/model* "$tmp/user/step-000000$steps"
same "$tmp/user/step-000000$steps" user

# A trained model is the base of adapters.
./cistern load --frozen "$tmp/outside/step-000000$steps" trained
train onto $steps --base trained --layers 2 --width 64 --context 32 --vocab 777 "${lora[@]}"
./cistern save onto "$tmp/onto"
cp "$tmp/inside/step-000000$steps"/model* "$tmp/onto/step-000000$steps"
same "$tmp/onto/step-000000$steps" onto

# Tokens of four bytes are the same text.
"$python" -c 'import numpy, sys; numpy.fromfile(sys.argv[1], "<u2").astype("<u4").tofile(sys.argv[2])' "$tmp/model/tokens" "$tmp/tokens4"
train four 0 --init "$tmp/model" --data "$tmp/tokens4" --tokens uint32
cmp "$tmp/four.logits" "$tmp/new.logits" || fail "other logits from tokens of four bytes"

# What does not fit is named.
refused() {
    local words=$1 rc=0
    shift
    ./cistern-gpt --data "$tmp/model/tokens" --tokens uint16 --steps 0 --job refused "$@" >"$tmp/refused.log" 2>&1 || rc=$?
    ./cistern rm refused 2>/dev/null || true
    if [ $rc = 0 ] || ! has -e "$words" "$tmp/refused.log"; then
        fail "refused: $*: $rc, $(cat "$tmp/refused.log")"
    fi
}
refused '--layers 3: --init .* has 2' --init "$tmp/model" --layers 3
refused 'config.json' --init "$tmp"
refused 'the vocabulary has 256' --steps 1
refused 'only tokens that are bytes are text' --init "$tmp/model" --sample 5
cp -r "$tmp/model" "$tmp/bad"
jq '.layer_norm_epsilon = 1e-6' "$tmp/model/config.json" >"$tmp/bad/config.json"
refused 'layer_norm_epsilon is .*; cistern-gpt computes 1' --init "$tmp/bad"
jq '.vocab_size = 778' "$tmp/model/config.json" >"$tmp/bad/config.json"
refused 'wte.weight. has the shape 777x64, 778x64 is expected' --init "$tmp/bad"
cp "$tmp/model/config.json" "$tmp/bad"
truncate -s -1 "$tmp/bad/model-00002-of-00002.safetensors"
refused 'model-00002-of-00002.safetensors' --init "$tmp/bad"

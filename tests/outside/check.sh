#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-outside: models go from PyTorch, transformers and peft to cistern-gpt and back, with the same logits. The packages are
# installed from PyPI into outside-venv in the build tree (about 5 GiB, once), or CST_TEST_PYTHON names a Python that has them.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
python=${CST_TEST_PYTHON:-outside-venv/bin/python}
if [ -z "${CST_TEST_PYTHON-}" ] && ! "$python" -c 'import peft' 2>/dev/null; then
    python3 -m venv outside-venv || skip "no venv: NOTHING was compared with transformers"
    outside-venv/bin/pip install -q torch transformers peft numpy || skip "PyPI is out of reach: NOTHING was compared with transformers"
fi
"$python" -c 'import peft, torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)' ||
    skip "no torch, transformers and peft for $python: NOTHING was compared with transformers"
program=$srcdir/tests/outside/transformers_gpt2.py
steps=20

"$python" "$program" make "$tmp/model"
start_daemon d --engine-threads 2

# Train job $1 for $2 steps with the options $3... Its logits go to $tmp/$1.logits.
train() {
    local job=$1 n=$2
    shift 2
    ./cistern-gpt --init "$tmp/model" --data "$tmp/model/tokens" --tokens uint16 --batch 4 --threads 1 --matmul fp32 --lr 0.003 \
        --warmup 2 --job "$job" --steps "$n" --dump-logits "$tmp/$job.logits" "$@" >"$tmp/$job.log" 2>&1 ||
        fail "$job: $(tail -n 2 "$tmp/$job.log")"
}

# The logits of job $1 are those of the model in $2, with the adapters in $3 if it is given.
same() {
    "$python" "$program" logits "$2" "$tmp/model/tokens" "$tmp/$1.logits" 1e-5 "${@:3}" || fail "$1: other logits than $2 ${3-}"
}

train new 0
same new "$tmp/model"
train long $steps
for format in bf16 fp32; do
    ./cistern save long "$tmp/$format" --weights $format
done
same long "$tmp/bf16/step-000000$steps"
train exact 0 --init "$tmp/fp32/step-000000$steps"
same exact "$tmp/bf16/step-000000$steps"
train lora $steps --lora 4 --lora-alpha 6 --lr 0.02
./cistern save lora "$tmp/lora"
same lora "$tmp/model" "$tmp/lora/step-000000$steps"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job of PyTorch outlives the daemon whatever it was attached with: of random combinations of the options of `attach`, a run
# in whose middle the daemon is killed, restarted or replaced by another one has the losses and states of an undisturbed run, bit for bit,
# or the options were refused. CISTERN_PYTHON is an interpreter that has torch. CST_TEST_COMBINATIONS: how many. CST_TEST_SEED: seed of the
# options; CST_TEST_FIRST: the first combination to run of those of the seed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/disturbed.sh
. "${srcdir:-.}/tests/e2e/disturbed.sh"
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
torch_or_skip
need jq

export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1 PATH=$PWD:$PATH
export OMP_NUM_THREADS=1 CST_TEST_FOLDER=$tmp
program=$srcdir/tests/python/torch/options_rank.py
n_combinations=${CST_TEST_COMBINATIONS:-4}
first=${CST_TEST_FIRST:-0}
steps=30
base='' world=2

start_both_kinds

# Start rank $2 of the $3 of job $1 for the steps up to $4.
start_rank() {
    CISTERN_SOCKET=$CISTERN_SOCKET "$CISTERN_PYTHON" "$program" "$((seed + i))" "$1" "$2" "$3" "$4" "$tmp/$1.$2" >"$tmp/$1.$2.log" 2>&1 &
    workers[$2]=$!
    managers+=($!)
}

# Start job $1, first as one rank if it is to be reshaped. The status is that of this rank.
begin_job() {
    local rank
    workers=()
    if [[ $words == *reshaped=True* ]]; then
        start_rank "$1" 0 1 3
        wait "${workers[0]}" || return 1
        rm -f "$tmp/$1".*
    fi
    for ((rank = 0; rank < world; rank++)); do
        start_rank "$1" "$rank" "$world" "$steps"
    done
}

# Start rank $2 of job $1 again, which has died.
again_rank() {
    again=1 start_rank "$1" "$2" "$world" "$steps"
}

make_base() {
    start_rank "$base" 0 1 0
    wait "${workers[0]}"
}

for ((i = first; i < first + n_combinations; i++)); do
    RANDOM=$((seed + i))
    choose_disturbances
    about=$("$CISTERN_PYTHON" "$program" "$((seed + i))" - 0 1 0 -)
    base=
    [[ $about != *frozen=base* ]] || base=base
    run_combination "$about"
done
stop_both_kinds
end_combinations

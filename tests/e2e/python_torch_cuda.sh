#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests pools of cistern.torch on GPUs, tests/python/torch/cuda_pools.py, without a GPU (tests/lib/fakecuda). CISTERN_PYTHON is as in
# torch.sh.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
use_fakecuda
torch_or_skip

export srcdir CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error CST_FAKECUDA_DELAY_US=200
start_daemon torch --gpus all
timeout -k 5 $((wait_s * 10)) "$CISTERN_PYTHON" -m unittest discover -v -s "$srcdir/tests/python/torch" -p 'cuda_*.py' 2>&1 ||
    fail "tests of pools on GPUs"
stop_daemon torch

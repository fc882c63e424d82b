#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests models of PyTorch on a private daemon, tests/python/torch. CISTERN_PYTHON is an interpreter that has torch and transformers.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
[ -e .libs/libcistern.so.0 ] || skip "built without a shared library"
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "a sanitizer cannot be loaded into Python"
[ -n "${CISTERN_PYTHON-}" ] || skip "CISTERN_PYTHON names no interpreter that has torch"
"$CISTERN_PYTHON" -c 'import torch, transformers' 2>"$tmp/import.log" || skip "$CISTERN_PYTHON: $(tail -n 1 "$tmp/import.log")"

export srcdir CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1 PATH=$PWD:$PATH
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
start_daemon torch
timeout -k 5 $((wait_s * 60)) "$CISTERN_PYTHON" -m unittest discover -v -s "$srcdir/tests/python/torch" -p "${1:-test_*.py}" 2>&1 ||
    fail "tests of cistern.torch"
stop_daemon torch

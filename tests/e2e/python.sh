#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the Python client, tests/python, with the system's Python and a private daemon. Also tests that each test file of
# tests/python/torch belongs to one script.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
check_torch_files
[ -e .libs/libcistern.so.0 ] || skip "built without a shared library"
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "a sanitizer cannot be loaded into Python"
need python3
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "python3 is older than 3.10"

export srcdir CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1
start_daemon python
timeout -k 5 $((wait_s * 4)) python3 -m unittest discover -v -s "$srcdir/tests/python" -p 'test_*.py' 2>&1 || fail "tests of the Python client"
stop_daemon python

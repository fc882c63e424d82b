#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that kernels/cuda/kernels.c loads and launches every kernel: runs tests/gpu/check_kernels with the driver that needs no
# GPU.
set -euo pipefail
export LD_LIBRARY_PATH=$PWD/tests/lib/fakecuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
tests/gpu/check_kernels --no-speed --json "$out"
grep -q '"reduce bits": true.*"ok": true' "$out"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern.torch on a private daemon: processes that take the place of a rank that dies. The test files are those of "standby" in torch.sh. Arguments are what is run instead, such as
# test_store.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
run_torch_tests standby "$@"

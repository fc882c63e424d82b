#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern.torch with ranks on several nodes: two daemons on ports of this machine that have a link. The test files are those of
# "nodes" in torch.sh. Arguments are what is run instead, such as test_several_nodes.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/torch.sh
. "${srcdir:-.}/tests/e2e/torch.sh"
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
torch_or_skip
need jq
start_node a
start_node b
acquaint a b
export CISTERN_TEST_NODES="$tmp/a/run/cistern.sock $tmp/b/run/cistern.sock"
run_torch_tests nodes "$@"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that the ten lines of cistern-nodes(7) are true and complete: they are taken from the installed page, and run as they are on an
# administrator's machine, from which ssh reaches two nodes. All three have the installed tree, and the nodes run the service with all its
# restrictions. What the page wants to be there before is all that this test makes; ssh is a script that enters a node. Needs root.
# CST_TEST_EDIT: a sed script that changes the lines, so that one can see the test fail.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
# shellcheck source=tests/e2e/manager.sh
. "$srcdir/tests/e2e/manager.sh"
# shellcheck source=tests/e2e/machines.sh
. "$srcdir/tests/e2e/machines.sh"

# The lines in the section TWO NODES of the page $1.
ten_lines() {
    sed -n '/^\.SH "TWO NODES"/,/^\.SH/p' "$1" | sed -n '/^\.nf/,/^\.fi/p' | grep -v '^\.' | sed 's/\\-/-/g; s/\\e/\\/g'
}

# ssh [-n] USER@NODE COMMAND..., without a question. As ssh, it reads all of its standard input unless -n is given.
write_ssh() {
    {
        printf '#!/bin/bash\n'
        declare -p init_of machine_path
        declare -f on_machine
        # shellcheck disable=SC2016 # for the script
        printf 'if [ "$1" = -n ]; then shift; exec </dev/null; fi\nwhere=$1\nshift\n'
        # shellcheck disable=SC2016
        printf 'on_machine "${where#*@}" "$*" "${where%%@*}" < <(exec cat 2>/dev/null)\n'
    } >"$tmp/ssh/ssh"
    chmod +x "$tmp/ssh/ssh"
}

# Run the lines on the administrator's machine, as if they were pasted into a shell. In a mount namespace.
administrate() {
    make_files admin
    mkdir "$tmp/admin/root/run/ssh"
    mount --bind "$tmp/ssh" "$tmp/admin/root/run/ssh"
    mount --rbind /proc "$tmp/admin/root/proc"
    exec chroot "$tmp/admin/root" env -i HOME=/root PATH="/run/ssh:$machine_path" LC_ALL=C.UTF-8 bash <"$tmp/ssh/lines"
}
export -f administrate

says() {
    grep -qE -- "$1" "$tmp/out" || fail "the ten lines do not print '$1': $(cat "$tmp/out" "$tmp"/log/*)"
}

# -- before the lines --

mkdir "$tmp/ssh"
page=$(find "$stage" -name cistern-nodes.7)
ten_lines "$page" >"$tmp/lines"
[ "$(wc -l <"$tmp/lines")" = 10 ] || fail "not ten lines: $(cat "$tmp/lines")"
sed "${CST_TEST_EDIT-}" "$tmp/lines" >"$tmp/ssh/lines"
printf '127.0.0.1 localhost\n10.97.0.1 a\n10.97.0.2 b\n' >"$tmp/hosts"
write_text 400
for node in a b; do
    start_machine $node
    on_machine $node 'useradd -m -G cistern alice' root
    on_machine $node 'cat >text' alice <"$tmp/text"
done
join_machines a b
write_ssh

# -- the lines --

timeout $((4 * wait_s)) unshare --mount bash -euo pipefail -c administrate >"$tmp/out" 2>&1 ||
    fail "the ten lines: status $?: $(cat "$tmp/out" "$tmp"/log/*)"
says '^\[alice@a\] \[0\] done: 100 steps in '
says '^\[alice@b\] \[1\] done: 100 steps in '
losses=$(sed -n 's/.* done: 100 steps .*, loss \([0-9.]* -> [0-9.]*\),.*/\1/p' "$tmp/out" | uniq)
[[ $losses =~ ^[0-9.]+\ -\>\ [0-9.]+$ ]] || fail "the ranks have other losses: $losses"
says '^b +up '
says '^nodes +its members are this node and b \(epoch [0-9]+\)$'
says '^b +1 +yes +up '
! grep -iE 'error|failed|warning' "$tmp/out" || fail "the ten lines complain: $(cat "$tmp/out")"
for node in a b; do
    [ "$(on_machine $node 'systemctl is-enabled cisternd.service' root)" = enabled ] || fail "node $node does not start the service when it boots"
    [ "$(on_machine $node 'systemctl is-active cisternd.service' root)" = active ] || fail "the service of node $node does not run"
done
printf 'ten lines, two nodes: loss %s\n' "$losses"

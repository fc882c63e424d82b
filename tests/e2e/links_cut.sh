#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two nodes in network namespaces: the link between them is cut, which both notice in the stated time, whatever TCP knows, and comes back
# when it is mended. Needs root.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/link_lib.sh
. "$srcdir/tests/e2e/link_lib.sh"
need ip

# Two namespaces with one cable.
spaces=(cistern-$$-a cistern-$$-b)
remove_spaces() {
    local space
    for space in "${spaces[@]}"; do
        ip netns del "$space" 2>/dev/null || true
    done
}
trap 'status=$?; remove_spaces; (exit $status); finish' EXIT
ip netns add "${spaces[0]}" 2>/dev/null || skip "no network namespaces"
ip netns add "${spaces[1]}"
ip -n "${spaces[0]}" link add cable type veth peer name cable netns "${spaces[1]}" 2>/dev/null || skip "no veth"
i=0
for space in "${spaces[@]}"; do
    i=$((i + 1))
    ip -n "$space" address add "10.99.0.$i/24" dev cable
    ip -n "$space" link set cable up
done

# One listens at the address, the other one at the interface.
make_node a 10.99.0.1 </dev/null
make_node b 10.99.0.2 </dev/null
sed -i 's/^listen.*/listen = cable/' "$tmp/b/conf"
under=(ip netns exec "${spaces[0]}")
start_node a 1
under=(ip netns exec "${spaces[1]}")
start_node b 1
trust a b
trust b a
linked a b

# Cut and mend it twice: at one end, and at the other one.
for space in "${spaces[@]}"; do
    ip -n "$space" link set cable down
    poll is_in a b down
    poll is_in b a down
    ip -n "$space" link set cable up
    linked a b
done
for n in a b; do
    [ "$(grep -c 'the link is down: .*nothing has come for [56]\.[0-9] s' "$tmp/${n}1.log")" = 2 ] ||
        fail "not noticed in time, twice: $(grep 'the link is' "$tmp/${n}1.log")"
done
stop_daemon a1
stop_daemon b1

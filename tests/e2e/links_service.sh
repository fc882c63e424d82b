#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that the service with the drop-in nodes.conf, and all other restrictions of its unit, has links to other nodes; and that it has no
# network without it. A private systemd runs the units, as in restart.sh.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need systemd-sysusers
need systemd-tmpfiles
need ip
# shellcheck source=tests/e2e/manager.sh
. "$srcdir/tests/e2e/manager.sh"
# shellcheck source=tests/e2e/link_lib.sh
. "$srcdir/tests/e2e/link_lib.sh"

# The units, with the program and the configuration where the test has them.
write_units() {
    mkdir -p "$tmp/units/cisternd.service.d"
    cp systemd/*.socket "$tmp/units"
    sed -e 's|^ExecStart=.*|ExecStart=/run/bin/cisternd --config /run/etc/conf --gpus none|' \
        -e 's|^ExecReload=.*--check-config|ExecReload=/run/bin/cisternd --check-config /run/etc/conf|' systemd/cisternd.service >"$tmp/units/cisternd.service"
    printf '[Service]\nStandardError=append:%s\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n' "$tmp/cisternd.log" >"$tmp/units/cisternd.service.d/test.conf"
    write_test_unit sysinit basic sockets shutdown network-online nss-lookup
}

# Start the service as node a, and wait until it listens for others.
start_service() {
    systemctl daemon-reload
    systemctl start cisternd.socket cisternd-manager.socket cisternd.service
}

# True if both nodes have seen the service go and come back.
is_up_again() {
    [ "$(grep -c "node 'a': the link is up" "$tmp/b.log")" = 2 ]
}

# True if node b says $1 of the link to a.
is_told() {
    ./cistern --socket "$tmp/b/sock" node list | has "$1"
}

# In the namespaces: node a is the service, node b a daemon beside it.
inside() {
    mount -t tmpfs tmpfs /var/lib # of the service, not of the machine
    ip link set lo up
    mkdir /run/etc
    cp "$tmp/a/conf" "$tmp/a/node.key" "$tmp/a/node.crt" /run/etc
    sed -i -e "s|$tmp/a/node|/run/etc/node|" -e 's|^trusted.*|trusted = /var/lib/cistern/nodes|' /run/etc/conf
    chgrp cistern /run/etc/node.key
    chmod 640 /run/etc/node.key

    # Without the drop-in the service has no network, and says so.
    ! start_service 2>/dev/null || fail "the service has a network without nodes.conf"
    grep -q 'error: \[node\] listen: .*nodes.conf' "$tmp/cisternd.log" || fail "why does it not start? $(cat "$tmp/cisternd.log")"
    sed -i 's/^listen = .*/listen = lo/' /run/etc/conf
    ! start_service 2>/dev/null || fail "the service has interfaces without nodes.conf"
    grep -q 'error: \[node\] listen: the network interfaces .*nodes.conf' "$tmp/cisternd.log" || fail "why does it not start? $(cat "$tmp/cisternd.log")"
    sed -i 's/^listen = .*/listen = 127.0.0.1/' /run/etc/conf
    systemctl stop cisternd.service
    cp "$srcdir/systemd/nodes.conf" "$tmp/units/cisternd.service.d/"
    start_service
    ./cisternd --config "$tmp/b/conf" --socket "$tmp/b/sock" --manager-socket "$tmp/b/manager" --gpus none --host-memory 256M --pool-memory 64M 2>"$tmp/b.log" &
    poll test -S "$tmp/b/manager"
    ./cistern node add b "${node_address[b]}" "$(fingerprint b)"
    trust b a
    poll is_in b a up
    [ "$(stat -c %U /var/lib/cistern/nodes)" = cistern ] || fail "the list of nodes is not the service's"

    # The list outlives a restart, and a reload reads it.
    systemctl restart cisternd.service
    poll is_up_again
    sed -i 's/^b .*/# nobody/' /var/lib/cistern/nodes
    systemctl reload cisternd.service
    poll is_told 'no longer trusts'
    kill %1
    wait %1
}

make_user
make_node a 127.0.0.1 </dev/null
make_node b 127.0.0.2 </dev/null
write_units
: >"$tmp/test.out"
{
    unset NOTIFY_SOCKET DBUS_SESSION_BUS_ADDRESS
    export CISTERN_SOCKET=/run/cistern/cistern.sock HOME=$tmp
    export -p
    declare -p tmp wait_s managers node_address
    declare -f
    printf 'inside\n'
} >"$tmp/inside.sh"
export -f become_manager
export tmp srcdir manager
run_apart become_manager --uts --net --ipc &
managers+=($!)
ended=well
wait $! || ended=badly
cat "$tmp/test.out"
[ $ended = well ] || fail "see above: $(cat "$tmp/cisternd.log")"

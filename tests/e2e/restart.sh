#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a daemon which is killed repeatedly is started again each time, and that its sockets go on listening. A private
# systemd runs the installed units, except for paths, users, and the service's restrictions, which a user's manager cannot apply.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
need systemctl
need unshare

n_kills=7 # with a second between them; systemd's default allows fewer
manager=/lib/systemd/systemd
[ -x $manager ] || skip "no $manager"
unshare -m -p -f --mount-proc true 2>/dev/null || skip "no namespaces for mounts and processes"

write_units() {
    mkdir -p "$tmp/config/systemd/user"
    for unit in cisternd.socket cisternd-manager.socket; do
        sed -e "s|/run/cistern/|$tmp/run/|" -e '/^Socket\(User\|Group\)=/d' "systemd/$unit" >"$tmp/config/systemd/user/$unit"
    done
    # Keep only the settings that determine starts and restarts.
    grep -E '^(\[|#|$|Requires=|After=|StartLimit|Type=|Restart|Watchdog|Timeout|KillMode=)' systemd/cisternd.service |
        sed "s|^\[Service\]|&\nExecStart=$PWD/cisternd --config $tmp/empty.conf --gpus none|" >"$tmp/config/systemd/user/cisternd.service"
}

property() {
    systemctl --user show --value -p "$1" "$2"
}

# True if the service runs in another process than $1. Sets main_pid.
is_up() {
    [ "$(property ActiveState cisternd.service)" != failed ] || fail "the service has failed: $(property Result cisternd.service)"
    main_pid=$(property MainPID cisternd.service)
    [ "$(property ActiveState cisternd.service)" = active ] && [ "$main_pid" != 0 ] && [ "$main_pid" != "$1" ]
}

manager_answers() {
    systemctl --user show -p Version >/dev/null 2>&1
}

# In the namespaces: start a manager, open the sockets, kill the daemon.
inside() {
    mount -t tmpfs tmpfs /run # hides the machine's own manager
    mkdir -p /run/systemd/system /run/user/0
    export XDG_RUNTIME_DIR=/run/user/0 XDG_CONFIG_HOME=$tmp/config HOME=$tmp
    unset NOTIFY_SOCKET DBUS_SESSION_BUS_ADDRESS
    $manager --user >"$tmp/systemd.log" 2>&1 &
    poll manager_answers
    systemctl --user start cisternd.socket cisternd-manager.socket
    ./cistern ping >/dev/null || fail "the socket did not start the service"

    main_pid=0
    for ((i = 0; i < n_kills; i++)); do
        poll is_up "$main_pid"
        kill -KILL "$main_pid"
    done
    poll is_up "$main_pid"
    for unit in cisternd.socket cisternd-manager.socket; do
        [ "$(property ActiveState $unit)" = active ] || fail "$unit: $(property Result $unit)"
    done
    ./cistern ping >/dev/null || fail "no answer after $n_kills kills"
    CISTERN_SOCKET=$tmp/run/manager.sock ./cistern ping >/dev/null || fail "no answer to a manager after $n_kills kills"
    systemctl --user stop cisternd.socket cisternd-manager.socket cisternd.service
}

write_units
export -f fail property is_up manager_answers inside poll
export tmp n_kills wait_s manager
# All processes in the namespace end with its first one.
unshare -m -p -f --mount-proc bash -euo pipefail -c inside || fail "see above"

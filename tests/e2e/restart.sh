#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a daemon which is killed repeatedly is started again each time, that its sockets go on listening, and that its jobs go
# on with the same bits: after kills, a restart of the service, the watchdog, and a new binary. A private systemd runs the installed
# units, except for paths, users, and the service's restrictions, which a user's manager cannot apply. CST_TEST_KILLS: number of
# kills.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
need systemctl
need unshare

n_kills=${CST_TEST_KILLS:-7} # with a second between them; systemd's default allows fewer
steps=3000
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
manager=/lib/systemd/systemd
[ -x $manager ] || skip "no $manager"
unshare -m -p -f --mount-proc true 2>/dev/null || skip "no namespaces for mounts and processes"

write_units() {
    mkdir -p "$tmp/config/systemd/user"
    for unit in cisternd.socket cisternd-manager.socket; do
        sed -e "s|/run/cistern/|$tmp/run/|" -e '/^Socket\(User\|Group\)=/d' "systemd/$unit" >"$tmp/config/systemd/user/$unit"
    done
    # Keep only the settings that determine starts and restarts.
    grep -E '^(\[|#|$|Requires=|After=|StartLimit|Type=|Restart|Timeout|KillMode=|FileDescriptorStore|Environment=)' systemd/cisternd.service |
        sed "s|^\[Service\]|&\nWatchdogSec=2s\nExecStart=$tmp/cisternd --config $tmp/empty.conf --gpus none --engine $PWD/cistern-engine-host|" >"$tmp/config/systemd/user/cisternd.service"
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

# Train job $1; its weights go to $tmp/$1.weights.
train() {
    ./cistern-gpt --data "$tmp/text" --layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps "$steps" --matmul fp32 --threads 1 \
        --seed 7 --job "$1" --dump-weights "$tmp/$1.weights" >"$tmp/$1.log" 2>&1
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

    if [ -x ./cistern-gpt ]; then
        train undisturbed
        train killed &
        trainer=$!
    fi
    main_pid=0
    for ((i = 0; i < n_kills; i++)); do
        poll is_up "$main_pid"
        sleep "0.$(printf '%03d' $((RANDOM % 1000)))"
        kill -KILL "$main_pid"
    done
    poll is_up "$main_pid"
    systemctl --user restart cisternd.service
    poll is_up "$main_pid"
    kill -STOP "$main_pid" # until the watchdog ends it
    poll is_up "$main_pid"
    cp cisternd "$tmp/cisternd.new" # a new version of the program
    mv "$tmp/cisternd.new" "$tmp/cisternd"
    systemctl --user restart cisternd.service
    poll is_up "$main_pid"
    if [ -x ./cistern-gpt ]; then
        wait "$trainer" || fail "the training: $(tail -n 1 "$tmp/killed.log")"
        cmp "$tmp/undisturbed.weights" "$tmp/killed.weights" || fail "other weights after $n_kills kills"
        [ "$(./cistern jobs --json | grep -c '"name"')" = 2 ] || fail "$(./cistern jobs)"
    fi
    for unit in cisternd.socket cisternd-manager.socket; do
        [ "$(property ActiveState $unit)" = active ] || fail "$unit: $(property Result $unit)"
    done
    ./cistern ping >/dev/null || fail "no answer after $n_kills kills"
    CISTERN_SOCKET=$tmp/run/manager.sock ./cistern ping >/dev/null || fail "no answer to a manager after $n_kills kills"
    systemctl --user stop cisternd.service
    ./cistern jobs >"$tmp/jobs.txt" || fail "the socket did not start the service again"
    ! grep -q killed "$tmp/jobs.txt" || fail "a stopped service has its jobs again: $(cat "$tmp/jobs.txt")"
    systemctl --user stop cisternd.socket cisternd-manager.socket cisternd.service
}

cp cisternd "$tmp/cisternd"
write_text 400
write_units
RANDOM=$seed
export -f train fail property is_up manager_answers inside poll
export tmp n_kills wait_s manager steps
# All processes in the namespace end with its first one.
unshare -m -p -f --mount-proc bash -euo pipefail -c inside || fail "see above"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the unit for user sessions: a private manager of a user, in namespaces and a control group of its own, starts the daemon, whose
# jobs outlive a kill and a restart with the same bits, and which leaves nothing in the session's directory when it is stopped.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
# shellcheck source=tests/e2e/manager.sh
. "${srcdir:-.}/tests/e2e/manager.sh"
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --warmup 2 --lr 0.001 --min-lr 0.001 --matmul fp32 --threads 1 --seed 7)

property() {
    systemctl --user show --value -p "$1" cisternd.service
}

# True if the service runs in another process than $1. Sets main_pid.
is_up() {
    main_pid=$(property MainPID)
    [ "$(property ActiveState)" = active ] && [ "$main_pid" != 0 ] && [ "$main_pid" != "$1" ]
}

train() {
    begin "$1" 1 --steps "$2"
    end "$1"
}

# In the namespaces: start the manager, and train with the daemon.
inside() {
    local steps
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs tmpfs /run
    mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR" # systemctl looks for the first.
    env -i PATH="$PATH" HOME="$tmp" XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" SYSTEMD_UNIT_PATH="$tmp/units" "$manager" --user --unit=basic.target >"$tmp/manager.log" 2>&1 &
    poll systemctl --quiet --user start cisternd.service 2>"$tmp/start.log"
    is_up 0 || fail "the service does not run: $(property Result)"
    [ "$(stat -c '%a' "$XDG_RUNTIME_DIR/cistern")" = 700 ] || fail "others can look into the directory of the sockets"
    begin killed 1 --steps 1000000000
    poll has_stepped killed 1
    kill -KILL "$main_pid"
    poll is_up "$main_pid"
    poll has_stepped killed $(($(step_of killed) + 1))
    systemctl --user restart cisternd.service
    poll has_stepped killed $(($(step_of killed) + 1))
    kill "${workers[0]}"
    wait "${workers[0]}" || true
    steps=$(($(step_of killed) + 10))
    train killed "$steps"
    train undisturbed "$steps"
    cmp "$tmp/undisturbed.weights" "$tmp/killed.weights" || fail "other weights after a kill, a restart and $steps steps"
    systemctl --user stop cisternd.service
    [ ! -e "$XDG_RUNTIME_DIR/cistern" ] || fail "left behind: $(ls "$XDG_RUNTIME_DIR/cistern")"
    printf '%d steps, same bits\n' "$steps"
}

write_text 400
mkdir "$tmp/units"
printf '[Unit]\nDefaultDependencies=no\n' >"$tmp/units/basic.target"
cp "$tmp/units/basic.target" "$tmp/units/shutdown.target"
sed "s|^\(Exec[A-Za-z]*\)=[^ ]*/cisternd|\1=$PWD/cisternd|; s|^ExecStart=.*|& --engine-threads 2|" systemd/user/cisternd.service >"$tmp/units/cisternd.service"
XDG_RUNTIME_DIR=$tmp systemd-analyze --user verify --man=no "$tmp/units/cisternd.service" >"$tmp/verify.log" 2>&1 || fail "systemd-analyze verify failed"
[ ! -s "$tmp/verify.log" ] || fail "systemd-analyze verify has something to say"
export XDG_RUNTIME_DIR=/run/user/$UID
export CISTERN_SOCKET=$XDG_RUNTIME_DIR/cistern/cistern.sock
unset NOTIFY_SOCKET DBUS_SESSION_BUS_ADDRESS
{
    export -p
    declare -p tmp n_kills wait_s model managers manager
    declare -f
    echo inside
} >"$tmp/inside.sh"
run_apart ". $tmp/inside.sh" &
managers+=($!)
wait $! || fail "in the session"

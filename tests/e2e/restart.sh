#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a daemon which is killed repeatedly is started again each time, that its sockets go on listening, and that a training
# makes steps after each time and has the same bits at the end: after kills, a restart of the service, the watchdog, and a new
# binary; and that a stopped service loses its jobs. A private systemd, the first process of its own namespaces, runs the units with
# all their restrictions, which need the system's manager: a user's manager cannot apply most of them. Only the program's path and
# the watchdog's time differ. CST_TEST_KILLS: number of kills. CST_TEST_STORE: instead, the
# manager's store is filled to a limit of that many descriptors, or to the unit's own limit if that is lower.
CST_TEST_KILLS=${CST_TEST_KILLS:-20} # more than a second between two of them; systemd's default allows five in ten seconds
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
need systemd-sysusers
need systemd-tmpfiles
need jq
# shellcheck source=tests/e2e/manager.sh
. "${srcdir:-.}/tests/e2e/manager.sh"

# The learning rate does not depend on the number of steps.
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --warmup 2 --lr 0.001 --min-lr 0.001 --matmul fp32 --threads 1 --seed 7)

# The units of the service, the targets that units depend on by default, and a unit for the test, with which the manager ends. Of
# the machine's own units there are none.
write_units() {
    local watchdog=2s
    [ -z "${CST_TEST_STORE-}" ] || watchdog=10min # The manager takes minutes to fill its store.
    mkdir -p "$tmp/units/cisternd.service.d"
    cp systemd/*.socket "$tmp/units"
    sed 's|^ExecStart=[^ ]*|ExecStart=/run/bin/cisternd|' systemd/cisternd.service >"$tmp/units/cisternd.service"
    printf '[Service]\nWatchdogSec=%s\nStandardError=append:%s\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n' "$watchdog" "$tmp/cisternd.log" >"$tmp/units/cisternd.service.d/test.conf"
    [ -z "${CST_TEST_STORE-}" ] || write_store
    write_test_unit sysinit basic sockets shutdown
}

# When systemd passes descriptors on, their numbers reach twice their number, within the hard limit of open files.
write_store() {
    local most limit
    limit=$(sed -n 's/^FileDescriptorStoreMax=//p' systemd/cisternd.service)
    [ "$limit" -le "$CST_TEST_STORE" ] || limit=$CST_TEST_STORE
    most=$(ulimit -Hn)
    [ "$most" = unlimited ] || [ "$most" -ge $((2 * limit + 2000)) ] || {
        rmdir "$cgroup"
        skip "$most open files are too few for a store of $limit"
    }
    printf '[Service]\nFileDescriptorStoreMax=%d\nEnvironment=FDSTORE=%d\n' "$limit" "$limit" >"$tmp/units/cisternd.service.d/store.conf"
}

property() {
    systemctl show --value -p "$1" "$2"
}

# True if the service runs in another process than $1. Sets main_pid.
is_up() {
    [ "$(property ActiveState cisternd.service)" != failed ] || fail "the service has failed: $(property Result cisternd.service)"
    main_pid=$(property MainPID cisternd.service)
    [ "$(property ActiveState cisternd.service)" = active ] && [ "$main_pid" != 0 ] && [ "$main_pid" != "$1" ]
}

# The value of $1 in the status of the daemon.
status_of_daemon() {
    awk -v key="$1:" '$1 == key { print $2 }' "/proc/$main_pid/status"
}

# Start to train job $1 without an end.
begin_training() {
    [ -x ./cistern-gpt ] || return 0
    begin "$1" 1 --steps 1000000000
    poll has_stepped "$1" 1
}

# Train job $1 up to step $2; its weights go to $tmp/$1.weights.
train() {
    begin "$1" 1 --steps "$2"
    end "$1"
}

# End the service's process by the command $@ during a training: another process goes on with the training, which has lost no step and makes more.
disturb() {
    local before=0 after
    if [ -x ./cistern-gpt ]; then
        before=$(step_of killed)
        ! gone "${workers[0]}" || fail "the training ended before '$*'"
        [ "$before" -gt 0 ] || fail "there was no training before '$*'"
    fi
    "$@"
    poll is_up "$main_pid"
    if [ -x ./cistern-gpt ]; then
        after=$(step_of killed)
        [ "$after" -ge "$before" ] || fail "after '$*' the training is at step $after, not at $before"
        poll has_stepped killed $((after + 1))
    fi
}

replace_program() {
    cp cisternd /run/bin/cisternd.new
    mv /run/bin/cisternd.new /run/bin/cisternd
    systemctl restart cisternd.service
}

# The manager has started the service by its sockets, with the unit's restrictions and the sockets' owners.
check_service() {
    local seen
    ./cistern ping >/dev/null || fail "the socket did not start the service"
    is_up 0
    seen="$(status_of_daemon NoNewPrivs) $(status_of_daemon Seccomp) $(status_of_daemon CapBnd) $(stat -c %U "/proc/$main_pid")"
    [ "$seen" = "1 2 0000000000000000 cistern" ] || fail "the service is not restricted: $seen"
    [ ! -e "/proc/$main_pid/root$tmp" ] || fail "the service sees the machine's $tmp"
    seen=$(cd /run/cistern && stat -c '%n %U %G %a' cistern.sock manager.sock | tr '\n' ' ')
    [ "$seen" = "cistern.sock root cistern 660 manager.sock root root 600 " ] || fail "the sockets: $seen"
}

# The killed training is ended after some steps more, and has the weights of one that was not disturbed.
compare_weights() {
    local steps
    kill "${workers[0]}"
    wait "${workers[0]}" || true
    steps=$(($(step_of killed) + 10))
    train killed "$steps"
    train undisturbed "$steps"
    cmp "$tmp/undisturbed.weights" "$tmp/killed.weights" || fail "other weights after $n_kills kills and $steps steps"
    [ "$(./cistern jobs --json | jq length)" = 2 ] || fail "not two jobs: $(./cistern jobs)"
    printf '%d steps, same bits\n' "$steps"
}

# A service that is stopped loses its jobs. A worker that connects starts it again, and is told that its job is not there.
check_stop() {
    begin_training stopped
    systemctl stop cisternd.service
    if [ -x ./cistern-gpt ]; then
        ! wait "${workers[0]}" || fail "the training outlived the stop"
        has 'did not outlive the earlier daemon process' "$tmp/stopped.0.log" || fail "the worker does not say why it ended: $(tail -n 1 "$tmp/stopped.0.log")"
    fi
    [ "$(./cistern jobs --json | jq length)" = 0 ] || fail "a stopped service has its jobs again: $(./cistern jobs)"
    is_up "$main_pid" || fail "the socket did not start the service again"
    systemctl stop cisternd.socket cisternd-manager.socket
    [ "$(property ActiveState cisternd.service)" = inactive ] || fail "the service runs without its sockets"
    ! ./cistern ping 2>/dev/null || fail "an answer from a service that is stopped"
}

# In the namespaces: kill the daemon, and end it in all other ways.
inside() {
    local i unit
    if [ -n "${CST_TEST_STORE-}" ]; then
        fill_store
        return
    fi
    systemctl start cisternd.socket cisternd-manager.socket
    check_service
    begin_training killed
    for ((i = 0; i < n_kills; i++)); do
        sleep "0.$(printf '%03d' $((RANDOM % 1000)))" # the moment
        disturb kill -KILL "$main_pid"
    done
    disturb systemctl restart cisternd.service
    disturb kill -STOP "$main_pid" # until the watchdog ends it
    disturb replace_program
    [ ! -x ./cistern-gpt ] || compare_weights
    for unit in cisternd.socket cisternd-manager.socket; do
        [ "$(property ActiveState "$unit")" = active ] || fail "$unit: $(property Result "$unit")"
    done
    ./cistern ping >/dev/null || fail "no answer after $n_kills kills"
    CISTERN_SOCKET=/run/cistern/manager.sock ./cistern ping >/dev/null || fail "no answer to a manager after $n_kills kills"
    check_stop
}

# A daemon starts with as many descriptors as the manager's store may have, and serves. A job more is not kept, for a reason that names
# the limit. The names of the descriptors leave room in the environment.
fill_store() {
    local limit names took wait_s=$((wait_s * 20)) # Filling 9000 takes a minute or three.
    limit=$(property FileDescriptorStoreMax cisternd.service)
    cp tests/lib/fill_store /run/bin/cisternd
    systemctl start cisternd.socket cisternd-manager.socket cisternd.service
    is_up 0
    touch /run/cistern/fill
    poll test -e /run/cistern/filled
    stores "$limit" || fail "the store has $(property NFileDescriptorStore cisternd.service) of $limit descriptors"
    cp cisternd /run/bin/cisternd.new
    mv /run/bin/cisternd.new /run/bin/cisternd
    kill -KILL "$main_pid"
    poll is_up "$main_pid"
    ./cistern ping >/dev/null || fail "no answer from a daemon with $limit descriptors"
    grep -qzx "LISTEN_FDS=$((limit + 2))" "/proc/$main_pid/environ" || fail "not $limit descriptors and two sockets: $(tr '\0' '\n' <"/proc/$main_pid/environ" | grep LISTEN_FDS=)"
    names=$(grep -z LISTEN_FDNAMES= "/proc/$main_pid/environ" | wc -c)
    took=$(($(property ActiveEnterTimestampMonotonic cisternd.service) - $(property ExecMainStartTimestampMonotonic cisternd.service)))
    printf '%d descriptors, %d bytes of names, ready after %d ms\n' "$limit" "$names" $((took / 1000))
    [ "$names" -lt 131072 ] || fail "the names have $names bytes"
    if [ -x ./cistern-gpt ]; then
        train job 5
        has "FileDescriptorStoreMax= in cisternd.service" "$tmp/cisternd.log" || fail "the limit is not named: $(grep "job 'job'" "$tmp/cisternd.log")"
        grep -o "job 'job'.*FileDescriptorStoreMax= in cisternd.service" "$tmp/cisternd.log" | head -n 1
    fi
    kill -KILL "$main_pid"
    poll is_up "$main_pid"
    stores "$limit" || fail "$(property NFileDescriptorStore cisternd.service) of $limit descriptors after another kill"
}

stores() {
    [ "$(property NFileDescriptorStore cisternd.service)" = "$1" ]
}

make_user
write_text 400
write_units
: >"$tmp/test.out"
{
    unset NOTIFY_SOCKET DBUS_SESSION_BUS_ADDRESS
    export CISTERN_SOCKET=/run/cistern/cistern.sock HOME=$tmp
    export -p
    declare -p tmp n_kills wait_s model managers
    declare -f
    printf 'RANDOM=%s\ninside\n' "$seed"
} >"$tmp/inside.sh"
export -f become_manager
export tmp srcdir manager
run_apart become_manager --uts --net --ipc &
managers+=($!)
ended=well
wait $! || ended=badly
cat "$tmp/test.out"
[ $ended = well ]

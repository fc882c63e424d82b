# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # wait_s is assigned by lib.sh
# Functions of tests with a private systemd, in namespaces and a control group of its own. Sourced after lib.sh; skips the test where that
# is not possible.
need systemctl
need unshare
manager=/lib/systemd/systemd
[ -x $manager ] || skip "no $manager"
unshare --mount --pid --cgroup true 2>/dev/null || skip "no namespaces"
cgroups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)$(sed -n 's|^0::||p' /proc/self/cgroup)
cgroup=$cgroups/cistern-test-$$
mkdir "$cgroup" 2>/dev/null || skip "no cgroup of its own"

# Run the shell commands $1 in a control group of their own, and in the namespaces of the further options of unshare, until they end, or this
# process is told to end.
run_apart() {
    local status=0 pid
    echo $BASHPID >"$cgroup/cgroup.procs"
    unshare --mount --pid --cgroup --fork --mount-proc --kill-child=KILL "${@:2}" bash -euo pipefail -c "$1" &
    pid=$!
    trap 'kill -KILL $pid' TERM
    wait $pid || status=$?
    echo $BASHPID >"$cgroups/cgroup.procs"
    poll find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
    return $status
}

# For a manager of the system's units: files with the service's user, which become_manager uses.
make_user() {
    mkdir -p "$tmp/root/etc"
    cp /etc/passwd /etc/group "$tmp/root/etc"
    systemd-sysusers --root="$tmp/root" "$(realpath "$srcdir/systemd/sysusers.d/cistern.conf")" 2>"$tmp/sysusers.log" || fail "systemd-sysusers failed"
}

# Write to $tmp/units the targets $@, and a unit that runs $tmp/inside.sh, with which the manager ends. Its output goes to $tmp/test.out.
write_test_unit() {
    local target
    for target; do
        printf '[Unit]\nDefaultDependencies=no\n' >"$tmp/units/$target.target"
    done
    cat >"$tmp/units/test.service" <<UNIT
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
WorkingDirectory=$PWD
ExecStart=/bin/bash -euo pipefail $tmp/inside.sh
StandardOutput=append:$tmp/test.out
StandardError=inherit
TimeoutStopSec=5s
UNIT
}

# Make the service's user and its directory, hide what is the machine's, and become the manager.
become_manager() {
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys # a manager of a system changes settings of the kernel
    mount -t tmpfs tmpfs /run
    mount --bind "$tmp/root/etc/passwd" /etc/passwd
    mount --bind "$tmp/root/etc/group" /etc/group
    systemd-tmpfiles --create "$(realpath "$srcdir/systemd/tmpfiles.d/cistern.conf")"
    mkdir /run/bin
    cp cisternd cistern-engine-host /run/bin
    exec env -i container=test SYSTEMD_UNIT_PATH="$tmp/units" "$manager" --system --unit=test.service
}

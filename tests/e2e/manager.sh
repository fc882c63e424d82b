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

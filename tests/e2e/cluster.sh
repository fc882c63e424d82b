#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what is in cluster/ and docs/cluster.md: the commands of the page, the prolog and epilog of Slurm with stand-ins for its variables
# and for systemctl, the manifests of Kubernetes against the daemon's options and configuration, and the profile of AppArmor.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1 # Without it, tmp would be empty.
need jq
page=$srcdir/docs/cluster.md
uid=$(id -u)
PATH=$PWD:$PATH
manager=$tmp/run/manager.sock

mkdir "$tmp/etc"
printf '[job]\nmax_jobs = 7\n' >"$tmp/etc/base.conf"
cp "$tmp/etc/base.conf" "$tmp/etc/cistern.conf"
start_daemon d --config "$tmp/etc/cistern.conf"
job() { # Make the job $1, which is done.
    ./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
    cistern save example "$tmp/ck" >/dev/null 2>&1 || true
    cistern rm example >/dev/null
    cistern load "$tmp/ck" "$1" >/dev/null || fail "no job $1"
}

# -- the page --

[ "$(wc -l <"$page")" -le 150 ] || fail "docs/cluster.md is too long"

# The page has the command $1, and it works with this test's paths.
typed() {
    local command=$1
    grep -qxF "    $command" "$page" || fail "docs/cluster.md has no '$command'"
    command=${command//\/run\/cistern\/manager.sock/$manager}
    command=${command//\/etc\/cistern/$tmp/etc}
    command=${command//\/checkpoints/$tmp/saved}
    command=${command//cluster\//$srcdir/cluster/}
    bash -c "$command" >"$tmp/out" 2>"$tmp/err" || fail "$command: $(cat "$tmp/err")"
}
job run7
typed 'cistern quota --manager-socket /run/cistern/manager.sock'
typed 'cistern stat --json'
jq -e '.cgroup == null or (.cgroup | startswith("/"))' <"$tmp/out" >/dev/null || fail "no control group of the daemon: $(cat "$tmp/out")"
typed 'cistern job run7'
typed 'cisternd --check-config /etc/cistern/cistern.conf'
typed 'cistern rm run7'
if command -v apparmor_parser >/dev/null; then
    typed 'apparmor_parser -Q -K cluster/apparmor'
    sed 's/ipc_lock/ipc_clock/' "$srcdir/cluster/apparmor" >"$tmp/wrong"
    ! apparmor_parser -Q -K "$tmp/wrong" >/dev/null 2>&1 || fail "apparmor_parser takes nonsense"
fi

# The control group of a worker is that of its process.
if [ -x ./cistern-gpt ]; then
    write_text 100
    cistern-gpt --layers 1 --heads 1 --width 32 --context 16 --batch 1 --matmul fp32 --threads 1 --steps 1000000 --data "$tmp/text" --job works \
        >"$tmp/works.out" 2>&1 &
    worker=$!
    managers+=("$worker")
    works() { [ "$(cistern job works --json 2>/dev/null | jq .step)" -gt 0 ] 2>/dev/null; }
    poll works
    group=$(grep -E '^[0-9]+:([a-z,]+,)?memory(,[a-z,]+)?:' "/proc/$worker/cgroup" || grep '^0::' "/proc/$worker/cgroup" || true)
    if [ -n "$group" ]; then
        [ "$(cistern job works --json | jq -r '.ranks[0].cgroup')" = "${group#*:*:}" ] || fail "another control group than $group"
        cistern job works | has -xF "cgroup    from rank 0 on: ${group#*:*:}" || fail "no control group: $(cistern job works)"
    fi
    cistern rm works --force >/dev/null
fi

# -- Slurm --

export CISTERN_SLURM_ETC=$tmp/etc CISTERN_SLURM_STATE=$tmp/slurm CISTERN_SLURM_MANAGER=$manager CISTERN_SLURM_RELOAD="kill -HUP $daemon_pid"
slurm() { # $1: prolog or epilog; $2: number of the Slurm job; $3: uid
    SLURM_SCRIPT_CONTEXT=${1}_slurmd SLURM_JOB_ID=$2 SLURM_JOB_UID=$3 "$srcdir/cluster/slurm-prolog-epilog" >"$tmp/out" 2>"$tmp/err"
}

# Uid $1 has the limit of $2 percent on host memory; empty: no limit of its own.
has_limit() {
    local percent
    percent=$(sed -n "/^\\[quota uid:$1\\]/,/^\$/s/^host = //p" "$tmp/etc/cistern.conf")
    [ "$percent" = "$2" ] || fail "uid $1 has the limit '$percent', not '$2': $(cat "$tmp/etc/cistern.conf")"
}
limit_is() {
    cistern quota --json | jq -e ".[0].uses[] | select(.key == \"host\") | $1" >/dev/null
}
slurm prolog 41 "$uid" || fail "prolog: $(cat "$tmp/err")"
has_limit "$uid" 25%
total=$(cistern stat --json | jq .host_budget)
poll limit_is "(.limit - $total / 4) | fabs < 4097"
slurm prolog 42 "$uid"
slurm prolog 43 12345
has_limit "$uid" 50%
has_limit 12345 25%
grep -qx 'max_jobs = 7' "$tmp/etc/cistern.conf" || fail "base.conf is lost: $(cat "$tmp/etc/cistern.conf")"

# The epilog takes back what the Slurm job had, and leaves what other Slurm jobs of the user have.
job a.41
job b.42
job other
slurm epilog 41 "$uid" || fail "epilog: $(cat "$tmp/err")"
grep -q "^removed job 'a.41' of uid $uid at step 3" "$tmp/out" || fail "epilog: $(cat "$tmp/out" "$tmp/err")"
[ "$(cistern jobs --json | jq -r '[.[].name] | sort | join(" ")')" = "b.42 other" ] || fail "after the first: $(cistern jobs)"
has_limit "$uid" 25%
# A job that has gone since the epilog asked for the list is no failure. Another failure is told, and the rest is removed all the same.
cat >"$tmp/cistern" <<STANDIN
#!/bin/bash
[[ \$* != *'jobs' ]] || { $PWD/cistern "\$@" && echo "gone.45 $uid" && { [ ! -e $tmp/refuse ] || echo "0.45 $uid"; }; exit; }
[[ \$* != *'rm 0.45 '* ]] || { echo "cistern: refused" >&2; exit 1; }
exec $PWD/cistern "\$@"
STANDIN
chmod +x "$tmp/cistern"
job c.45
PATH=$tmp:$PATH slurm epilog 45 "$uid" || fail "the epilog fails for a job that has gone: $(cat "$tmp/err")"
grep -q "^removed job 'c.45'" "$tmp/out" || fail "epilog: $(cat "$tmp/out" "$tmp/err")"
: >"$tmp/refuse"
! PATH=$tmp:$PATH slurm epilog 45 "$uid" || fail "a failure is not told"
grep -q '^cistern: refused$' "$tmp/err" || fail "not why: $(cat "$tmp/err")"
grep -q '^cistern: epilog_slurmd of job 45: not removed: 0.45$' "$tmp/err" || fail "not what: $(cat "$tmp/err")"
rm "$tmp/cistern" "$tmp/refuse"
# Those of the last one go with it. Others' stay.
slurm epilog 42 "$uid"
[ "$(cistern jobs)" = "no jobs" ] || fail "after the last: $(cistern jobs)"
has_limit "$uid" ''
has_limit 12345 25%

# A wrong file changes nothing, and says why. Without Slurm's variables it does nothing.
cp "$tmp/etc/cistern.conf" "$tmp/before"
printf '[hots]\nmemory = 1G\n' >"$tmp/etc/base.conf"
! slurm prolog 44 "$uid" || fail "a wrong base.conf is taken"
grep -q 'cistern.conf.new:3: unknown section \[hots\]' "$tmp/err" || fail "not why: $(cat "$tmp/err")"
grep -q "^cistern: prolog_slurmd of job 44: .* is unchanged: correct $tmp/etc/base.conf" "$tmp/err" || fail "not what to do: $(cat "$tmp/err")"
cmp "$tmp/before" "$tmp/etc/cistern.conf" || fail "a wrong file takes the place of a right one"
! "$srcdir/cluster/slurm-prolog-epilog" 2>"$tmp/err" || fail "it works without Slurm"
grep -q 'SLURM_JOB_ID and SLURM_JOB_UID are not set: this is a script for Prolog= and Epilog= in slurm.conf' "$tmp/err" || fail "$(cat "$tmp/err")"

# -- Kubernetes --

if python3 -c 'import yaml' 2>/dev/null; then
    python3 - "$srcdir/cluster/kubernetes.yaml" "$tmp/k8s.conf" >"$tmp/k8s.options" <<'PYTHON' || fail "cluster/kubernetes.yaml"
import sys
import yaml

parts = {part["kind"]: part for part in yaml.safe_load_all(open(sys.argv[1]))}
assert set(parts) == {"ConfigMap", "DaemonSet", "Pod"}, parts.keys()
open(sys.argv[2], "w").write(parts["ConfigMap"]["data"]["cistern.conf"])
spec = parts["DaemonSet"]["spec"]["template"]["spec"]
worker = parts["Pod"]["spec"]
(daemon,) = spec["containers"]
assert parts["DaemonSet"]["spec"]["selector"]["matchLabels"] == parts["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
assert spec["hostPID"] is True
assert parts["DaemonSet"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
for of in spec, worker:  # Each mount has its volume.
    volumes = {volume["name"]: volume for volume in of["volumes"]}
    for container in of["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    assert volumes["socket"]["hostPath"]["path"] == "/run/cistern"
    assert {"name": "socket", "mountPath": "/run/cistern"} in of["containers"][0]["volumeMounts"]
command = daemon["command"]
assert command[0] == "cisternd" and command[command.index("--socket") + 1] == "/run/cistern/cistern.sock"
assert {"name": "config", "mountPath": command[command.index("--config") + 1].rsplit("/", 1)[0]} in daemon["volumeMounts"]
config = next(volume for volume in spec["volumes"] if volume["name"] == "config")
assert config["configMap"]["name"] == parts["ConfigMap"]["metadata"]["name"]
# The group of the socket is that of the daemon, and the worker is in it.
assert worker["securityContext"]["supplementalGroups"] == [daemon["securityContext"]["runAsGroup"]]
assert daemon["resources"]["limits"]["memory"] == daemon["resources"]["requests"]["memory"] == "61Gi"
for probe in daemon["readinessProbe"], daemon["livenessProbe"], daemon["lifecycle"]["preStop"]:
    print(*probe["exec"]["command"])
PYTHON
    sort -u "$tmp/k8s.options" | while read -r -a probe; do # Its options exist.
        [ "${probe[0]}" = cistern ] || fail "a probe that is no cistern: ${probe[*]}"
        cistern "${probe[@]:1}" --help >/dev/null || fail "${probe[*]}"
    done
    # The sections and keys are right; the sizes are for larger machines.
    sed -i 's/= [0-9]*G/= 64M/' "$tmp/k8s.conf"
    cisternd --check-config "$tmp/k8s.conf" || fail "the configuration in cluster/kubernetes.yaml"
fi
stop_daemon d

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# systemd has no complaint about the units, and little can be reached from inside the service.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
need systemd-analyze

max_exposure=35 # tenths

# The units as installed, but with the program of this build.
for unit in cisternd.service cisternd.socket cisternd-manager.socket; do
    sed "s|^ExecStart=[^ ]*|ExecStart=$PWD/cisternd|" "systemd/$unit" >"$tmp/$unit"
done
source=$(realpath "$srcdir/systemd")
cd "$tmp"
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say"
systemd-analyze security --offline=yes --threshold=$max_exposure ./cisternd.service >security.log 2>&1 ||
    fail "exposure above $max_exposure tenths"
tail -n 1 security.log

# The same with the drop-in for GPUs: it may reach more, but only by what it says.
mkdir cisternd.service.d
cp "$source/gpu.conf" cisternd.service.d/
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed with gpu.conf"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say about gpu.conf"
cd - >/dev/null

# The user and the directory are made from the files that are installed.
need systemd-sysusers
mkdir -p "$tmp/root/etc"
systemd-sysusers --dry-run --root="$tmp/root" "$(realpath "$srcdir/systemd/sysusers.d/cistern.conf")" >"$tmp/sysusers.log" 2>&1 ||
    fail "systemd-sysusers failed"
grep -q "cistern" "$tmp/sysusers.log" || fail "systemd-sysusers would make no user"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that systemd accepts the units, and that the service can access little of the system.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "no program is started that a sanitizer could watch"
need systemd-analyze

max_exposure=35 # tenths

# The installed units with the program of this build.
for unit in cisternd.service cisternd.socket cisternd-manager.socket cistern-metrics.service; do
    sed "s|^\(Exec[A-Za-z]*\)=[^ ]*/\(cisternd*\)|\1=$PWD/\2|" "systemd/$unit" >"$tmp/$unit"
done
cp "$srcdir/systemd/cistern-metrics.socket" "$tmp"
source=$(realpath "$srcdir/systemd")
cd "$tmp"
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say"
systemd-analyze security --offline=yes --threshold=$max_exposure ./cisternd.service >security.log 2>&1 ||
    fail "exposure above $max_exposure tenths"
tail -n 1 security.log

# The service of metrics, too.
systemd-analyze verify --man=no ./cistern-metrics.service ./cistern-metrics.socket >verify.log 2>&1 || fail "systemd-analyze verify failed"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say of the metrics"
systemd-analyze security --offline=yes --threshold=$max_exposure ./cistern-metrics.service >security.log 2>&1 ||
    fail "exposure above $max_exposure tenths"
tail -n 1 security.log

# With the drop-in for GPUs the service can access more, but only what the drop-in names.
mkdir cisternd.service.d
cp "$source/gpu.conf" cisternd.service.d/
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed with gpu.conf"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say about gpu.conf"
cp "$source/mps.conf" cisternd.service.d/
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed with mps.conf"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say about mps.conf"
# With that for links to other nodes it has a network, and no more.
rm cisternd.service.d/*
cp "$source/nodes.conf" cisternd.service.d/
systemd-analyze verify --man=no ./cisternd.service ./cisternd.socket ./cisternd-manager.socket >verify.log 2>&1 ||
    fail "systemd-analyze verify failed with nodes.conf"
[ ! -s verify.log ] || fail "systemd-analyze verify has something to say about nodes.conf"
cd - >/dev/null

# The installed files create the user and the directory.
need systemd-sysusers
mkdir -p "$tmp/root/etc"
systemd-sysusers --dry-run --root="$tmp/root" "$(realpath "$srcdir/systemd/sysusers.d/cistern.conf")" >"$tmp/sysusers.log" 2>&1 ||
    fail "systemd-sysusers failed"
grep -q "cistern" "$tmp/sysusers.log" || fail "systemd-sysusers would make no user"

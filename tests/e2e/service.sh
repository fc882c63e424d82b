#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cisternd as a service: readiness, exclusive use of its socket, socket activation, watchdog, and an end without remains.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1

# Print everything in the sockets' directory on one line.
traces() {
    (cd "$tmp/run" && find . -mindepth 1 | sort | tr '\n' ' ')
}

# The daemon sends READY=1 when it accepts requests. The sockets' modes exclude other users.
start_daemon first
./cistern ping >/dev/null || fail "a daemon that is ready does not answer"
[ "$(stat -c %a "$CISTERN_SOCKET")" = 660 ] || fail "the workers' socket has mode $(stat -c %a "$CISTERN_SOCKET")"
[ "$(stat -c %a "$tmp/run/manager.sock")" = 600 ] || fail "the manager's socket has mode $(stat -c %a "$tmp/run/manager.sock")"

# A second daemon on the socket is refused and names the first one, which is not affected.
if ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" >"$tmp/second.log" 2>&1; then
    fail "two daemons on one socket"
fi
grep -q "pid $daemon_pid" "$tmp/second.log" || fail "the second daemon does not say who holds the socket"
./cistern ping >/dev/null || fail "the first daemon was disturbed by the second"

# After SIGTERM there is no socket, lock or engine.
read -r -a engines < <(children "$daemon_pid") || true
stop_daemon first
[ -z "$(traces)" ] || fail "left behind: $(traces)"
for engine in "${engines[@]}"; do
    poll gone "$engine"
done

# After SIGKILL the socket is stale: the next daemon replaces it, and the old one's engines have ended.
start_daemon killed
read -r -a engines < <(children "$daemon_pid") || true
kill -KILL "$daemon_pid"
await killed SIGNAL=9
for engine in "${engines[@]}"; do
    poll gone "$engine"
done
[ -S "$CISTERN_SOCKET" ] || fail "this test needs a stale socket"
start_daemon successor
./cistern ping >/dev/null || fail "the successor does not answer"
stop_daemon successor
[ -z "$(traces)" ] || fail "left behind: $(traces)"

# A daemon that is started without standard files works, and ends in good order.
# shellcheck disable=SC2016 # the inner shell expands them
start closed sh -c 'exec ./cisternd --config "$1" --socket "$2" --gpus none <&- >&- 2>&-' sh "$tmp/empty.conf" "$CISTERN_SOCKET"
await closed READY=1
./cistern ping >/dev/null || fail "a daemon without standard files does not answer"
stop_daemon closed
[ -z "$(traces)" ] || fail "left behind: $(traces)"

# --check-config finds what a start or a reload would refuse, and starts nothing.
printf '[quota]\nhost = 10%%\n' >"$tmp/right.conf"
printf '[host]\nmemroy = 1G\n' >"$tmp/wrong.conf"
./cisternd --check-config --config "$tmp/right.conf" --socket "$CISTERN_SOCKET" >"$tmp/check.log" 2>&1 ||
    fail "--check-config refuses a right configuration: $(cat "$tmp/check.log")"
[ ! -s "$tmp/check.log" ] || fail "--check-config has something to say of a right configuration"
[ -z "$(traces)" ] || fail "--check-config left behind: $(traces)"
if ./cisternd --check-config --config "$tmp/wrong.conf" >"$tmp/check.log" 2>&1; then
    fail "--check-config accepts an unknown key"
fi
grep -q "wrong.conf:2: unknown key 'memroy' in \[host\]" "$tmp/check.log" || fail "--check-config does not name the unknown key"

# The daemon sends WATCHDOG=1 in time.
start watched --watchdog 400000 ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET"
await watched READY=1
await watched WATCHDOG=1
await watched WATCHDOG=1
stop_daemon watched

# Socket activation: the first connection starts the daemon and is answered. The socket files are systemd's and stay.
need systemd-socket-activate
start activated systemd-socket-activate --seqpacket -E NOTIFY_SOCKET -l "$CISTERN_SOCKET" -l "$tmp/run/manager.sock" \
    --fdname=cistern.sock:manager ./cisternd --config "$tmp/empty.conf" --socket "$tmp/run/unused.sock"
poll grep -q 'Listening on .*manager.sock' "$tmp/activated.log"
./cistern ping >/dev/null || fail "no answer through an activated socket"
await activated READY=1
CISTERN_SOCKET=$tmp/run/manager.sock ./cistern ping >/dev/null || fail "no answer through the activated manager's socket"
stop_daemon activated
[ "$(traces)" = "./cistern.sock ./manager.sock " ] || fail "after activation there is: $(traces)"

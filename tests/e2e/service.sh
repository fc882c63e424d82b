#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cisternd as a service: ready, alone on its socket, activated by it, watched, and gone without a trace.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

# Everything under the sockets' directory, one line.
traces() {
    (cd "$tmp/run" && find . -mindepth 1 | sort | tr '\n' ' ')
}

# It says READY=1 when it can be talked to; the sockets have the modes that keep strangers out.
start_daemon first
./cistern ping >/dev/null || fail "a daemon that is ready does not answer"
[ "$(stat -c %a "$CISTERN_SOCKET")" = 660 ] || fail "the workers' socket has mode $(stat -c %a "$CISTERN_SOCKET")"
[ "$(stat -c %a "$tmp/run/manager.sock")" = 600 ] || fail "the manager's socket has mode $(stat -c %a "$tmp/run/manager.sock")"

# A second daemon on the same socket is refused and names the first one, which does not notice.
if ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" >"$tmp/second.log" 2>&1; then
    fail "two daemons on one socket"
fi
grep -q "pid $daemon_pid" "$tmp/second.log" || fail "the second daemon does not say who holds the socket"
./cistern ping >/dev/null || fail "the first daemon was disturbed by the second"

# SIGTERM leaves nothing behind: no socket, no lock, no engine.
read -r -a engines < <(children "$daemon_pid") || true
stop_daemon first
[ -z "$(traces)" ] || fail "left behind: $(traces)"
for engine in "${engines[@]}"; do
    poll gone "$engine"
done

# After kill -9 the socket is stale: the next daemon takes it over, and the engines of the old one have ended.
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

# The watchdog is fed.
start watched --watchdog 400000 ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET"
await watched READY=1
await watched WATCHDOG=1
await watched WATCHDOG=1
stop_daemon watched

# Started by its sockets: the first connection starts it and is answered; the files are systemd's and stay.
need systemd-socket-activate
start activated systemd-socket-activate --seqpacket -E NOTIFY_SOCKET -l "$CISTERN_SOCKET" -l "$tmp/run/manager.sock" \
    --fdname=cistern.sock:manager ./cisternd --config "$tmp/empty.conf" --socket "$tmp/run/unused.sock"
poll grep -q 'Listening on .*manager.sock' "$tmp/activated.log"
./cistern ping >/dev/null || fail "no answer through an activated socket"
await activated READY=1
CISTERN_SOCKET=$tmp/run/manager.sock ./cistern ping >/dev/null || fail "no answer through the activated manager's socket"
stop_daemon activated
[ "$(traces)" = "./cistern.sock ./manager.sock " ] || fail "after activation there is: $(traces)"

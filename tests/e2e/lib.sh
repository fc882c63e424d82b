# shellcheck shell=bash
# Functions for the end-to-end scripts: a private daemon under a service manager for tests (tests/lib/notify_run), and its end.
# Sourced in the build tree; sets srcdir, the source tree.
set -euo pipefail

srcdir=${srcdir:-$(dirname "${BASH_SOURCE[0]}")/../..}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cistern-e2e.XXXXXX")
export CISTERN_SOCKET=$tmp/run/cistern.sock
mkdir "$tmp/run"
: >"$tmp/empty.conf"
# Longest wait in seconds, scaled as tests/lib/patience.h describes.
wait_s=$(awk -v m="${CK_TIMEOUT_MULTIPLIER:-1}" 'BEGIN { printf "%d", 30 * (m > 1 ? m : 1) }')
managers=()      # notify_run processes
under=()         # command that runs notify_run, and becomes it, such as "ip netns exec NAME"
declare -A heard # name -> descriptor with the output of its notify_run
declare -A manager_of

fail() {
    tail -n 30 "$tmp"/*.log >&2 || true
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# Skip a test that takes minutes under a sanitizer in sparse runs, because tests/gpt and the tests in C run its code.
not_sparse() {
    [ -z "${CST_TEST_SPARSE-}" ] || skip "a sparse run: this takes too long"
}

# True in sparse runs, which are those under sanitizers: scripts then try fewer of many kinds.
sparse() {
    [ -n "${CST_TEST_SPARSE-}" ]
}

# Let programs find the driver that needs no GPU.
use_fakecuda() {
    local fake=$PWD/tests/lib/fakecuda/.libs
    [ -e "$fake/libcuda.so.1" ] || skip "built without the driver that needs no GPU"
    export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# Write $1 sentences to learn from to $tmp/text.
write_text() {
    local i
    for ((i = 0; i < $1; i++)); do
        printf 'and %d begat %d, and %d begat sons and daughters. ' $((i * i % 97)) $((i * 7 % 31)) "$i"
    done >"$tmp/text"
}

# grep that only returns whether it found something. Unlike grep -q it reads all input, because the writer could be killed by a
# pipe without a reader.
has() {
    grep "$@" >/dev/null
}

# Set drive to a directory on a drive with O_DIRECT: that of the test, of the build, or /var/tmp. Empty: none of them is.
find_drive() {
    local dir
    drive=
    for dir in "$tmp" "$PWD" /var/tmp; do
        case $(stat -f -c %T "$dir") in tmpfs | ramfs | overlayfs) continue ;; esac
        if dd if=/dev/zero of="$dir/.cistern-direct.$$" bs=4096 count=1 oflag=direct 2>/dev/null; then
            drive=$dir
        fi
        rm -f "$dir/.cistern-direct.$$"
        [ -z "$drive" ] || break
    done
}

# Set cisternd to a daemon for which each file is on a drive of its own. Only `make check` builds it: one of an older library is refused.
use_drives_daemon() {
    # shellcheck disable=SC2034 # for the caller
    cisternd=./tests/lib/drives_daemon
    [ "$cisternd" -nt libcst_daemon.la ] || fail "$cisternd is older than libcst_daemon.la: make ${cisternd#./}"
}

need() {
    command -v "$1" >/dev/null || skip "no $1"
}

# True if process $1 is a child of the script that has not ended. The number of one that has may be another process's by now.
is_child() {
    grep -q "^PPid:[[:space:]]*$$\$" "/proc/$1/status" 2>/dev/null
}

finish() {
    local status=$? pid fd
    for fd in "${heard[@]}"; do
        cat <&"$fd" >/dev/null & # A full pipe would keep the manager from its signals.
    done
    for pid in "${managers[@]}"; do
        is_child "$pid" || continue
        kill -TERM "$pid" 2>/dev/null || true
        # One that a test has stopped. To others, SIGCONT would do harm: it takes from LeakSanitizer the SIGSTOP with which it looks at
        # a process that ends.
        ! grep -q '^State:.*stopped' "/proc/$pid/status" 2>/dev/null || kill -CONT "$pid" 2>/dev/null || true
    done
    for pid in "${managers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT

# Run the command $2... under notify_run as $1. Its standard error goes to $tmp/$1.log.
start() {
    local name=$1 fd
    shift
    mkfifo "$tmp/$name.heard"
    "${under[@]}" ./tests/lib/notify_run "$@" >"$tmp/$name.heard" 2>"$tmp/$name.log" &
    manager_of[$name]=$!
    managers+=($!)
    exec {fd}<"$tmp/$name.heard"
    rm "$tmp/$name.heard"
    heard[$name]=$fd
}

# Read the messages to $1's manager up to a line that matches the pattern $2. Sets line. Earlier lines are dropped.
await() {
    while read -r -t "$wait_s" -u "${heard[$1]}" line; do
        # shellcheck disable=SC2053 # a pattern
        if [[ $line == $2 ]]; then
            return 0
        fi
    done
    fail "$1: no '$2' within $wait_s s"
}

# Start a daemon as $1 with the other arguments as options, without GPUs by default, and wait until it is ready. Sets daemon_pid.
start_daemon() {
    local name=$1
    shift
    start "$name" ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" --gpus none "$@"
    await "$name" 'PID=*'
    # shellcheck disable=SC2034 # for the caller
    daemon_pid=${line#PID=}
    await "$name" READY=1
}

# Send $1 the signal to end, and check that its status is 0.
stop_daemon() {
    kill -TERM "${manager_of[$1]}"
    await "$1" 'EXIT=*'
    [ "$line" = EXIT=0 ] || fail "$1 ended with $line"
}

# Pids of the children of process $1.
children() {
    cat "/proc/$1/task/$1/children"
}

# Wait until the command $@ succeeds.
poll() {
    local deadline=$((SECONDS + wait_s))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "not within $wait_s s: $*"
        sleep 0.01
    done
}

# True if process $1 has ended, even if it was not reaped.
gone() {
    [ ! -e "/proc/$1" ] || grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null || [ ! -e "/proc/$1" ]
}

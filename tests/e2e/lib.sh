# shellcheck shell=bash
# What the end-to-end scripts share: a private daemon under a service manager of our own (tests/lib/notify_run), and its end. Sourced;
# the current directory is the build tree and $srcdir the source tree.
set -euo pipefail

srcdir=${srcdir:-.}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cistern-e2e.XXXXXX")
export CISTERN_SOCKET=$tmp/run/cistern.sock
mkdir "$tmp/run"
: >"$tmp/empty.conf"
# Longest wait for anything, scaled as tests/lib/patience.h says.
wait_s=$(awk -v m="${CK_TIMEOUT_MULTIPLIER:-1}" 'BEGIN { printf "%d", 30 * (m > 1 ? m : 1) }')
managers=()      # notify_run processes
declare -A heard # name -> descriptor with what its notify_run hears
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

# What takes minutes under a sanitizer, where tests/gpt and the tests in C meet the same code.
not_sparse() {
    [ -z "${CST_TEST_SPARSE-}" ] || skip "a sparse run: this takes too long"
}

# Programs find the driver that needs no GPU.
use_fakecuda() {
    local fake=$PWD/tests/lib/fakecuda/.libs
    [ -e "$fake/libcuda.so.1" ] || skip "built without the driver that needs no GPU"
    export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# $1 sentences to learn from, in $tmp/text.
write_text() {
    local i
    for ((i = 0; i < $1; i++)); do
        printf 'and %d begat %d, and %d begat sons and daughters. ' $((i * i % 97)) $((i * 7 % 31)) "$i"
    done >"$tmp/text"
}

# grep, for what it finds alone; unlike grep -q it reads all, or who writes could be killed by a pipe that nobody reads.
has() {
    grep "$@" >/dev/null
}

need() {
    command -v "$1" >/dev/null || skip "no $1"
}

finish() {
    local status=$? pid
    for pid in "${managers[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in "${managers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT

# Run the command $2... under notify_run as $1; its standard error goes to $tmp/$1.log.
start() {
    local name=$1 fd
    shift
    mkfifo "$tmp/$name.heard"
    ./tests/lib/notify_run "$@" >"$tmp/$name.heard" 2>"$tmp/$name.log" &
    manager_of[$name]=$!
    managers+=($!)
    exec {fd}<"$tmp/$name.heard"
    rm "$tmp/$name.heard"
    heard[$name]=$fd
}

# Read what $1's manager hears up to a line that matches the pattern $2; sets line. Earlier lines are gone.
await() {
    while read -r -t "$wait_s" -u "${heard[$1]}" line; do
        # shellcheck disable=SC2053 # a pattern
        if [[ $line == $2 ]]; then
            return 0
        fi
    done
    fail "$1: no '$2' within $wait_s s"
}

# Start a daemon as $1, without GPUs unless the options that follow say otherwise, and wait until it is ready; sets daemon_pid.
start_daemon() {
    local name=$1
    shift
    start "$name" ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" --gpus none "$@"
    await "$name" 'PID=*'
    # shellcheck disable=SC2034 # for the caller
    daemon_pid=${line#PID=}
    await "$name" READY=1
}

# Tell $1 to end and expect it to do so with status 0.
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

# True when process $1 is no more, or only waits to be reaped.
gone() {
    [ ! -e "/proc/$1" ] || grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null || [ ! -e "/proc/$1" ]
}

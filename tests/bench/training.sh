# shellcheck shell=bash
# Functions for the benchmarks that train: a private daemon, a text, workers, medians. Sourced with the arguments of the script in
# the build tree. Sets out and tmp; the script sets model, the options of all workers. Starts a daemon with default settings,
# unless the script sets daemons=own before.
set -euo pipefail
srcdir=${srcdir:-$(dirname "${BASH_SOURCE[0]}")/../..}

if [ $# -ne 2 ] || [ "$1" != --json ]; then
    printf 'usage: %s --json FILE\n' "$0" >&2
    exit 2
fi
out=$2
tmp=$(mktemp -d "${TMPDIR:-/tmp}/bench-${0##*/}.XXXXXX")
daemon=
export CISTERN_SOCKET=$tmp/cistern.sock

# The status of the script is $1, by default that of the command before.
finish() {
    local status=${1-$?}
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT

# Print $1; with BENCH_SMALLEST in the environment, print $2: every benchmark then makes its shortest run, which shows that it still works. Its
# figures mean nothing.
sized() {
    if [ -n "${BENCH_SMALLEST-}" ]; then
        printf '%s\n' "$2"
    else
        printf '%s\n' "$1"
    fi
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    tail -n 5 "$tmp"/*.log >&2
    exit 1
}

median() {
    sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# The number of the field $1 in each line of the JSON on standard input that has it.
numbers() {
    sed -n "s/.*\"$1\": *\\([0-9.eE+-]*\\).*/\\1/p"
}

# Print what `cistern-engine-host --rates` measures, which takes seconds. The shortest runs share one measurement in the file BENCH_RATES, if
# the environment has it.
engine_rates() {
    if [ -z "${BENCH_SMALLEST-}" ] || [ -z "${BENCH_RATES-}" ]; then
        ./cistern-engine-host --rates
    else
        [ -s "$BENCH_RATES" ] || ./cistern-engine-host --rates >"$BENCH_RATES"
        cat "$BENCH_RATES"
    fi
}

# Train as job $1 with $2 ranks; the other arguments go to every worker. The step times of rank 0 go to $tmp/$1.json.
train() {
    local job=$1 world=$2 rank pids=()
    shift 2
    for ((rank = 0; rank < world; rank++)); do
        # shellcheck disable=SC2154 # the script's
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$job" --rank "$rank" --world "$world" \
            --log-json "$tmp/$job.$rank.json" "$@" >"$tmp/worker$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank of $job failed"
    done
}

# The largest number of sequences, from $1 to $2, with which a step of the model on $3 ranks takes at most $4 seconds with its
# states in the process. Slow processors get less to compute, so a step takes about equally long everywhere.
fit_batch() {
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --batch "$2" --steps 3 --world "$3" --store local --quiet --log-json "$tmp/fit.log.json" >"$tmp/fit.log" 2>&1 ||
        fail "cistern-gpt --store=local failed"
    numbers seconds <"$tmp/fit.log.json" | tail -n +2 | median | awk -v least="$1" -v most="$2" -v limit="$4" '
        { n = int(most * limit / $1); print (n < least ? least : n > most ? most : n) }'
    rm "$tmp/fit.log.json"
}

# Print one line of output: name, value, unit, yardstick, runs.
emit() {
    awk -v name="$1" -v v="$2" -v unit="$3" -v y="$4" -v n="$5" 'BEGIN {
        printf "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"yardstick\": %.6g, \"ratio\": %.4f, \"runs\": %d}\n",
            name, v, unit, y, (y != 0 ? v / y : 0), n }' >>"$out"
}

# Write text that exists wherever this runs: the sources of this tree, a few MB.
while [ "$(stat -c %s "$tmp/text" 2>/dev/null || echo 0)" -lt 1000000 ]; do
    find "${srcdir:-.}" -name '*.[ch]' -exec cat {} + >>"$tmp/text"
done

# Start the daemon with a configuration file whose text is $1.
start_daemon() {
    local i
    printf '%s\n' "$1" >"$tmp/cistern.conf"
    ./cisternd --config "$tmp/cistern.conf" --socket "$CISTERN_SOCKET" --log-level warning >"$tmp/cisternd.log" 2>&1 &
    daemon=$!
    for ((i = 0; ; i++)); do
        ./cistern ping >/dev/null 2>&1 && break
        if [ $i -ge 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
            fail "the daemon does not answer"
        fi
        sleep 0.05
    done
}

stop_daemon() {
    kill "$daemon"
    wait "$daemon" || fail "the daemon failed"
    daemon=
}

# The field $2 of the daemon's statistics of job $1.
of_job() {
    ./cistern job "$1" --json | numbers "$2" | head -n 1
}

# Step times of all runs of $1, without the first step of each.
times() {
    local file
    for file in "$tmp/$1".*.json; do
        numbers seconds <"$file" | tail -n +2
    done
}

if [ "${daemons-one}" != own ]; then
    start_daemon ""
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that every benchmark of tests/bench runs, in its shortest form (BENCH_SMALLEST), and writes rows that tests/bench/run can read.
# Times mean nothing here. `make bench-programs` builds the programs.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need jq
for program in tests/bench/bench_update tests/bench/bench_plan_scale tests/lib/predict; do
    [ -x "$program" ] || skip "no $program: make bench-programs"
done

bench=$(realpath "$srcdir/tests/bench")
export BENCH_SMALLEST=1 BENCH_RATES=$tmp/rates.json CISTERN_PYTHON=${CISTERN_PYTHON-} SAVE_DIR=$tmp
# Scripts find the source tree from their own place, as in a build tree of a user.
unset srcdir

has_torch() {
    [ -n "$CISTERN_PYTHON" ] && [ -e .libs/libcistern.so.0 ]
}

# Run the benchmark at $1 with the options that it needs. Rows go to $tmp/rows.
run() {
    case ${1##*tests/bench/} in
    bench_update) "$1" --params 65536 --runs 1 --json "$tmp/rows" ;;
    bench_neighbour) "$1" --json "$tmp/rows" unread ;;
    bench_hoard) "$1" --json "$tmp/rows" connections ;;
    worker) BASE=. "$1" --json "$tmp/rows" ;;
    collectives) PYTHON=${CISTERN_PYTHON:-python3} "$1" 1 ;;
    run) (cd "$tmp" && ln -sf "$(type -P true)" nothing && "$1" nothing) ;;
    schedules) ! has_torch || "$1" --json "$tmp/rows" ;;
    attach) ! has_torch || "$1" --layers 1 --pool 8M ;;
    handover) ! has_torch || "$1" --layers 1 ;;
    peers/run) ! has_torch || PEERS_PYTHON=$CISTERN_PYTHON "$1" --params 65536 --rounds 1 --rivals '' --json "$tmp/rows" ;;
    peers/train)
        ! has_torch || PEERS_PYTHON=$CISTERN_PYTHON "$1" --layers 12 --width 64 --length 16 --steps 1 --rounds 1 --rivals fsdp --json "$tmp/rows"
        ;;
    peers/disk)
        find_drive
        ! has_torch || [ -z "$drive" ] || PEERS_PYTHON=$CISTERN_PYTHON TMPDIR=$drive "$1" --layers 12 --width 64 --length 16 --steps 1 --rounds 1 --rivals '' --json "$tmp/rows"
        ;;
    instructions) ;; # It needs a build for another processor: tests/aarch64 --instructions runs it.
    *) "$1" --json "$tmp/rows" ;;
    esac
}

for program in tests/bench/bench_* $(find "$bench" -type f -perm -u+x ! -name '*.py' | sort); do
    case $program in
    *.o) continue ;;
    esac
    : >"$tmp/rows"
    run "$program" >"$tmp/out.log" 2>&1 || fail "$program: exit status $?"
    jq -e -n '[inputs | (.name | type == "string") and (.value | type == "number")] | all' "$tmp/rows" >/dev/null ||
        fail "$program wrote rows that cannot be read: $(cat "$tmp/rows")"
    printf '%s: %d rows\n' "${program##*tests/bench/}" "$(wc -l <"$tmp/rows")"
done

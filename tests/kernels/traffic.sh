#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the bytes that updates and sums move: the lines that a simulated cache (valgrind's cachegrind), which holds tiles but
# no row, loads per parameter, compared with the rows that one pass must access. The simulation does not use the engines'
# counters, and reveals a second pass over any row.
set -euo pipefail

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

command -v valgrind >/dev/null || skip "no valgrind"
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "built with a sanitizer, which does not run under valgrind"

export LC_ALL=C
cachegrind=(valgrind --tool=cachegrind --cache-sim=yes --cachegrind-out-file=/dev/null "--I1=32768,8,64" "--D1=32768,8,64" "--LL=524288,16,64")
"${cachegrind[@]}" true >/dev/null 2>&1 || skip "valgrind does not run here"
params=524288
out=$(mktemp)
trap 'rm -f "$out" "$out.err"' EXIT

# Run $1 in the simulation. Prints the reads and writes that missed the cache, and traffic's output: isa, read, only_written,
# counted.
run() {
    "${cachegrind[@]}" tests/kernels/traffic "$1" "$params" >"$out" 2>"$out.err" || {
        cat "$out" "$out.err"
        printf 'FAILED: %s\n' "$1"
        exit 1
    }
    read -r isa read only_written counted <"$out"
    read -r read_misses write_misses < <(tr -d , <"$out.err" | sed -n 's/.*LLd misses: .*( *\([0-9]*\) rd *+ *\([0-9]*\) wr).*/\1 \2/p')
}

run nothing
at_rest_read=$read_misses at_rest_write=$write_misses
status=0
for what in fp32 bf16 mx8 fused reduce twice; do
    run "$what"
    awk -v what="$what" -v isa="$isa" -v read="$read" -v only="$only_written" -v counted="$counted" -v params="$params" \
        -v reads=$((read_misses - at_rest_read)) -v writes=$((write_misses - at_rest_write)) '
        function near(x, y) { return x > 0.98 * y && x < 1.02 * y }
        BEGIN {
            reads *= 64 / params
            writes *= 64 / params
            good = near(reads, read) && near(writes, only)
            printf "%s: %s, bytes of lines per parameter: %.2f for reading (rows: %g), %.2f for writing (%g), %.2f in all; counted as read and written: %g%s\n",
                what, isa, reads, read, writes, only, reads + writes, counted, good ? "" : " FAILED"
            exit !good
        }' || status=1
done
exit $status

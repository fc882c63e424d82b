#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the factor for the tests' time limits: it is a whole number with limits, larger if many processes share the processors,
# and used by scripts.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1

calibrate=tests/lib/calibrate

for words in "" 0 -1 x 2x 1025 "1 2"; do
    status=0
    # shellcheck disable=SC2086 # words
    $calibrate $words >"$tmp/out" 2>"$tmp/err" || status=$?
    [ "$status" -eq 2 ] || fail "calibrate $words: status $status"
    [ ! -s "$tmp/out" ] || fail "calibrate $words prints something"
    has '^usage: calibrate' <"$tmp/err" || fail "calibrate $words says $(cat "$tmp/err")"
done

in_bounds() {
    [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -ge 4 ] && [ "$1" -le 32 ]
}

one=$($calibrate 1)
in_bounds "$one" || fail "alone: $one"

# Forty processes per processor take at least ten times as long as two.
many=$($calibrate $(($(nproc) * 40)))
in_bounds "$many" || fail "forty processes to a processor: $many"
[ "$many" -gt 4 ] || fail "forty processes to a processor: $many"

waits() {
    CK_TIMEOUT_MULTIPLIER=$1 bash -c '. "$srcdir/tests/e2e/lib.sh"; printf "%s\n" "$wait_s"'
}
export srcdir
[ "$(waits 1)" = 30 ] || fail "a limit of 30 s times 1 is $(waits 1)"
[ "$(waits 2.5)" = 75 ] || fail "a limit of 30 s times 2.5 is $(waits 2.5)"
[ "$(waits 0.1)" = 30 ] || fail "a limit of 30 s times 0.1 is $(waits 0.1)"

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # lib.sh sets tmp, and the script that sources this one command
# What a command of cistern prints. The script that sources this one sets the array command, the words before the arguments.

# Run the command with the arguments $2...; its exit status is $1. Its output goes to $tmp/out and $tmp/err.
expect() {
    local want=$1 got=0
    shift
    ./cistern "${command[@]}" "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || fail "cistern ${command[*]} $*: exit status $got, expected $want: $(cat "$tmp/err")"
}

# A line of the output matches $1.
says() {
    grep -qE -- "$1" "$tmp/out" || fail "no '$1' in: $(cat "$tmp/out")"
}

# A line of the error, which is short, matches $1.
complains() {
    grep -qE -- "$1" "$tmp/err" || fail "no '$1' in: $(cat "$tmp/err")"
    [ "$(wc -l <"$tmp/err")" -le 2 ] || fail "more than two lines: $(cat "$tmp/err")"
}

# The output is JSON for which $1 is true.
holds() {
    jq -e "$1" <"$tmp/out" >/dev/null || fail "not '$1': $(cat "$tmp/out")"
}

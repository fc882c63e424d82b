# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # lib.sh sets tmp and wait_s
# Wrong uses and their remedies. A row of the script that sources this one is a call of wrong, and one of remedy (a command that must
# succeed now) or of said (the same, and the error names it).

n_wrong=0
n_remedies=0

# The command $3... ends with status $1, and its short error matches $2.
wrong() {
    local want=$1 pattern=$2 got=0
    shift 2
    [ $n_wrong = $n_remedies ] || fail "no remedy before: $*"
    n_wrong=$((n_wrong + 1))
    uses=$*
    timeout "$wait_s" "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || fail "$uses: exit status $got, expected $want: $(cat "$tmp/err")"
    grep -qE -- "$pattern" "$tmp/err" || fail "$uses: no '$pattern' in: $(cat "$tmp/err")"
    [ "$(wc -l <"$tmp/err")" -le 3 ] || fail "$uses: a long error: $(cat "$tmp/err")"
}

remedy() {
    n_remedies=$((n_remedies + 1))
    timeout "$wait_s" "$@" >"$tmp/out" 2>"$tmp/remedy" || fail "the remedy of '$uses' fails: $*: $(cat "$tmp/remedy")"
}

# The error has the words $*, which are a command.
said() {
    grep -qF -- "$*" "$tmp/err" || fail "$uses: no '$*' in: $(cat "$tmp/err")"
    PATH=.:$PATH remedy "$@"
}

# There are $1 wrong uses or more, each with its remedy.
all_tried() {
    [ $n_wrong -ge "$1" ] || fail "only $n_wrong wrong uses are left"
    [ $n_wrong = $n_remedies ] || fail "$n_wrong wrong uses, $n_remedies remedies"
    printf '%d wrong uses with remedies that work\n' $n_wrong
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that cistern-gpt ends with one line that names the error if it cannot work, and leaves nothing in the daemon.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"

# Check that cistern-gpt with the options $3... ends with status $1 and one line that contains $2, and that no job is left.
refuses() {
    local want=$1 words=$2 status=0
    shift 2
    ./cistern-gpt --job refused --layers 1 --heads 1 --width 32 --context 32 --batch 1 --steps 1 --threads 1 "$@" \
        >"$tmp/out" 2>"$tmp/gpt.log" || status=$?
    [ "$status" = "$want" ] || fail "cistern-gpt $*: status $status"
    [ "$(wc -l <"$tmp/gpt.log")" = 1 ] || fail "cistern-gpt $*: more than a line, or none"
    grep -qF -- "$words" "$tmp/gpt.log" || fail "cistern-gpt $*: does not say '$words'"
    [ "$(./cistern jobs --json)" = "[]" ] || fail "cistern-gpt $*: a job is left"
}

: >"$tmp/empty"
printf 'thirty-two bytes of text, not 33' >"$tmp/tiny"
printf 'a text of more than thirty-two bytes.' >"$tmp/text"
start_daemon d

refuses 2 "$tmp/missing" --data "$tmp/missing"
refuses 2 "$tmp/empty" --data "$tmp/empty"
refuses 2 "has 0 bytes" --data "$tmp/empty"
refuses 2 "need 33" --data "$tmp/tiny"
refuses 2 "not a regular file" --data "$tmp"
refuses 2 "--layers" --data "$tmp/text" --layers 0
refuses 1 " short" --data "$tmp/text" --pool 4096
if [ "$(id -u)" != 0 ]; then # tests/gpt/input drops root's rights
    chmod 000 "$tmp/text"
    refuses 1 "$tmp/text': Permission denied" --data "$tmp/text"
fi
CISTERN_ISA=avx3 refuses 2 "CISTERN_ISA is 'avx3'" --data "$tmp/text"

# oneDNN uses only the instructions that CISTERN_ISA allows.
for isa in plain:SSE4.1 avx2:AVX2; do
    grep -q ' avx2' /proc/cpuinfo || continue
    CISTERN_ISA=${isa%:*} ONEDNN_VERBOSE=1 ./cistern-gpt --store local --layers 1 --heads 1 --width 32 --context 32 --batch 1 --steps 1 --threads 1 \
        --data "$tmp/text" >"$tmp/out" 2>&1 || fail "with CISTERN_ISA=${isa%:*}: $(cat "$tmp/out")"
    has "isa:Intel ${isa#*:}\$" <"$tmp/out" || fail "with CISTERN_ISA=${isa%:*} oneDNN says: $(grep isa: "$tmp/out")"
done
stop_daemon d

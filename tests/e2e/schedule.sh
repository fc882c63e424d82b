#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern schedule: schedules by name, the CSV and the JSON of them, files that are verified, and errors.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/expect.sh
. "${srcdir:-.}/tests/e2e/expect.sh"
need jq

command=(schedule)

# The step of 4 ranks and 8 micro-batches is that of the closed forms.
expect 0 1f1b --stages 4 --micro-batches 8
says '^schedule +1f1b: 4 ranks, 4 stages, 8 micro-batches$'
says '^step +33 times as long as .* ranks wait 27\.3 % of it$'
says '^0 +0 +4 +16$'
expect 0 1f1b --stages 4 --micro-batches 8 --recompute
says '^step +44 '
expect 0 early --stages 4 --micro-batches 8
says '^step +39 '
expect 0 shifted --stages 4 --micro-batches 8
says '^step +38 '
says '^2 +2 +3 +24$'
expect 0 interleaved --stages 8 --ranks 4 --micro-batches 8
says '^1 +1 5 +'

expect 0 interleaved --stages 20 --ranks 2 --micro-batches 4
says '^1 +1 3 5 7 9 11 13 15 and 2 +'

# What is written is read again; the CSV has no repeated forward passes, the JSON has them.
expect 0 shifted --stages 2 --micro-batches 4 --output "$tmp/list.csv" --json
holds '.ranks[0] == ["0F0", "0F1", "0F2", "0R0", "0B0", "0R1", "0B1", "0F3", "0R2", "0B2", "0R3", "0B3"]'
holds '.stages == [{rank: 0, in_flight: 3, recompute: true}, {rank: 1, in_flight: 1, recompute: false}]'
holds '.makespan == 16 and .micro_batches == 4'
printf '0F0,0F1,0F2,0B0,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n' | cmp - "$tmp/list.csv" || fail "another list: $(cat "$tmp/list.csv")"
expect 0 check "$tmp/list.csv"
says '^legal +yes'
./cistern schedule shifted --stages 2 --micro-batches 4 -o - | cmp - "$tmp/list.csv" || fail "standard output has another list"
./cistern schedule check - <"$tmp/list.csv" | has '^legal +yes' -E || fail "standard input is not read"

# Lists that are wrong, with the rank and the action, and files that are none.
sed 's/0B0,0B1,0F3/0B1,0B0,0F3/' "$tmp/list.csv" >"$tmp/swapped.csv"
expect 1 check "$tmp/swapped.csv"
complains "^cistern: $tmp/swapped.csv: rank 0: 0B1 uses another message than rank 1 sends next"
sed 's/,1B3//' "$tmp/list.csv" >"$tmp/dropped.csv"
expect 1 check "$tmp/dropped.csv"
complains 'rank 1: 1B3 is missing$'
printf '0F0,0SEND_F0\n' >"$tmp/comms.csv"
expect 1 check "$tmp/comms.csv"
complains "row 1, cell 2: '0SEND_F0': PyTorch adds this action itself"
head -c 3000 /dev/urandom >"$tmp/noise.csv"
expect 1 check "$tmp/noise.csv"
expect 1 check "$tmp/none.csv"
complains "none.csv: No such file"
expect 1 check "$tmp"

# Command lines that are wrong, with what is right.
expect 1 2f2b --stages 2 --micro-batches 4
complains "^cistern: no schedule '2f2b'; there are gpipe, 1f1b, interleaved, zb-h1, early, shifted\$"
expect 1 1f1b --stages 4 --ranks 2 --micro-batches 4
complains 'it has one stage per rank; interleaved and zb-h1 can have more'
expect 1 interleaved --stages 8 --ranks 4 --micro-batches 11
complains 'wanted a multiple of the rounds \(2\), such as 8'
expect 1 1f1b --stages 2 --micro-batches 4 --output "$tmp/none/list.csv"
complains "No such file"
expect 2 1f1b --stages 2
complains 'needs --stages N and --micro-batches N'
expect 2 check
expect 2 1f1b "$tmp/list.csv" --stages 2 --micro-batches 4
expect 2 check "$tmp/list.csv" --stages 2
expect 2 1f1b --stages 2 --micro-batches 4 --batch 2
complains 'schedule does not take --batch'

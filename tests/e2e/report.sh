#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern report and the trace of a run: the page has all its sections, its figures are those of the run, and it needs nothing
# outside of itself. A browser without a window reads it as it was written.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need python3
words=$srcdir/tests/lib/page_words.py
page=$tmp/report.html
steps=24
world=2

# Train job $1 with the options $2...
train() {
    local job=$1 rank pids=()
    shift
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt --layers 3 --heads 2 --width 64 --context 16 --batch 4 --threads 1 --data "$tmp/text" --world $world --rank $rank \
            --job "$job" --steps $steps --pool 80% --quiet --log-json "$tmp/steps$rank.json" "$@" >"$tmp/gpt$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || fail "rank $rank of $job failed"
    done
}

write_text 400
start_daemon d
train run7
is_done() {
    ./cistern job run7 --json | jq -e '.state == "done"' >/dev/null
}
poll is_done
./cistern report run7 -o "$page"
! ./cistern report nothing -o "$tmp/none.html" 2>"$tmp/err" || fail "a report of no job"
grep -q nothing "$tmp/err" || fail "said: $(cat "$tmp/err")"
[ ! -e "$tmp/none.html" ] || fail "a failure wrote a page"
! ./cistern report run7 -o "$tmp/no/where" 2>"$tmp/err" || fail "a report to nowhere"
grep -q no/where "$tmp/err" || fail "said: $(cat "$tmp/err")"

# The words of the page, without its numbers.
python3 "$words" <"$page" >"$tmp/words" 2>"$tmp/marks" || fail "the page: $(cat "$tmp/marks")"
diff -u "$srcdir/tests/e2e/report.words" "$tmp/words" || fail "the page has other words than tests/e2e/report.words"

# The losses and the tokens are those that the worker told of.
loss=$(jq -r 'select(.step == 3) | .loss' "$tmp/steps0.json")
table=$(tr -d '\n' <"$page" | grep -o '<td>3</td><td>[^<]*</td><td>[^<]*</td>')
awk -v a="$loss" -v b="$(cut -d'>' -f4 <<<"$table" | cut -d'<' -f1)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-6) }' ||
    fail "step 3 has the loss $loss, the page says $table"
grep -q '<h2>Tokens per second</h2>' "$page" || fail "the page has no tokens"

# Parts of a step's time sum up to it.
tr -d '\n' <"$page" | grep -o '<title>step 5, rank 1: [^<]*</title>' >"$tmp/parts"
awk -F'[(]' '{ sum += $2 } END { exit !(NR >= 2 && sum > 96 && sum < 104) }' "$tmp/parts" || fail "not 100 %: $(cat "$tmp/parts")"

# The trace has the job's name, what ranks computed, their waits for commits, and counters that end with 0. Each interval has
# the number of the step in whose time it ended.
./cistern trace run7 -o "$tmp/trace.json"
holds() {
    jq -e "$1" <"$tmp/trace.json" >/dev/null || fail "not '$1': $(head -c 2000 "$tmp/trace.json")"
}
holds '[.traceEvents[] | select(.name == "process_name") | .args.name] | contains(["run7", "rank 0", "rank 1", "node 0"])'
holds '[.traceEvents[] | select(.cat == "compute")] | length > 0 and all(.args.bytes > 0 and (.name | startswith("compute ")))'
holds '[.traceEvents[] | select(.cat == "commit")] | length > 0 and all(.args.step >= 1 and .args.step <= '$steps')'
holds '[.traceEvents[] | select(.ph == "C") | .name] | unique == ["bytes in use", "commands at work", "commands that wait"]'
holds '[.traceEvents[] | select(.ph == "C")] | group_by([.pid, .name]) | all(all(.args.value >= 0) and .[-1].args.value == 0)'
# shellcheck disable=SC2016 # variables of jq
holds '[.traceEvents[] | select(.cat == "step") | {step: .args.step, from: .ts, to: (.ts + .dur)}] as $steps
    | [.traceEvents[] | select(.ph == "X" and .cat != "step") | (.ts + .dur) as $until | .args.step as $number
       | ($steps[] | select(.from < $until - 0.01 and $until < .to - 0.01) | .step == $number)] | length > 100 and all'

# A job whose workers give no tokens or losses has a page, too, and so has one without a step.
./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
./cistern report example >"$page.example"
python3 "$words" <"$page.example" >"$tmp/words.example" 2>&1 || fail "the page: $(cat "$tmp/words.example")"
grep -qx 'h2: Steps per second' "$tmp/words.example" || fail "said: $(cat "$tmp/words.example")"

# What a browser makes of the page has the same words in the same order. (/tmp can be too small for the browser's own memory.)
if command -v chromium >/dev/null; then
    timeout $((4 * wait_s)) chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/chromium" \
        --dump-dom "file://$page" >"$tmp/dom" 2>"$tmp/chromium.err" || fail "chromium: $(tail -n 5 "$tmp/chromium.err")"
    python3 "$words" <"$tmp/dom" >"$tmp/dom.words" 2>"$tmp/dom.marks" || fail "the DOM: $(cat "$tmp/dom.marks")"
    diff -u "$tmp/words" "$tmp/dom.words" || fail "a browser reads other words"
    diff -u "$tmp/marks" "$tmp/dom.marks" || fail "a browser reads other marks"
else
    printf 'skipped: what a browser makes of the page: no chromium\n'
fi
stop_daemon d

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the cistern command with a daemon and a job: every command, as text and as JSON, its exit status, its completion.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need jq

# Run `cistern $@`, and check that its exit status is $1.
expect() {
    local want=$1 got=0
    shift
    ./cistern "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || fail "cistern $*: exit status $got, expected $want: $(cat "$tmp/err")"
}

# Check that the last output matches the pattern $1.
says() {
    grep -qE -- "$1" "$tmp/out" || fail "no '$1' in: $(cat "$tmp/out")"
}

complains() {
    grep -qE -- "$1" "$tmp/err" || fail "no '$1' in: $(cat "$tmp/err")"
    [ ! -s "$tmp/out" ] || fail "a failure printed: $(cat "$tmp/out")"
}

# Check that the last output is JSON for which the filter $1 is true.
holds() {
    jq -e "$1" <"$tmp/out" >/dev/null || fail "not '$1': $(cat "$tmp/out")"
}

# Without a daemon the error is one line that names the socket.
for command in stat jobs "job x" "explain x y" "rm x" "trace x" "report x" ping; do
    # shellcheck disable=SC2086 # words
    expect 1 $command
    complains "^cistern: .*$CISTERN_SOCKET"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "more than a line: $(cat "$tmp/err")"
done
expect 1 stat --socket "$tmp/other.sock"
complains "$tmp/other.sock"
expect 0 version
says '^cistern [0-9]'

# A wrong command line is refused.
for line in "" "frobnicate" "stat x" "job" "job a b" "explain a" "stat --uid 0" "rm x --watch" "ping --count 0" "ping -c x" \
    "stat --watch=-1" "stat --frob" "stat -o x" "trace" "report" "report x --json" "probe x" "stat --disk x" "rm x --uid -1" "rm x --uid 4294967296"; do
    # shellcheck disable=SC2086 # words
    expect 2 $line
    complains "Try 'cistern --help'"
done
expect 0 --help
says '^Usage: cistern'
says '^  plan '
expect 0 help
says '^  plan '

# A command's help has its options, and no others. An unknown word is named, with a similar known one.
for line in "plan --help" "--help plan" "help plan"; do
    # shellcheck disable=SC2086 # words
    expect 0 $line
    says '^Usage: cistern .* plan MODEL$'
    says '^ +--device SIZE '
    ! grep -q -- --uid "$tmp/out" || fail "help of plan has --uid"
done
expect 0 rm --help
says '^ +--uid UID '
! grep -q -- --device "$tmp/out" || fail "help of rm has --device"
expect 2 help frobnicate
complains 'no such command: frobnicate'
expect 2 plna x
complains 'there is no command plna: did you mean plan\?'
expect 2 plan --devcie 4G x
complains 'there is no option --devcie: did you mean --device\?'
expect 2 stat --disk x
complains 'stat does not take --disk'
expect 2 job
complains '0 arguments given, job takes NAME'

# A write error gives an exit status that is not 0.
for line in --help --version version; do
    ! ./cistern "$line" >/dev/full 2>"$tmp/err" || fail "cistern $line: a full disk is not noticed"
    : >"$tmp/out"
    complains '^cistern: cannot write: '
done

start_daemon d --manager-socket "$tmp/run/manager.sock"
expect 0 jobs
says '^no jobs$'
expect 0 jobs --json
holds '. == []'
expect 0 stat
says '^cisternd  '
says '^host 0 '
says "^rates +built in \\('cistern probe' measures this machine\\)\$"

# A standard output that is closed is a write error, too: its number is not that of the socket, which would get the text.
! ./cistern stat >&- 2>"$tmp/err" || fail "a closed standard output is not noticed"
: >"$tmp/out"
complains '^cistern: cannot write: Bad file descriptor$'

# A worker evaluates between its steps, and sends hints for weights: none of them is missed, and the block of each evaluation is
# evicted.
./tests/lib/example_eval >"$tmp/eval.out" || fail "the example of an evaluation: $?"
grep -q '^step 3: probe [0-9a-f]' "$tmp/eval.out" || fail "the evaluation printed: $(cat "$tmp/eval.out")"
grep -Eq '^hits [0-9]+, late [0-9]+, misses [0-9]+, evictions [3-9]' "$tmp/eval.out" ||
    fail "the evaluation's hints: $(cat "$tmp/eval.out")"
expect 0 rm example_eval

# A job whose worker has left, by two commands and by the library's example, which is linked as a user would link it.
./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
grep -q '^step 3: gradient norm [0-9]' "$tmp/example.out" || fail "the example printed: $(cat "$tmp/example.out")"

expect 0 jobs
says '^example +'"$(id -u)"' +done +1 +3 '
expect 0 jobs --json
holds '.[0].name == "example" and .[0].step == 3 and .[0].n_params == 1000'
expect 0 stat
# The README shows these columns, without the last ones.
titles=$(grep -E '^ +JOB ' "$srcdir/docs/tune.md" | tr -s ' ')
[ -n "$titles" ] || fail "docs/tune.md shows no table of jobs"
grep '^JOB ' "$tmp/out" | sed -e 's/^/ /' -e 's/ ON DEVICE / /' | tr -s ' ' | has -F "$titles" || fail "docs/tune.md has other columns: $titles"
says '^JOB .* STEP TIME  ON DEVICE +EXPOSED +HIDDEN  AHEAD'
says '^example .* - +[0-9.]+ [mu]s +[0-9.]+ [mu]s +- +- '
expect 0 stat --json
holds '.jobs[0].name == "example" and .n_jobs == 1 and .engines[0].kind == "host" and .pool_used <= .pool_budget'
holds '.rates | length > 0'
holds '.pool | .free + .cached + .leased + .moving + .pending + .quarantined == .capacity'
expect 0 job example
says '^job       example of uid .*: done, step 3,'
says '^RANK '
says '^last step loss .*, gradient norm [0-9.]+, [0-9.]+ [mu]s$'
says '^memory    host [1-9]'
says '^states    adamw, moments in fp32, 16 B/parameter$'
says '^updates   after the commit; in the last step .*, .* exposed; of all update time .* hidden$'
expect 0 --json job example
holds '.optimizer == "adamw" and .moments == "fp32" and .overlap == "commit" and .state_bytes_per_param == 16 and (has("rounding") | not)'
holds '.n_updates > 0 and .n_device_updates == 0 and .last_update_seconds > 0 and .exposed_seconds >= .last_exposed_seconds and .last_exposed_seconds >= 0'
holds '(has("interleave") or has("device_update_bytes")) | not'
holds '.step == 3 and (.ranks | length) == 1 and .ranks[0].hits + .ranks[0].late + .ranks[0].misses > 0 and .ranks[0].weight_wait_seconds >= 0'
holds '.hits == .ranks[0].hits and .late == .ranks[0].late and .misses == .ranks[0].misses and .bytes_up == .ranks[0].bytes_up'
holds '(.memory | map({(.place): .bytes}) | add | .host) == .arena_bytes and (has("drive_read_bytes") | not)'
holds '.ranks[0].pool | .free + .cached + .leased + .moving + .pending + .quarantined == .capacity'
expect 0 explain example w
says "^tensor 'w': 1000 elements at element 0 of chunk 0 of 1 .*, used by 1 operator\$"
says 'chunks of its size class, number 0 of 1, have up to 4096 elements: that was searched for'
says '^planned with the rates '
expect 0 explain example w --json
holds '.chunk == 0 and .n_elems == 1000 and (.lines | length) > 0'
expect 1 explain example nothing
complains 'nothing'
expect 1 job nothing
complains 'nothing'
# Every event has the members that the Trace Event Format requires, and the last step has what it did.
trace_is_valid='(.traceEvents | length > 0) and (.traceEvents | all((.ph == "X" and (.ts >= 0) and (.dur >= 0) and (.name | length > 0)
    and (.pid > 0) and (.tid > 0)) or (.ph == "C" and (.ts >= 0) and (.pid > 0) and (.args.value | type == "number"))
    or (.ph == "M" and (.args | length == 1))))'
expect 0 trace example -o "$tmp/trace.json"
[ ! -s "$tmp/out" ] || fail "trace -o prints: $(cat "$tmp/out")"
cp "$tmp/trace.json" "$tmp/out"
holds "$trace_is_valid"
holds '[.traceEvents[] | select(.ph == "X") | .name] | contains(["step 3", "load 0", "reduce 0", "norm", "update 0"])'
# The norm of a step has the number of the step in whose interval it is.
holds '[.traceEvents[] | select(.name == "norm") | .args.step] == [1, 2, 3]'
holds '[.traceEvents[] | select(.cat == "load") | .args.bytes] | all(. == 2048)'
holds '[.traceEvents[] | select(.name == "process_name") | .args.name] | contains(["example", "rank 0", "node 0"])'
holds '[.traceEvents[] | select(.name == "thread_name") | .args.name]
    | contains(["step", "copies up", "sums of gradients", "updates"])'
expect 0 trace example
holds "$trace_is_valid"
expect 1 trace nothing
complains 'nothing'
expect 1 trace example -o "$tmp/no/where"
complains 'no/where'
expect 0 ping --count 10
says '^10 round trips: p50 .* us, p99 '
expect 0 ping -c 10 --json
holds '.count == 10 and .p50_us > 0 and .p50_us <= .p99_us'
expect 0 version
says "^daemon at $CISTERN_SOCKET: "

# Rates of this machine, measured by its engine, and rates without a daemon. There are no GPUs here.
export CISTERN_ENGINE_CUDA=$tmp/none
find_drive
measured=()
[ -z "$drive" ] || measured=(--disk "$drive" --bytes 64M)
expect 0 probe -o "$tmp/rates/rates.json" "${measured[@]}"
says '^NODE .*PRODUCTS$'
[ -z "$drive" ] || says '^DISK +FILE +READ +WRITE +MIXED +FLUSH$'
says '^request '
says '^note +no GPUs: '
cp "$tmp/rates/rates.json" "$tmp/out"
holds '.nodes[0] | .cores > 0 and .update > 0 and .pass > 0 and .copy > 0 and .reduce > 0'
holds '.devices[-1].name == "host" and .devices[-1].up > 0 and .request_s > 0 and (.fingerprint | length == 32)'
[ -z "$drive" ] || holds '.disk_read > 0 and .disk_write > 0 and .disk_mixed > 0 and .disk_flush_s > 0'
# Once is enough to measure: this engine only says what it would have found.
cat >"$tmp/measured" <<'ENGINE'
#!/bin/sh
printf '{"node": 0, "isa": "avx2", "threads": 2, "copy_threads": 2, "cores": 2, "memory_bytes": 8000000000, "pass": 2e10, "update": 5e8, "reduce": 3e9,
    "copy": 1e10, "products": 4e10}'
ENGINE
chmod +x "$tmp/measured"
CISTERN_ENGINE_HOST=$tmp/measured expect 0 probe -o "$tmp/rates.json" --json -s "$tmp/other.sock"
holds '.nodes[0].update == 5e8 and (has("request_s") | not)'
CISTERN_ENGINE_HOST=$tmp/none expect 1 probe -o "$tmp/rates.json"
complains 'program .*none: No such file'
CISTERN_ENGINE_HOST=/bin/false expect 1 probe -o "$tmp/rates.json"
complains '/bin/false: no answer'
# Nothing is measured if the file cannot be written.
CISTERN_ENGINE_HOST=/bin/false expect 1 probe -o "$tmp/no/such/rates.json"
complains 'no/such/rates.json'
CISTERN_ENGINE_HOST=/bin/false expect 1 probe -o "$tmp"
complains 'Is a directory'
# A drive that cannot be measured is refused before anything else is measured.
CISTERN_ENGINE_HOST=/bin/true expect 1 probe -o "$tmp/rates.json" --disk "$tmp"
complains '/bin/true: no answer'
rm -f "$tmp/rates.json"
expect 1 probe -o "$tmp/rates.json" --disk "$tmp/nowhere"
complains "a file in '.*/nowhere': No such file"
expect 1 probe -o "$tmp/rates.json" --disk "$tmp/trace.json"
complains "trace.json' is not a directory: name a directory on the drive"
[ "$(stat -f -c %T /dev/shm)" != tmpfs ] || expect 1 probe -o "$tmp/rates.json" --disk /dev/shm
[ "$(stat -f -c %T /dev/shm)" != tmpfs ] || complains 'name a directory of ext4 or XFS on a drive'
if [ -n "$drive" ]; then
    expect 1 probe -o "$tmp/rates.json" --disk "$drive" --bytes 1000T
    complains 'no space in .*takes 1000.0 TiB, and .* are free: .*--bytes, at least 64M'
    expect 1 probe -o "$tmp/rates.json" --disk "$drive" --bytes 63M
    complains 'a file of 63.0 MiB is too small to measure a drive: at least 64.0 MiB'
fi
[ ! -e "$tmp/rates.json" ] || fail "a failure wrote rates"
unset CISTERN_ENGINE_CUDA

# --watch draws repeatedly, and ends when the daemon or the reader ends.
{ ./cistern stat --watch=0.05 2>/dev/null || true; } | head -n 40 >"$tmp/out"
[ "$(grep -c '^cisternd  ' "$tmp/out")" -ge 2 ] || fail "drawn once: $(cat "$tmp/out")"

# On a terminal of 80 columns no table is wider, and none loses a column: columns that do not fit are shown below. q and Ctrl-C
# end --watch, and the terminal then echoes keys again.
if command -v script >/dev/null; then
    # --watch draws on terminals where it can place the cursor, with ncurses.
    export TERM=xterm
    watched=$(sed -n 's/^NCURSES_LIBS = //p' Makefile)
    on_terminal() {
        # Not every shell that script may run this with outlives the Ctrl-C that ends its child.
        SHELL=$BASH timeout $((2 * wait_s)) script -qfec "stty cols 80; $1; stty -a" "$tmp/raw" >/dev/null
        grep -v '^Script ' "$tmp/raw" | tr -d '\r' >"$tmp/out"
        grep -q ' icanon.* echo ' <(tr '\n;' '  ' <"$tmp/out") || fail "$1: the terminal is not as it was: $(cat "$tmp/out")"
    }
    for command in jobs quota "job example"; do
        on_terminal "./cistern $command" </dev/null
        [ "$(grep -vE '^(states|updates|copies|plan|last|chunks) ' "$tmp/out" | awk '/^speed/ { exit } { print length }' | sort -n | tail -n 1)" -le 80 ] ||
            fail "cistern $command is wider than 80 columns: $(cat "$tmp/out")"
    done
    on_terminal "./cistern jobs" </dev/null
    for title in UID STATE PARAMS LOSS EXPOSED DROPPED IDLE; do
        grep -qE "^JOB .*$title" "$tmp/out" || fail "cistern jobs on 80 columns has no $title: $(cat "$tmp/out")"
    done
    [ "$(grep -c '^example ' "$tmp/out")" -ge 2 ] || fail "rows of the second block have no name: $(cat "$tmp/out")"
    for command in ${watched:+stat jobs quota "job example"}; do
        for key in q '\003'; do
            : >"$tmp/raw"
            on_terminal "./cistern $command --watch=0.05" < <(poll grep -qE 'JOB|USER|ENGINE|RANK' "$tmp/raw" && printf %b "$key")
        done
    done
    # Other ends also restore the terminal. In the background the terminal is not changed, because the process would be stopped.
    on_terminal "./cistern stat --watch=0.05 | head -n 1" </dev/null
    : >"$tmp/raw"
    [ -z "$watched" ] ||
        on_terminal "trap : QUIT; ulimit -c 0; ./cistern stat --watch=0.05" < <(poll grep -q ENGINE "$tmp/raw" && printf '\034')
    : >"$tmp/raw"
    on_terminal "bash -c 'set -m; ./cistern stat --watch=0.05 & while [ \"\$(jobs -r)\" ] && ! grep -q \"^ENGINE\" $tmp/raw; do sleep 0.05; done; jobs -s; kill -KILL %1'" \
        </dev/null
    ! grep -i stopped "$tmp/out" || fail "--watch in the background is stopped"
fi

# Completion knows the commands and the jobs.
complete_words() {
    bash -c '. "$1"; PATH=.:$PATH; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cistern; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$srcdir/client/cli/cistern.bash" "$@"
}
[ "$(complete_words cistern ex)" = explain ] || fail "completion of 'ex': $(complete_words cistern ex)"
! grep -E "warning|interrupted" "$tmp/d.log" || fail "a job that ended well is warned of"
[ "$(complete_words cistern job '')" = example ] || fail "completion of a job: $(complete_words cistern job '')"
[ "$(complete_words cistern report '')" = example ] || fail "completion of a job for report: $(complete_words cistern report '')"
# Bash passes "--socket=PATH" as three words.
[ "$(complete_words cistern --socket = "$CISTERN_SOCKET" job '')" = example ] || fail "completion behind --socket=PATH"
[ "$(CISTERN_SOCKET=$tmp/none complete_words cistern --manager-socket "$tmp/run/manager.sock" job '')" = example ] || fail "completion behind --manager-socket"
[ "$(complete_words cistern stat --watch = 5 --j)" = --json ] || fail "completion behind --watch=SECONDS"
[ "$(complete_words cistern --manager)" = --manager-socket ] || fail "completion of an option"
[ "$(complete_words cistern plan --dev | tr '\n' ' ')" = "--device --device-states --device-update " ] || fail "completion of plan's options"
[ -z "$(complete_words cistern rm --dev)" ] || fail "completion of an option that rm does not take"
[ "$(complete_words cistern plan preset : opt-1.)" = opt-1.3b ] || fail "completion of a preset"
complete_words cistern plan preset : | has -xF gpt2-124m || fail "completion of presets"
[ "$(complete_words cistern plan pres)" = preset: ] || fail "completion of 'pres'"
[ "$(complete_words cistern schedule sh)" = shifted ] || fail "completion of a schedule"
[ "$(complete_words cistern top --no)" = --no-color ] || fail "completion of an option of top"
[ "$(complete_words cistern help qu)" = quota ] || fail "completion of a command to help with"
# Names of jobs and tensors are another user's words. None is run by the shell that completes them.
mkdir "$tmp/hostile"
cat >"$tmp/hostile/cistern" <<HOSTILE
#!/bin/bash
[[ \$* = help* ]] && exec $PWD/cistern "\$@"
printf '    "name": "%s",\n' plain.name/0 '\$(touch $tmp/ran)' '\`touch $tmp/ran\`' 'a\${x:=1}' 'a b'
HOSTILE
chmod +x "$tmp/hostile/cistern"
for words in "job ''" "explain example ''"; do
    offered=$(cd "$tmp/hostile" && srcdir=$(realpath "$OLDPWD/$srcdir") && eval "complete_words cistern $words")
    [ "$offered" = plain.name/0 ] || fail "completion of hostile names: $offered"
    [ ! -e "$tmp/ran" ] || fail "completion runs a name"
done

# A job of this uid is removed through the managers' socket.
expect 0 job example --uid "$(id -u)"
expect 0 rm example --uid "$(id -u)"
expect 1 job example
expect 1 rm example
complains 'example'
stop_daemon d

# Plans with measured rates and without a search. An invalid file is refused with the place of the error.
printf '[plan]\nrates = %s\n' "$tmp/rates/rates.json" >"$tmp/rates.conf"
start_daemon r --config "$tmp/rates.conf"
expect 0 stat --json
holds ".rates == \"$tmp/rates/rates.json\""
./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
expect 0 explain example w
says "^planned with the rates of $tmp/rates/rates.json: the fastest of [0-9]+ plans"
expect 0 job example --json
holds '.plan | startswith("planned with the rates of ")'
stop_daemon r
printf '[plan]\nsearch = no\n' >"$tmp/rates.conf"
start_daemon n --config "$tmp/rates.conf"
./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
expect 0 explain example w
says 'was chosen for the least waste$'
stop_daemon n
printf '{"nodes": [{"update": "fast"}]}' >"$tmp/broken.json"
printf '[plan]\nrates = %s\n' "$tmp/broken.json" >"$tmp/rates.conf"
! ./cisternd --config "$tmp/rates.conf" --socket "$CISTERN_SOCKET" 2>"$tmp/err" || fail "broken rates are taken"
grep -q 'broken.json: nodes\[0\]\.update: wanted a number, not text$' "$tmp/err" || fail "said: $(cat "$tmp/err")"

# Two GPUs, which are found while the daemon runs. Their engines are listed, but no job uses them.
CISTERN_ENGINE_CUDA=./tests/lib/engine_stub start_daemon g --gpus all --gpu-memory 32M --manager-socket "$tmp/run/manager.sock"
found() {
    expect 0 stat --json
    jq -e '.gpus | length == 2' <"$tmp/out" >/dev/null
}
poll found
holds '.gpus[1].uuid == "GPU-00000000-stub-1" and .gpus[1].pool_budget == 33554432 and .gpus[1].pool_used == 0 and (has("gpu") | not)'
holds '.engines[2].kind == "cuda" and .engines[2].device == .gpus[1].uuid and .engines[2].state == "off"'
expect 0 stat
says '^gpu       cuda:1 Stub, GPU-00000000-stub-1: 0 B of 32.0 MiB for pools; the card has 64.0 MiB, driver 13.0$'
says '^BANDWIDTH +UP +DOWN +REDUCE +UPDATE +B/PARAM +NS/PARAM +HELD$'
says '^cuda:1 +0 +off +- '
stop_daemon g

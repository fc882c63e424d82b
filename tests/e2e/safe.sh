#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the commands that can lose states, and that say so: rm, drain and its waits, and the reload of a configuration. Also the list of a
# job's tensors, figures as JSON, and the completions of zsh and fish.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1 # Without it, tmp would be empty.
# shellcheck source=tests/e2e/expect.sh
. "$srcdir/tests/e2e/expect.sh"
need jq

command=()
start_daemon d
example() {
    ./tests/lib/example >"$tmp/example.out" || fail "the example: $?"
}

# -- tensors --

example
expect 0 tensors example
says '^TENSOR +SHAPE +TYPE +PATTERN +WEIGHTS +STATES +WHERE +CHUNK$'
says '^w +10x100 +bf16 +shard +1.95 KiB +11.7 KiB +host +0$'
expect 0 tensors example --json
holds 'length == 1 and (.[0] | .name == "w" and .shape == [10, 100] and .dtype == "bf16" and .pattern == "shard" and .weight_bytes == 2000 and
    .state_bytes == 12000 and .states == "host" and .chunk == 0)'
expect 1 tensors exampel
complains "^cistern: no job 'exampel' of uid $(id -u): did you mean 'example'\\? \\(cistern jobs\\)\$"
expect 1 explain example ww
complains "^cistern: job 'example' has no tensor 'ww': 'cistern tensors example' lists all 1\$"

# -- many ranks --

# They come in several answers, because a frame has no room for all.
if [ -x ./cistern-gpt ]; then
    write_text 300
    ./cistern-gpt --layers 1 --heads 2 --width 32 --context 16 --batch 1 --threads 1 --steps 1 --data "$tmp/text" --job many --world 300 --rank 0 \
        >"$tmp/many.log" 2>&1 &
    many=$!
    managers+=("$many")
    is_there() {
        ./cistern job many >"$tmp/many.out" 2>&1
    }
    poll is_there
    expect 0 job many --json
    holds '(.ranks | length) == 300 and [.ranks[].rank] == [range(300)]'
    kill "$many"
    wait "$many" || true
fi

# -- load --

# A load that is refused leaves the job as it was.
expect 0 save example "$tmp/kept"
expect 1 load "$tmp/kept"
complains "there is a job 'example' with states already, of step 3: load the checkpoint under another name"
expect 0 jobs --json
holds '.[0] | .state == "done" and .step == 3'
expect 0 rm example
example

# -- completions --

# What fish completes of the line $1.
fish_words() {
    # shellcheck disable=SC2016 # for fish
    PATH=.:$PATH fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$srcdir/client/cli/cistern.fish" "$1"
}

# What zsh offers for the words $@. Its completion system needs a terminal, so that functions stand in for it.
zsh_words() {
    # shellcheck disable=SC2016 # for zsh
    PATH=.:$PATH zsh -f -c 'compadd() { shift; print -l -- "$@" }; _files() { print FILES }
        file=$1; shift; words=("$@"); CURRENT=$#; source $file' - "$srcdir/client/cli/_cistern" "$@"
}

if command -v fish >/dev/null; then
    fish_words "cistern ten" | has -x 'tensors' || fail "fish: a command: $(fish_words "cistern ten")"
    fish_words "cistern --socket $CISTERN_SOCKET rm " | has -x 'example' || fail "fish: a job"
    fish_words "cistern report " | has -x 'example' || fail "fish: a job to report on"
    CISTERN_SOCKET=$tmp/none fish_words "cistern --manager-socket $tmp/run/manager.sock rm " | has -x 'example' || fail "fish: --manager-socket"
    CISTERN_SOCKET=$tmp/none fish_words "cistern --manager-socket=$tmp/run/manager.sock rm " | has -x 'example' || fail "fish: --manager-socket="
    fish_words "cistern explain example " | has -x 'w' || fail "fish: a tensor"
    fish_words "cistern plan preset:opt-1." | has -x 'preset:opt-1.3b' || fail "fish: a preset"
    fish_words "cistern rm --fo" | has -x -- '--force' || fail "fish: an option"
fi
if command -v zsh >/dev/null; then
    zsh_words cistern ten | has -x 'tensors' || fail "zsh: a command"
    zsh_words cistern --socket "$CISTERN_SOCKET" rm '' | has -x 'example' || fail "zsh: a job"
    zsh_words cistern report '' | has -x 'example' || fail "zsh: a job to report on"
    CISTERN_SOCKET=$tmp/none zsh_words cistern --manager-socket "$tmp/run/manager.sock" rm '' | has -x 'example' || fail "zsh: --manager-socket"
    CISTERN_SOCKET=$tmp/none zsh_words cistern "--manager-socket=$tmp/run/manager.sock" rm '' | has -x 'example' || fail "zsh: --manager-socket="
    zsh_words cistern explain example '' | has -x 'w' || fail "zsh: a tensor"
    zsh_words cistern plan '' | has -x 'preset:opt-1.3b' || fail "zsh: a preset"
    zsh_words cistern rm --fo | has -x -- '--force' || fail "zsh: an option"
    [ "$(zsh_words cistern load '')" = FILES ] || fail "zsh: a file"
fi

# -- rm --

# It says what was removed, and what of that no checkpoint has.
expect 0 rm example
says "^removed job 'example' of uid $(id -u) at step 3: freed 22.4 KiB of host memory(, 16.0 KiB of pools)?; it was not saved since the daemon started\$"
example
expect 0 save example "$tmp/saved" --json
holds '.job == "example" and .step == 3 and .dir == "'"$tmp/saved"'" and .bytes > 12000 and .seconds > 0'
expect 0 job example --json
holds '.saved_step == 3'
example
expect 0 rm example
says 'at step 6: .*; its newest checkpoint is of step 3, and the 3 later steps are lost$'
expect 0 load "$tmp/saved" loaded --json
holds '.job == "loaded" and .step == 3 and .ranks == 1 and (.frozen | not)'
expect 1 load "$tmp/saved" loaded
complains "^cistern: there is a job 'loaded' with states already, of step 3: load .* \\(cistern load DIR NAME\\), or .* \\(cistern rm loaded\\)\$"
# Its states are those of the checkpoint.
expect 0 rm loaded --json
holds '.job == "loaded" and .step == 3 and .host_bytes > 12000 and (.pool_bytes | . == 0 or . == 16384) and .saved_step == 3'

# -- the file of cistern run --

# A worker writes to the file of `cistern run`, and to nothing else to which CISTERN_STEPPED leads. A FIFO does not stop it.
: >"$tmp/other"
mkfifo "$tmp/fifo"
for path in "$tmp/other" "$tmp/fifo"; do
    CISTERN_STEPPED=$path timeout "$wait_s" ./tests/lib/example >"$tmp/example.out" || fail "the example with CISTERN_STEPPED=$path: $?"
done
[ ! -s "$tmp/other" ] || fail "CISTERN_STEPPED: a byte in another file"
expect 3 run -n 1 --restart=1 -- sh -c './tests/lib/example && exit 3'
has 'started again in' "$tmp/err" || fail "cistern run hears of no step: $(cat "$tmp/err")"
expect 0 rm example

# A job with workers stays, unless --force is given.
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
write_text 100
env --default-signal=INT ./cistern-gpt --layers 12 --heads 1 --width 32 --context 16 --batch 1 --matmul fp32 --threads 1 --steps 1000000 --data "$tmp/text" --job stays \
    >"$tmp/stays.out" 2>"$tmp/stays.err" &
worker=$!
managers+=("$worker")
has_state() {
    ./cistern job "$1" --json 2>/dev/null | jq -e ".state == \"$2\"" >/dev/null
}
poll has_state stays training
expect 1 rm stays
complains "^cistern: job 'stays' has 1 rank that trains: stop it, or remove the job all the same \\(cistern rm --force\\)\$"
expect 0 job stays --json
n_params=$(jq .n_params "$tmp/out")
n_tensors=$(jq '[.patterns[].n_tensors] | add' "$tmp/out")
[ "$n_tensors" -gt 64 ] || fail "$n_tensors tensors come in one page"
expect 0 tensors stays --json
holds "length == $n_tensors and ([.[].name] | unique | length) == $n_tensors and ([.[].weight_bytes] | add) == 2 * $n_params"

# -- drain --wait --

# No new jobs are taken while it waits. What it waits for can be ended, and then the daemon ends.
./cistern drain --wait >"$tmp/drain.out" 2>"$tmp/drain.err" &
drain=$!
managers+=("$drain")
poll has 'waiting for 1: stays (training)' "$tmp/drain.err"
! ./tests/lib/example >"$tmp/example.out" 2>&1 || fail "a new job is taken"
has "the daemon takes no new job 'example', because it ends when its jobs are done (cistern drain --wait)" "$tmp/example.out" || fail "$(cat "$tmp/example.out")"
# Neither does a job that is over begin again.
! ./tests/lib/example >"$tmp/example.out" 2>&1 || fail "a job that is done takes a worker"
# If it is interrupted, new jobs are taken again.
kill -TERM "$drain"
wait "$drain" || true
takes_jobs() {
    ./tests/lib/example >"$tmp/example.out" 2>&1
}
poll takes_jobs
./cistern drain --wait --save "$tmp/all" >"$tmp/drain.out" 2>"$tmp/drain.err" &
drain=$!
managers+=("$drain")
poll has 'waiting for 1: stays (training)' "$tmp/drain.err"
kill -INT "$worker" # It leaves between two steps, and the job is done.
wait "$drain" || fail "drain --wait: $(cat "$tmp/drain.err")"
has '^saved step [0-9]* of stays to' "$tmp/drain.out" || fail "not saved: $(cat "$tmp/drain.out")"
has '^saved step 3 of example to' "$tmp/drain.out" || fail "not saved: $(cat "$tmp/drain.out")"
! has 'systemctl' "$tmp/drain.err" || fail "there is no service: $(cat "$tmp/drain.err")"
await d STOPPING=1

# -- a reload --

printf '[quota]\njobs = 1\n' >"$tmp/d.conf"
start_daemon r --config "$tmp/d.conf"
printf '[quota]\njobs = 2\n[hots]\nmemory = 1G\n' >"$tmp/d.conf"
kill -HUP "$daemon_pid"
poll has 'error: SIGHUP: the limits of users are unchanged: .*d.conf:4: unknown section \[hots\], with key .memory.: did you mean \[host\]?' "$tmp/r.log"
expect 0 quota --json
holds '.[0].uses[] | select(.key == "jobs") | .limit == 1'
# ExecReload= asks first, and says everything that is wrong.
if ./cisternd --check-config "$tmp/d.conf" 2>"$tmp/err"; then
    fail "--check-config takes a wrong file"
fi
has "d.conf:4: unknown section \\[hots\\]" "$tmp/err" || fail "--check-config: $(cat "$tmp/err")"
sed -i 's/hots/host/' "$tmp/d.conf"
./cisternd --check-config "$tmp/d.conf" --socket "$CISTERN_SOCKET" || fail "--check-config refuses a right file"
stop_daemon r

# -- a service --

# After drain, the sockets of a service still start it. It says so, and how to end that.
command -v systemd-socket-activate >/dev/null || exit 0
start activated systemd-socket-activate --seqpacket -E NOTIFY_SOCKET -l "$CISTERN_SOCKET" -l "$tmp/run/manager.sock" \
    --fdname=cistern.sock:manager ./cisternd --config "$tmp/empty.conf" --socket "$tmp/run/unused.sock"
poll grep -q 'Listening on .*manager.sock' "$tmp/activated.log"
expect 0 drain
complains '^cistern: the next connection starts the daemon again\. To keep it from that: systemctl stop cisternd.socket cisternd-manager.socket$'

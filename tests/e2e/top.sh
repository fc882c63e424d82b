#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern top and --watch in a terminal (tmux): screens in terminals of three sizes, other orders and pages, a new size, the end
# of a daemon and the next one, and that the terminal is as it was afterwards. tests/e2e/screens/ has the screens, with N for numbers;
# CST_TEST_SCREENS=write writes them again.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
[ -n "$(sed -n 's/^NCURSES_LIBS = //p' Makefile)" ] || skip "built without ncurses"
need tmux

# The characters of these screens. tmux must have them, too.
export LC_ALL=C.UTF-8
unset NO_COLOR TMUX

n_terminals=0
terminal() {
    tmux -S "$tmp/tmux$n_terminals" -f /dev/null "$@"
}

# End the terminal. Its programs are killed before: the SIGCONT that comes with the end of a terminal would take from
# LeakSanitizer the SIGSTOP with which it looks at a program that ends, and both would run for ever.
end_terminal() {
    local shell
    shell=$(terminal display-message -p '#{pane_pid}' 2>/dev/null) || return 0
    pkill -KILL -P "$shell" || true
    terminal kill-server 2>/dev/null || true
}

finish_top() {
    local status=$?
    set +e
    end_terminal
    (exit "$status")
    finish
}
trap finish_top EXIT

# Run the shell command $3 in a terminal of $1 columns and $2 rows. It stays open when the command has ended.
open_terminal() {
    end_terminal
    n_terminals=$((n_terminals + 1)) # A server that ends still takes commands.
    terminal new-session -d -x "$1" -y "$2" "echo before; $3; echo status \$?; stty -a; exec cat"
}

screen() {
    terminal capture-pane -p
}

keys() {
    terminal send-keys "$@"
}

# True if the screen has the pattern $1.
has_line() {
    screen | has -E -- "$1"
}

# Repeat the command $@ until it succeeds. False: it did not, for long.
within() {
    local deadline=$((SECONDS + wait_s))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.02
    done
}

shows() {
    within has_line "$1" || fail "no '$1' in: $(screen)"
}

# The screen on standard input with N for numbers and what is not known yet, without what differs between machines and runs. A number
# is with its unit, a bar has one character for each part, and a history one in all.
mask() {
    sed -E -e "s/ on [^ ]+, up/ on HOST, up/; s/(^| )$(id -un | cut -c 1-6)[^ ]*/\1USER/" \
        -e 's/[▁▂▃▄▅▆▇█]+/~/; s/^(loss|memory)( +)[_.=+*#~-]+ /\1\2~ /; s/(\] .*) [_.=+*#~-]+$/\1 ~/' \
        -e ':bar; s/\[([^]]*)(.)\2/[\1\2/; tbar' \
        -e 's/(^| )-( |$)/\1N\2/g; s/(^| )-( |$)/\1N\2/g' \
        -e 's/-?[0-9][0-9.]*(e[-+]?[0-9]+)?( (B|[KMGT]iB|[kMGT]|us|ms|s|min [0-9]+ s|min|%)($|[^a-zA-Z]))?/N\4/g' \
        -e '/^(plan|expected|cgroup) /d; s/ +/ /g; s/ $//'
}

# True if the screen is that of the file $1.
is_screen() {
    screen | mask >"$tmp/screen"
    # Lines that mask deletes leave blank ones.
    diff -qB "$tmp/screen" "$srcdir/tests/e2e/screens/$1.txt" >/dev/null
}

# Wait until the screen is that of the file $1.
expect_screen() {
    if [ "${CST_TEST_SCREENS-}" = write ]; then
        sleep 2 # Nothing says when a screen that nobody knows is complete.
        screen | mask >"$srcdir/tests/e2e/screens/$1.txt"
    fi
    within is_screen "$1" || fail "not the screen $1: $(diff "$srcdir/tests/e2e/screens/$1.txt" "$tmp/screen")"
}

# True if the command has ended with status $1 in a terminal as it was before. Its settings are printed last.
has_ended() {
    terminal capture-pane -p -S - | tr '\n;' '  ' | has -E "before .*status $1 .* icanon .* echo .* -extproc"
}

# Wait until that is so.
expect_end() {
    within has_ended "$1" || fail "not ended with status $1, or the terminal is not as it was: $(screen)"
}

job_state() {
    ./cistern jobs | has "^$1 .* $2 "
}

# Start the job $1 with the other arguments as options, without an end. Its process is $trainer.
train() {
    local name=$1
    shift
    nice ./cistern-gpt --job "$name" "${gpt[@]}" --steps 1000000000 "$@" >"$tmp/$name.log" 2>&1 &
    trainer=$!
    poll job_state "$name" training
}

# End the process that `train` has started.
end_training() {
    kill "$trainer"
    wait "$trainer" || true # Its status says that it was stopped.
}

# A job that has ended, and one that trains, in a node that they fill to some part.
printf '[host]\nmemory = 24M\n[device host]\npool = 2M\n' >"$tmp/small.conf"
gpt=(--data "$tmp/text" --layers 2 --heads 2 --width 64 --context 32 --batch 2 --matmul fp32 --threads 1 --seed 7)
write_text 500
start_daemon d --config "$tmp/small.conf"
./cistern-gpt --job beta "${gpt[@]}" --width 32 --steps 5 >"$tmp/beta.log" 2>&1 || fail "beta"
train alpha

# Three sizes, in the same terminal. All columns fit in 120.
open_terminal 80 24 "LINES=10 COLUMNS=20 ./cistern top --watch=0.2"
expect_screen main-80x24
terminal resize-window -x 120 -y 40
expect_screen main-120x40
terminal resize-window -x 200 -y 50
expect_screen main-200x50
[ "$(screen | sed '/^h help/,$d' | wc -l)" = 49 ] || fail "the keys are not in the last row: $(screen)"

# Sorted by state, beta is first, because "done" is before "training"; by steps, alpha; by loss, beta.
keys s s
expect_screen sorted-200x50
keys s s
expect_screen main-200x50
keys s s
expect_screen sorted-200x50

# Pages, and back.
keys Home
keys Down
keys Enter
expect_screen job-200x50
keys u
expect_screen quota-200x50
terminal resize-window -x 80 -y 24
keys h
expect_screen help-80x24
keys Escape
shows '^USER +LIMIT OF'
keys Escape
shows '^  JOB '
keys Right Right Right Right Right Right Right Right
shows '^  JOB .*READ/s +WRITE/s$'
keys Left Left Left Left Left Left Left Left Left Left

# A pause stops the samples, and the interval is changed.
keys p
shows ' paused$'
up=$(screen | head -n 1)
keys + Down
shows ' paused$'
[ "$(screen | head -n 1)" = "$up" ] || fail "a sample was taken in a pause: $(screen)"
keys p
shows ' every 0.5 s$'
keys -
shows ' every 0.2 s$'

# A job with states on a drive: its place, and what it reads and writes.
find_drive
if [ -n "$drive" ]; then
    end_training
    mkdir "$drive/cistern-top.$$"
    train durable --disk "$drive/cistern-top.$$"
    terminal resize-window -x 120 -y 40
    shows '^c durable .*( +[0-9.]+ [KMG]iB){3}$'
    shows '\[c+\] '
    ./cistern job durable | has -E '^memory    .*, .* MiB$' || fail "no memory of the drive: $(./cistern job durable)"
    ./cistern job durable | has -E '^drives    [1-9].* read, [1-9].* written$' || fail "no drive: $(./cistern job durable)"
    ./cistern jobs --json | has drive_written_bytes || fail "the list has no bytes of drives"
    rm -r "$drive/cistern-top.$$"
fi

# A daemon that does not answer: top says so, and still obeys keys.
kill -STOP "$daemon_pid"
shows '^the daemon has not answered for [0-9]+ s'
keys h
shows '^Esc +go back'
keys Escape
kill -CONT "$daemon_pid"
shows '^h help'

# The daemon ends, and top says so, and goes on with the next one.
end_training
stop_daemon d
shows "^no daemon listens at $CISTERN_SOCKET"
start_daemon e --config "$tmp/small.conf"
shows '^no jobs$'
shows '^h help'
train gamma
shows '^a gamma .* training'
keys q
expect_end 0

# A signal restores the terminal, too. SIGQUIT ends the program at once.
top_runs() {
    top=$(pgrep -n -P "$(terminal display-message -p '#{pane_pid}')" -x cistern)
}
for signal in TERM QUIT; do
    open_terminal 80 24 "ulimit -c 0; ./cistern top"
    shows '^a gamma'
    poll top_runs
    kill -s $signal "$top"
    expect_end "$([ $signal = TERM ] && echo 0 || echo 131)"
done

# Without UTF-8 there is only ASCII; without colours none are sent.
open_terminal 80 24 "LC_ALL=C ./cistern top --watch=0.2"
expect_screen ascii-80x24
! screen | LC_ALL=C grep '[^ -~]' || fail "not ASCII: $(screen)"
terminal capture-pane -e -p | has $'\e\\[[0-9;]*3[1-7]m' || fail "no colours"
for line in "NO_COLOR=1 ./cistern top" "./cistern top --no-color"; do
    open_terminal 80 24 "$line"
    shows '^a gamma'
    ! terminal capture-pane -e -p | has $'\e\\[[0-9;]*[34][1-7]m' || fail "$line has colours"
done

# The page of a job has all ranks, which come in several answers.
./cistern-gpt --job many "${gpt[@]}" --world 300 --rank 0 >"$tmp/many.log" 2>&1 &
many=$!
managers+=("$many")
poll job_state many declaring
open_terminal 120 40 "./cistern top --watch=0.2"
shows '^b many '
keys End Enter
shows '^job +many of uid .* 300 ranks on host$'
keys End
shows '^299 +0 '
kill "$many"
wait "$many" || true # Its status says that it was stopped.

# --watch shows the output of a command in the same way: cut off at the last row, moved by keys.
open_terminal 80 10 "./cistern stat --watch=0.1"
shows '^cisternd '
! screen | has '^gamma' || fail "more than 10 rows: $(screen)"
keys End
shows '^gamma '
keys q
expect_end 0
open_terminal 80 24 "./cistern job nothing --watch"
shows "^cistern: .*no job 'nothing'"
expect_end 1

# Where it cannot draw, it says why.
open_terminal 80 24 "TERM=dumb ./cistern top"
shows "^cistern: a terminal of the type 'dumb' cannot be drawn on: set TERM"
! ./cistern top </dev/null 2>"$tmp/err" || fail "drawn without a terminal"
grep -q 'top draws on a terminal' "$tmp/err" || fail "$(cat "$tmp/err")"
end_training
stop_daemon e

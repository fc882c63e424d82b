#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what a newcomer does wrong: each command has an exit status, an error with the cause and its numbers, and a remedy, which is tried
# and works (tests/e2e/wrong.sh).
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1 # Without it, tmp would be empty.
# shellcheck source=tests/e2e/wrong.sh
. "$srcdir/tests/e2e/wrong.sh"

# The error has the words $*, with which a daemon starts. All but the options are replaced.
starts() {
    local words=$1
    shift
    n_remedies=$((n_remedies + 1))
    grep -qF -- "$words" "$tmp/err" || fail "$uses: no '$words' in: $(cat "$tmp/err")"
    start "w$n_wrong" ./cisternd --config "$tmp/empty.conf" --gpus none "$@"
    await "w$n_wrong" READY=1
    stop_daemon "w$n_wrong"
}

# A configuration file with the lines $1 is wrong, as $2 says, and right with the lines $3.
wrong_config() {
    printf '%b' "$1" >"$tmp/w.conf"
    wrong 1 "w.conf:$2" ./cisternd --check-config "$tmp/w.conf"
    printf '%b' "$3" >"$tmp/w.conf"
    remedy ./cisternd --check-config "$tmp/w.conf"
}

start_daemon d
example() {
    ./tests/lib/example >"$tmp/example.out" 2>&1 || fail "the example: $(cat "$tmp/example.out")"
}
example
: >"$tmp/file"
uid=$(id -u)

# -- sockets --

wrong 1 "^cistern: no daemon listens at $PWD/rel.sock: start one with 'cisternd --socket $PWD/rel.sock'\$" ./cistern --socket rel.sock jobs
remedy ./cistern --socket "$CISTERN_SOCKET" jobs
wrong 1 "no daemon listens at $tmp/run/x.sock: start one" ./cistern --socket "$tmp/run/x.sock" jobs
starts "cisternd --socket $tmp/run/x.sock" --socket "$tmp/run/x.sock" --manager-socket "$tmp/run/xm.sock"
wrong 1 '^cistern: /etc/passwd is a file and not the socket of a daemon: give the path of a socket' ./cistern --socket /etc/passwd jobs
remedy ./cistern --socket "$CISTERN_SOCKET" jobs
wrong 1 'is a directory and not the socket of a daemon' ./cistern --socket "$tmp/run" jobs
remedy ./cistern --socket "$tmp/run/cistern.sock" jobs
wrong 1 "because there is no directory $tmp/none: start one with 'mkdir -p $tmp/none && cisternd --socket" ./cistern --socket "$tmp/none/c.sock" jobs
mkdir -p "$tmp/none"
starts "cisternd --socket $tmp/none/c.sock" --socket "$tmp/none/c.sock"
rm -r "$tmp/none"
long=/$(printf 'a/%.0s' {1..60})c.sock
wrong 1 "socket path of ${#long} bytes, 1 to 107 are possible: .* \\(ln -s DIRECTORY /tmp/cistern\\)" ./cistern --socket "$long" jobs
ln -s "$tmp/run" "$tmp/short"
remedy ./cistern --socket "$tmp/short/cistern.sock" jobs
if [ ! -e /run/cistern/cistern.sock ]; then
    wrong 1 "no daemon listens at /run/cistern/cistern.sock: start it with 'systemctl start cisternd.socket', or give .*CISTERN_SOCKET" \
        env -u CISTERN_SOCKET ./cistern jobs
    remedy env CISTERN_SOCKET="$CISTERN_SOCKET" ./cistern jobs
fi
wrong 1 "no daemon listens at $tmp/c.sock: start one with 'cisternd --socket $tmp/c.sock'\$" ./cistern --socket "$tmp/c.sock" drain
starts "cisternd --socket $tmp/c.sock" --socket "$tmp/c.sock"
wrong 1 "no daemon listens at $tmp/manager.sock: start one with 'cisternd --socket $tmp/cistern.sock', or name" ./cistern --manager-socket "$tmp/manager.sock" drain
remedy ./cistern --manager-socket "$tmp/run/manager.sock" jobs
wrong 1 'a daemon is ended on its manager socket, and this is another one' ./cistern --manager-socket "$CISTERN_SOCKET" drain
remedy ./cistern --manager-socket "$(sed -n 's/.*--manager-socket \(.*\) drain$/\1/p' "$tmp/err")" quota

# -- daemons --

wrong 1 "cistern.sock: another cisternd \\(pid $daemon_pid\\) listens there: give this one other paths \\(--socket, --manager-socket\\)" \
    ./cisternd --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET"
starts '(--socket, --manager-socket)' --socket "$tmp/run/2.sock" --manager-socket "$tmp/run/2m.sock"
wrong 1 "manager.sock: another cisternd \\(pid $daemon_pid\\) listens there" ./cisternd --config "$tmp/empty.conf" --socket "$tmp/run/2.sock"
starts '(--socket, --manager-socket)' --socket "$tmp/run/2.sock" --manager-socket "$tmp/run/2m.sock"
wrong 1 "file: exists and is not a socket: remove it" ./cisternd --config "$tmp/empty.conf" --socket "$tmp/file"
rm "$tmp/file"
starts 'remove it' --socket "$tmp/file"
: >"$tmp/file"
wrong 1 "file/s.sock.lock: Not a directory" ./cisternd --config "$tmp/empty.conf" --socket "$tmp/file/s.sock"
starts --socket --socket "$tmp/s.sock"
if [ "$uid" = 0 ]; then
    wrong 1 "none/s.sock.lock: No such file or directory: make the directory of the socket: mkdir -p $tmp/none" \
        ./cisternd --config "$tmp/empty.conf" --socket "$tmp/none/s.sock"
    said mkdir -p "$tmp/none"
fi
wrong 2 "--socket: socket: 'rel.sock' is not an absolute path of at most 107 bytes" ./cisternd --socket rel.sock
remedy ./cisternd --check-config "$tmp/empty.conf" --socket "$PWD/rel.sock"
wrong 2 'there is no option --sokcet: did you mean --socket\?' ./cisternd --sokcet /x
remedy ./cisternd --check-config "$tmp/empty.conf" --socket "$tmp/x.sock"
wrong 1 "nothing.conf: No such file or directory: name a file that the daemon can read \\(--config\\)" ./cisternd --config "$tmp/nothing.conf"
remedy ./cisternd --check-config --config "$tmp/empty.conf"
wrong 1 "is a directory: name a file in it" ./cisternd --config "$tmp"
remedy ./cisternd --check-config --config "$tmp/empty.conf"

# -- configurations --

wrong_config '[hots]\nmemory = 64M\n' "2: unknown section \\[hots\\], with key 'memory': did you mean \\[host\\]\\?" '[host]\nmemory = 64M\n'
wrong_config 'host: 64M\n' "1: key 'host' is before the first section: write a line such as \\[host\\] before it" '[host]\nmemory = 64M\n'
wrong_config '[host]\nmemroy = 64M\n' "2: unknown key 'memroy' in \\[host\\]: did you mean 'memory'\\? \\(known: memory, lock, nodes\\)" '[host]\nmemory = 64M\n'
wrong_config '[host]\nttl = 5h\n' "2: unknown key 'ttl' in \\[host\\]: it is one of \\[job\\]" '[job]\nttl = 5h\n'
wrong_config '[host]\nmemory = 4X\n' "2: \\[host\\] memory: '4X' is not a size \\(write 4096, 64K, 1.5G" '[host]\nmemory = 64K\n'
wrong_config '[host]\nlock yes\n' "2: neither '\\[section\\]' nor 'key = value': correct the line, or put a # before it" '[host]\n# lock yes\n'
wrong_config "[host]\nlock = no $(printf '%0200d' 0)\n" '2: a line of 211 bytes: write at most 198' '[host]\nlock = no\n'
wrong_config '[host]\nlock = no\nlock = yes\n' "3: 'lock' is set twice in \\[host\\]" '[host]\nlock = yes\n'
wrong_config '[quota user:no-such-user]\njobs = 1\n' "2: section \\[quota user:no-such-user\\]: there is no user 'no-such-user' .* or write uid:N" '[quota uid:7]\njobs = 1\n'
wrong_config '[quota]\njobs = many\n' "2: \\[quota\\] jobs: 'many' is not a limit for jobs \\(write a number" '[quota]\njobs = 5\n'
wrong_config '[daemon]\naccess = bob\n' "2: \\[daemon\\] access: 'bob' names no user or group: write user:NAME" '[daemon]\naccess = uid:7\n'
printf '[plan]\nrates = %s\n' "$tmp/rates.json" >"$tmp/w.conf"
wrong 1 "\\[plan\\] rates: $tmp/rates.json: No such file or directory: 'cistern probe -o $tmp/rates.json' measures this machine" ./cisternd --check-config "$tmp/w.conf"
remedy ./cistern plan preset:gpt2-124m --rates a100 # The measurement takes seconds; tests/e2e/cli.sh makes one.
wrong 1 "host memory of 900.0 TiB exceeds the machine's memory of .*: lower 'memory' in \\[host\\] or --host-memory" \
    ./cisternd --check-config "$tmp/empty.conf" --host-memory 900T
remedy ./cisternd --check-config "$tmp/empty.conf" --host-memory 64M

# -- jobs --

wrong 1 "no job 'exampel' of uid $uid: did you mean 'example'\\? \\(cistern jobs\\)" ./cistern job exampel
remedy ./cistern job example
wrong 1 "no job 'nothing' of uid $uid \\(cistern jobs\\)" ./cistern trace nothing
said cistern jobs
wrong 1 "job 'example' has no tensor 'weight': 'cistern tensors example' lists all 1" ./cistern explain example weight
said cistern tensors example
wrong 1 "a job of uid 7 can be used by uid $uid on the manager socket alone: cistern --manager-socket $tmp/run/manager.sock" \
    ./cistern --manager-socket "$CISTERN_SOCKET" job example --uid 7
remedy ./cistern --manager-socket "$tmp/run/manager.sock" job example --uid "$uid"
wrong 2 'there is no command jbs: did you mean jobs\?' ./cistern jbs
remedy ./cistern jobs
wrong 2 'there is no option --uuid: did you mean --uid\?' ./cistern job example --uuid 0
remedy ./cistern job example --uid "$uid"
wrong 2 "stat does not take --force \\(see 'cistern help stat'\\)" ./cistern stat --force
said cistern help stat
wrong 2 '1 argument given, save takes JOB DIR' ./cistern save example
remedy ./cistern save example "$tmp/checkpoints"

# -- checkpoints --

example # It has steps that are not saved.
wrong 1 "directory $tmp/file: Not a directory: name one that does not exist yet" ./cistern save example "$tmp/file"
remedy ./cistern save example "$tmp/new/checkpoints"
wrong 1 "file: Not a directory: name a directory to which jobs were saved \\(cistern save JOB DIR\\)" ./cistern load "$tmp/file"
remedy ./cistern load "$tmp/checkpoints" loaded
wrong 1 "nowhere: No such file or directory: name a directory to which jobs were saved" ./cistern checkpoints "$tmp/nowhere"
remedy ./cistern checkpoints "$tmp/checkpoints"
wrong 1 "run: there is no whole checkpoint: name a directory to which jobs were saved" ./cistern load "$tmp/run" another
remedy ./cistern load "$tmp/checkpoints" another
wrong 1 "there is a job 'example' with states already, of step 6: load .* \\(cistern load DIR NAME\\), or remove that job first \\(cistern rm example\\)" \
    ./cistern load "$tmp/checkpoints"
said cistern rm example
wrong 1 "name 'a b': the name of a job has 1 to 63 characters .* this one has 3 bytes" ./cistern load "$tmp/checkpoints" 'a b'
remedy ./cistern load "$tmp/checkpoints" a.b

# -- programs without a daemon --

wrong 1 "^cistern: h10: No such file or directory, and no machine whose rates are known by that name .*'cistern probe -o h10' measures this one" \
    ./cistern plan preset:gpt2-124m --rates h10
remedy ./cistern plan preset:gpt2-124m --rates a100
wrong 1 "no preset 'gpt2'; there are gpt2-124m, " ./cistern plan preset:gpt2 --rates a100
remedy ./cistern plan preset:gpt2-124m --rates a100
wrong 1 "device memory of 1.0 MiB: .* short: a plan needs --device [0-9]+M" ./cistern plan preset:gpt2-124m --rates a100 --device 1M
remedy ./cistern plan preset:gpt2-124m --rates a100 --device "$(sed -n 's/.*a plan needs --device \([0-9]*M\).*/\1/p' "$tmp/err")"
wrong 1 "no schedule 'gpip'; there are gpipe, 1f1b" ./cistern schedule gpip --stages 2 --micro-batches 2
remedy ./cistern schedule gpipe --stages 2 --micro-batches 2
wrong 2 'run needs the number of ranks: -n N' ./cistern run true
remedy ./cistern run -n 1 true
wrong 127 "cannot start $tmp/nothing: No such file or directory" ./cistern run -n 1 -- "$tmp/nothing"
remedy ./cistern run -n 1 -- true
wrong 2 "--count: '0' is not a number from 1 to 10000000" ./cistern ping --count 0
remedy ./cistern ping --count 1

# -- other users --

if [ "$uid" = 0 ] && command -v setpriv >/dev/null; then
    stranger=(setpriv --reuid 65534 --regid 65534 --clear-groups ./cistern)
    member=(setpriv --reuid 65534 --regid "$(stat -c %g "$CISTERN_SOCKET")" --clear-groups ./cistern)
    if "${stranger[@]}" --version >/dev/null 2>&1; then # It can read this build.
        wrong 1 "permission denied at .*: uid 65534 cannot search a directory of this path" "${stranger[@]}" jobs
        chmod 755 "$tmp"
        remedy "${member[@]}" jobs
        group=$(stat -c %G "$CISTERN_SOCKET")
        wrong 1 "permission denied at .*cistern.sock: only members of the group '$group' can connect \\(adduser USER $group" "${stranger[@]}" jobs
        remedy "${member[@]}" jobs
        wrong 1 "permission denied at .*manager.sock: only the user 'root' can connect \\(sudo -u 'root' ...\\)" "${member[@]}" drain
        remedy ./cistern --manager-socket "$tmp/run/manager.sock" quota
        wrong 1 "no job 'another' of uid 65534 \\(cistern jobs\\)" "${member[@]}" rm another
        remedy ./cistern rm another
    fi
fi

all_tried 40

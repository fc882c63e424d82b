#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a daemon that cannot go on with the jobs of another one does not take over from it: it ends with the reason, and the other
# one goes on with jobs at work and jobs at rest, which lose nothing. At the end a daemon that can go on takes over.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

# The learning rate does not depend on the number of steps.
model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --warmup 2 --lr 0.001 --min-lr 0.001 --matmul fp32 --threads 1 --seed 7)
write_text 400
common="[daemon]
socket = $CISTERN_SOCKET
manager_socket = $tmp/run/manager.sock
"
# Write the configuration $tmp/$1.conf: memory of the host, pools of the host, accelerators, their memory, and more lines.
write_config() {
    printf '%s[host]\nmemory = %s\n[device host]\npool = %s\n[paced]\ndevices = %s\nmemory = %s\n%s' "$common" "$2" "$3" "$4" "$5" "${6-}" >"$tmp/$1.conf"
}
write_config good 256M 64M 2 64M
start first ./cisternd --config "$tmp/good.conf" --gpus none --engine-threads 2
await first 'PID=*'
first_pid=${line#PID=}
await first READY=1

begin rests 1 --steps 20 --device paced:1
end rests
begin stays 1 --steps 20 --device paced:0 --device-states 1M --device-update 1M
end stays
begin based 1 --steps 20
end based
begin works 2 --pool 200% --steps 1000000000
poll has_stepped works 2

n=0
# A daemon with the options $2..., after which a name in brackets stands for an environment variable, does not take over, and says $1.
refuse() {
    local words=$1 rc=0 before
    shift
    before=$(step_of works)
    timeout "$wait_s" "$@" >"$tmp/refused.log" 2>&1 || rc=$?
    [ "$rc" = 1 ] || [ "$rc" = 2 ] || fail "status $rc of: $* : $(cat "$tmp/refused.log")"
    has "$words" "$tmp/refused.log" || fail "not '$words' but: $(cat "$tmp/refused.log")"
    if gone "$first_pid"; then
        fail "the other daemon has ended: $*"
    fi
    [ "$(./cistern jobs --json | jq length)" = 4 ] || fail "jobs are lost: $(./cistern jobs)"
    [ "$(step_of works)" -ge "$before" ] || fail "steps are lost"
    n=$((n + 1))
}
daemon=(./cisternd --gpus none --engine-threads 2 --handover --config)

refuse_config() {
    local words=$1
    shift
    write_config bad "$@"
    refuse "$words" "${daemon[@]}" "$tmp/bad.conf"
}
refuse_config "job 'rests' cannot go on: its accelerator paced:1 is not there" 256M 64M 1 64M
refuse_config "cannot go on: its accelerator paced:. is not there" 256M 64M 0 64M
refuse_config "memory of paced:.: with the jobs that are taken over" 256M 64M 2 64K
refuse_config "memory of paced:.*short" 256M 64M 2 2100K
refuse_config "host memory: with the jobs that are taken over.*(memory in \[host\])" 100K 64M 2 64M
refuse_config "host memory: with the jobs that are taken over.*(memory in \[host\])" 2M 64M 2 64M
refuse_config "job 'works' wants.*(pool in \[device host\])" 256M 64K 2 64M
refuse_config "(pool in \[quota\]): job 'works' wants" 256M 64M 2 64M $'[quota]\npool = 64K\n'
refuse_config "(pool in \[quota uid:$UID\]): job" 256M 64M 2 64M "[quota uid:$UID]"$'\npool = 1K\n'
write_config bad 256M 64M 2 64M
printf '[host]\nnodes = 1, 8\n' >>"$tmp/bad.conf"
refuse "NUMA nodes" "${daemon[@]}" "$tmp/bad.conf"
refuse "laid out for 1 NUMA nodes, and there are 2" env HWLOC_SYNTHETIC='pack:2 [numa] core:2 pu:1' HWLOC_COMPONENTS=synthetic "${daemon[@]}" "$tmp/good.conf"
refuse "nothing.*engine\|No such file" "${daemon[@]}" "$tmp/good.conf" --engine "$tmp/nothing.engine"
refuse "is no cistern-engine-host" "${daemon[@]}" "$tmp/good.conf" --engine "$(type -P true)"
printf '#!/bin/sh\nexit 1\n' >"$tmp/broken"
chmod +x "$tmp/broken"
refuse "is no cistern-engine-host" "${daemon[@]}" "$tmp/good.conf" --engine "$tmp/broken"
printf 'no program\n' >"$tmp/text.engine"
chmod +x "$tmp/text.engine"
refuse "the engine .*text.engine\|is no cistern-engine-host" "${daemon[@]}" "$tmp/good.conf" --engine "$tmp/text.engine"
refuse "is not an absolute path of at most 107 bytes" "${daemon[@]}" "$tmp/good.conf" --socket "$tmp/$(printf '%0150d' 0)" --manager-socket "$tmp/run/manager.sock"
refuse "missing/cistern.sock: No such file" "${daemon[@]}" "$tmp/good.conf" --socket "$tmp/missing/cistern.sock" --manager-socket "$tmp/run/manager.sock"
refuse "exists and is not a socket" "${daemon[@]}" "$tmp/good.conf" --socket "$tmp/text" --manager-socket "$tmp/run/manager.sock"
mkdir "$tmp/other"
start other ./cisternd --config "$tmp/empty.conf" --socket "$tmp/other/cistern.sock" --gpus none
await other READY=1
refuse "another cisternd (pid .*) listens there" "${daemon[@]}" "$tmp/good.conf" --socket "$tmp/other/cistern.sock" --manager-socket "$tmp/run/manager.sock"
stop_daemon other
refuse "." bash -c 'ulimit -n 24; exec "$@"' - "${daemon[@]}" "$tmp/good.conf"
refuse "no daemon to take over from" "${daemon[@]}" "$tmp/good.conf" --socket "$tmp/nobody.sock" --manager-socket "$tmp/nobody.manager.sock"

# A ledger that is damaged after it was written.
ledger=$(find "/proc/$first_pid/fd" -lname '*cistern-ledger*' | sort -t / -k 5n | head -n 1)
size=$(stat -L -c %s "$ledger")
byte=$(tail -c 1 "$ledger" | od -An -tu1)
# Write the byte $1 over the last one of the ledger.
overwrite() {
    printf '%b' "$(printf '\\0%o' "$1")" | dd of="$ledger" bs=1 seek=$((size - 1)) conv=notrunc status=none
}
overwrite $((byte ^ 16))
refuse "cannot go on: its ledger is damaged\|has no message" "${daemon[@]}" "$tmp/good.conf"
overwrite $((byte))

# A job whose second rank does not come has no states, and keeps nobody from taking over.
workers_of_works=("${workers[@]}")
begin_rank waits 2 0 --steps 10
workers=("${workers_of_works[@]}")
has_job() {
    ./cistern jobs --json | jq -e --arg job "$1" 'any(.name == $job)' >/dev/null
}
poll has_job waits
# Its pools of the host have room for those of the job at work, and for that of each job at rest, but not for all at once.
write_config tight 256M 1000K 2 64M
start second "${daemon[@]}" "$tmp/tight.conf"
await first 'EXIT=*'
[ "$line" = EXIT=0 ] || fail "the first daemon ended with $line"
await second READY=1
poll has_stepped works $(($(step_of works) + 10))
kill "${workers[@]}"
wait "${workers[@]}" || true
steps=$(($(step_of works) + 10))
for job in works straight; do
    begin "$job" 2 --pool 200% --steps "$steps"
    end "$job"
done
cmp "$tmp/straight.weights" "$tmp/works.weights" || fail "other weights after a handover and $n that were refused"
# Goes on with job $1, with the options $2...
go_on() {
    local job=$1
    shift
    [ "$(step_of "$job")" = 20 ] || fail "$job did not go on: $(./cistern jobs)"
    begin "$job" 1 --steps 22 "$@"
    end "$job"
}
go_on rests --device paced:1
go_on stays --device paced:0 --device-states 1M --device-update 1M
go_on based
stop_daemon second
printf '%d daemons did not take over\nall well\n' "$n"

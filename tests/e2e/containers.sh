#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests a daemon and workers in containers of their own, as docs/containers.md describes it: each has its own mount, process, IPC, host
# name and (workers) network namespace, and they share only the directory of the sockets. Results are those of a run without containers,
# also if a worker is killed and if the daemon of another container takes over. A worker in a user namespace counts as its user outside.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need unshare
need setpriv
[ "$(id -u)" = 0 ] || skip "namespaces with a root of their own need root"
unshare --mount --pid --ipc --uts --net --fork --mount-proc true 2>"$tmp/unshare.log" || skip "no namespaces: $(cat "$tmp/unshare.log")"

model=(--layers 2 --heads 2 --width 64 --context 32 --batch 4 --steps 200 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400

# Start a daemon as $1 with the options $2... in a container: it is process 1 there. Its manager, like that of containers, is outside.
start_contained() {
    local name=$1 fd
    shift
    mkfifo "$tmp/$name.heard"
    # shellcheck disable=SC2016 # the inner shell expands them
    unshare --mount --pid --ipc --uts ./tests/lib/notify_run sh -c 'mount -t proc proc /proc && mount -t tmpfs -o size=64k tmpfs /dev/shm &&
        exec ./cisternd --gpus none --engine-threads 2 "$@"' sh --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" "$@" \
        >"$tmp/$name.heard" 2>"$tmp/$name.log" &
    manager_of[$name]=$!
    managers+=($!)
    exec {fd}<"$tmp/$name.heard"
    rm "$tmp/$name.heard"
    heard[$name]=$fd
    await "$name" READY=1
}

# Begin rank $3 of job $1, which has $2 ranks, in a container, whose /dev/shm is too small for anything. Sets workers[rank].
begin_contained() {
    # shellcheck disable=SC2016 # the inner shell expands them
    unshare --mount --pid --ipc --uts --net --kill-child --mount-proc sh -c 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"' sh \
        ./cistern-gpt "${model[@]}" --data "$tmp/text" --job "$1" --world "$2" --rank "$3" --dump-weights "$tmp/$1.$3.weights" \
        >"$tmp/$1.$3.log" 2>&1 &
    workers[$3]=$!
    managers+=($!)
}

rank1_is_back() {
    [ "$(grep -c 'rank 1 of 2 is pid 0' "$tmp/first.log")" = 2 ]
}

start_daemon outside --engine-threads 2
begin straight 2
end straight
stop_daemon outside

# A worker of another container is killed, and another one takes its rank. The daemon sees the end of a process that has no number for it.
start_contained first
workers=()
begin_contained contained 2 0
begin_contained contained 2 1
poll has_stepped contained 3
read -r rank0 < <(children "${workers[0]}") || true # Rank 1 cannot train without it.
managers+=("$rank0") # It is continued at the end, if the test fails before.
kill -STOP "$rank0"
kill -9 "${workers[1]}"
wait "${workers[1]}" 2>/dev/null || true
poll has 'rank 1 (pid 0) ended without leaving' "$tmp/first.log"
begin_contained contained 2 1
poll rank1_is_back

# The daemon of another container takes over from a process that has no number there.
start_contained second --handover
await first 'EXIT=*'
[ "$line" = EXIT=0 ] || fail "the first daemon ended with $line"
kill -CONT "$rank0"
end contained
cmp "$tmp/straight.weights" "$tmp/contained.0.weights" || fail "other weights than without containers"

# A user who is root in a user namespace is the user that started it, also for the mode of the socket.
chmod 711 "$tmp" "$tmp/run"
if setpriv --reuid 4242 --regid 4242 --clear-groups ./cistern --version >/dev/null 2>&1; then
    rootless=(setpriv --reuid 4242 --regid 4242 --groups 4343 unshare --user --map-root-user)
    ! "${rootless[@]}" ./tests/lib/example >"$tmp/refused.log" 2>&1 || fail "a user outside of the socket's group may connect"
    chgrp 4343 "$CISTERN_SOCKET"
    "${rootless[@]}" ./tests/lib/example >"$tmp/rootless.log" 2>&1 || fail "a worker in a user namespace"
    [ "$(./cistern jobs --json | jq '.[] | select(.name == "example") | .uid')" = 4242 ] || fail "another user: $(./cistern jobs)"
else
    printf 'other users cannot read %s: user namespaces are not tested\n' "$PWD"
fi
stop_daemon second

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three nodes on loopback addresses: `cistern node`, links that go down and come back, and strangers at the port.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/link_lib.sh disable=SC2154 # net and pid_of are assigned there
. "$srcdir/tests/e2e/link_lib.sh"

nodes='a b c'
i=0
for n in $nodes; do
    i=$((i + 1))
    make_node "$n" "$net.$((($$ & 63) * 4 + i))" </dev/null
done

# Number of lines with $2 in the log of the daemon $1.
lines_with() {
    grep -c -- "$2" "$tmp/$1.log" || true
}

# -- keys and the configuration ---------------------------------------------------------------------

# The key is for nobody else. A second call prints the same, and makes nothing.
[ "$(stat -c %a "$tmp/a/node.key")" = 600 ] || [ "$(stat -c '%a %G' "$tmp/a/node.key")" = '640 cistern' ] || fail "others can read the key"
grep -q "^  cistern node add .* $(fingerprint a)$" "$tmp/a/key.out" || fail "the line for others: $(cat "$tmp/a/key.out")"
sum=$(sha256sum "$tmp/a/node.key")
./cistern node key "$tmp/a" >"$tmp/again.out"
[ "$sum" = "$(sha256sum "$tmp/a/node.key")" ] || fail "another key"
[ "$(fingerprint a)" != "$(fingerprint b)" ] || fail "two nodes have one key"
if command -v openssl >/dev/null; then
    openssl x509 -in "$tmp/a/node.crt" -noout -fingerprint -sha256 | tr -d : | has -i "$(fingerprint a | cut -d: -f2)" ||
        fail "openssl has another fingerprint than $(fingerprint a)"
fi
mkdir "$tmp/half"
cp "$tmp/a/node.key" "$tmp/half"
! ./cistern node key "$tmp/half" 2>"$tmp/half.err" || fail "a key without its certificate is taken"
grep -q 'half/node.crt is not: remove it' "$tmp/half.err" || fail "$(cat "$tmp/half.err")"

# The directory is made, if the one that it is in is there.
./cistern node key "$tmp/made" >"$tmp/made.out" || fail "no key in a new directory"
[ -e "$tmp/made/node.crt" ] || fail "no certificate in a new directory"
! ./cistern node key "$tmp/none/made" 2>"$tmp/made.err" || fail "a key below a directory that is missing"
grep -q 'directory .*/none/made is not there and cannot be made: No such file' "$tmp/made.err" || fail "$(cat "$tmp/made.err")"

# Configurations that cannot work, and what --check-config says of each.
check_wrong() {
    local edit=$1 words=$2
    sed "$edit" "$tmp/a/conf" >"$tmp/wrong.conf"
    ! ./cisternd --check-config "$tmp/wrong.conf" 2>"$tmp/wrong.err" || fail "'$edit' is taken"
    grep -q -- "$words" "$tmp/wrong.err" || fail "'$edit': $(cat "$tmp/wrong.err")"
}
./cisternd --check-config "$tmp/a/conf" || fail "a right configuration is refused"
check_wrong '/^network/d' 'write network = trusted if'
check_wrong 's/^network.*/network = mine/' 'trusted'
check_wrong 's/^listen.*/listen = 0.0.0.0/' 'listen at all addresses'
check_wrong 's/^listen.*/listen = nowhere0/' 'neither an address nor a network interface'
check_wrong 's/^name.*/name = -a/' "'-a' is not"
check_wrong "s|^key.*|key = $tmp/b/node.key|" 'node.key'
check_wrong "s|^key.*|key = $tmp/none|" "'cistern node key' makes a key"
check_wrong "s|^trusted.*|trusted = $tmp/a/conf|" 'conf:1:'

# A daemon that was not told to listen says what to do.
start_daemon alone
! ./cistern node list 2>"$tmp/alone.err" || fail "a list without links"
grep -q "set 'listen' in \[node\]" "$tmp/alone.err" || fail "$(cat "$tmp/alone.err")"
stop_daemon alone

# -- links ------------------------------------------------------------------------------------------

for n in $nodes; do
    start_node "$n" 1
done
for n in $nodes; do
    for m in $nodes; do
        [ "$n" = "$m" ] || trust "$n" "$m"
    done
done
linked a b
linked b c
linked a c
./cistern --socket "$tmp/a/sock" node list --json >"$tmp/list.json"
for key in name address identity state program protocol isa instance since_s sent_bytes received_bytes waiting_bytes; do
    grep -q "\"$key\":" "$tmp/list.json" || fail "no $key: $(cat "$tmp/list.json")"
done
[ "$(state_of a a)" = self ] || fail "the node itself is not in its list"

# Wrong uses.
! ./cistern --manager-socket "$tmp/a/sock" node drop b 2>"$tmp/err" || fail "a user can drop a node"
grep -q 'on the manager socket' "$tmp/err" || fail "$(cat "$tmp/err")"
! at a node drop d 2>"$tmp/err" || fail "a node that is not there is dropped"
grep -q "no node 'd' is in the list" "$tmp/err" || fail "$(cat "$tmp/err")"
! at a node add d host:1 sha256:12 2>"$tmp/err" || fail "a short fingerprint is taken"
grep -q "'sha256:12' is neither a fingerprint" "$tmp/err" || fail "$(cat "$tmp/err")"
! at a node add a "$net.9" "$(fingerprint a)" 2>"$tmp/err" || fail "a node is added to itself"
! ./cistern node 2>"$tmp/err" || fail "node without a command"
grep -q 'node key, node add, node list' "$tmp/err" || fail "$(cat "$tmp/err")"

# A daemon that is killed is missed at once, and is back when it was started again.
kill -9 "${pid_of[b]}"
poll is_in a b down
poll is_in c b down
start_node b 2
linked a b
linked b c
[ "$(lines_with a1 "node 'c': the link is down")" = 0 ] || fail "the death of b has ended the link of a and c"

# A daemon that hangs is missed, too, and the others go on without it.
kill -STOP "${pid_of[c]}"
poll is_in a c down
poll is_in b c down
grep -q "node 'c': the link is down: .*nothing has come for [56]\.[0-9] s" "$tmp/a1.log" || fail "c is silent: $(grep "'c'" "$tmp/a1.log")"
kill -CONT "${pid_of[c]}"
linked a c
linked b c
[ "$(lines_with a1 "node 'b': the link is down")" = 1 ] || fail "the link of a and b has ended with c"

# A node that is dropped, drained, added again; a list that was edited.
at a node drop c
poll is_in c a down
[ -z "$(state_of a c)" ] || fail "c is dropped, and in the list"
trust a c
linked a c
at a node drain c
poll is_in a c drained
poll is_in c a down
./cistern --socket "$tmp/c/sock" node list | grep -q "has drained its link" || fail "c does not know that it is drained"
trust a c
linked a c
grep -v '^c ' "$tmp/a/nodes" >"$tmp/edited"
cp "$tmp/edited" "$tmp/a/nodes"
kill -HUP "${pid_of[a]}"
poll is_in c a down
is_in a b up || fail "a list without c has ended the link to b"
printf 'c\n' >>"$tmp/a/nodes"
kill -HUP "${pid_of[a]}"
poll grep -q 'SIGHUP: the list of nodes and the key are unchanged: .*nodes:2: ' "$tmp/a1.log"
is_in a b up || fail "a wrong list has ended a link"
sed -i '/^c$/d' "$tmp/a/nodes"

# A list of several pages.
for ((i = 1; i <= 40; i++)); do
    printf 'n%d %s.1:9 sha256:%064d\n' "$i" "$net" "$i" >>"$tmp/c/nodes"
done
kill -HUP "${pid_of[c]}"
is_long() {
    [ "$(./cistern --socket "$tmp/c/sock" node list --json | grep -c '"name":')" = 43 ]
}
poll is_long
is_in c n40 down || fail "the last node is not in the list"

# -- strangers --------------------------------------------------------------------------------------

# True if the daemon of a has as many descriptors as before.
as_before() {
    [ "$(find "/proc/${pid_of[a]}/fd" -mindepth 1 | wc -l)" -le "$n_fds" ]
}
n_fds=$(find "/proc/${pid_of[a]}/fd" -mindepth 1 | wc -l)
before=$(lines_with a1 'was refused')
for ((i = 0; i < 30; i++)); do
    # It is closed as soon as the daemon has seen that this is no TLS.
    (exec 3<>"/dev/tcp/${node_address[a]}/7433" && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3 >/dev/null) 2>/dev/null || true
done
poll as_before
after=$(lines_with a1 'was refused')
[ $((after - before)) -le 2 ] || fail "30 strangers make $((after - before)) lines in the log"
[ "$after" -ge 1 ] || fail "no line tells of strangers"
is_in a b up || fail "strangers have ended a link"

# -- another process --------------------------------------------------------------------------------

# A daemon that takes over listens where the old one did.
start a_new ./cisternd --handover --config "$tmp/a/conf" --socket "$tmp/a/sock" --manager-socket "$tmp/a/manager" --gpus none \
    --host-memory 256M --pool-memory 64M
await a_new READY=1
await a1 'EXIT=*'
linked a b
stop_daemon a_new
poll is_in b a down
stop_daemon b2
stop_daemon c1

# shellcheck shell=bash
# Functions for scripts with several nodes: daemons on ports of this machine that have links to each other. Sourced after lib.sh.
# shellcheck disable=SC2154 # tmp and line, which lib.sh sets

# Start the daemon of node $1, whose jobs use the network $2 (trusted, the default, or encrypted), under notify_run with the options $3...
# Its configuration ends with $node_settings, and its program is $node_program. Sets node_pid.
start_node() {
    mkdir "$tmp/$1" "$tmp/$1/run"
    ./cistern node key "$tmp/$1" >"$tmp/$1/key" || fail "cistern node key"
    printf '[node]\nname = %s\nlisten = %s:0\nkey = %s\ncertificate = %s\ntrusted = %s\nnetwork = %s\nwait = %s\n%b' \
        "$1" "${node_host:-127.0.0.1}" "$tmp/$1/node.key" "$tmp/$1/node.crt" "$tmp/$1/nodes" "${2:-trusted}" "${node_wait:-30}" \
        "${node_settings-}" >"$tmp/$1/conf"
    : >"$tmp/$1/nodes"
    start "$1" "${@:3}" "${node_program:-./cisternd}" --config "$tmp/$1/conf" --socket "$tmp/$1/run/cistern.sock" --gpus none
    await_node "$1"
    # The next daemon of this node is reached at the same port.
    sed -i "s|^listen = .*|listen = $(address_of "$1")|" "$tmp/$1/conf"
}

# Start the daemon of node $1 again, which has lost all that it had in memory.
again() {
    start "$1" --keep ./cisternd --config "$tmp/$1/conf" --socket "$tmp/$1/run/cistern.sock" --gpus none
    await_node "$1"
    echo "$node_pid" >"$tmp/$1.pid"
}

# Wait until the daemon of node $1 is ready. Sets node_pid.
await_node() {
    await "$1" 'PID=*'
    # shellcheck disable=SC2034 # for the caller
    node_pid=${line#PID=}
    await "$1" READY=1
}

address_of() {
    on "$1" node list --json | jq -r '.[] | select(.state == "self").address'
}

# The command cistern of node $1.
on() {
    local node=$1
    shift
    ./cistern --socket "$tmp/$node/run/cistern.sock" "$@"
}

# Let node $1 know node $2.
acquaint_one() {
    on "$1" node add "$2" "$(address_of "$2")" "$(sed -n 's/^fingerprint //p' "$tmp/$2/key")" >"$tmp/added.log" || fail "node add $2"
}

# Let all nodes "$@" know each other.
acquaint() {
    local one other
    for one in "$@"; do
        for other in "$@"; do
            [ "$one" = "$other" ] || acquaint_one "$one" "$other"
        done
    done
    for one in "$@"; do
        poll all_up "$one" $(($# - 1))
    done
}

has_no_job() {
    [ "$(on "$1" jobs --json | jq length)" = 0 ]
}

# True if node $1 has no link to node $2.
has_no_link() {
    [ "$(on "$1" node list --json | jq -r --arg node "$2" '.[] | select(.name == $node).state')" != up ]
}

all_up() {
    [ "$(on "$1" node list --json | jq '[.[] | select(.state == "up")] | length')" = "$2" ]
}

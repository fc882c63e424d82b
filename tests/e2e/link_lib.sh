# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # tmp is assigned by lib.sh
# Functions of tests with the daemons of several nodes, each with a directory $tmp/NAME. Sourced after lib.sh.

# Loopback addresses that no other test uses: $net.$((($$ & 63) * 4 + i)).
# shellcheck disable=SC2034 # for the caller
net=127.$((64 + ($$ >> 14 & 63))).$(($$ >> 6 & 255))
declare -A node_address pid_of

fingerprint() {
    ./cistern node key "$tmp/$1" --json | sed -n 's/^ *"fingerprint": "\(.*\)",*$/\1/p'
}

# Make the key and the configuration of the node $1 at the address $2; further lines of [node] are read from standard input.
make_node() {
    node_address[$1]=$2
    mkdir "$tmp/$1"
    ./cistern node key "$tmp/$1" >"$tmp/$1/key.out"
    {
        printf '[node]\nname = %s\nlisten = %s\nnetwork = trusted\n' "$1" "$2"
        printf 'key = %s\ncertificate = %s\ntrusted = %s\n' "$tmp/$1/node.key" "$tmp/$1/node.crt" "$tmp/$1/nodes"
        cat
    } >"$tmp/$1/conf"
}

# Start the daemon of the node $1 as its $2-th one.
start_node() {
    local name=$1 as=$1$2
    start "$as" ./cisternd --config "$tmp/$name/conf" --socket "$tmp/$name/sock" --manager-socket "$tmp/$name/manager" --gpus none \
        --host-memory 256M --pool-memory 64M
    await "$as" 'PID=*'
    # shellcheck disable=SC2034 # for the caller
    pid_of[$name]=${line#PID=}
    await "$as" READY=1
}

# Run a command of cistern at the node $1, as its manager.
at() {
    local name=$1
    shift
    ./cistern --manager-socket "$tmp/$name/manager" "$@"
}

# Let the node $1 trust $2.
trust() {
    at "$1" node add "$2" "${node_address[$2]}" "$(fingerprint "$2")"
}

# State of $2 in the list of $1.
state_of() {
    ./cistern --socket "$tmp/$1/sock" node list | awk -v name="$2" '$1 == name { print $2 }'
}

# True if the node $1 says that $2 is in state $3.
is_in() {
    [ "$(state_of "$1" "$2")" = "$3" ]
}

# Wait until $1 and $2 have a link.
linked() {
    poll is_in "$1" "$2" up
    poll is_in "$2" "$1" up
}

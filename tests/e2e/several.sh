# shellcheck shell=bash
# Functions for scripts with several nodes: daemons on ports of this machine that have links to each other, and jobs with ranks on them.
# Sourced after lib.sh.
# shellcheck disable=SC2154 # tmp and line, which lib.sh sets

declare -A daemon_of # The process of each node's daemon.

# -- nodes ------------------------------------------------------------------------------------------

# Start the daemon of node $1, whose jobs use the network $2 (trusted, the default, or encrypted), under notify_run with the options $3...
# Its configuration ends with $node_settings, and its program is $node_program.
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
}

# Wait until the daemon of node $1 is ready. Sets daemon_of[$1].
await_node() {
    await "$1" 'PID=*'
    daemon_of[$1]=${line#PID=}
    await "$1" READY=1
}

# Kill the daemons of the nodes "$@" at once, and wait until the next ones are ready. The nodes were started with --keep.
kill_daemons() {
    local node
    for node; do
        kill -9 "${daemon_of[$node]}"
    done
    for node; do
        await_node "$node"
    done
}

# Kill the engine of the network of node $1, if there is one now.
kill_net_engine() {
    local engine
    for engine in $(children "${daemon_of[$1]}"); do
        if has -z engine-net "/proc/$engine/cmdline" 2>/dev/null; then
            kill -9 "$engine" || true
        fi
    done
}

# Send signal $2 to the daemon of node $1 and to its engines.
signal_node() {
    # shellcheck disable=SC2046 # pids
    kill "-$2" "${daemon_of[$1]}" $(children "${daemon_of[$1]}")
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

# Take node $2 out of the list of node $1.
drop() {
    on "$1" node drop "$2" >"$tmp/dropped.log" || fail "node drop $2"
}

# True if node $1 has a link to node $2; true if it has none.
has_link() {
    [ "$(on "$1" node list --json | jq -r --arg node "$2" '.[] | select(.name == $node).state')" = up ]
}
has_no_link() {
    ! has_link "$@"
}

# Wait until the nodes $1 and $2 have a link.
linked() {
    poll has_link "$1" "$2"
    poll has_link "$2" "$1"
}

all_up() {
    [ "$(on "$1" node list --json | jq '[.[] | select(.state == "up")] | length')" = "$2" ]
}

# -- jobs -------------------------------------------------------------------------------------------

has_no_job() {
    [ "$(on "$1" jobs --json | jq length)" = 0 ]
}

# True when the part of job $2 on node $1 has made $3 steps.
has_made() {
    [ "$(on "$1" jobs --json | jq --arg job "$2" '[.[] | select(.name == $job).step] | first // 0')" -ge "$3" ]
}

# Start rank $2 of job $1 of cistern-gpt, which has one rank on each of the nodes "${nodes[@]}", with the options "${model[@]}" and $3...
# Rank 0 writes the losses to $tmp/$1.losses. Sets pids[$2].
rank() {
    local job=$1 rank=$2 out=()
    [ "$rank" -gt 0 ] || out=(--loss-file "$tmp/$job.losses")
    # shellcheck disable=SC2154 # the script's
    ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/${nodes[rank]}/run/cistern.sock" --job "$job" --world 1 \
        --all-ranks ${#nodes[@]} --first-rank "$rank" "${out[@]}" "${@:3}" >>"$tmp/$job.$rank.log" 2>&1 &
    pids[rank]=$!
}

# Start all ranks of job $1 with the options $2... Sets pids.
begin_ranks() {
    local r
    pids=()
    for r in "${!nodes[@]}"; do
        rank "$1" "$r" "${@:2}"
    done
}

# Wait for the ranks "${pids[@]}" of job $1. In messages of this function and of those that follow, $what is the case that the script tests.
await_ranks() {
    local rank
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || fail "${what:+$what: }$1: rank $rank failed"
    done
}

# Node $1 saves job $2 in $tmp/saved-$3; without $3 in $tmp/saved-$2.
save_on() {
    on "$1" save "$2" "$tmp/saved-${3-$2}" >"$tmp/$2.save.log" 2>&1 || fail "${what:+$what: }node $1 does not save $2"
}

# Remove job $1 by the first of the nodes "${nodes[@]}", and wait until it is gone from all.
remove_job() {
    local node
    on "${nodes[0]}" rm "$1" >"$tmp/removed.log" || fail "rm $1"
    for node in "${nodes[@]}"; do
        poll has_no_job "$node"
    done
}

# Wait for the ranks of job $1. Its last node saves it in $tmp/saved-$1, all states of it, whichever node has them; its first one removes it.
end_job() {
    await_ranks "$1"
    save_on "${nodes[-1]}" "$1"
    remove_job "$1"
}

# The number of steps that each tensor in $tmp/saved-$1 has missed.
missed_in() {
    jq -c .job.missed "$tmp/saved-$1"/*/cistern.json
}

# Fail unless $tmp/saved-$2 has the states, and the missed steps, of $tmp/saved-$1.
same_states() {
    local file n=0
    for file in "$tmp/saved-$1"/*/*.safetensors; do
        cmp "$file" "$tmp/saved-$2/${file#"$tmp/saved-$1/"}" || fail "${what:+$what: }$2 has other states than $1 in ${file##*/}"
        n=$((n + 1))
    done
    [ $n -gt 0 ] || fail "$1 has saved nothing"
    [ "$(missed_in "$1")" = "$(missed_in "$2")" ] || fail "${what:+$what: }missed steps of $2: $(missed_in "$2"), and of $1: $(missed_in "$1")"
}

# Fail unless job $2 has the losses of job $1. Up to $3 losses, 0 by default, may be unknown (nan).
same_losses() {
    awk -v most="${3:-0}" 'NR == FNR { known[FNR] = $0; next } $0 == "nan" && n++ < most { $0 = known[FNR] } { print }' \
        "$tmp/$1.losses" "$tmp/$2.losses" | cmp - "$tmp/$1.losses" ||
        fail "${what:+$what: }$2 has other losses than $1: $(diff "$tmp/$1.losses" "$tmp/$2.losses" | head -n 4)"
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A step of a job on two nodes: two network namespaces joined by a pair of veth, each with a daemon and a processor of its own, and one rank on each.
# For links without a limit, and with limits in both directions (tc tbf), of RATE Mbit/s:
#   nodes_link[_RATE]        bytes per second that a plain TCP connection has in each direction, both at a time, and those of the limit
#   nodes_step[_RATE]        a step of cistern-gpt, and what `cistern plan --nodes 2` predicts for a link with the rate of that connection
#   nodes_bytes[_RATE]       bytes that a node receives in a step, by the counters of the interface, and the bytes that the plan says
#   nodes_fsdp*              cistern.torch beside FSDP2 over gloo: see peers/nodes.py
# The compute rate for the plan is that with which it has the step of a job on one node, while the other node trains the same model for itself, in turns.
# nodes_bytes is the difference of a long and a short run, divided by the steps that the long one has more.
# Needs root, ip, tc, jq and python3; for FSDP2 PyTorch, in $PEERS_PYTHON or $CISTERN_PYTHON. NODES_STEP_ROUNDS: number of runs of each kind.
# NODES_STEP_RATES: limits in Mbit/s. Run from the build tree.
# shellcheck disable=SC2034 # training.sh's
daemons=own
# shellcheck source=tests/bench/training.sh
. "$(dirname "$0")/training.sh"
here=$(cd "$(dirname "$0")" && pwd)

nodes=(a b)
spaces=("cst-$$-a" "cst-$$-b")
addresses=(10.123.0.1 10.123.0.2)
processors=(0 $(($(nproc) > 1)))
daemon_pids=()

leave() {
    local status=$? pid space
    for pid in "${daemon_pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    for space in "${spaces[@]}"; do
        ip netns del "$space" 2>/dev/null || true
    done
    finish "$status"
}
trap leave EXIT

skip() {
    printf '%s: skipped: %s\n' "${0##*/}" "$*" >&2
    exit 0
}

for program in ip tc jq python3 taskset; do
    command -v "$program" >/dev/null || skip "no $program"
done
ip netns add "${spaces[0]}" 2>/dev/null || skip "no network namespaces: run as root"

rounds=${NODES_STEP_ROUNDS:-$(sized 5 1)}
read -r -a rates <<<"${NODES_STEP_RATES:-$(sized "1000 100" 1000)}"
short=$(sized 3 2)
steps=$(sized 13 3)
model=(--layers "$(sized 8 2)" --heads 4 --width "$(sized 384 64)" --context "$(sized 128 32)" --batch "$(sized 4 2)" --threads 1 --quiet)
# As cistern run sets it: the threads of a rank that waits for weights leave the processor to the engine.
export OMP_WAIT_POLICY=passive

# Run the command $2... on node number $1.
at() {
    ip netns exec "${spaces[$1]}" taskset -c "${processors[$1]}" "${@:2}"
}

# The command cistern of node number $1.
on() {
    ./cistern --socket "$tmp/${nodes[$1]}/cistern.sock" "${@:2}"
}

# Wait until the command "$@" succeeds.
await() {
    local i
    for ((i = 0; i < 600; i++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    fail "for 30 s without success: $*"
}

start_node() {
    local name=${nodes[$1]}
    mkdir "$tmp/$name"
    ./cistern node key "$tmp/$name" >"$tmp/$name/key"
    : >"$tmp/$name/nodes"
    printf '[node]\nname = %s\nlisten = %s:7433\nkey = %s\ncertificate = %s\ntrusted = %s\nnetwork = trusted\n' \
        "$name" "${addresses[$1]}" "$tmp/$name/node.key" "$tmp/$name/node.crt" "$tmp/$name/nodes" >"$tmp/$name/conf"
    # Not by the function `at`, whose process would be ended in place of the daemon.
    ip netns exec "${spaces[$1]}" taskset -c "${processors[$1]}" \
        ./cisternd --config "$tmp/$name/conf" --socket "$tmp/$name/cistern.sock" --gpus none --log-level warning >"$tmp/daemon-$name.log" 2>&1 &
    daemon_pids+=($!)
    await on "$1" ping
}

is_up() {
    on "$1" node list --json | jq -e '[.[] | select(.state == "up")] | length == 1'
}

make_nodes() {
    local i
    ip netns add "${spaces[1]}"
    ip -n "${spaces[0]}" link add end0 type veth peer name end1 netns "${spaces[1]}"
    for i in 0 1; do
        ip -n "${spaces[$i]}" addr add "${addresses[$i]}/30" dev "end$i"
        ip -n "${spaces[$i]}" link set "end$i" up
        ip -n "${spaces[$i]}" link set lo up
    done
    for i in 0 1; do
        start_node "$i"
    done
    for i in 0 1; do
        on "$i" node add "${nodes[1 - i]}" "${addresses[1 - i]}:7433" "$(sed -n 's/^fingerprint //p' "$tmp/${nodes[1 - i]}/key")" >"$tmp/added.log"
    done
    for i in 0 1; do
        await is_up "$i"
    done
}

# Let each node send at most $1 Mbit/s; empty: as much as it can. The bucket has room for several of the largest packets.
limit() {
    local i
    for i in 0 1; do
        tc -n "${spaces[$i]}" qdisc del dev "end$i" root 2>/dev/null || true
        [ -z "$1" ] || tc -n "${spaces[$i]}" qdisc add dev "end$i" root tbf rate "$1mbit" burst 256kb latency 100ms
    done
}

received() {
    at "$1" cat "/sys/class/net/end$1/statistics/rx_bytes"
}

# Print the bytes per second that a TCP connection has in each direction; $1: bytes to send.
link_rate() {
    at 0 python3 "$here/nodes_link.py" listen "${addresses[0]}" "$1" &
    at 1 python3 "$here/nodes_link.py" connect "${addresses[0]}" "$1" || fail "no rate of the link"
    wait $! || fail "no rate of the link"
}

# Train job $1 for $2 steps, with one rank on each node of the same job ($3: together), or of a job of each node (apart). The step times of the
# first node go to $tmp/$1.json, and the bytes that a node has received to $tmp/$1.bytes.
train_nodes() {
    local i before=() pids=() of_rank
    for i in 0 1; do
        before+=("$(received "$i")")
    done
    for i in 0 1; do
        of_rank=(LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 RANK=0 WORLD_SIZE=1)
        [ "$3" = apart ] || of_rank=(LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "RANK=$i" WORLD_SIZE=2)
        at "$i" env "${of_rank[@]}" ./cistern-gpt "${model[@]}" --steps "$2" --data "$tmp/text" --socket "$tmp/${nodes[$i]}/cistern.sock" --job "$1" \
            --pool 120% --log-json "$tmp/$1.$i.json" >"$tmp/worker$i.log" 2>&1 &
        pids+=($!)
    done
    for i in 0 1; do
        wait "${pids[$i]}" || fail "job $1: the rank of node ${nodes[$i]} failed"
    done
    for i in 0 1; do
        echo $(($(received "$i") - before[i]))
    done | sort -n | tail -n 1 >"$tmp/$1.bytes"
    on 0 job "$1" --json >"$tmp/$1.job"
    on 0 rm "$1" >"$tmp/removed.log"
    [ "$3" = together ] || on 1 rm "$1" >"$tmp/removed.log"
    for i in 0 1; do
        await gone "$i" "$1"
    done
}

gone() {
    on "$1" jobs --json | jq -e --arg job "$2" 'all(.name != $job)'
}

# The number of the plan $2 that jq finds at $1.
planned() {
    jq "$1" <"$2"
}

# Plan the model with the compute rate $1 and the options $2... The plan goes to $tmp/plan.json.
plan() {
    ./cistern plan "$tmp/model.json" --rates "$tmp/rates.json" --on host --flops "$1" --chunk "$chunk" --json "${@:2}" >"$tmp/plan.json" 2>"$tmp/plan.log" ||
        fail "no plan"
}

# Set flops to the compute rate with which the plan of one node has a step of $1 seconds.
flops=1e11
calibrate() {
    local i
    for i in 1 2 3 4; do
        plan "$flops"
        flops=$(awk -v f="$flops" -v c="$(planned .plan.predicted.compute_s "$tmp/plan.json")" -v s="$(planned .plan.predicted.step_s "$tmp/plan.json")" -v m="$1" \
            'BEGIN { left = m - (s - c); print f * c / (left > m / 10 ? left : m / 10) }')
    done
}

make_nodes
engine() {
    numbers "$1" <"$tmp/engine.json"
}
OMP_NUM_THREADS=1 at 0 ./cistern-engine-host --rates >"$tmp/engine.json" || fail "no rates"
request=$(at 0 ./cistern --socket "$tmp/a/cistern.sock" ping --count "$(sized 2000 20)" --json | numbers p50_us | head -n 1)
cat >"$tmp/rates.json" <<RATES
{"devices": [{"name": "host", "up": $(engine copy), "down": $(engine copy), "memory": $(engine pass), "flops": 1e11}],
 "nodes": [{"cores": $(engine cores), "pass": $(engine pass), "update": $(engine update), "reduce": $(engine reduce), "copy": $(engine copy), "products": $(engine products)}],
 "request_s": $(awk -v us="${request:-30}" 'BEGIN { print us * 1e-6 }')}
RATES
./cistern-gpt "${model[@]}" --describe "$tmp/model.json"

# Bytes with which the rate of a link is measured whose limit is $1: 3 seconds of the limit.
link_bytes() {
    if [ -n "$1" ]; then
        sized $(($1 * 375000)) $((2 << 20))
    else
        sized $((1 << 30)) $((16 << 20))
    fi
}

python=${PEERS_PYTHON-${CISTERN_PYTHON-}}
if [ -n "$python" ] && ! "$python" -c 'import torch.distributed.fsdp' 2>/dev/null; then
    python=
fi
[ -n "$python" ] || printf '%s: FSDP2 skipped: PEERS_PYTHON names no python with PyTorch\n' "${0##*/}" >&2

of_node() {
    printf '%s,%s,end%s,%s,%s' "${spaces[$1]}" "${processors[$1]}" "$1" "${addresses[$1]}" "$tmp/${nodes[$1]}/cistern.sock"
}

number=0
for rate in "" "${rates[@]}"; do
    name=${rate:+_$rate}
    number=$((number + 1))
    printf 'link %s, load %s\n' "${rate:-without a limit}" "$(cut -d' ' -f1-3 /proc/loadavg)" >&2
    limit "$rate"
    for ((i = 0; i < rounds; i++)); do
        link_rate "$(link_bytes "$rate")" >>"$tmp/link$name"
        train_nodes short "$short" together
        train_nodes "long$name" "$steps" together
        echo $((($(<"$tmp/long$name.bytes") - $(<"$tmp/short.bytes")) / (steps - short))) >>"$tmp/bytes$name"
        mv "$tmp/long$name.0.json" "$tmp/long$name.$i.log.json"
        train_nodes "alone$name" "$steps" apart
        mv "$tmp/alone$name.0.json" "$tmp/alone$name.$i.log.json"
    done
    rm -f "$tmp/long$name.1.json" "$tmp/alone$name.1.json" "$tmp"/short.?.json
    link=$(median <"$tmp/link$name")
    # The daemons have chosen the size of chunks.
    chunk=$(jq '.chunk_elems // .chunks.elems // empty' <"$tmp/long$name.job")
    calibrate "$(times "alone$name" | median)"
    plan "$flops" --nodes 2 --link "$(awk -v b="$link" 'BEGIN { print b * 8e-9 }')"
    jq -c '.nodes' <"$tmp/plan.json" >&2
    emit "nodes_link$name" "$link" B/s "$(awk -v r="${rate:-0}" 'BEGIN { print r * 125000 }')" "$rounds"
    emit "nodes_step$name" "$(times "long$name" | median)" s "$(planned .nodes.step_s "$tmp/plan.json")" $((rounds * (steps - 1)))
    emit "nodes_bytes$name" "$(median <"$tmp/bytes$name")" B "$(planned '.nodes | .sum_bytes + .copy_bytes + .weight_bytes' "$tmp/plan.json")" "$rounds"
    printf 'median steps: %s s on one node, %s s on two\n' "$(times "alone$name" | median)" "$(times "long$name" | median)" >&2
    if [ -n "$python" ]; then
        CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONPATH=$PWD/client/python/package OMP_NUM_THREADS=1 "$python" "$here/peers/nodes.py" \
            --node "$(of_node 0)" --node "$(of_node 1)" --link "$rate" --seed $number --rounds "$rounds" --json "$out"
    fi
done

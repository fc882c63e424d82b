# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # lib.sh sets tmp, and the script that sources this one model
# Dispatched jobs of cistern-gpt, for the tests of them. The script that sources this one calls start_on_host, or defines the array
# model, the options of all workers, and may define device_of, which prints the device of worker $1.
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

# Start daemon d for a model of six blocks.
start_on_host() {
    model=(--layers 6 --heads 2 --width 64 --context 64 --batch 8 --micro-batches 4 --warmup 2 --matmul fp32 --threads 1 --seed 7
        --data "$tmp/text" --validate 5%)
    write_text 2000
    start_daemon d
}

device_of() {
    printf 'host\n'
}

# Start worker $2 of $3 of job $1 with the other arguments as options. Its process is pids[$2].
begin() {
    local name=$1 rank=$2 world=$3
    shift 3
    ./cistern-gpt --job "$name" --rank "$rank" --world "$world" "${model[@]}" --device "$(device_of "$rank")" --parallel dispatch \
        --loss-file "$tmp/$name.$rank.losses" --dump-weights "$tmp/$name.$rank.weights" "$@" >"$tmp/$name.$rank.out" \
        2>"$tmp/$name.$rank.log" &
    pids[rank]=$!
}

begin_all() {
    local name=$1 world=$2 rank
    shift 2
    pids=()
    for ((rank = 0; rank < world; rank++)); do
        begin "$name" "$rank" "$world" "$@"
    done
}

# Wait for the workers of job $1, of which the one with the number $2, if given, was killed.
end_all() {
    local rank
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || [ "$rank" = "${2-}" ] || fail "worker $rank of job $1 failed: $(cat "$tmp/$1.$rank.log")"
    done
}

# Job $2 has the results of job $1.
same() {
    cmp "$tmp/$1.0.weights" "$tmp/$2.0.weights" || fail "jobs $1 and $2 have different weights"
    cmp "$tmp/$1.0.losses" "$tmp/$2.0.losses" || fail "jobs $1 and $2 have different losses"
}

# Bytes of weights that the workers of job $1 have loaded.
loaded() {
    ./cistern job "$1" --json | jq '[.ranks[].bytes_up] | add'
}

# True if the job $1 has made $2 steps.
made() {
    [ "$(./cistern job "$1" --json 2>/dev/null | jq .step)" -ge "$2" ] 2>/dev/null
}

# The losses of job $1 are near those of a worker that computes everything in turn: at most $2 away. Only the order of some sums is
# another one. The arguments after $2 are options of that worker.
near_plain() {
    local one another name=$1 most=$2
    shift 2
    ./cistern-gpt --job plain "${model[@]}" --loss-file "$tmp/plain.losses" "$@" >"$tmp/plain.out" 2>"$tmp/plain.log"
    paste "$tmp/plain.losses" "$tmp/$name.0.losses" | while read -r one another; do
        awk -v a="$(printf '%.9f' "$one")" -v b="$(printf '%.9f' "$another")" -v most="$most" \
            'BEGIN { exit !(a - b < most && b - a < most) }' || fail "the losses $one and $another are not near each other"
    done
}

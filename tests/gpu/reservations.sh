# shellcheck shell=bash disable=SC2154,SC2034 # begin_stage sets tmp; small_gpt's variables are the stage's
# The stage "reservations" of tests/gpu/run: Deep Optimizer States on a GPU. Sourced by stages.sh after train.sh.

# Start a daemon in which one of every $1 chunks is updated on the GPU (none, auto).
start_reservations() {
    printf '[plan]\ninterleave = %s\n' "$1" >"$tmp/reservations.conf"
    start_daemon --config "$tmp/reservations.conf" "${@:2}"
}

# The number $2 in the output of `cistern job $1`; empty if there is none.
of_job() {
    ./cistern job "$1" --json | number_of "$2"
}

# Check that job $1 was updated on the GPU if $2, the k of its daemon, says so, and that no device update failed.
updated_there() {
    local there failures
    there=$(of_job "$1" n_device_updates)
    failures=$(of_job "$1" reservation_failures)
    [ "${failures:-0}" = 0 ] || fail "$1: $failures failures on the card"
    if [ "$2" = none ]; then
        [ "$there" = 0 ] || fail "$1: $there chunks were updated on the card"
    elif [ "$2" != auto ]; then
        [ "$there" -gt 0 ] || fail "$1: no chunk was updated on the card"
    fi
}

# Every k has the bits of a run on the GPU alone, also with updates before the commit.
reservations_bits() {
    local k world=1 layers=12 steps=20
    [ -z "$GPU_FAKE" ] || layers=3 steps=2
    small_gpt local --store local || gpt_failed "$tmp/local.log" "--store local"
    small_gpt unclipped --store local --clip 0 || gpt_failed "$tmp/unclipped.log" "--store local --clip 0"
    for k in none 1 2 3; do
        start_reservations $k
        small_gpt "reservation-$k" --job "reservation-$k" --chunk 36864 --device-update 16M || gpt_failed "$tmp/reservation-$k.log" "k = $k"
        updated_there "reservation-$k" $k
        same_bits "reservation-$k" local
        if [ -n "$GPU_FAKE" ] && [ $k != 2 ]; then # the stand-in driver needs long for the others
            stop_daemon
            continue
        fi
        small_gpt "early-$k" --job "early-$k" --chunk 36864 --device-update 16M --overlap early --clip 0 ||
            gpt_failed "$tmp/early-$k.log" "k = $k, early"
        updated_there "early-$k" $k
        same_bits "early-$k" unclipped
        stop_daemon
    done
}

# Median seconds of three update phases with k = $1. used_k receives the k of the last one.
time_reservations() {
    local i steps=0 name=timed-$1 times=()
    start_reservations "$1" --host-memory 90%
    for ((i = 0; i < 3; i++)); do
        steps=$((steps + (i == 0 ? 6 : 2))) # the daemon learns in the first ones
        ./cistern-gpt "${model[@]}" --steps "$steps" --job "$name" >"$tmp/$name.log" 2>&1 || gpt_failed "$tmp/$name.log" "k = $1"
        times+=("$(of_job "$name" last_update_seconds)")
    done
    updated_there "$name" "$1"
    ./cistern job "$name" | grep '^updates'
    used_k=$(of_job "$name" interleave)
    seconds=$(printf '%s\n' "${times[@]}" | median)
    stop_daemon
}

stage_reservations() {
    local k model seconds alone used_k
    need_gpt
    make_text
    reservations_bits
    [ -z "$GPU_FAKE" ] || return 0
    # 0.2 G parameters in 24 chunks, with a reservation for three of them.
    model=(--layers 16 --heads 16 --width 1024 --context 256 --batch 4 --device cuda --warmup 2 --lr 0.0001 --quiet --data "$tmp/text"
        --pool 50% --chunk 8388608 --device-update 1G)
    [ -z "$GPU_QUICK" ] || model+=(--layers 4)
    time_reservations none
    alone=$seconds
    emit reservations_none "$alone" s
    for k in 1 2 3 auto; do
        time_reservations $k
        emit "reservations_$k" "$seconds" s "$alone"
    done
    emit reservations_auto_k "${used_k:-0}" k
}

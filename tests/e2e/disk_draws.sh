#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws jobs at random whose states lie on one or two drives, all or half of them: optimizers, formats, ranks, micro-batches, times of
# updates, and dispatch. Each has the weights of the job with states in memory, bit for bit. CST_TEST_DRAWS: jobs that are drawn.
# CST_TEST_SEED: seed of the draws.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
# shellcheck source=tests/e2e/drive.sh
. "${srcdir:-.}/tests/e2e/drive.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq
need_drive

n_draws=${CST_TEST_DRAWS:-$(if sparse; then echo 4; else echo 16; fi)}
# shellcheck disable=SC2034 # for keeping.sh
model=(--layers 3 --heads 2 --width 32 --context 16 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400
# Each file is on a drive of its own.
export CISTERN_ENGINE_HOST=$PWD/cistern-engine-host
use_drives_daemon

end_keeper() {
    ./cistern stat --json | jq -e 'any(.engines[]; .kind == "disk" and .commands > 0)' >/dev/null || fail "no drive was used"
    stop_daemon "$keeper"
}

# Choose one of $@. Sets chosen.
choose() {
    local n=$((RANDOM % $# + 1))
    chosen=${!n}
}

draw() {
    local optimizer masters moments overlap
    choose adamw adam lion sgd muon
    optimizer=$chosen
    choose fp32 split
    masters=$chosen
    choose fp32 bf16 mx8
    moments=$chosen
    choose 1 2 3
    world=$chosen
    options=(--optimizer "$optimizer" --masters "$masters" --moments "$moments")
    choose stochastic nearest
    [ "$moments" = fp32 ] || options+=(--rounding "$chosen")
    choose 6144 16384 36864
    options+=(--chunk "$chosen")
    choose '' '' early delayed
    overlap=$chosen
    case $overlap in
    early) options+=(--overlap early --clip 0) ;;
    delayed) options+=(--overlap delayed --delay-from $((RANDOM % 3))) ;;
    esac
    choose data data dispatch
    if [ "$chosen" = dispatch ] && [ "$overlap" != early ]; then
        options+=(--parallel dispatch --micro-batches 2)
    else
        choose 1 1 2 3
        options+=(--micro-batches "$chosen")
    fi
    options+=(--batch 6 --steps $((4 + RANDOM % 3)))
    choose "$drive" "$drive,$drive"
    there=(--disk "$chosen")
    choose 0 half
    [ "$chosen" = 0 ] || there+=(--disk-bytes $((64 + RANDOM % 200))K)
}

for ((i = 0; i < n_draws; i++)); do
    if [ $((i % 6)) = 0 ]; then # A daemon knows 16 drives, and each job may bring two.
        [ "$i" = 0 ] || end_keeper
        keeper=keeper$i
        start_keeping "$keeper" --gpus none
    fi
    draw
    what="draw $i of seed $seed: $world ranks, ${options[*]}"
    begin memory "$world" "${options[@]}"
    end "$what"
    begin disk "$world" "${options[@]}" "${there[@]}"
    end "$what ${there[*]}"
    cmp "$tmp/memory.weights" "$tmp/disk.weights" || fail "other weights: $what ${there[*]}"
    ./cistern rm memory
    ./cistern rm disk
done
end_keeper
printf '%d draws, same bits\n' "$n_draws"

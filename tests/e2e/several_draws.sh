#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws jobs with ranks on several nodes at random, whose daemons compute with different instruction sets: optimizers, formats of states,
# pools, copies, rank blocks, micro-batches, adapters, experts, and tensors that are fp32, frozen or without a gradient. Each job has the
# losses of a job with all ranks on one node, and each of its nodes saves the states of that job, bit for bit. A job with experts is compared with one
# whose ranks are on other nodes, as many on each: an expert is trained by the tokens of a node, and their sums are rounded for each node.
# CST_TEST_TREE: the daemon and the engines of a node are those of that build tree, such as one for another architecture (tests/aarch64).
# CST_TEST_DRAWS: jobs that are drawn. CST_TEST_SEED: seed of the draws; CST_TEST_FIRST: the first job to run of those of the seed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

first=${CST_TEST_FIRST:-0}
n_draws=${CST_TEST_DRAWS:-$(if sparse; then echo 3; else echo 16; fi)}
seed=${CST_TEST_SEED:-$(($(date +%s) % 100000))}
printf 'seed %s\n' "$seed"
RANDOM=$seed
write_text 100

# Choose one of $@. Sets chosen.
choose() {
    local n=$((RANDOM % $# + 1))
    chosen=${!n}
}

# Order the nodes at random. Sets nodes.
shuffle() {
    local i j node
    nodes=("${all[@]}")
    for ((i = ${#nodes[@]} - 1; i > 0; i--)); do
        j=$((RANDOM % (i + 1)))
        node=${nodes[i]}
        nodes[i]=${nodes[j]}
        nodes[j]=$node
    done
}

# Start the nodes, with a network that is drawn. The last one has the best instruction set of this machine and one thread.
start_nodes() {
    local isas=(plain avx2 '' '') i
    [ "$(uname -m)" = x86_64 ] || isas=(plain '' plain '')
    choose trusted trusted encrypted
    network=$chosen
    for i in "${!all[@]}"; do
        # shellcheck disable=SC2034 # for start_node
        node_settings="\n[engine]\nthreads = $((i == 3 ? 1 : 2))\n"
        # shellcheck disable=SC2034 # for start_node
        [ "$i" != 3 ] || node_program=${CST_TEST_TREE+$CST_TEST_TREE/cisternd}
        CISTERN_ISA=${isas[i]} start_node "${all[i]}" "$network"
    done
    acquaint "${all[@]}"
    kernels=$(on a node list --json | jq -r 'map(.name + ": " + .isa) | join(", ")')
    printf 'the nodes have kernels %s, and a network that is %s\n' "$kernels" "$network"
    [ "$(on a node list --json | jq 'map(.isa) | unique | length')" -ge 2 ] || fail "all nodes compute with the same instructions: $kernels"
}

# -- draws ----------------------------------------------------------------------------------------

# Draw how many ranks are on which nodes, in rank blocks of $block ranks. Sets places, and there: those of the job to compare with.
draw_places() {
    local n each=1 more=0 i j counts=() # Rank blocks of each node.
    choose 2 2 3 $((5 - block))
    n=$chosen
    if [ "$kind" != experts ]; then
        more=$((RANDOM % (6 - block - n)))
    elif [ "$n" = 2 ]; then
        each=$((1 + RANDOM % 2)) # The ranks of a node share its experts, so that all nodes have equally many ranks.
    fi
    for ((i = 0; i < n; i++)); do
        counts+=("$each")
    done
    for ((i = 0; i < more; i++)); do
        j=$((RANDOM % n))
        counts[j]=$((counts[j] + 1))
    done
    ranks=$(((n * each + more) * block))
    place
    places=("${placed[@]}")
    place
    there=("${placed[@]}")
    [ "$kind" = experts ] || there=("${nodes[0]}:$ranks")
    choose 1 2 "$n"
    copies=$chosen
}

# Place "${counts[@]}" rank blocks on nodes that are drawn. Sets placed.
place() {
    local i
    shuffle
    placed=()
    for i in "${!counts[@]}"; do
        placed+=("${nodes[i]}:$((counts[i] * block))")
    done
}

# Draw what both kinds of workers have. Sets optimizer, masters, moments, micro and clip.
draw_states() {
    choose adamw adam lion sgd muon
    optimizer=$chosen
    choose fp32 split
    masters=$chosen
    choose fp32 bf16 mx8
    moments=$chosen
    choose 1 1 2 3
    micro=$chosen
    choose 0 1 0.01
    clip=$chosen
}

# Draw a job of cistern-gpt. Sets options, and those of the places alone, and those of the job to compare with.
draw_gpt() {
    local small=30% # The smallest pool.
    draw_states
    options=(--optimizer "$optimizer" --masters "$masters" --moments "$moments" --micro-batches "$micro" --batch "$micro" --clip "$clip"
        --block-ranks "$block" --steps $((2 + RANDOM % 3)) --layers 14 --heads 2 --width 32 --context 16 --warmup 2 --lr 0.003
        --matmul fp32 --threads 1 --seed $((RANDOM % 5)) --data "$tmp/text")
    choose stochastic nearest
    [ "$moments" = fp32 ] || options+=(--rounding "$chosen")
    choose '' 3072 6144 12288
    options+=(${chosen:+--chunk "$chosen"})
    [ "$chosen" != 12288 ] || small=50%
    choose '' 1 4
    options+=(${chosen:+--prefetch-depth "$chosen"})
    case $kind in
    gpt)
        choose '' '' 400K
        options+=(${chosen:+--activation-memory "$chosen"})
        ;;
    lora) options+=(--lora $((2 + RANDOM % 3))) ;;
    experts)
        choose zero skip
        options+=(--experts $((2 + RANDOM % 4)) --top-k 1 --unused "$chosen")
        ;;
    esac
    choose '' "$small" 70%
    own=(${chosen:+--pool "$chosen"} --copies "$copies")
    choose '' "$small" 70%
    others=(${chosen:+--pool "$chosen"})
}

# Draw a job of mixed_rank.
draw_mixed() {
    draw_states
    options=(optimizer="$optimizer" masters="$masters" moments="$moments" micro="$micro" clip="$clip" block="$block" all="$ranks")
    choose all bf16 fp32 frozen
    [ "$masters" = fp32 ] || chosen=bf16
    options+=(kinds="$chosen")
    choose 0 1
    [ "$chosen" = 0 ] || options+=(nan=$((RANDOM % 4)))
    choose 0 0.125
    options+=(scale="$chosen")
    choose 0 2
    options+=(groups="$chosen")
    choose zero skip
    options+=(unused="$chosen")
    [ "$chosen" = zero ] || options+=(leave=1)
    own=(copies="$copies")
    others=()
}

draw() {
    choose gpt gpt lora experts mixed mixed
    kind=$chosen
    choose 1 1 2
    block=$chosen
    draw_places
    if [ "$kind" = mixed ]; then
        draw_mixed
    else
        draw_gpt
    fi
}

# -- runs -----------------------------------------------------------------------------------------

# Begin rank $3 of the $4 on node $2 in the background, which has the number $5 in job $1; with the options $6...
begin_rank() {
    local job=$1 node=$2 rank=$3 here=$4 number=$5 out=()
    shift 5
    if [ "$kind" = mixed ]; then
        CISTERN_SOCKET=$tmp/$node/run/cistern.sock ./tests/lib/mixed_rank "$job" "$rank" "$here" 5 first=$((number - rank)) "$@" \
            >"$tmp/$job.$number.log" 2>&1 &
    else
        [ "$number" != 0 ] || out=(--loss-file "$tmp/$job.losses")
        ./cistern-gpt --socket "$tmp/$node/run/cistern.sock" --job "$job" --rank "$rank" --world "$here" --first-rank $((number - rank)) \
            --all-ranks "$ranks" "${out[@]}" "$@" >"$tmp/$job.$number.log" 2>&1 &
    fi
    pids+=($!)
}

# Begin job $1 on the places $2, words, with the options $3...
begin() {
    local job=$1 place rank number=0
    local -a list
    read -ra list <<<"$2"
    shift 2
    for place in "${list[@]}"; do
        for ((rank = 0; rank < ${place#*:}; rank++)); do
            begin_rank "$job" "${place%:*}" "$rank" "${place#*:}" $((number + rank)) "$@"
        done
        number=$((number + ${place#*:}))
    done
}

run() {
    local place other=${there[0]%:*}
    pids=()
    begin "other$i" "${there[*]}" "${options[@]}" "${others[@]}"
    begin "drawn$i" "${places[*]}" "${options[@]}" "${own[@]}"
    await_ranks "jobs $i"
    [ "$kind" = mixed ] || same_losses "other$i" "drawn$i"
    save_on "$other" "other$i"
    for place in "${places[@]}"; do
        save_on "${place%:*}" "drawn$i" "drawn$i.${place%:*}"
        same_states "other$i" "drawn$i.${place%:*}"
    done
    on "$other" rm "other$i" >"$tmp/removed.log" || fail "rm other$i"
    on "${places[0]%:*}" rm "drawn$i" >"$tmp/removed.log" || fail "rm drawn$i"
    rm -r "$tmp"/saved-* "$tmp"/other"$i".* "$tmp"/drawn"$i".*
}

all=(a b c d)
start_nodes
for ((i = 0; i < first + n_draws; i++)); do
    draw
    what="draw $i of seed $seed: $kind, $ranks ranks, on ${places[*]} with ${own[*]}, compared with ${there[*]} ${others[*]}: ${options[*]}"
    [ "$i" -ge "$first" ] || continue
    printf '%s\n' "$what"
    run
done
for node in "${all[@]}"; do
    poll has_no_job "$node"
done
printf '%d draws, same bits\n' "$n_draws"

# shellcheck shell=bash
# The stages of tests/gpu/run. Each is a function that runs by itself in the root of the build tree or the staged folder, with a
# time limit. Its output is its log. It ends with status 0, 77 (skipped: the last line has the reason) or another one (failed),
# and writes results with emit.

# Name, largest number of seconds, purpose. Correctness comes first.
stages=(
    "kernels 45 the kernels' bits against the C references, and their bandwidth against a copy on the card"
    "attention 30 attention against its reference"
    "gpt 30 the worker's passes on the GPU against those on the processor"
    "bits 40 cistern-gpt through the daemon with pools of 100, 50, 25 % and the smallest: the same bits"
    "e2e 75 two ranks on this GPU; a worker, an engine and the daemon killed: the same bits, and nothing is left"
    "cards 60 two ranks on two cards, with peer access and without: the bits of two ranks on one card"
    "nccl 60 collectives of one rank per card by NCCL and in the order of the ranks, and of two ranks on one card: results, and a rank killed"
    "edges 40 arrays from GPU to GPU through edges, with slots on the receiver's and in host memory, against a bare copy"
    "sanitizer 40 compute-sanitizer on the kernels, if it is there"
    "experiments 40 what the driver does where its manual is silent"
    "copy 40 64 MiB chunks up, down and both at once, against cuMemcpyAsync"
    "worker 60 a GPT of 1.3 B parameters, all states on the GPU, against the card's bf16 matrix products"
    "whole 90 the same model through the daemon, pool of 25 %, and tokens per step against efficiency"
    "copies 60 the same, with weights copied by the worker itself instead of the engine"
    "reservations 120 every k-th chunk updated on the card, k of 1, 2, 3, none: the same bits; and how long updates take with each"
    "size 150 the largest GPT that one step trains in 100 GiB of host and 16 GiB of GPU memory"
    "peer 90 the same model in PyTorch with DeepSpeed ZeRO-3, states in host memory"
    "torch 120 cistern.torch: the bits of plain torch, and a model beside plain torch and FSDP2 with CPU offload"
)

list_stages() {
    local row name limit words
    for row in "${stages[@]}"; do
        read -r name limit words <<<"$row"
        printf '%-12s %4d s  %s\n' "$name" "$limit" "$words"
    done
}

is_stage() {
    declare -F "stage_$1" >/dev/null
}

# -- for the parent ---------------------------------------------------------------------------

# Find the libraries that a staged folder contains, and cuBLASLt, which is in a toolkit or in Python's folders.
prepare_libraries() {
    local packed dir
    GPU_LIBRARIES=${LD_LIBRARY_PATH-}
    if [ -d lib ]; then
        mkdir -p "$GPU_SCRATCH/lib"
        for packed in lib/*.gz; do
            [ ! -e "$packed" ] || gzip -dc "$packed" >"$GPU_SCRATCH/lib/$(basename "$packed" .gz)"
        done
        GPU_LIBRARIES=$GPU_LIBRARIES${GPU_LIBRARIES:+:}$PWD/lib:$GPU_SCRATCH/lib
        export CISTERN_ENGINE_HOST=$PWD/cistern-engine-host CISTERN_ENGINE_CUDA=$PWD/cistern-engine-cuda
    fi
    if ! ldconfig -p 2>/dev/null | grep 'libcublasLt\.so\.1[23]' >/dev/null; then
        for dir in /usr/local/cuda/lib64 /usr/local/cuda*/lib64 $(python3 -c '
import glob, sys
print(*{f.rsplit("/", 1)[0] for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.1[23]")})' 2>/dev/null); do
            if compgen -G "$dir/libcublasLt.so.1[23]" >/dev/null; then
                GPU_LIBRARIES=$GPU_LIBRARIES${GPU_LIBRARIES:+:}$dir
                break
            fi
        done
    fi
    export GPU_LIBRARIES
    # Pinned memory counts against this limit if the driver is asked for it.
    ulimit -l unlimited 2>/dev/null || true
    export HWLOC_HIDE_ERRORS=2
}

# Set GPU_NAME, GPU_DRIVER, GPU_UUID, GPU_BYTES and GPU_FAKE. Ends the run if there is no GPU.
look_for_gpu() {
    local said
    [ -x ./cistern-engine-cuda ] || no_gpu "built without CUDA"
    said=$(LD_LIBRARY_PATH=$GPU_LIBRARIES ./cistern-engine-cuda --probe 2>/dev/null) || true
    GPU_NAME=$(text_of name <<<"$said")
    [ -n "$GPU_NAME" ] || no_gpu "$(text_of error <<<"$said")"
    GPU_DRIVER=$(number_of driver <<<"$said")
    GPU_UUID=$(text_of uuid <<<"$said")
    GPU_BYTES=$(number_of memory_bytes <<<"$said")
    GPU_FAKE=
    case $GPU_NAME in Fake*) GPU_FAKE=yes ;; esac
    export GPU_NAME GPU_DRIVER GPU_UUID GPU_BYTES GPU_FAKE
}

# Print one line about the rest of the machine.
look_at_machine() {
    local link=
    if command -v nvidia-smi >/dev/null; then
        link=$(nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null) || link=
        link=$(sed -n '1s/\(.*\), \(.*\)/, PCIe gen \1 x\2/p' <<<"$link")
    fi
    awk -F ': *' -v link="$link" -v cores="$(nproc)" '
        FILENAME ~ /cpuinfo/ && /^model name/ { model = $2 }
        /^MemTotal/ { split($2, kib, " "); gib = kib[1] / 2^20 }
        END { printf "%d cores of %s, %.0f GiB%s\n", cores, model, gib, link }' /proc/cpuinfo /proc/meminfo
}

no_gpu() {
    GPU_NAME=
    printf 'no GPU here: %s\n' "${1:-cistern-engine-cuda does not say why}"
    exit 77
}

# Print the result of a stage with log $1, status $2 and time limit $3.
stage_words() {
    case $2 in
    0) printf 'passed' ;;
    77) tail -n 1 "$1" | sed 's/^skipped: //' ;;
    124 | 137) printf 'not done in %s s' "$3" ;;
    *) grep -v '^fakecuda: at exit' "$1" | tail -n 1 ;;
    esac
}

# Print a line for the table: stage, status, seconds, message.
tell_stage() {
    printf '{"stage": "%s", "status": %d, "seconds": %d, "words": "%s"}\n' "$1" "$2" "$3" \
        "$(tr -d '"\\\000-\037' <<<"$4" | cut -c1-200)" >>"$GPU_RAW"
}

# -- for the stages -----------------------------------------------------------------------------

begin_stage() {
    set -euo pipefail
    tmp=$GPU_SCRATCH/$1
    mkdir -p "$tmp"
    export CISTERN_SOCKET=$tmp/cistern.sock
    daemon=
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    # Python brings its own libraries.
    [ "$1" = peer ] || [ "$1" = torch ] || export LD_LIBRARY_PATH=$GPU_LIBRARIES
    trap end_stage EXIT
}

end_stage() {
    local status=$?
    trap - EXIT
    stop_daemon
    exit "$status"
}

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}

fail() {
    tail -n 20 "$tmp"/*.log >&2 2>/dev/null || true
    printf '%s\n' "$1" >&2
    exit 1
}

need() {
    [ -x "./$1" ] || skip "$1 is not built"
}

need_real() {
    [ -z "$GPU_FAKE" ] || skip "no figures from a driver without a GPU"
}

# The value, a text or a number, of the first field $1 in the JSON on standard input.
text_of() {
    grep -o "\"$1\": *\"[^\"]*\"" | sed '1!d; s/.*: *"//; s/"$//' || true
}

number_of() {
    numbers_of "$1" | sed -n 1p
}

numbers_of() {
    grep -o "\"$1\": *[-0-9.eE+]*" | sed 's/.*: *//' || true
}

count_cards() {
    LD_LIBRARY_PATH=$GPU_LIBRARIES ./cistern-engine-cuda --probe 2>/dev/null | grep -o '"uuid"' | wc -l
}

median() {
    sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'
}

# Write a result: name, value, unit, and the yardstick, if there is one.
emit() {
    awk -v name="$1" -v v="$2" -v unit="$3" -v y="${4-}" 'BEGIN {
        printf "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", name, v, unit
        if (y != "") {
            printf ", \"yardstick\": %.6g, \"ratio\": %.4f", y, v / y
        }
        print "}" }' | tee -a "$GPU_RAW"
}

start_daemon() {
    ./cisternd --config /dev/null --socket "$CISTERN_SOCKET" --log-level info "$@" >"$tmp/cisternd.log" 2>&1 &
    daemon=$!
    local deadline=$((SECONDS + 20))
    until ./cistern ping >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || fail "the daemon ended at once: $(tail -n 1 "$tmp/cisternd.log")"
        [ $SECONDS -lt $deadline ] || fail "the daemon does not answer"
        sleep 0.1
    done
}

stop_daemon() {
    if [ -n "${daemon-}" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
        daemon=
    fi
}

# Make a text of some size in $tmp/text.
make_text() {
    if [ -n "$GPU_TEXT" ]; then
        cp "$GPU_TEXT" "$tmp/text"
    elif [ -e text ]; then
        cp text "$tmp/text"
    else
        find "$here"/../../{client,daemon,kernels,offload,proto,tests} -name '*.[ch]' -exec cat {} + >"$tmp/text"
    fi
    [ -s "$tmp/text" ] || fail "no text to train on: use --text"
}

need_gpt() {
    need cistern-gpt
    ./cistern-gpt --help | grep -e --device >/dev/null || skip "cistern-gpt is built without --device"
}

# Report that cistern-gpt with log $1 failed in $2.
gpt_failed() {
    ! grep -q 'only with --store=local' "$1" || skip "cistern-gpt --device cuda takes no daemon yet"
    fail "$2: $(tail -n 1 "$1")"
}

# -- correctness --------------------------------------------------------------------------------

stage_kernels() {
    need tests/gpu/check_kernels
    local json=$tmp/kernels.json
    if [ -n "$GPU_FAKE" ]; then
        ./tests/gpu/check_kernels --no-speed --json "$json"
        return
    fi
    ./tests/gpu/check_kernels --json "$json"
    local copy adamw moments rate
    copy=$(grep -o '"copy on the card": {[^}]*}' "$json" | number_of gb_per_s)
    adamw=$(grep -o '"adamw": {[^}]*}' "$json" | number_of gb_per_s)
    if [ -z "$copy" ] || [ -z "$adamw" ]; then
        fail "check_kernels measured no bandwidth"
    fi
    emit kernel_adamw "$adamw" GB/s "$copy"
    for moments in bf16 mx8; do
        rate=$(grep -o "\"adamw $moments\": {[^}]*}" "$json" | number_of gb_per_s) || rate=
        [ -z "$rate" ] || emit "kernel_update_$moments" "$rate" GB/s "$copy"
    done
}

stage_attention() {
    need tests/gpu/check_attention
    if [ -n "$GPU_FAKE" ]; then
        ./tests/gpu/check_attention --small
        return
    fi
    ./tests/gpu/check_attention | tee "$tmp/attention.log"
    # The last shape has heads of 128 elements.
    emit attention_forward "$(numbers_of forward_tflops <"$tmp/attention.log" | tail -n 1)" TFLOP/s
    emit attention_backward "$(numbers_of backward_tflops <"$tmp/attention.log" | tail -n 1)" TFLOP/s
}

stage_gpt() {
    [ -z "$GPU_FAKE" ] || skip "on the processor: tests/gpt/cuda"
    need tests/gpu/check_worker
    ./tests/gpu/check_worker
}

# Run tests/gpu/$1 with a rank on each of the devices after NAME. $2: options of all ranks but the first, $3: options of rank 0,
# $4: NAME. Sets statuses.
run_ranks() {
    local program=$1 others=$2 first=$3 name=$4 rank=0 device pid pids=()
    shift 4
    for device in "$@"; do
        # shellcheck disable=SC2046,SC2086 # words
        ./tests/gpu/"$program" --rank $rank --world $# --device "$device" $([ $rank = 0 ] && echo $first || echo $others) \
            >"$tmp/$name.$rank.log" 2>&1 &
        pids+=($!)
        rank=$((rank + 1))
    done
    statuses=()
    for pid in "${pids[@]}"; do
        local status=0
        wait "$pid" || status=$?
        statuses+=("$status")
    done
}

# What the ranks of $1 have said last.
last_words() {
    cat "$tmp/$1".*.log | grep '^rank ' | tail -n 1
}

# Run ranks on the devices after NAME WAY, which must exchange arrays by WAY: once with right results, and once with rank 0 killed,
# which all others must name. $order: empty, or --in-order.
try_ranks() {
    local name=$1 way=$2 status said real=yes
    [ -z "$GPU_FAKE" ] || real=
    shift 2
    # A stand-in takes long for large arrays, and its times mean nothing.
    run_ranks collectives "${order-} ${real:+--json $tmp/none}" "${order-} ${real:+--json $tmp/$name.json}" "$name" "$@"
    for status in "${statuses[@]}"; do
        [ "$status" = 0 ] || fail "$name: $(last_words "$name")"
    done
    said=$(sed -n "s/.*communicator of group 0: $# ranks, .* bytes, by //p" "$tmp/cisternd.log" | tail -n 1)
    printf '%s: %s ranks by %s\n' "$name" $# "$said"
    grep -q "^$way: " <<<"$said" || fail "$name: not by $way, but by $said"
    ./cistern rm collectives >/dev/null || fail "cistern rm"
    [ $# -ge 2 ] || return 0
    run_ranks collectives "${order-} --bereaved" "${order-} --dies" "$name.death" "$@"
    for status in "${statuses[@]:1}"; do
        [ "$status" = 3 ] || fail "$name: rank 0 was killed: $(last_words "$name.death")"
    done
    grep -q 'rank 0 ' "$tmp/$name.death.1.log" || fail "$name: the dead rank is not named: $(last_words "$name.death")"
    ./cistern rm collectives >/dev/null || fail "cistern rm"
}

stage_nccl() {
    need tests/gpu/collectives
    local dir i n devices=()
    n=$(count_cards)
    # NCCL needs a GPU. A stand-in for it lies beside the stand-in for the driver.
    if [ -z "$GPU_FAKE" ]; then
        for dir in $(python3 -c 'import glob, sys
print(*{f.rsplit("/", 1)[0] for p in sys.path for f in glob.glob(p + "/nvidia/nccl/lib/libnccl.so.2")})' 2>/dev/null); do
            export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$dir
        done
    fi
    start_daemon --gpus all --log-level debug
    try_ranks shared "memory of the GPUs" cuda:0 cuda:0
    try_ranks alone "\(NCCL\|memory of the GPUs\)" cuda:0
    for ((i = 0; i < n; i++)); do
        devices+=("cuda:$i")
    done
    # Cards that cannot access each other's memory stage.
    [ "$n" -lt 2 ] || order=--in-order try_ranks ordered "\(memory of the GPUs\|staging in host memory\)" "${devices[@]}"
    grep -q ' by NCCL: ' "$tmp/cisternd.log" || skip "the other checks passed; no NCCL: $(sed -n 's/.* cannot use NCCL: //p' "$tmp/cisternd.log" | tail -n 1)"
    if [ "$n" -lt 2 ]; then
        skip "one rank per card needs two cards; the other checks passed"
    fi
    try_ranks cards NCCL "${devices[@]}"
    if [ -z "$GPU_FAKE" ]; then
        emit nccl_all_reduce_64MiB "$(number_of large_gb_per_s <"$tmp/cards.json")" GB/s
        emit nccl_all_reduce_4KiB "$(number_of small_us <"$tmp/cards.json")" us
        emit ordered_all_reduce_64MiB "$(number_of large_gb_per_s <"$tmp/ordered.json")" GB/s
        emit ordered_all_reduce_4KiB "$(number_of small_us <"$tmp/ordered.json")" us
    fi
}

# Pass arrays from a rank on $2 to one on $3.
try_edges() {
    local name=$1 status real=yes
    [ -z "$GPU_FAKE" ] || real=
    shift
    run_ranks edges "${real:+--json $tmp/none}" "${real:+--json $tmp/$name.json}" "$name" "$@"
    for status in "${statuses[@]}"; do
        [ "$status" = 0 ] || fail "$name: $(last_words "$name")"
    done
    sed "s/^/$name: /" "$tmp/$name.1.log"
    ./cistern rm edges >/dev/null || fail "cistern rm"
}

stage_edges() {
    need tests/gpu/edges
    start_daemon --gpus all
    try_edges shared cuda:0 cuda:0
    grep -q '^slots on a GPU: yes$' "$tmp/shared.1.log" || fail "two ranks on one card: no slots on the card"
    [ "$(count_cards)" -ge 2 ] || skip "edges between cards need two cards; those on one card passed"
    try_edges cards cuda:0 cuda:1
    [ -z "$GPU_FAKE" ] || return 0
    emit edge_host_64MiB "$(number_of host_gb_per_s <"$tmp/cards.json")" GB/s
    grep -q '^slots on a GPU: yes$' "$tmp/cards.1.log" || skip "no peer access: slots are in host memory; the arrays are right"
    emit edge_device_64MiB "$(number_of device_gb_per_s <"$tmp/cards.json")" GB/s "$(number_of copy_gb_per_s <"$tmp/cards.json")"
}

stage_sanitizer() {
    local sanitizer
    need_real
    need tests/gpu/check_kernels
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || skip "no compute-sanitizer"
    "$sanitizer" --tool memcheck --error-exitcode 9 ./tests/gpu/check_kernels --no-speed >"$tmp/sanitizer.log" 2>&1 || {
        local status=$?
        cat "$tmp/sanitizer.log"
        ! grep -qi 'not supported' "$tmp/sanitizer.log" || skip "compute-sanitizer does not take this machine"
        [ $status != 9 ] || fail "compute-sanitizer found errors"
        fail "check_kernels under compute-sanitizer: status $status"
    }
    grep 'ERROR SUMMARY' "$tmp/sanitizer.log"
}

# shellcheck source=tests/gpu/train.sh
. "$(dirname "${BASH_SOURCE[0]}")/train.sh"
# shellcheck source=tests/gpu/reservations.sh
. "$(dirname "${BASH_SOURCE[0]}")/reservations.sh"

# -- the driver -----------------------------------------------------------------------------------

stage_experiments() {
    need tests/gpu/experiments
    local name
    if [ -n "$GPU_FAKE" ]; then # the other experiments need a real GPU or take long
        for name in survive timeline; do
            ./tests/gpu/experiments --only "$name" --json "$tmp/answers.json"
        done
    else
        ./tests/gpu/experiments --json "$tmp/answers.json" || printf 'some have no answer\n'
    fi
    cat "$tmp/answers.json" >>"$GPU_RAW"
}

stage_copy() {
    need tests/gpu/bench_copy
    ./tests/gpu/bench_copy ${GPU_QUICK:+--quick} --json "$tmp/copy.json"
    [ -n "$GPU_FAKE" ] || cat "$tmp/copy.json" >>"$GPU_RAW"
}

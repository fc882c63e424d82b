# shellcheck shell=bash disable=SC2154 # begin_stage sets tmp, here and daemon
# The stages of tests/gpu/run that train: bits, e2e, cards, worker, whole, copies, size, peer, torch. Sourced by stages.sh.

# -- the same bits, whatever happens -------------------------------------------------------------

# Run cistern-gpt on the GPU with a tiny model, as rank 0 of $world, and write NAME.losses and NAME.weights. The options after
# NAME override the usual ones.
small_gpt() {
    local name=$1
    shift
    ./cistern-gpt --layers "$layers" --heads 2 --width 64 --context 32 --batch 4 --warmup 2 --lr 0.003 --quiet --data "$tmp/text" \
        --device cuda ${GPU_FAKE:+--matmul plain} --world "$world" --steps "$steps" --loss-file "$tmp/$name.losses" \
        --dump-weights "$tmp/$name.weights" "$@" >>"$tmp/$name.log" 2>&1
}

# Check that losses and weights of $1 are equal to those of $2, and remove job $1.
same_bits() {
    [ "$(sort -u "$tmp/$2.losses" | wc -l)" = "$steps" ] || fail "losses that do not change prove nothing"
    cmp "$tmp/$2.losses" "$tmp/$1.losses" || fail "$1: other losses than $2"
    cmp "$tmp/$2.weights" "$tmp/$1.weights" || fail "$1: other weights than $2"
    ./cistern rm "$1" >/dev/null || fail "cistern rm $1"
    printf '%s: same bits as %s\n' "$1" "$2"
}

stage_bits() {
    local pool pools=(100 50 25) least world=1 layers=12 steps=30
    if [ -n "$GPU_FAKE" ]; then
        pools=(50) layers=6 steps=2
    fi
    need_gpt
    make_text
    small_gpt local --store local || gpt_failed "$tmp/local.log" "--store local"
    start_daemon
    for pool in "${pools[@]}"; do
        small_gpt "pool$pool" --job "pool$pool" --pool "$pool%" || gpt_failed "$tmp/pool$pool.log" "pool of $pool %"
        same_bits "pool$pool" local
    done
    ! small_gpt none --job none --pool 1 || fail "a pool of a byte is taken"
    least=$(sed -n 's/.*[ (]\([0-9]*\) bytes)\{0,1\} short; .*/\1/p' "$tmp/none.log")
    [ -n "$least" ] || fail "cistern-gpt does not tell the bytes that are short"
    small_gpt smallest --job smallest --pool $((least + 1)) || gpt_failed "$tmp/smallest.log" "the smallest pool"
    same_bits smallest local
    for world in 1 2; do
        dispatched "$world"
    done
    same_bits dispatched2 dispatched1
}

# Train job dispatched$1, whose $1 workers share out the units of a step.
dispatched() {
    local rank pids=() files
    for ((rank = 0; rank < $1; rank++)); do
        files=()
        [ "$rank" = 0 ] || files=(--loss-file /dev/null --dump-weights /dev/null)
        small_gpt "dispatched$1" --job "dispatched$1" --parallel dispatch --micro-batches 4 --rank "$rank" "${files[@]}" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || gpt_failed "$tmp/dispatched$1.log" "--parallel dispatch"
    done
}

# The pid of the daemon's engine for the GPU.
gpu_engine() {
    local stat pid ppid
    for stat in /proc/[0-9]*/stat; do
        read -r pid _ _ ppid _ 2>/dev/null <"$stat" || continue
        if [ "$ppid" = "$daemon" ] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep engine-cuda >/dev/null; then
            printf '%s\n' "$pid"
            return
        fi
    done
    fail "the daemon has no engine for the GPU"
}

# Start rank $2 of job $1. Sets pid. Only rank 0 writes the job's losses and weights.
start_rank() {
    if [ "$2" = 0 ]; then
        small_gpt "$1" --job "$1" --pool "$pool" &
    else
        small_gpt "$1" --job "$1" --pool "$pool" --rank "$2" --loss-file /dev/null --dump-weights /dev/null &
    fi
    pid=$!
}

# Start both ranks of job $1. Sets pids.
start_ranks() {
    start_rank "$1" 0
    pids=("$pid")
    start_rank "$1" 1
    pids+=("$pid")
}

# Wait until job $1 has done a step, or is over.
in_the_middle() {
    local deadline=$((SECONDS + 30))
    until [ -s "$tmp/$1.losses" ] || ! kill -0 "${pids[0]}" 2>/dev/null; do
        [ $SECONDS -lt $deadline ] || fail "$1: too slow"
        sleep 0.01
    done
}

# Kill rank 1 and start another one in its place. False if the job was over before that.
kill_worker() {
    kill -KILL "$(child_of "${pids[1]}")" 2>/dev/null || true
    if wait "${pids[1]}"; then
        pids=("${pids[0]}")
        return 1
    fi
    start_rank "$1" 1
    pids[1]=$pid
}

# Kill the engine of the GPU. False if the job was over before that.
kill_engine() {
    kill -KILL "$(gpu_engine)"
    kill -0 "${pids[0]}" 2>/dev/null
}

# Disturb jobs named $1 with $2 until one was disturbed during its run. Compare all of them with $3.
disturb() {
    local try job disturbed=
    for try in 1 2 3 4 5; do
        job=$1$try
        start_ranks "$job"
        in_the_middle "$job"
        if "$2" "$job"; then
            disturbed=yes
        fi
        end_ranks "$job" "$3"
        [ -z "$disturbed" ] || return 0
    done
    fail "$1: always over before that"
}

# Wait for job $1, and compare it with $2.
end_ranks() {
    for pid in "${pids[@]}"; do
        wait "$pid" || gpt_failed "$tmp/$1.log" "$1"
    done
    same_bits "$1" "$2"
}

# The pid of process $1's child, or of $1 itself if it has none: a shell may have been replaced by its command.
child_of() {
    local stat pid ppid
    for stat in /proc/[0-9]*/stat; do
        read -r pid _ _ ppid _ 2>/dev/null <"$stat" || continue
        if [ "$ppid" = "$1" ]; then
            printf '%s\n' "$pid"
            return
        fi
    done
    printf '%s\n' "$1"
}

stage_e2e() {
    local world=2 layers=6 steps=120 pool=100% pid pids engine deadline
    [ -z "$GPU_FAKE" ] || steps=6
    need_gpt
    make_text
    start_daemon
    start_ranks whole
    end_ranks whole whole
    pool=50%
    start_ranks half
    end_ranks half whole

    disturb worker-killed kill_worker whole
    disturb engine-killed kill_engine whole
    ./cistern stat | tee "$tmp/stat"
    grep -q '^gpu .*: 0 B of .* for pools' "$tmp/stat" || fail "all jobs are gone, their pools are not"
    # An engine does not outlive its daemon, however the daemon ends.
    engine=$(gpu_engine)
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null || true
    daemon=
    deadline=$((SECONDS + 10))
    while kill -0 "$engine" 2>/dev/null; do
        [ $SECONDS -lt $deadline ] || fail "the engine outlives its daemon"
        sleep 0.05
    done
}

# Train on two cards as job $1, and compare the job with "one". The other arguments are options of the daemon.
on_two_cards() {
    local job=$1
    shift
    start_daemon "$@"
    start_ranks "$job"
    end_ranks "$job" one
    stop_daemon
}

stage_cards() {
    local world=2 layers=6 steps=30 pool=50% pid pids
    [ -z "$GPU_FAKE" ] || steps=3
    need_gpt
    [ "$(count_cards)" -ge 2 ] || skip "this needs two cards"
    make_text
    start_daemon --gpus 0
    start_ranks one
    end_ranks one one
    stop_daemon
    on_two_cards peers
    printf '[gpu]\npeers = no\n' >"$tmp/apart.conf"
    on_two_cards apart --config "$tmp/apart.conf"
}

# -- 1.3 billion parameters ------------------------------------------------------------------------

# Set the model of worker, whole and peer: model, n_params, context, micro (sequences of a micro-batch), pool, and warm_steps, the
# number of the n_steps that do not count.
big_model() {
    local layers=26 heads=16 width=2048
    context=1024 micro=4 pool=25% warm_steps=2 n_steps=7
    if [ -n "$GPU_QUICK" ]; then
        layers=6 heads=2 width=64 context=32 micro=1 pool=50% warm_steps=1 n_steps=2
    elif [ "$GPU_BYTES" -lt 60000000000 ]; then
        layers=10 # as many as fit together with the activations
    fi
    model=(--layers "$layers" --heads "$heads" --width "$width" --context "$context" --device cuda --warmup 2 --lr 0.0001
        --quiet --data "$tmp/text")
    [ -z "$GPU_FAKE" ] || model+=(--matmul plain)
    n_params=$(parameters "$layers" "$width" "$context")
}

# Parameters of a GPT with bytes as tokens: layers, width, context.
parameters() {
    printf '%s\n' $(($1 * (12 * $2 * $2 + 13 * $2) + (256 + $3 + 2) * $2))
}

# Tokens per second over the steps in the log $1 without its first $2, by the median step time.
rate_of() {
    local seconds
    seconds=$(numbers_of seconds <"$1" | tail -n +"$(($2 + 1))" | median)
    [ -n "$seconds" ] || fail "no step was logged"
    awk -v s="$seconds" -v t="$3" 'BEGIN { printf "%.6g\n", t / s }'
}

# Train with all states on the GPU and $1 micro-batches per step. Sets local_rate in tokens per second, which later stages use.
run_local() {
    local kept=$GPU_SCRATCH/local.$1.rate tokens=$(($1 * micro * context))
    if [ ! -s "$kept" ]; then
        ./cistern-gpt "${model[@]}" --store local --batch $(($1 * micro)) --micro-batches "$1" --steps "$n_steps" \
            --log-json "$tmp/local.json" >"$tmp/local.log" 2>&1 || gpt_failed "$tmp/local.log" "cistern-gpt --store local"
        rate_of "$tmp/local.json" "$warm_steps" "$tokens" >"$kept"
    fi
    local_rate=$(cat "$kept")
}

stage_worker() {
    local model n_params context micro pool warm_steps n_steps local_rate matmul rate
    need_gpt
    make_text
    big_model
    run_local 4
    rate=$(awk -v r="$local_rate" -v n="$n_params" 'BEGIN { printf "%.6g\n", 6 * n * r / 1e12 }')
    emit worker_tokens_per_s "$local_rate" tokens/s
    need_real
    need tests/gpu/bench_matmul
    ./tests/gpu/bench_matmul ${GPU_QUICK:+--quick} --json "$tmp/matmul.json"
    matmul=$(number_of value <"$tmp/matmul.json")
    emit worker_mfu "$rate" TFLOP/s "$matmul"
}

# Run steps of the single job of stage whole, with $1 micro-batches each. Sets rate. The job continues, so that its states are
# made only once.
run_whole() {
    local tokens=$(($1 * micro * context)) log=$tmp/whole.$1.json
    to_step=$((to_step + n_steps))
    ./cistern-gpt "${model[@]}" --job whole --pool "$pool" --batch $(($1 * micro)) --micro-batches "$1" --steps "$to_step" \
        --log-json "$log" >"$tmp/whole.$1.log" 2>&1 ||
        gpt_failed "$tmp/whole.$1.log" "$1 micro-batches"
    rate=$(rate_of "$log" "$warm_steps" "$tokens")
}

stage_whole() {
    local model n_params context micro pool warm_steps n_steps local_rate rate n to_step=0
    need_gpt
    make_text
    big_model
    run_local 4
    start_daemon --host-memory 90%
    run_whole 4
    printf '%s\n' "$rate" >"$GPU_SCRATCH/whole.rate"
    emit whole "$rate" tokens/s "$local_rate"
    awk -v t=$((4 * micro * context)) -v r="$rate" 'BEGIN { print t / r }' >"$GPU_SCRATCH/whole.seconds"
    ./cistern job whole
    ./cistern stat
    for n in 1 2 8; do # on a slow link the last run may reach the time limit; the earlier results stay
        [ -z "$GPU_QUICK" ] || [ $n = 1 ] || continue
        run_whole $n
        emit "whole_$((n * micro * context))_tokens" "$rate" tokens/s "$local_rate"
    done
}

# Find the better default of [gpu] copies in cistern.conf(5).
stage_copies() {
    local model n_params context micro pool warm_steps n_steps rate to_step=0
    need_gpt
    [ -s "$GPU_SCRATCH/whole.rate" ] || skip "stage whole has no rate to compare with"
    make_text
    big_model
    printf '[gpu]\ncopies = worker\n' >"$tmp/worker.conf"
    start_daemon --host-memory 90% --config "$tmp/worker.conf"
    run_whole 4
    emit whole_worker_copies "$rate" tokens/s "$(cat "$GPU_SCRATCH/whole.rate")"
    ./cistern job whole | tee "$tmp/job"
    grep -q 'by the workers$' "$tmp/job" || fail "cistern job does not say that the worker copies"
}

# -- size ----------------------------------------------------------------------------------------

# Bytes of memory of the machine and of this process's control group.
host_bytes() {
    local limit
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true)
    awk -v limit="$limit" '/^MemTotal:/ { b = $2 * 1024; if (limit ~ /^[0-9]+$/ && limit + 0 < b) b = limit; printf "%.0f\n", b }' \
        /proc/meminfo
}

# Models, the largest first: layers, width.
sizes=("32 4096" "26 4096" "20 4096" "32 2048" "16 1024" "2 64")

stage_size() {
    local row layers width n_params most context=1024 heads status=1 options=(--pool 12G)
    need_gpt
    make_text
    most=$(host_bytes)
    most=$(awk -v b="$most" 'BEGIN { m = 100 * 2^30; b *= 0.82; printf "%.0f\n", b < m ? b : m }')
    if [ -n "$GPU_QUICK" ]; then
        most=2000000 context=32 options=()
    fi
    [ -z "$GPU_FAKE" ] || options+=(--matmul plain)
    start_daemon --host-memory $((most > 1000000000 ? most : 1000000000)) --gpu-memory 16G
    for row in "${sizes[@]}"; do
        read -r layers width <<<"$row"
        n_params=$(parameters "$layers" "$width" "$context")
        [ "$(awk -v n="$n_params" -v m="$most" 'BEGIN { print 16.1 * n <= m }')" = 1 ] || continue
        heads=$((width >= 1024 ? width / 128 : 2))
        printf -- '-- %s parameters\n' "$n_params"
        # Weights have 2 bytes per parameter. The pool and the activations together stay under 16 GiB.
        if ./cistern-gpt --layers "$layers" --heads "$heads" --width "$width" --context "$context" --batch 2 --micro-batches 2 \
            --recompute --device cuda --job "size$n_params" "${options[@]}" --steps 2 --data "$tmp/text" \
            --log-json "$tmp/size.json" >"$tmp/size.log" 2>&1; then
            status=0
            break
        fi
        tail -n 3 "$tmp/size.log"
        ./cistern rm "size$n_params" >/dev/null 2>&1 || true
    done
    [ $status = 0 ] || gpt_failed "$tmp/size.log" "no model trained"
    ./cistern stat
    emit size "$(awk -v n="$n_params" 'BEGIN { print n / 1e9 }')" "B params"
    emit size_step "$(numbers_of seconds <"$tmp/size.json" | tail -n 1)" s
}

# -- the peer ------------------------------------------------------------------------------------

stage_peer() {
    local model n_params context micro pool warm_steps n_steps ours theirs
    need_real
    command -v python3 >/dev/null || skip "no Python"
    if [ -n "$GPU_WHEELS" ]; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$tmp/site" "$GPU_WHEELS"/*.whl
        export PYTHONPATH=$tmp/site${PYTHONPATH:+:$PYTHONPATH}
    fi
    make_text
    big_model
    python3 "$here/peer_deepspeed.py" "${model[@]:0:8}" --micro-batch "$micro" --micro-batches 4 --data "$tmp/text" \
        --json "$tmp/peer.json" || {
        local status=$?
        [ $status != 77 ] || exit 77
        fail "peer_deepspeed.py: status $status"
    }
    cat "$tmp/peer.json"
    theirs=$(number_of seconds <"$tmp/peer.json")
    emit peer_deepspeed "$theirs" s
    if ours=$(cat "$GPU_SCRATCH/whole.seconds" 2>/dev/null); then
        emit peer "$ours" s "$theirs"
    fi
}

# -- cistern.torch -------------------------------------------------------------------------------

stage_torch() {
    local tests=$here/.. size=(--layers 24 --width 2048 --length 1024 --batch 4 --steps 2 --rounds 3)
    need_real
    command -v python3 >/dev/null || skip "no Python"
    python3 -c 'import torch; assert torch.cuda.is_available(), "PyTorch sees no GPU"
assert hasattr(torch.UntypedStorage, "_swap_data_ptr_"), f"PyTorch {torch.__version__} is older than 2.12"' 2>"$tmp/import.log" ||
        skip "$(tail -n 1 "$tmp/import.log")"
    [ -z "$GPU_QUICK" ] || size=(--layers 2 --width 64 --length 32 --batch 1 --steps 1 --rounds 1)
    export CISTERN_LIBRARY PYTHONPATH=$PWD/client/python/package PYTHONDONTWRITEBYTECODE=1
    CISTERN_LIBRARY=$(realpath .libs/libcistern.so.0 2>/dev/null || realpath lib/libcistern.so.0)
    start_daemon --host-memory 60%
    if python3 -c 'import transformers' 2>/dev/null; then
        CISTERN_TEST_DEVICE=cuda srcdir=$(realpath "$tests/..") python3 -m unittest discover -s "$tests/python/torch" -p test_models.py ||
            fail "gradients on the GPU are not those of plain torch"
    else
        printf 'no transformers: bits are not compared\n'
    fi
    python3 "$tests/bench/peers/train.py" --device cuda --rivals fsdp --daemon "$daemon" "${size[@]}" --json "$tmp/torch.json"
    tee -a "$GPU_RAW" <"$tmp/torch.json"
}

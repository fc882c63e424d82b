# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the others
# Functions of tests of random jobs whose daemon is disturbed. Sourced after keeping.sh by scripts with the functions begin_job, again_rank
# and make_base; see revival_options.sh. There are two daemons: one is under a service manager with
# a store, the other is replaced by the next one again and again.

# Set picked to one of the arguments.
pick() {
    local n=$((RANDOM % $# + 1))
    picked=${!n}
}

# True once in $1 times.
maybe() {
    [ $((RANDOM % $1)) = 0 ]
}

start_both_kinds() {
    local uid
    uid=$(id -u)
    mkdir "$tmp/kept" "$tmp/handed"
    printf '[paced]\ndevices = 2\nmemory = 64M\n[plan]\ninterleave = 2\n[quota uid:%s]\nhost = 20%%\npool = 20%%\n' "$uid" >"$tmp/random.conf"
    cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9}], "request_s": 3e-5}
RATES
    CISTERN_SOCKET=$tmp/kept/cistern.sock
    start_keeping keeper --config "$tmp/random.conf" --gpus none
    keeper_pid=$daemon_pid
    n_handed=0 n_same=0 n_refused=0
    CISTERN_SOCKET=$tmp/handed/cistern.sock
    start handed0 ./cisternd --config "$tmp/random.conf" --socket "$CISTERN_SOCKET" --gpus none --engine-threads 2
    await handed0 READY=1
}

stop_both_kinds() {
    stop_daemon keeper
    stop_daemon "handed$n_handed"
}

# Replace the daemon in the way $1.
disturb() {
    case $1 in
    kill)
        daemon_pid=$keeper_pid
        kill_daemon keeper
        keeper_pid=$daemon_pid
        ;;
    restart)
        kill -USR1 "${manager_of[keeper]}"
        await keeper 'EXIT=*'
        [ "$line" = EXIT=0 ] || fail "the terminated daemon ended with $line"
        await keeper 'PID=*'
        keeper_pid=${line#PID=}
        await keeper READY=1
        ;;
    handover)
        n_handed=$((n_handed + 1))
        start "handed$n_handed" ./cisternd --config "$tmp/random.conf" --socket "$CISTERN_SOCKET" --gpus none --engine-threads 2 --handover
        await "handed$((n_handed - 1))" 'EXIT=*'
        [ "$line" = EXIT=0 ] || fail "handed$((n_handed - 1)) ended with $line"
        await "handed$n_handed" READY=1
        ;;
    esac
}

# Choose the disturbances of a run: how, after which steps, and whether a rank dies, too.
choose_disturbances() {
    pick kill kill restart handover
    disturbances=("$picked")
    at=($((4 + RANDOM % (steps / 2))))
    if maybe 2; then
        [ "$picked" = handover ] || pick kill restart
        disturbances+=("$picked")
        at+=($((at[0] + RANDOM % (steps / 3))))
    fi
    dies=
    ! maybe 4 || dies=1
    CISTERN_SOCKET=$tmp/kept/cistern.sock
    [ "$picked" != handover ] || CISTERN_SOCKET=$tmp/handed/cistern.sock
}

# Wait for the workers. The status is 1 if one has failed.
wait_workers() {
    local pid status=0
    for pid in "${workers[@]}"; do
        wait "$pid" || status=1
    done
    return $status
}

# The job $1 was refused: it has made no step, and all its ranks say why.
was_refused() {
    local log
    [ "$(step_of "$1")" -le 3 ] || return 1
    for log in "$tmp/$1".*.log; do
        has . "$log" || return 1
    done
    why=$(tail -q -n 1 "$tmp/$1".*.log | sort -u | head -n 1)
}

# True if all workers have ended, or job $1 has made $2 steps.
has_come_to() {
    local pid
    ! has_stepped "$1" "$2" || return 0
    for pid in "${workers[@]}"; do
        gone "$pid" || return 1
    done
}

# Stop rank 1, whose job is $1, so that there are no more steps. False if the job may have made its last one: a rank that begins then
# would wait for one that has left. It goes on.
stopped_before_end() {
    kill -STOP "${workers[1]}" 2>/dev/null || return 1
    ! has_stepped "$1" $((steps - 2)) || {
        kill -CONT "${workers[1]}"
        return 1
    }
}

remove_jobs() {
    local job
    for job in $(./cistern jobs --json | jq -r 'sort_by(.name == "base") | .[].name'); do
        ./cistern rm "$job" || fail "$job cannot be removed"
    done
}

# Run combination $i undisturbed and disturbed. $@: what it is, for people.
run_combination() {
    local name=run$i k words
    words="combination $i (${disturbances[*]} at ${at[*]}${dies:+, rank 1 dies}): $*"
    printf '%s\n' "$words"
    [ -z "$base" ] || make_base || fail "$words: the base job"
    if ! begin_job "$name" || ! wait_workers; then
        was_refused "$name" || fail "$words: the undisturbed run failed"
        printf '  refused: %s\n' "$why"
        n_refused=$((n_refused + 1))
        remove_jobs
        rm -f "$tmp/$name".*
        return
    fi
    begin_job "$name-new" || fail "$words: a run before a reshape"
    for k in "${!disturbances[@]}"; do
        poll has_come_to "$name-new" "${at[k]}"
        if [ -n "$dies" ] && ! gone "${workers[1]}" && stopped_before_end "$name-new"; then
            kill -9 "${workers[1]}"
            wait "${workers[1]}" || true
            disturb "${disturbances[k]}"
            again_rank "$name-new" 1
        elif maybe 3; then
            pick "" --release-pools
            # shellcheck disable=SC2086 # no option, or one
            ./cistern pause "$name-new" $picked >/dev/null || fail "$words: it cannot be paused"
            disturb "${disturbances[k]}"
            ./cistern resume "$name-new" >/dev/null || fail "$words: it was paused $picked, and is not any more"
        else
            disturb "${disturbances[k]}"
        fi
    done
    wait_workers || fail "$words: a worker failed"
    for k in "$tmp/$name".*; do
        case $k in
        *.log) continue ;;
        *.1.losses) [ -z "$dies" ] || continue ;;
        esac
        cmp "$k" "$tmp/$name-new${k#"$tmp/$name"}" || fail "$words: other bits"
    done
    n_same=$((n_same + 1))
    remove_jobs
    rm -f "$tmp/$name"*
}

end_combinations() {
    printf '%s combinations with the same bits, %s refused\n' "$n_same" "$n_refused"
    [ "$n_same" -gt 0 ] || fail "all combinations were refused"
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests cistern-gpt --parallel pipeline: each schedule on two and three ranks, with large and the smallest pools, has the losses and
# weights of --parallel dispatch; ranks do their lists in order, those of files too; a rank is killed in the middle of a step.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/dispatch_jobs.sh
. "${srcdir:-.}/tests/e2e/dispatch_jobs.sh"
start_on_host

# Start worker $2 of $3 of job $1 with the other arguments as options, as begin does.
begin_stage() {
    begin "$@" --parallel pipeline --log-json "$tmp/$1.$2.json"
}

begin_pipeline() {
    local name=$1 world=$2 rank
    shift 2
    pids=()
    for ((rank = 0; rank < world; rank++)); do
        begin_stage "$name" "$rank" "$world" "$@"
    done
}

# The actions of schedule $2 for $3 ranks, $4 stages and $5 micro-batches are those of each step of job $1.
in_order() {
    local rank
    ./cistern schedule "$2" --ranks "$3" --stages "$4" --micro-batches "$5" --json >"$tmp/list.json"
    for ((rank = 0; rank < $3; rank++)); do
        jq -c ".ranks[$rank]" "$tmp/list.json" >"$tmp/want"
        jq -c 'select(.actions) | .actions' "$tmp/$1.$rank.json" | sort -u >"$tmp/got"
        cmp "$tmp/want" "$tmp/got" || fail "rank $rank of job $1 did other actions than its list: $(cat "$tmp/want" "$tmp/got")"
    done
}

# Set least to the smallest pool of any rank in a pipeline of $1 ranks with the other arguments as options.
find_least() {
    local world=$1
    shift
    begin_pipeline short "$world" --pool 1 "$@"
    for pid in "${pids[@]}"; do
        if wait "$pid"; then fail "a pool of 1 byte is not refused"; fi
    done
    least=$(sed -n 's/.*short; a pool of [^%]* \([0-9]*%\) of the job.s weights, is enough.*/\1/p' "$tmp/short.0.log")
    [ -n "$least" ] || fail "no pool is named: $(cat "$tmp/short.0.log")"
}

begin_all whole 1 --steps 4
end_all whole
begin_all adapted 1 --steps 4 --lora 4
end_all adapted

worlds=(2 3)
kinds=(gpipe 1f1b interleaved early shifted)
if sparse; then
    worlds=(3)
    kinds=(1f1b interleaved shifted)
fi
for world in "${worlds[@]}"; do
    for kind in "${kinds[@]}"; do
        stages=$world
        [ "$kind" != interleaved ] || stages=$((2 * world))
        find_least "$world" --schedule "$kind"
        for pool in "$least" 100M; do
            begin_pipeline p "$world" --steps 4 --schedule "$kind" --pool "$pool"
            end_all p
            same whole p
            in_order p "$kind" "$world" "$stages" 4
            ./cistern rm p
        done
    done
done

# One rank, and adapters, whose embedding is frozen.
begin_pipeline alone 1 --steps 4
end_all alone
same whole alone
begin_pipeline bound 3 --steps 4 --lora 4 --schedule interleaved
end_all bound
same adapted bound

# A file, which has a stage in another rank than the kinds have.
printf '0F0,0F1,2F0,2F1,2B0,2B1,0F2,0F3,2F2,2F3,2B2,2B3,0B0,0B1,0B2,0B3\n1F0,1F1,1B0,1B1,1F2,1F3,1B2,1B3\n' >"$tmp/list.csv"
begin_pipeline file 2 --steps 4 --schedule "$tmp/list.csv"
end_all file
same whole file
jq -r 'select(.actions) | .actions | join(",")' "$tmp/file.0.json" | sort -u | cmp - <(sed -n 1p "$tmp/list.csv") ||
    fail "rank 0 did other actions than the file has"

# The section of a job's file, with stages of one, three and two blocks.
printf '{"parallel": {"pp": 3, "dp": 1, "schedule": "gpipe", "borders": [1, 4], "recompute": true}}' >"$tmp/job.json"
begin_all config 3 --steps 4 --config "$tmp/job.json" --parallel pipeline
end_all config
same whole config
./cistern job config --json | jq -e '.step == 4' >/dev/null || fail "$(./cistern job config --json)"

# A rank is killed in the middle of a step and comes again. The rank before it is stopped, so that the step cannot end before.
begin_all calm 3 --steps 24
end_all calm
begin_pipeline killed 3 --steps 24 --schedule shifted
poll made killed 3
kill -STOP "${pids[0]}"
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null || true
kill -CONT "${pids[0]}"
poll has 'rank 1 .* ended without leaving the job' "$tmp/d.log"
begin_stage killed 1 3 --steps 24 --schedule shifted
if made killed 24; then fail "the rank was killed too late"; fi
end_all killed
same calm killed

# What this worker cannot run is refused, with what it can.
refused() {
    local words=$1
    shift
    if ./cistern-gpt "${model[@]}" --world 2 --parallel pipeline "$@" >"$tmp/wrong.out" 2>"$tmp/wrong.log"; then fail "$* is not refused"; fi
    has -e "$words" "$tmp/wrong.log" || fail "$*: $(cat "$tmp/wrong.log")"
}
refused 'does not split backward passes .* gpipe, 1f1b, interleaved' --schedule zb-h1
refused 'no schedule .nothing.; there are gpipe, .*, and no such file' --schedule nothing
refused 'it is for --world 2, --stages 3 and --micro-batches 4, not for 2, 2 and 4' --schedule "$tmp/list.csv" --stages 2
refused '3 stages for 2 ranks' --schedule 1f1b --stages 3
printf '0F0,0F1,0F2,0F3,0B1,0B0,0B2,0B3\n1F0,1F1,1F2,1F3,1B1,1B0,1B2,1B3\n' >"$tmp/backward.csv"
refused 'summed in the order of micro-batches' --schedule "$tmp/backward.csv"
printf '0F0,0F1,0UNSHARD0,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n' >"$tmp/early.csv"
refused 'comes between the recompute action 0R0' --schedule "$tmp/early.csv"
printf '0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n' >"$tmp/short.csv"
refused 'rank 1: 1B1 is missing' --schedule "$tmp/short.csv" --micro-batches 2
for wrong in "--micro-batches 1" "--stages 7" "--experts 2" "--overlap early --clip 0" "--activation-memory 1G"; do
    # shellcheck disable=SC2086 # several words
    refused "${wrong%% *}" $wrong
done
key_refused() {
    printf '{"parallel": {%s}}' "$1" >"$tmp/job.json"
    refused "$2" --config "$tmp/job.json"
}
key_refused '"tp": 2' 'section parallel, tp 2: cistern-gpt can do data parallelism .dp. or a pipeline .pp.'
key_refused '"cp": 2' 'section parallel, cp 2'
key_refused '"tensor": "3d"' 'section parallel, tensor: cistern-gpt can do'
key_refused '"dp": 2' 'section parallel, dp 2: that is --parallel data'
key_refused '"dp": 2, "pp": 2' 'cistern-gpt does one of them'
key_refused '"pp": 3' 'section parallel, pp 3: there are --world 2 ranks; that needs --world 3'
key_refused '"recompute": [1, 0]' 'cistern-gpt cannot choose layers'
key_refused '"borders": [4, 2]' '--borders: 2: wanted ascending numbers below --layers 6'
key_refused '"borders": [2], "stages": 3' '--borders has 1 numbers: --stages 3 needs 2'
if ./cistern-gpt "${model[@]}" --parallel auto 2>"$tmp/wrong.log"; then fail "--parallel auto is not refused"; fi
has 'can do data, dispatch and pipeline' "$tmp/wrong.log" || fail "$(cat "$tmp/wrong.log")"
if ./cistern-gpt "${model[@]}" --schedule gpipe 2>"$tmp/wrong.log"; then fail "--schedule without --parallel pipeline is not refused"; fi
stop_daemon d

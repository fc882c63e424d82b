#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a job whose states take more than half of the host memory is opened again in place with other numbers of ranks and other
# chunks: four, two, three and one ranks have the states of a daemon with enough memory, bit for bit; the pages that exist meanwhile are
# within the bound that the daemon states; what does not fit is refused with the bytes that are missing; workers, engines and daemons
# that are killed at any moment leave the old job or the new one, with the same bits. CST_TEST_KILLS: kills of each kind.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/keeping.sh
. "${srcdir:-.}/tests/e2e/keeping.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
need jq

model=(--layers 6 --heads 4 --width 256 --context 16 --warmup 2 --lr 0.003 --min-lr 0.003 --matmul fp32 --threads 1 --seed 7)
write_text 400

# Train job $1 with $2 ranks, which share a batch of 12, up to step $3, with the options $4...
train() {
    local job=$1 world=$2 steps=$3 rank
    shift 3
    start_ranks "$job" "$world" "$steps" "$@"
    for rank in "${!workers[@]}"; do
        wait "${workers[rank]}" || fail "$job: rank $rank of $world up to step $steps, $*: $(tail -n 2 "$tmp/$job.$rank.log")"
    done
}

start_ranks() {
    local job=$1 world=$2 steps=$3 rank
    shift 3
    workers=()
    for ((rank = 0; rank < world; rank++)); do
        ./cistern-gpt "${model[@]}" --batch $((12 / world)) --steps "$steps" --data "$tmp/text" --job "$job" --world "$world" \
            --rank "$rank" "$@" >"$tmp/$job.$rank.log" 2>&1 &
        workers[rank]=$!
        managers+=($!)
    done
}

# Save the states of job $1 as $2.
save() {
    rm -rf "${tmp:?}/$2"
    ./cistern save "$1" "$tmp/$2" >/dev/null
}

# Print the name, form and digest of each tensor in the files $@. Their order in a file depends on the chunks.
tensors() {
    perl -MJSON::PP -MDigest::SHA=sha1_hex -e '
        local $/;
        for my $file (@ARGV) {
            open(my $in, "<:raw", $file) or die "$file: $!";
            my $data = <$in>;
            my $bytes = unpack("Q<", $data);
            my $header = decode_json(substr($data, 8, $bytes));
            for my $name (sort grep { $_ ne "__metadata__" } keys %$header) {
                my ($from, $to) = @{$header->{$name}{data_offsets}};
                print join(" ", $name, $header->{$name}{dtype}, @{$header->{$name}{shape}},
                    sha1_hex(substr($data, 8 + $bytes + $from, $to - $from))), "\n";
            }
        }' "$@"
}

# The states of job $1 are those of the save $2.
check_states() {
    save "$1" now
    tensors "$tmp/$2"/step-*/*.safetensors >"$tmp/want"
    tensors "$tmp"/now/step-*/*.safetensors >"$tmp/got"
    [ "$(wc -l <"$tmp/want")" -gt 100 ] || fail "$2: $(wc -l <"$tmp/want") tensors"
    cmp "$tmp/want" "$tmp/got" || fail "$1: other states than $2: $(diff "$tmp/want" "$tmp/got" | head -n 4)"
}

# Train with four, two, three and one ranks and the options $2...; call $1 with the number of ranks after each.
stages() {
    local after=$1
    shift
    train job 4 2 --chunk 320000 "$@"
    "$after" 4
    train job 2 4 --reshape --chunk 240000 "$@"
    "$after" 2
    train job 3 6 --reshape --chunk 400000 "$@"
    "$after" 3
    train job 1 8 --reshape --chunk 100000 "$@"
    "$after" 1
    ./cistern rm job
}

save_kind() {
    save job "$kind-$1"
    states[$kind]=$(./cistern job job --json | jq .arena_bytes)
}

check_kind() {
    check_states job "$kind-$1"
}

# Write to $tmp/most the most bytes of pages that the segments of the daemon have until $tmp/sampled exists. One process looks every
# three milliseconds: programs started for each look would take a processor and see less.
sample() {
    perl -e '
        my ($dir, $end) = @ARGV;
        my $most = 0;
        until (-e $end) {
            my %bytes;
            for my $file (glob "$dir/*") {
                (readlink($file) // "") =~ m{^/memfd:} or next;
                my @stat = stat($file) or next;
                $bytes{$stat[1]} = 512 * $stat[12];
            }
            my $now = 0;
            $now += $_ for values %bytes;
            $most = $now if $now > $most;
            select(undef, undef, undef, 0.003);
        }
        print "$most\n"' "/proc/$daemon_pid/fd" "$tmp/sampled" >"$tmp/most"
}

# Number of memory files of the daemon.
memory_files() {
    find "/proc/$daemon_pid/fd" -lname '/memfd:*' | wc -l
}

# The largest size that the log of daemon $1 gives as "... $2 N MiB", in bytes.
largest() {
    perl -ne "print \"\$1\\n\" if /$2 ([0-9.]+) MiB/" "$tmp/$1.log" | sort -n | tail -n 1 | awk '{ printf "%.0f", $1 * 1048576 }'
}

kinds=("adamw" "mx8 --moments mx8" "lion --optimizer lion --moments bf16" "over --grad-over-weight" "split --masters split")
! sparse || kinds=(adamw)
declare -A states=() # Bytes of the states of each kind.

# The bits that a daemon with enough memory gives.
start_daemon plenty --engine-threads 2
for entry in "${kinds[@]}"; do
    read -ra options <<<"$entry"
    kind=${options[0]}
    stages save_kind "${options[@]:1}"
done
stop_daemon plenty
! has 'in [0-9]* portions' "$tmp/plenty.log" || fail "states were moved in portions although they fit twice"

# With 40 % more memory than the states need, they are moved in portions, and never are there more pages than the budget allows.
for entry in "${kinds[@]}"; do
    read -ra options <<<"$entry"
    kind=${options[0]}
    limit=$((${states[$kind]} * 14 / 10))
    start_daemon "$kind" --engine-threads 2 --host-memory "$limit"
    rm -f "$tmp/sampled"
    sample &
    sampler=$!
    managers+=($!)
    stages check_kind "${options[@]:1}"
    touch "$tmp/sampled"
    wait "$sampler"
    stop_daemon "$kind"
    [ "$(grep -c 'moving them in [0-9]* portions' "$tmp/$kind.log")" = 3 ] || fail "$kind: the states were not moved three times"
    most=$(($(cat "$tmp/most") - $(largest "$kind" pools)))
    [ "$most" -le $((limit + (4 << 20))) ] || fail "$kind: $most bytes of pages besides pools, of $limit"
    printf '%s: moved three times, same bits: at most %d %% of the pages of the states\n' "$kind" $((most * 100 / ${states[$kind]}))
done

# Begin to open job again with $1 ranks and chunks of $2 elements, and wait until the log says $3, or until it is over.
begin_move() {
    local world=$1 said=$3 before
    chunk=$2
    before=$(grep -c "$said" "$tmp/keeper.log" || true)
    start_ranks job "$world" 2 --reshape --chunk "$chunk"
    begun() {
        [ "$(grep -c "$said" "$tmp/keeper.log")" -gt "$before" ] || gone "${workers[0]}"
    }
    poll begun
    # The moment of the kill is random; nothing waits for it.
    perl -e 'select(undef, undef, undef, rand(0.1))'
}

# True when job is neither revived nor reshaped, and its workers have left.
settled() {
    ./cistern job job --json 2>/dev/null | jq -e '(.state | IN("reviving", "reshaping") | not) and all(.ranks[]; .state != "attached")' >/dev/null
}

# After the kill of a $1: job has the states of before, with the number of ranks of before or of now.
check_killed() {
    local rank world
    for rank in "${!workers[@]}"; do
        wait "${workers[rank]}" 2>/dev/null || [ "$1" != engine ] || fail "killed $1: rank $rank: $(tail -n 2 "$tmp/job.$rank.log")"
    done
    poll settled
    check_states job adamw-4
    world=$(./cistern job job --json | jq .world)
    case $world in "$old_world") kept=$((kept + 1)) ;; "$new_world") moved=$((moved + 1)) ;; *) fail "killed $1: $world ranks" ;; esac
    old_world=$world
}

kill_worker() {
    kill -9 "${workers[@]}" 2>/dev/null || true
}

kill_engine() {
    local engine
    for engine in $(children "$daemon_pid"); do
        kill -9 "$engine" 2>/dev/null || true
    done
}

kill_keeper() {
    kill_daemon keeper
}

# Kill a $1 at $n_kills moments of moves.
kills() {
    local what=$1 i moments=('is opened again' 'moving them in')
    kept=0
    moved=0
    for ((i = 0; i < n_kills; i++)); do
        new_world=$((old_world % 3 + 1))
        begin_move $new_world $((100000 + (chunk + 70000) % 150000)) "${moments[i % 2]}"
        "kill_$what"
        check_killed "$what"
    done
    printf '%ss killed: %d times the job of before, %d times the new one, same bits\n' "$what" "$kept" "$moved"
}

chunk=320000
kept=0
moved=0
old_world=4
printf '[host]\nmemory = %s\n' $((states[adamw] * 14 / 10)) >"$tmp/short.conf"
cat >"$tmp/engine" <<EOF
#!/bin/sh
[ ! -e "$tmp/broken" ] || exit 1
exec $PWD/cistern-engine-host "\$@"
EOF
chmod +x "$tmp/engine"
start_keeping keeper --config "$tmp/short.conf" --gpus none --engine "$tmp/engine"
without=$(memory_files)
train job 4 2 --chunk $chunk
kills worker
kills engine
kills keeper

# What does not fit even in portions is refused with the bytes, and the job is as it was.
rc=0
./cistern-gpt "${model[@]}" --batch 12 --data "$tmp/text" --job job --steps 2 --reshape --chunk 4000000 >"$tmp/refused.log" 2>&1 || rc=$?
if [ $rc = 0 ] || ! has 'in portions, which needs .* MiB ([0-9]* bytes) more: host memory: .* short' "$tmp/refused.log"; then
    fail "a move that does not fit: $rc, $(cat "$tmp/refused.log")"
fi
poll settled
check_states job adamw-4

# Begin a move, after whose first portion engines cannot be started any more. Returns false if the move was faster.
stall_once() {
    local rank seen stopped=0
    new_world=$((old_world % 3 + 1))
    seen=$(wc -l <"$tmp/keeper.log")
    start_ranks job "$new_world" 2 --reshape --chunk "$chunk"
    torn() {
        awk -v seen="$seen" 'NR > seen && /1 of [0-9]* portions has moved/ { torn = 1 } END { exit !torn }' "$tmp/keeper.log"
    }
    while ! torn; do :; done
    touch "$tmp/broken"
    kill_engine
    for rank in "${!workers[@]}"; do
        wait "${workers[rank]}" || stopped=$((stopped + 1))
    done
    rm "$tmp/broken"
    chunk=$((150000 - chunk))
    if [ $stopped = 0 ]; then
        poll settled
        old_world=$new_world
        return 1
    fi
    [ $stopped = "$new_world" ] || fail "$stopped of $new_world ranks noticed that the move of the states has stopped"
    has 'has stopped, and goes on when it is opened again: .* 6 times' "$tmp/job.0.log" || fail "$(cat "$tmp/job.0.log")"
    [ "$(./cistern job job --json | jq -r .state)" = reshaping ] || fail "$(./cistern jobs)"
    rc=0
    ./cistern save job "$tmp/never" 2>"$tmp/save.err" || rc=$?
    if [ $rc = 0 ] || ! has "are being moved: open it with 'reshape' and $new_world ranks" "$tmp/save.err"; then
        fail "save: $rc, $(cat "$tmp/save.err")"
    fi
}

stall() {
    local i
    for ((i = 0; i < 20; i++)); do
        ! stall_once || return 0
    done
    fail "20 moves ended before the engine was killed"
}

# What has moved and what has not are in two jobs, of which neither is passed off as whole. The move goes on when the job is opened
# again, and when there is a new daemon.
train job 3 2 --reshape --chunk 50000
old_world=3
chunk=100000
kept=0
moved=0
stall
train job "$new_world" 2 --reshape --chunk $((150000 - chunk))
check_killed worker
stall
kill_daemon keeper
check_killed worker
[ $moved = 2 ] || fail "a move that had stopped ended $kept times with the old job"
printf 'stopped moves went on, same bits\n'

# A job that is removed meanwhile gives all its memory back, and the daemon keeps no file but those that it had without a job.
stall
./cistern rm --force job
empty() {
    ./cistern stat --json | jq -e '.jobs == [] and .host_used == 0 and .pool_used == 0' >/dev/null && [ "$(memory_files)" = "$without" ]
}
poll empty
stop_daemon keeper

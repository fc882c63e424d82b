#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what others can do to a job on two nodes that trains. Strangers connect to the ports of links and of the job's engines, over tcp
# and TLS: hundreds of connections that say nothing, garbage, what was recorded on another connection, other certificates. Users open
# parts that do not fit, or that another user has. All are refused, the logs do not fill, and losses and states are those of a job that
# nothing befell. CST_TEST_CONNECTIONS: connections to each port (400); CST_TEST_SEED: seed of the garbage.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/several.sh
. "${srcdir:-.}/tests/e2e/several.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
not_sparse
need jq
need python3

n_connections=${CST_TEST_CONNECTIONS:-400}
seed=${CST_TEST_SEED:-$$}
printf 'seed %d\n' "$seed"
model=(--layers 8 --heads 2 --width 64 --context 32 --batch 2 --warmup 2 --lr 0.003 --matmul fp32 --threads 1 --chunk 40000 --steps 60)
write_text 400

# The ports at which node $1 and its engines listen.
ports_of() {
    local pid
    for pid in "${daemon_of[$1]}" $(children "${daemon_of[$1]}"); do
        ss -Hltnp | awk -v pid="pid=$pid," 'index($0, pid) { sub(/.*:/, "", $4); print $4 }'
    done
}

# Number of lines in the log of node $1 that are about refused connections.
n_refused() {
    grep -c 'refused\|engine.*not a\|no peer' "$tmp/$1.log" || true
}

# Let the strangers of strangers.py come to the ports "$@".
strangers() {
    python3 "$srcdir/tests/e2e/strangers.py" "$seed" "$n_connections" "$@" || fail "strangers at $*"
}

# A part of job $1 on node $2 that must be refused: options $4..., and $3 is in what its worker is told.
must_refuse() {
    ! timeout "$wait_s" ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/$2/run/cistern.sock" --job "$1" "${@:4}" >"$tmp/refused.log" 2>&1 ||
        fail "a part with ${*:4} was accepted"
    grep -Eq "$3" "$tmp/refused.log" || fail "a part with ${*:4} is told: $(cat "$tmp/refused.log")"
}

# True when node $1 has a job of user $2.
has_job_of() {
    [ "$(on "$1" jobs --json | jq --argjson uid "$2" 'any(.uid == $uid)')" = true ]
}

as_before() {
    [ "$(find "/proc/${daemon_of[$1]}/fd" -mindepth 1 | wc -l)" -le "$2" ]
}
need ss
# Runs a command as another user, of the group that may connect to the daemons here; empty: that cannot be done.
stranger=()
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    stranger=(setpriv --reuid 65534 --regid 0 --clear-groups)
    "${stranger[@]}" ./cistern --version >"$tmp/version" 2>&1 || stranger=()
fi

# Options that cannot be: each is refused at once, with words about it.
start_node edge
while read -r words options; do
    read -r -a given <<<"$options"
    must_refuse edges edge "$words" "${given[@]}"
done <<'END'
first --world 1 --all-ranks 2 --first-rank -1
first --world 1 --all-ranks 2 --first-rank 2
first --world 1 --all-ranks 2 --first-rank 4294967295
first --world 1 --all-ranks 2 --first-rank 4294967296
first --world 2 --rank 0 --all-ranks 3 --first-rank 2
all.ranks --world 1 --all-ranks -1
all.ranks --world 1 --all-ranks 4294967295
all.ranks --world 1 --all-ranks 4294967297
all.ranks --world 4 --rank 0 --all-ranks 3
copies --world 1 --all-ranks 2 --copies 65
copies --world 1 --all-ranks 2 --copies -1
copies --world 1 --all-ranks 2 --copies 4294967297
block.ranks --world 1 --all-ranks 2 --block-ranks 513
block.ranks --world 1 --all-ranks 2 --block-ranks 4294967295
block.ranks --world 1 --all-ranks 2 --block-ranks -1
END
poll has_no_job edge

for network in trusted encrypted; do
    what="$network network"
    a=a_$network b=b_$network c=c_$network
    for node in "$a" "$b" "$c"; do
        start_node "$node" "$network"
    done
    acquaint "$a" "$b" "$c"
    nodes=("$a" "$b")
    for job in calm stormy; do
        begin_ranks $job
        if [ $job = stormy ]; then
            poll has_made "$a" stormy 3
            before=$(n_refused "$a")
            n_fds=$(find "/proc/${daemon_of[$a]}/fd" -mindepth 1 | wc -l)
            readarray -t ports < <(ports_of "$a")
            [ ${#ports[@]} -ge 2 ] || fail "the daemon and the engine of $a listen at ${ports[*]}"
            strangers "${ports[@]}"
            poll as_before "$a" "$n_fds"
            after=$(n_refused "$a")
            [ $((after - before)) -le 20 ] || fail "$((after - before)) lines are about strangers: $(tail -n 20 "$tmp/$a.log")"
            # A third node with a part that has the ranks of parts that live, or differs.
            must_refuse stormy "$c" 'some are on both' --world 1 --all-ranks 2
            must_refuse stormy "$c" 'some are on both' --world 1 --all-ranks 2 --first-rank 1
            must_refuse stormy "$c" 'ranks here, and 2 there' --world 1 --all-ranks 3
            must_refuse stormy "$c" 'copies' --world 1 --all-ranks 2 --first-rank 1 --copies 2
            must_refuse stormy "$c" 'block_ranks' --world 1 --all-ranks 2 --first-rank 1 --block-ranks 1
            must_refuse stormy "$c" 'another model' --world 1 --all-ranks 2 --first-rank 1 --layers 4
            # Another user's job of this name is another job, and has no part here.
            if [ ${#stranger[@]} -gt 0 ]; then
                chmod go+rx "$tmp" "$tmp/$c" "$tmp/$c/run"
                chmod go+r "$tmp/text"
                "${stranger[@]}" ./cistern-gpt "${model[@]}" --data "$tmp/text" --socket "$tmp/$c/run/cistern.sock" --job stormy --world 1 \
                    --all-ranks 2 --first-rank 1 >"$tmp/other.log" 2>&1 &
                other=$!
                poll has_job_of "$c" 65534
                ! "${stranger[@]}" ./cistern --socket "$tmp/$c/run/cistern.sock" rm stormy --uid 0 >"$tmp/err" 2>&1 || fail "another user's job was removed"
                [ "$(on "$a" jobs --json | jq 'map(.uid) | unique | length')" = 1 ] || fail "a part of another user is on $a"
                kill $other
                wait $other || true
                poll has_no_job "$c"
            fi
            [ "$(on "$c" jobs --json | jq length)" = 0 ] || fail "a part of $c is left"
        fi
        end_job $job
    done
    same_losses calm stormy
    same_states calm stormy
    rm -r "$tmp"/saved-*
    printf '%s network: %d strangers at each port, the same losses and states\n' "$network" "$n_connections"
done

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests `cistern metrics` beside a job that trains: its text, its file, what each address shows, scrapers that misbehave, the dashboard, and a
# Prometheus that scrapes once a second.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need python3
need jq
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
helpers=() # Processes that must not outlive a failure.
finish_helpers() {
    local status=$?
    set +e # The status that is set again must not end this.
    [ ${#helpers[@]} = 0 ] || kill "${helpers[@]}" 2>/dev/null || true
    (exit $status)
    finish
}
trap finish_helpers EXIT

scrape() {
    python3 "$srcdir/tests/e2e/scrape.py" "$@"
}

# Check that the file $1 is a text of metrics, and write its samples to $tmp/samples.
parsed() {
    scrape parse <"$1" >"$tmp/samples" || fail "not a text of metrics: $(cat "$1")"
}

# Print the value of the sample $1 of the last text; nothing if there is none.
value() {
    awk -v key="$1" '$1 == key { print $2 }' "$tmp/samples"
}

# Stop the background process $1, which must end with status 0.
stop() {
    kill -TERM "$1"
    wait "$1" || fail "status $?"
}

# Answer scrapes at $1 with the other arguments as options. Sets exporter to its pid, and address to where it listens.
listen() {
    : >"$tmp/listening"
    ./cistern metrics --listen "$@" >"$tmp/listening" 2>"$tmp/exporter.log" &
    exporter=$!
    helpers+=($!)
    poll grep -q '^listening at ' "$tmp/listening"
    address=$(sed 's/^listening at //' "$tmp/listening")
}

# -- without a daemon -----------------------------------------------------------------------------

! ./cistern metrics >"$tmp/page" 2>"$tmp/err" || fail "a daemon that is not there is no failure"
[ "$(grep -v '^#' "$tmp/page")" = "cistern_up 0" ] || fail "without a daemon: $(cat "$tmp/page")"
grep -q "^cistern: .*$CISTERN_SOCKET" "$tmp/err" || fail "no reason: $(cat "$tmp/err")"
parsed "$tmp/page"
for wrong in "--listen 0.0.0.0:9460" "--listen localhost:9460" "--own-jobs" "--listen $tmp/x --own-jobs" "--listen 127.0.0.1:0 -o $tmp/x"; do
    status=0
    # shellcheck disable=SC2086 # words
    ./cistern metrics $wrong >"$tmp/page" 2>"$tmp/err" || status=$?
    [ $status = 2 ] || fail "cistern metrics $wrong: status $status"
done

# -- text and file --------------------------------------------------------------------------------

start_daemon d --host-memory 1G --pool-memory 512M
write_text 300
./cistern-gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --seed 7 --quiet --steps 1000000 --data "$tmp/text" --job run7 \
    >"$tmp/run7.log" 2>&1 &
trainer=$!
helpers+=($!)
me=uid=\"$(id -u)\"
run7="{name=\"run7\",$me}"
# Set step to that of the job now. True if it is beyond $1.
has_step() {
    ./cistern metrics >"$tmp/page" || fail "no metrics"
    step=$(awk -v key="cistern_job_step$run7" '$1 == key { print $2 }' "$tmp/page")
    [ "${step:-0}" -gt "$1" ]
}
poll has_step 3
parsed "$tmp/page"
[ "$(value "cistern_jobs{}") $(value 'cistern_jobs_in_state{state="training"}')" = "1.0 1.0" ] || fail "no job trains"
[ "$(value "cistern_memory_budget_bytes{tier=\"host\"}")" = 1073741824.0 ] || fail "another budget"
[ -n "$(value "cistern_job_loss$run7")" ] || fail "no loss"
cp "$tmp/page" "$tmp/all.text"
! command -v promtool >/dev/null || [ -z "$(promtool check metrics <"$tmp/page" 2>&1)" ] || fail "promtool: $(promtool check metrics <"$tmp/page" 2>&1)"

# A daemon that greets and then does not answer. It is given up after 5 seconds, in which the test goes on.
python3 "$srcdir/tests/e2e/scrape.py" mute "$tmp/mute.sock" "$CISTERN_SOCKET" &
helpers+=($!)
poll test -S "$tmp/mute.sock"
./cistern metrics -s "$tmp/mute.sock" -o "$tmp/mute.prom" 2>"$tmp/mute.err" &
given_up=$!
helpers+=($!)

# One that does not even greet. Its exporter waits as long in all, which is not the time of its scrapers.
python3 "$srcdir/tests/e2e/scrape.py" mute "$tmp/silent.sock" &
helpers+=($!)
poll test -S "$tmp/silent.sock"
listen "$tmp/beside.sock" -s "$tmp/silent.sock"
beside=$exporter
python3 "$srcdir/tests/e2e/scrape.py" beside "$address" >"$tmp/beside.log" 2>&1 &
beside_done=$!
helpers+=($!)

# The file is replaced, so that a reader never sees a part of one.
./cistern metrics -o "$tmp/cistern.prom" || fail "no file"
before=$(stat -c %i "$tmp/cistern.prom")
parsed "$tmp/cistern.prom"
[ -n "$(value "cistern_job_step$run7")" ] || fail "the file has no step"
exec {kept}<"$tmp/cistern.prom" # Its number is not given to another file.
./cistern metrics -o "$tmp/cistern.prom" || fail "no second file"
[ "$(stat -c %i "$tmp/cistern.prom")" != "$before" ] || fail "the file is overwritten"
exec {kept}<&-
./cistern metrics -o - | has '^cistern_up 1$' || fail "- is not standard output"
! ./cistern metrics -o "$tmp/no/where" 2>"$tmp/err" || fail "a file in no directory"
grep -q 'no/where' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"

# -- what each address shows ----------------------------------------------------------------------

# A Unix socket is for its user, and has everything. It is removed at the end, and one that nobody removed is replaced.
listen "$tmp/metrics.sock"
[ "$(stat -c %a "$tmp/metrics.sock")" = 600 ] || fail "the socket has mode $(stat -c %a "$tmp/metrics.sock")"
scrape get "$address" >"$tmp/page"
parsed "$tmp/page"
[ -n "$(value "cistern_job_step$run7")" ] || fail "the socket has no step"
[ -n "$(value "cistern_quota_used{key=\"jobs\",$me}")" ] || fail "the socket has no quotas"
! ./cistern metrics --listen "$tmp/metrics.sock" 2>"$tmp/err" || fail "two listen at one socket"
grep -q 'another process listens there' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"
stop $exporter
[ ! -e "$tmp/metrics.sock" ] || fail "the socket is left"
listen "$tmp/metrics.sock"
kill -KILL $exporter
{ wait $exporter || true; } 2>/dev/null
listen "$tmp/metrics.sock"
scrape get "$address" >/dev/null || fail "a stale socket is not replaced"
stop $exporter

# A socket of systemd shows what one of its kind shows. Its unit says who may open it, and it is not removed.
pass() {
    exec python3 "$srcdir/tests/e2e/scrape.py" pass "$1" ./cistern metrics --listen systemd
}
for place in "$tmp/passed.sock" 127.0.0.1:0; do
    : >"$tmp/listening"
    pass "$place" >"$tmp/listening" 2>"$tmp/exporter.log" &
    exporter=$!
    helpers+=($!)
    poll grep -q '^listening at ' "$tmp/listening"
    address=$(sed 's/^listening at //' "$tmp/listening")
    [ "$address" != systemd ] || address=$place
    scrape get "$address" >"$tmp/page"
    parsed "$tmp/page"
    case $place in
    /*) [ -n "$(value "cistern_job_step$run7")" ] || fail "the socket of systemd has no step" ;;
    *) ! grep -v '^#' "$tmp/page" | grep -E 'run7|uid' || fail "the port of systemd shows jobs or users" ;;
    esac
    stop $exporter
done
[ -S "$tmp/passed.sock" ] || fail "the socket of systemd is removed"
status=0
(pass 0.0.0.0:0) >"$tmp/page" 2>"$tmp/err" || status=$?
[ $status = 2 ] || fail "a port of systemd that others reach: status $status"
grep -q 'other machines can reach 0.0.0.0:[1-9]' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"
status=0
./cistern metrics --listen systemd >"$tmp/page" 2>"$tmp/err" || status=$?
[ $status = 2 ] || fail "no socket of systemd: status $status"
grep -q 'passes 0 sockets' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"

# A port is for all users of the machine, and has neither jobs nor users, unless the user shows his own.
listen 127.0.0.1:0
scrape get "$address" >"$tmp/page"
parsed "$tmp/page"
[ "$(value "cistern_jobs{}")" = 1.0 ] || fail "the port has no number of jobs"
! grep -v '^#' "$tmp/page" | grep -E 'run7|uid' || fail "the port shows jobs or users"
! ./cistern metrics --listen "$address" 2>"$tmp/err" || fail "two listen at one port"
grep -q 'Address already in use' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"
stop $exporter
if [ -e /proc/net/if_inet6 ] && grep -q '^0*1 .* lo$' /proc/net/if_inet6; then
    listen '[::1]:0'
    scrape get "$address" >/dev/null || fail "no answer at ::1"
    stop $exporter
fi
listen 127.0.0.1:0 --own-jobs
scrape get "$address" >"$tmp/page"
parsed "$tmp/page"
[ -n "$(value "cistern_job_step$run7")" ] || fail "the port does not show the user's own job"
! grep -v '^#' "$tmp/page" | grep cistern_quota || fail "the port shows quotas"

# -- bad scrapers ---------------------------------------------------------------------------------

# They are given up, the others are answered, the exporter holds as many descriptors as before, and the job trains.
before=$(find /proc/$exporter/fd -mindepth 1 | wc -l)
has_step 0
scrape attack "$address" || fail "a scraper got no answer beside bad ones"
few_descriptors() {
    [ "$(find /proc/$exporter/fd -mindepth 1 | wc -l)" -le "$before" ]
}
poll few_descriptors
poll has_step "$step"
./cistern stat --json >"$tmp/stat.json"
[ "$(jq .n_sessions "$tmp/stat.json")" -le 2 ] || fail "the daemon has $(jq .n_sessions "$tmp/stat.json") connections"

status=0
wait $given_up || status=$?
[ $status = 1 ] || fail "a daemon that does not answer: status $status"
grep -q 'has not answered in 5 s' "$tmp/mute.err" || fail "no reason: $(cat "$tmp/mute.err")"
[ "$(grep -v '^#' "$tmp/mute.prom")" = "cistern_up 0" ] || fail "a daemon that does not answer: $(cat "$tmp/mute.prom")"

wait $beside_done || fail "beside a scrape of a silent daemon: $(cat "$tmp/beside.log")"
stop $beside
status=0
./cistern metrics -s "$tmp/silent.sock" >"$tmp/page" 2>"$tmp/err" || status=$?
[ $status = 1 ] || fail "a daemon that does not greet: status $status"
grep -q 'no welcome within [45][0-9]* ms' "$tmp/err" || fail "no reason: $(cat "$tmp/err")"

# -- the dashboard --------------------------------------------------------------------------------

# Each name in a query of the dashboard is a metric.
jq -r '.. | .expr? // empty' "$srcdir/docs/grafana-cistern.json" >"$tmp/queries"
[ "$(wc -l <"$tmp/queries")" -ge 15 ] || fail "the dashboard has lost its queries"
sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' "$tmp/all.text" | sort >"$tmp/names"
unknown=$({ grep -oE 'cistern_[a-z_]+' "$tmp/queries" "$srcdir/docs/monitor.md" -h || true; } | sort -u | comm -23 - "$tmp/names" | grep -v '^cistern_$' || true)
[ -z "$unknown" ] || fail "the dashboard and docs/monitor.md have what is no metric: $unknown"

# -- Prometheus -----------------------------------------------------------------------------------

# Print the answer of Prometheus to the query $1.
query() {
    curl -sS --fail --max-time "$wait_s" --data-urlencode "query=$1" "http://$prometheus/api/v1/query"
}

# True if Prometheus has a step of the job beyond $1.
knows_step() {
    query 'cistern_job_step{name="run7"}' 2>/dev/null | jq -e ".data.result[0].value[1] | tonumber > $1" >/dev/null 2>&1
}

if command -v prometheus >/dev/null && command -v curl >/dev/null; then
    printf 'global: {scrape_interval: 1s}\nscrape_configs: [{job_name: cistern, static_configs: [{targets: ["%s"]}]}]\n' \
        "$address" >"$tmp/prometheus.yml"
    promtool check config "$tmp/prometheus.yml" >"$tmp/promtool.log" 2>&1 || fail "the configuration of Prometheus"
    prometheus --config.file="$tmp/prometheus.yml" --storage.tsdb.path="$tmp/prometheus" --web.listen-address=127.0.0.1:0 2>"$tmp/prometheus.log" &
    server=$!
    helpers+=($!)
    poll grep -q 'Listening on' "$tmp/prometheus.log"
    prometheus=$(sed -n 's/.*Listening on.* address=\([0-9.:]*\).*/\1/p' "$tmp/prometheus.log" | head -n 1)
    poll knows_step "$step"
    has_step 0
    poll knows_step "$step"
    while read -r expr; do
        expr=${expr//\$__rate_interval/5s}
        expr=${expr//\$name/run7}
        query "$expr" | jq -e '.status == "success"' >/dev/null || fail "Prometheus does not understand: $expr"
    done <"$tmp/queries"
    query 'cistern_up == 1 and up == 1' | jq -e '.data.result | length == 1' >/dev/null || fail "Prometheus does not see the daemon"
    kill -TERM $server
    wait $server || fail "Prometheus ended with $?"
else
    echo "without Prometheus: the package 'prometheus' is not installed"
fi

# -- the end --------------------------------------------------------------------------------------

# What is printed is what the daemon says, once the job stands still.
kill -TERM $trainer
wait $trainer || true
./cistern job run7 --json >"$tmp/job.json"
./cistern metrics >"$tmp/page"
parsed "$tmp/page"
same() {
    jq -e --arg v "$(value "$1")" "($2) - (\$v | tonumber) | fabs < 1e-9" "$tmp/job.json" >/dev/null || fail "$1 is $(value "$1"), and $2 is $(jq "$2" "$tmp/job.json")"
}
same "cistern_job_step$run7" .step
same "cistern_job_loss$run7" .last_loss
same "cistern_job_updates_total$run7" .n_updates
same "cistern_job_memory_bytes$run7" .arena_bytes
same "cistern_job_fetches_total{name=\"run7\",result=\"hit\",$me}" '[.ranks[].hits] | add'
same "cistern_job_fetches_total{name=\"run7\",result=\"miss\",$me}" '[.ranks[].misses] | add'

# After the end of the daemon a scrape says so, and a new daemon is found.
stop_daemon d
scrape get "$address" >"$tmp/page"
[ "$(grep -v '^#' "$tmp/page")" = "cistern_up 0" ] || fail "without a daemon: $(cat "$tmp/page")"
! ./cistern metrics -o "$tmp/cistern.prom" 2>"$tmp/err" || fail "a daemon that has ended is no failure"
[ "$(grep -v '^#' "$tmp/cistern.prom")" = "cistern_up 0" ] || fail "the file still has the values of before"
start_daemon e
is_up() {
    scrape get "$address" | has '^cistern_up 1$'
}
poll is_up
stop $exporter
stop_daemon e

/* SPDX-License-Identifier: Apache-2.0 */
/* neighbour_*: the time of one user's request and commit while another user attacks the daemon
 * (tests/lib/attack), compared with the time without the attack. Both are measured in turns. A
 * request is a fetch of weights that are in the pool; the result is the 99th percentile. A commit
 * is that of a job of four chunks, including its JobOpen and declarations; the result is the
 * slowest one in seconds, compared with the slowest one without the attack.
 *
 * The attackers run at the lowest priority, so that the daemon's time is measured and not the
 * processors'. Needs root, or a user namespace with several uids; otherwise the program says so and
 * measures nothing. Run from the build tree. Usage: bench_neighbour --json FILE [ATTACK] */
#include "tests/bench/timing.h"
#include "tests/bench/victim.h"
#include "tests/lib/attack.h"
#include "tests/lib/child.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/raw_client.h"
#include "tests/lib/suite.h"
#include "tests/lib/user.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TURNS = 3,       /* number of measurements with the attack, and as many without */
    REQUESTS = 1500, /* requests of one measurement */
    COMMITS = 4,     /* commits of one measurement */
    MAX_FDS = 4096,  /* limit of the daemon's open files */
};

static struct daemon_proc proc;
static struct attack_state *state;
static FILE *out;
static const char *wanted; /* name of the attack to measure; NULL: all */

/* Measured times, with or without an attack. */
struct seen {
    double requests[TURNS * REQUESTS]; /* time of each request in us */
    double slowest_commit;             /* time of the slowest commit in s */
    unsigned n;                        /* number of requests */
};

static void look(struct raw_client *worker, uint64_t attempt, struct seen *seen)
{
    for (unsigned i = 0; i < bench_sized(REQUESTS, 20); i++) {
        seen->requests[seen->n++] = victim_request(worker, attempt, i % VICTIM_CHUNKS);
    }
    for (unsigned i = 0; i < bench_sized(COMMITS, 1); i++) {
        struct raw_client client;
        double took = victim_commit(&client, proc.socket, "again");

        seen->slowest_commit = took > seen->slowest_commit ? took : seen->slowest_commit;
        raw_close(&client);
        victim_open(&client, proc.socket);
        ck_assert_int_eq(raw_job_remove(&client, "again"), CST_OK);
        raw_close(&client);
    }
}

/* Wait until USER_ALICE has nothing in use. */
static void await_quiet(struct raw_client *manager)
{
    bool quiet = false;

    while (!quiet) {
        Cistern__JobListGet get = CISTERN__JOB_LIST_GET__INIT;
        uint64_t id = raw_ask(manager, CISTERN__MSG_TYPE__MSG_JOB_LIST, &get.base);
        const Cistern__JobListPart *part = raw_expect(
            manager, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART, &cistern__job_list_part__descriptor);

        quiet = true;
        for (size_t i = 0; i < part->n_jobs; i++) {
            Cistern__JobName name = CISTERN__JOB_NAME__INIT;

            if (part->jobs[i]->uid == USER_ALICE) {
                name.name = part->jobs[i]->name;
                name.has_uid = 1;
                name.uid = USER_ALICE;
                (void)raw_call(manager, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base);
                quiet = false;
            }
        }
    }
}

static void say(const char *name, const char *attack, const char *unit, double value,
                double yardstick, unsigned runs)
{
    (void)fprintf(out,
                  "{\"name\": \"neighbour_%s%s\", \"value\": %.4g, \"unit\": \"%s\", "
                  "\"yardstick\": %.4g, \"ratio\": %.3f, \"runs\": %u}\n",
                  name, attack, value, unit, yardstick, value / yardstick, runs);
    (void)fflush(out);
}

static void measure(unsigned attack, struct raw_client *manager, struct raw_client *worker,
                    uint64_t attempt)
{
    static struct seen quiet, attacked;
    double fast;

    quiet = attacked = (struct seen){.n = 0};
    for (unsigned turn = 0; turn < bench_sized(TURNS, 1); turn++) {
        pid_t attacker;

        look(worker, attempt, &quiet);
        attacker = attack_start(attack, proc.socket, state);
        ck_assert(attack_await(attacker, state, attacks[attack].n_rounds));
        look(worker, attempt, &attacked);
        attack_stop(attacker, state);
        await_quiet(manager);
    }
    fast = bench_p99(quiet.requests, quiet.n);
    say("", attacks[attack].name, "us", bench_p99(attacked.requests, attacked.n), fast, attacked.n);
    say("commit_", attacks[attack].name, "s", attacked.slowest_commit, quiet.slowest_commit,
        bench_sized(TURNS, 1) * bench_sized(COMMITS, 1));
}

START_TEST(neighbour)
{
    static const char *const options[] = {"--host-memory=64M", "--pool-memory=16M", NULL};
    struct raw_client manager, worker;
    uint64_t attempt;

    daemon_proc_run_as(USER_SERVICE, MAX_FDS);
    daemon_proc_start(&proc, options);
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    user_admit(&proc);
    state = child_share(sizeof *state);
    raw_open(&manager, proc.manager);
    (void)victim_commit(&worker, proc.socket, "job");
    attempt = raw_sync(&worker);
    for (unsigned i = 0; i < n_attacks; i++) {
        if (wanted == NULL || strcmp(wanted, attacks[i].name) == 0) {
            measure(i, &manager, &worker, attempt);
        }
    }
    raw_close(&worker);
    raw_close(&manager);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("neighbour");
    TCase *tc = suite_case(suite, "neighbour", NULL, NULL);

    if (argc < 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: bench_neighbour --json FILE [ATTACK]\n");
        return 2;
    }
    if (lacks != NULL) {
        (void)printf("bench_neighbour: %s\n", lacks);
        return 0;
    }
    wanted = argc > 3 ? argv[3] : NULL;
    out = fopen(argv[2], "ae");
    if (out == NULL) {
        perror(argv[2]);
        return 1;
    }
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, neighbour);
    return suite_run(suite) + (fclose(out) == 0 ? 0 : 1);
}

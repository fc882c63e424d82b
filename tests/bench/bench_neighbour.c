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
    CHUNKS = 4,
    CHUNK_ELEMS = 65536,
    MAX_FDS = 4096, /* limit of the daemon's open files */
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

static void open_as_bob(struct raw_client *client)
{
    user_as(USER_BOB, USER_BOB);
    raw_open(client, proc.socket);
    user_back();
}

/* Connect and commit a job of that name. Returns the time in seconds. */
static double commit(struct raw_client *client, const char *name)
{
    struct raw_job job = {.name = name, .world = 1, .chunk_elems = CHUNK_ELEMS};
    double begun = bench_now();

    open_as_bob(client);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, CHUNKS, CHUNK_ELEMS), CST_OK);
    ck_assert_msg(raw_status(client, raw_commit(client, CHUNKS, CHUNKS)) == CST_OK, "%s",
                  client->err.text);
    return bench_now() - begun;
}

static uint64_t batch(struct raw_client *client, uint64_t attempt, uint32_t kind, uint32_t chunk,
                      uint64_t generation)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch message = CISTERN__BATCH__INIT;
    Cistern__BatchDone *done;
    uint64_t got;

    item.kind = (Cistern__BatchItem__Kind)kind;
    item.chunk = chunk;
    item.has_generation = generation != 0;
    item.generation = generation;
    message.attempt = attempt;
    message.n_items = 1;
    message.items = &items;
    (void)raw_ask(client, CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    ck_assert(raw_receive(client));
    done = cistern__batch_done__unpack(NULL, client->reply.body_bytes, client->reply.body);
    ck_assert_ptr_nonnull(done);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    got = done->results[0]->generation;
    cistern__batch_done__free_unpacked(done, NULL);
    return got;
}

/* Fetch weights and release them. Returns the time of the fetch. */
static double request(struct raw_client *client, uint64_t attempt, uint32_t chunk)
{
    double begun = bench_now(), took;
    uint64_t generation = batch(client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, chunk, 0);

    took = bench_now() - begun;
    (void)batch(client, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, chunk, generation);
    return took * 1e6;
}

static void look(struct raw_client *worker, uint64_t attempt, struct seen *seen)
{
    for (unsigned i = 0; i < bench_sized(REQUESTS, 20); i++) {
        seen->requests[seen->n++] = request(worker, attempt, i % CHUNKS);
    }
    for (unsigned i = 0; i < bench_sized(COMMITS, 1); i++) {
        struct raw_client client;
        double took = commit(&client, "again");

        seen->slowest_commit = took > seen->slowest_commit ? took : seen->slowest_commit;
        raw_close(&client);
        open_as_bob(&client);
        ck_assert_int_eq(raw_job_remove(&client, "again"), CST_OK);
        raw_close(&client);
    }
}

static double p99(struct seen *seen)
{
    bench_sort(seen->requests, seen->n);
    return seen->requests[seen->n - seen->n / 100 - 1];
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
    fast = p99(&quiet);
    say("", attacks[attack].name, "us", p99(&attacked), fast, attacked.n);
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
    (void)commit(&worker, "job");
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

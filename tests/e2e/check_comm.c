/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of workers, which are processes, with a daemon: random calls of several groups
 * against a serial model, and deaths in all collectives. */
#include "client/comm/comm.h"
#include "tests/lib/child.h"
#include "tests/lib/collective.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* -- a worker --------------------------------------------------------------------------------- */

/* A worker of job "j", which has the groups "all", "even ranks", "first half". */
struct worker {
    struct cst_client *client;
    struct cst_job *job;
    uint32_t rank, world;
    int groups[3];
};

/* Workers are children: they do not use Check, and end with a message. */
static void must(int rc, const struct cst_err *err, const char *what)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "%s: %s: %s\n", what, cst_status_name(rc), err->text);
        _exit(1);
    }
}

static void declare(struct worker *w)
{
    uint32_t even[COLLECTIVE_MAX_RANKS], n_even = 0, half[COLLECTIVE_MAX_RANKS], n_half = 0;
    int tensor;

    for (uint32_t i = 0; i < w->world; i++) {
        if (i % 2 == 0) {
            even[n_even++] = i;
        }
        if (i < (w->world + 1) / 2) {
            half[n_half++] = i;
        }
    }
    w->groups[0] = CST_GROUP_ALL;
    w->groups[1] = cst_group(w->job, even, n_even);
    w->groups[2] = cst_group(w->job, half, n_half);
    tensor = cst_tensor(w->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(w->job, "o", &tensor, 1);
}

static void start_worker(struct worker *w, uint32_t rank, uint32_t world)
{
    const struct cst_job_spec spec = {.name = "j",
                                      .rank = rank,
                                      .world = world,
                                      .limits.timeout_ms = (uint32_t)patience_ms(20000)};
    struct cst_plan plan;
    struct cst_err err = {0};

    *w = (struct worker){.rank = rank, .world = world};
    must(cst_connect(&w->client, proc.socket, &err), &err, "connect");
    must(cst_job_open(&w->job, w->client, &spec, &err), &err, "open");
    declare(w);
    must(cst_commit(w->job, &plan, &err), &err, "commit");
}

static void end_worker(struct worker *w)
{
    struct cst_err err = {0};

    must(cst_job_leave(w->job, &err), &err, "leave");
    cst_disconnect(w->client);
}

static bool is_in(const struct worker *w, int group)
{
    return group == 0 || (group == 1 && w->rank % 2 == 0) ||
           (group == 2 && w->rank < (w->world + 1) / 2);
}

/* Open the communicators of all groups of this rank. */
static int open_comms(struct worker *w, struct cst_comm *comms[3], struct cst_err *err)
{
    int rc = CST_OK;

    for (int g = 0; g < 3; g++) {
        comms[g] = NULL;
        if (rc == CST_OK && is_in(w, g)) {
            rc = cst_comm_open(&comms[g], w->job, w->groups[g], err);
        }
    }
    return rc;
}

static void close_comms(struct cst_comm *comms[3])
{
    for (int g = 0; g < 3; g++) {
        cst_comm_close(comms[g]);
    }
}

static pid_t fork_worker(void (*body)(struct worker *w, void *arg), uint32_t rank, uint32_t world,
                         void *arg)
{
    const pid_t pid = child_start();

    if (pid == 0) {
        struct worker w;

        start_worker(&w, rank, world);
        body(&w, arg);
        end_worker(&w);
        _exit(0);
    }
    return pid;
}

/* -- calls ------------------------------------------------------------------------------------ */

struct calls {
    uint64_t seed;
    unsigned n_calls;
};

/* Call a collective of a random group and check its result. Groups have numbers of their own. */
static int call_one(struct worker *w, struct cst_comm *comms[3], uint64_t seed, uint64_t number,
                    enum cst_comm_op op, struct cst_err *err)
{
    const int g = (int)(number * 7 / 2 % 3);
    struct collective c;
    uint64_t ticket = 0;
    int rc;

    if (comms[g] == NULL) {
        return CST_OK;
    }
    collective_make(&c, seed, number, cst_comm_rank(comms[g]), cst_comm_size(comms[g]), 60000, op);
    rc = cst_comm_start(comms[g], &c.call, &ticket, err);
    rc = rc == CST_OK ? cst_comm_wait(comms[g], ticket, err) : rc;
    if (rc == CST_OK && !collective_is_right(&c)) {
        rc = cst_err_set(err, CST_EINTERNAL, "rank %u: call %llu has a wrong result", w->rank,
                         (unsigned long long)number);
    }
    collective_free(&c);
    return rc;
}

static void call_all(struct worker *w, void *arg)
{
    const struct calls *calls = arg;
    struct cst_comm *comms[3];
    struct cst_err err = {0};

    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(open_comms(w, comms, &err), &err, "open_comms");
    /* This rank has said on which processors it runs. */
    ck_assert(cst_shared_spins(comms[0]->segment.base, 1));
    for (uint64_t i = 0; i < calls->n_calls; i++) {
        must(call_one(w, comms, calls->seed, i, 0, &err), &err, "call");
    }
    /* No rank leaves before the others have ended their calls, which is not an error of theirs. */
    must(cst_comm_barrier(comms[0], &err), &err, "barrier");
    close_comms(comms);
}

/* Random calls of three groups have the bits of the serial model. "make soak" makes 10^5. */
START_TEST(calls_agree_with_the_model)
{
    const uint32_t world = (uint32_t)_i;
    struct calls calls = {.seed = suite_seed(),
                          .n_calls = getenv("CST_TEST_EVERY") != NULL ? 100000 / 7
                                     : suite_is_sparse()              ? 100
                                                                      : 300};
    pid_t pids[COLLECTIVE_MAX_RANKS];

    for (uint32_t rank = 0; rank < world; rank++) {
        pids[rank] = fork_worker(call_all, rank, world, &calls);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    raw_job_remove(&witness, "j");
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

struct deaths {
    uint64_t seed;
    enum cst_comm_op op;
    uint32_t victim;
    unsigned n_calls;
    unsigned at; /* The call in which the victim dies. */
    bool dead;   /* The victim has died: its successor lives on. Shared. */
};

/* Start call @at, so that the others see a part of it, and die. */
static void die_in(struct worker *w, struct cst_comm *comms[3], const struct deaths *d)
{
    struct collective c;
    uint64_t ticket;

    (void)w;
    collective_make(&c, d->seed, d->at, cst_comm_rank(comms[0]), cst_comm_size(comms[0]), 60000,
                    d->op);
    if (d->seed % 2 == 0) {
        (void)cst_comm_start(comms[0], &c.call, &ticket, NULL);
    }
    (void)raise(SIGKILL);
}

/* The error must name the rank that died. */
static void check_words(const struct deaths *d, const struct cst_err *err)
{
    char name[32];

    (void)snprintf(name, sizeof name, "rank %u ", d->victim);
    if (err->status != CST_EPEERDIED || strstr(err->text, name) == NULL) {
        (void)fprintf(stderr, "rank %u died, and the error is %s: %s\n", d->victim,
                      cst_status_name(err->status), err->text);
        _exit(1);
    }
}

/* Make all calls in one attempt. */
static int attempt(struct worker *w, struct deaths *d, struct cst_err *err)
{
    struct cst_comm *comms[3] = {NULL, NULL, NULL};
    int rc;

    must(cst_sync(w->job, NULL, err), err, "sync");
    rc = cst_comm_open(&comms[0], w->job, CST_GROUP_ALL, err);
    for (unsigned i = 0; rc == CST_OK && i < d->n_calls; i++) {
        struct collective c;
        uint64_t ticket = 0;

        if (i == d->at && w->rank == d->victim && !__atomic_load_n(&d->dead, __ATOMIC_ACQUIRE)) {
            __atomic_store_n(&d->dead, true, __ATOMIC_RELEASE);
            die_in(w, comms, d);
        }
        collective_make(&c, d->seed, i, cst_comm_rank(comms[0]), cst_comm_size(comms[0]), 60000,
                        i == d->at ? d->op : 0);
        rc = cst_comm_start(comms[0], &c.call, &ticket, err);
        rc = rc == CST_OK ? cst_comm_wait(comms[0], ticket, err) : rc;
        if (rc == CST_OK && !collective_is_right(&c)) {
            rc = cst_err_set(err, CST_EINTERNAL, "rank %u: call %u has a wrong result", w->rank, i);
        }
        collective_free(&c);
    }
    if (rc == CST_OK) {
        rc = cst_comm_barrier(comms[0], err);
    }
    cst_comm_close(comms[0]);
    return rc;
}

static void survive(struct worker *w, void *arg)
{
    struct deaths *d = arg;
    struct cst_err err = {0};
    int rc = attempt(w, d, &err);

    if (rc == CST_EPEERDIED) {
        check_words(d, &err);
        rc = attempt(w, d, &err);
    }
    must(rc, &err, "attempt");
}

static void one_death(struct deaths *d, uint32_t world)
{
    pid_t pids[COLLECTIVE_MAX_RANKS];
    unsigned n_killed = 0;

    for (uint32_t rank = 0; rank < world; rank++) {
        pids[rank] = fork_worker(survive, rank, world, d);
    }
    /* The victim is the first that ends, and a new process takes its rank. */
    n_killed += child_join(pids[d->victim], "the victim failed");
    pids[d->victim] = fork_worker(survive, d->victim, world, d);
    for (uint32_t rank = 0; rank < world; rank++) {
        n_killed += child_join(pids[rank], "a worker failed");
    }
    ck_assert_uint_eq(n_killed, 1);
    raw_job_remove(&witness, "j");
}

/* A rank that is killed in a collective of any kind, before its part or after the beginning of it,
 * is named by all others. When a new process has its rank, all ranks open the communicator again
 * and make the same calls, with the same bits. CST_TEST_DEATHS: number of deaths for each kind. */
START_TEST(a_death_is_named_and_made_good)
{
    const char *given = getenv("CST_TEST_DEATHS");
    const unsigned n = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 2;
    struct deaths *d = child_share(sizeof *d);

    for (unsigned i = 0; i < n; i++) {
        const uint64_t seed = suite_seed() * 2 + i % 2;
        const uint32_t world = (uint32_t)(2 + seed / 2 % 3);

        *d = (struct deaths){.seed = seed,
                             .op = (enum cst_comm_op)_i,
                             .victim = (uint32_t)(seed / 7 % world),
                             .n_calls = 6,
                             .at = (unsigned)(seed / 11 % 6)};
        one_death(d, world);
    }
    child_unshare(d, sizeof *d);
}
END_TEST

/* -- other ends ------------------------------------------------------------------------------- */

/* What a rank does while rank 0 waits for it in a barrier. */
enum end { CLOSES, LEAVES, SYNCS, NEVER_OPENS, CANNOT_MAP, CALLS_OTHERWISE };

static const struct {
    int status;        /* What rank 0 gets. */
    const char *words; /* Part of the error. */
} ends[] = {
    [CLOSES] = {CST_ECANCELLED, "rank 1 has closed its communicator"},
    [LEAVES] = {CST_EPEERDIED, "rank 1 left after step 0"},
    [SYNCS] = {CST_EPEERDIED, "rank 1 gave up step 0 and synced"},
    [NEVER_OPENS] = {CST_EPEERDIED, "rank 1 left after step 0"},
    [CANNOT_MAP] = {CST_ECANCELLED, "rank 1 has closed its communicator"},
    [CALLS_OTHERWISE] = {CST_EMISMATCH, "rank 0 calls barrier, rank 1 calls broadcast of 1 bytes"},
};

static void rank_0(struct worker *w, enum end how)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    int rc;

    rc = cst_comm_open(&comm, w->job, CST_GROUP_ALL, &err);
    rc = rc == CST_OK ? cst_comm_barrier(comm, &err) : rc;
    rc = rc == CST_OK ? cst_comm_barrier(comm, &err) : rc;
    if (rc != ends[how].status || strstr(err.text, ends[how].words) == NULL) {
        (void)fprintf(stderr, "end %d: %s: %s\n", (int)how, cst_status_name(rc), err.text);
        _exit(1);
    }
    cst_comm_close(comm);
    if (how == SYNCS) {
        must(cst_sync(w->job, NULL, &err), &err, "sync");
    }
}

/* Open the communicator, but with an address space that has no room for its memory. */
static void fail_to_map(struct worker *w)
{
    const rlim_t room = 1 << 20; /* For a page, and what malloc may need. */
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    struct rlimit limit, small;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file == NULL || fscanf(file, "%ld", &pages) != 1 || getrlimit(RLIMIT_AS, &limit) != 0) {
        _exit(1);
    }
    (void)fclose(file);
    small = limit;
    small.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + room;
    if (setrlimit(RLIMIT_AS, &small) != 0 ||
        cst_comm_open(&comm, w->job, CST_GROUP_ALL, &err) != CST_ENOMEM ||
        setrlimit(RLIMIT_AS, &limit) != 0) {
        (void)fprintf(stderr, "the memory was mapped: %s\n", err.text);
        _exit(1);
    }
}

static void rank_1(struct worker *w, enum end how)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    char byte = 0;

    if (how == CANNOT_MAP) {
        fail_to_map(w);
    } else if (how != NEVER_OPENS) {
        must(cst_comm_open(&comm, w->job, CST_GROUP_ALL, &err), &err, "open");
        must(cst_comm_barrier(comm, &err), &err, "barrier");
    }
    if (how == CALLS_OTHERWISE &&
        cst_comm_broadcast(comm, &byte, 1, CST_COMM_BYTE, 0, &err) != CST_EMISMATCH) {
        _exit(1);
    }
    if (how == LEAVES) {
        return; /* Without closing it. */
    }
    if (how == SYNCS) {
        must(cst_sync(w->job, NULL, &err), &err, "sync");
        if (cst_comm_barrier(comm, &err) != CST_EPEERDIED) {
            _exit(1); /* It was opened before the sync. */
        }
    }
    cst_comm_close(comm);
}

static void end_so(struct worker *w, void *arg)
{
    const enum end how = *(const enum end *)arg;
    struct cst_err err = {0};

    must(cst_sync(w->job, NULL, &err), &err, "sync");
    if (w->rank == 0) {
        rank_0(w, how);
    } else {
        rank_1(w, how);
    }
}

/* Whatever another rank does instead of taking part, a rank that waits gets the cause. */
START_TEST(a_wait_ends)
{
    enum end how = (enum end)_i;
    pid_t pids[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        pids[rank] = fork_worker(end_so, rank, 2, &how);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    raw_job_remove(&witness, "j");
}
END_TEST

/* Rank 2 expects more of rank 1 than it sends. The numbers of rank 0 are right. */
static void count_wrongly(struct worker *w, void *arg)
{
    const size_t sent[] = {1, 1, 1}, received[] = {1, w->rank == 2 ? 5 : 1, 1};
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    char in[3] = {0}, out[7];
    int rc;

    (void)arg;
    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(cst_comm_open(&comm, w->job, CST_GROUP_ALL, &err), &err, "open");
    rc = cst_comm_all_to_all(comm, in, sent, out, received, CST_COMM_BYTE, &err);
    if (rc != CST_EMISMATCH ||
        strstr(err.text, "rank 1 calls all_to_all and sends 1 bytes to rank 2, which calls "
                         "all_to_all and receives 5 bytes") == NULL) {
        (void)fprintf(stderr, "rank %u: %s: %s\n", w->rank, cst_status_name(rc), err.text);
        _exit(1);
    }
    cst_comm_close(comm);
}

/* If two ranks count differently, a third one gets to know it, too. */
START_TEST(different_counts_are_named_everywhere)
{
    pid_t pids[3];

    for (uint32_t rank = 0; rank < 3; rank++) {
        pids[rank] = fork_worker(count_wrongly, rank, 3, NULL);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    raw_job_remove(&witness, "j");
}
END_TEST

/* -- requests --------------------------------------------------------------------------------- */

static void ask_badly(struct worker *w, void *arg)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};

    (void)arg;
    if (cst_comm_open(&comm, w->job, 0, &err) != CST_EINVAL || /* Before cst_sync. */
        (must(cst_sync(w->job, NULL, &err), &err, "sync"), false) ||
        cst_comm_open(&comm, w->job, 3, &err) != CST_EINVAL ||
        strstr(err.text, "no group 3") == NULL ||
        cst_comm_open(&comm, w->job, -1, &err) != CST_EINVAL) {
        (void)fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    /* A single rank is a group, too. */
    must(cst_comm_open(&comm, w->job, 0, &err), &err, "open");
    must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
}

/* Groups that do not exist, and communicators before cst_sync, are refused. */
START_TEST(bad_requests_are_refused)
{
    const pid_t pid = fork_worker(ask_badly, 0, 1, NULL);

    ck_assert(!child_join(pid, "the worker failed"));
    raw_job_remove(&witness, "j");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm");
    TCase *calls = suite_case(suite, "calls", job_rig_setup, job_rig_teardown);
    TCase *deaths = suite_case(suite, "deaths", job_rig_setup, job_rig_teardown);
    TCase *others = suite_case(suite, "others", job_rig_setup, job_rig_teardown);

    tcase_add_loop_test(calls, calls_agree_with_the_model, 2, COLLECTIVE_MAX_RANKS + 1);
    tcase_set_timeout(calls, 3600); /* "make soak" */
    tcase_add_loop_test(deaths, a_death_is_named_and_made_good, CST_COMM_BARRIER,
                        CST_COMM_ALL_TO_ALL + 1);
    tcase_add_loop_test(others, a_wait_ends, CLOSES, CALLS_OTHERWISE + 1);
    tcase_add_test(others, different_counts_are_named_everywhere);
    tcase_add_test(others, bad_requests_are_refused);
    return suite_run(suite);
}

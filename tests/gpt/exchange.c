/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that share memory: barriers of threads and of processes, and the error that the
 * others get whenever a rank ends. */
#include "client/gpt/exchange.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORLD 4
#define REGION (3 * sizeof(uint64_t))
#define TURNS 200

/* @n times: every rank writes its number into its region, waits at a barrier, reads the numbers of
 * all others, and waits at a second barrier. Returns the status of the first barrier that failed,
 * or 1 if a number was wrong. */
static int turns(struct gpt_exchange *x, uint64_t n, struct cst_err *err)
{
    const uint32_t rank = gpt_exchange_rank(x), world = gpt_exchange_world(x);
    int rc = 0;

    for (uint64_t turn = 0; rc == 0 && turn < n; turn++) {
        ((volatile uint64_t *)gpt_exchange_region(x, rank))[2] = 1000 * turn + rank;
        rc = gpt_exchange_meet(x, err);
        for (uint32_t r = 0; rc == 0 && r < world; r++) {
            if (((volatile uint64_t *)gpt_exchange_region(x, r))[2] != 1000 * turn + r) {
                return 1;
            }
        }
        if (rc == 0) {
            rc = gpt_exchange_meet(x, err);
        }
    }
    return rc;
}

/* A rank without peers does not wait at its barriers. */
START_TEST(alone_meets_itself)
{
    struct gpt_exchange *x;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_exchange_open_alone(&x, REGION, &err), 0);
    ck_assert_int_eq(gpt_exchange_join(x, &err), 0);
    ck_assert_int_eq(turns(x, 10, &err), 0);
    gpt_exchange_close(x);
}
END_TEST

/* -- threads ----------------------------------------------------------------------------------- */

struct thread {
    struct gpt_exchange_hub *hub;
    uint32_t rank;
    uint64_t n; /* number of turns */
    int rc;
    pthread_t thread;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct gpt_exchange *x;
    struct cst_err err = {0};

    t->rc = gpt_exchange_open_thread(&x, t->hub, t->rank, &err);
    if (t->rc == 0) {
        t->rc = gpt_exchange_join(x, &err);
        if (t->rc == 0) {
            t->rc = turns(x, t->n, &err);
        }
        gpt_exchange_close(x);
    }
    return NULL;
}

/* After each barrier threads see what the others wrote before it. */
START_TEST(threads_meet)
{
    struct thread t[WORLD];
    struct gpt_exchange_hub *hub;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_exchange_hub_open(&hub, WORLD, REGION, &err), 0);
    for (uint32_t r = 0; r < WORLD; r++) {
        t[r] = (struct thread){.hub = hub, .rank = r, .n = TURNS};
        ck_assert_int_eq(pthread_create(&t[r].thread, NULL, thread_main, &t[r]), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(pthread_join(t[r].thread, NULL), 0);
        ck_assert_int_eq(t[r].rc, 0);
    }
    gpt_exchange_hub_close(hub);
}
END_TEST

struct looker {
    uint32_t n_looks;
    void *there;          /* memory that came and has not gone */
    pthread_mutex_t lock; /* held by the test until the first look */
};

static void look(void *arg)
{
    struct looker *l = arg;

    if (l->n_looks++ == 0) {
        ck_assert_int_eq(pthread_mutex_unlock(&l->lock), 0);
    }
}

static void came(void *arg, void *base, size_t bytes)
{
    struct looker *l = arg;

    ck_assert_ptr_null(l->there);
    ck_assert_uint_ge(bytes, 2 * REGION);
    l->there = base;
}

static void goes(void *arg, void *base)
{
    struct looker *l = arg;

    ck_assert_ptr_eq(l->there, base);
    l->there = NULL;
}

struct late {
    struct thread thread;
    struct looker *looker;
};

static void *late_main(void *arg)
{
    struct late *l = arg;

    ck_assert_int_eq(pthread_mutex_lock(&l->looker->lock), 0);
    ck_assert_int_eq(pthread_mutex_unlock(&l->looker->lock), 0);
    return thread_main(&l->thread);
}

/* A waiting barrier calls look: here the other rank comes only after a look. The memory comes when
 * the watch is set after the join, and goes when the exchange is closed. */
START_TEST(meetings_look_while_they_wait)
{
    struct looker looker = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct late late = {.looker = &looker, .thread = {.rank = 1, .n = 1}};
    const struct gpt_exchange_watch watch = {look, came, goes, &looker};
    struct gpt_exchange_hub *hub;
    struct gpt_exchange *x;
    struct cst_err err = {0};

    ck_assert_int_eq(pthread_mutex_lock(&looker.lock), 0);
    ck_assert_int_eq(gpt_exchange_hub_open(&hub, 2, REGION, &err), 0);
    ck_assert_int_eq(gpt_exchange_open_thread(&x, hub, 0, &err), 0);
    ck_assert_int_eq(gpt_exchange_join(x, &err), 0);
    gpt_exchange_watch(x, &watch);
    ck_assert_ptr_eq((char *)looker.there + 4096, gpt_exchange_region(x, 0));
    late.thread.hub = hub;
    ck_assert_int_eq(pthread_create(&late.thread.thread, NULL, late_main, &late), 0);
    ck_assert_int_eq(turns(x, 1, &err), 0);
    ck_assert_int_eq(pthread_join(late.thread.thread, NULL), 0);
    ck_assert_int_eq(late.thread.rc, 0);
    ck_assert_uint_ge(looker.n_looks, 1);
    gpt_exchange_close(x);
    ck_assert_ptr_null(looker.there);
    gpt_exchange_hub_close(hub);
}
END_TEST

/* A thread that ends early, or a hub that is broken, ends the wait of the others. A broken hub
 * accepts no rank any more. */
START_TEST(threads_do_not_wait_for_the_gone)
{
    struct thread t[2];
    struct gpt_exchange_hub *hub;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_exchange_hub_open(&hub, WORLD, REGION, &err), 0);
    for (uint32_t r = 0; r < 2; r++) { /* Ranks 2 and 3 never come. */
        t[r] = (struct thread){.hub = hub, .rank = r, .n = 1};
        ck_assert_int_eq(pthread_create(&t[r].thread, NULL, thread_main, &t[r]), 0);
    }
    gpt_exchange_hub_break(hub);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(pthread_join(t[r].thread, NULL), 0);
        ck_assert(t[r].rc == CST_EPEERDIED || t[r].rc == CST_ECANCELLED);
    }
    (void)thread_main(&t[0]);
    ck_assert_int_eq(t[0].rc, CST_ECANCELLED);
    gpt_exchange_hub_close(hub);
}
END_TEST

/* -- processes --------------------------------------------------------------------------------- */

/* Action of a process after it has joined. */
enum part { MEET, DIE_AND_BE_MISSED, LEAVE, MISS, OTHER_SIZE };

static char name[64];

/* The process ends with status 0 if its action went as expected. */
static void process_main(uint32_t rank, enum part part, int ready)
{
    struct gpt_exchange *x;
    struct cst_err err = {0};
    int rc = gpt_exchange_open_process(&x, name, rank, WORLD,
                                       part == OTHER_SIZE ? 100 * REGION * 4096 : REGION, &err);

    if (rc == 0) {
        rc = gpt_exchange_join(x, &err);
    }
    if (part == OTHER_SIZE || ready < 0) { /* The join is expected to fail. */
        _exit(rc == CST_EMISMATCH || rc == CST_EPEERDIED ? 0 : 1);
    }
    if (rc == 0) {
        rc = turns(x, 20, &err);
    }
    if (rc != 0 || write(ready, "r", 1) != 1) {
        (void)fprintf(stderr, "rank %u: %s\n", rank, err.text);
        _exit(2);
    }
    switch (part) {
    case MEET:
        rc = turns(x, TURNS, &err);
        break;
    case DIE_AND_BE_MISSED:
        (void)pause();
        break;
    case LEAVE:
        gpt_exchange_leave(x);
        break;
    case MISS:
        rc = turns(x, TURNS, &err) == CST_EPEERDIED ? 0 : 3;
        if (rc == 0) {
            /* Join again with the process that takes the dead rank's place. */
            rc = gpt_exchange_join(x, &err);
        }
        if (rc == 0) {
            /* The new process also makes these turns before it reports that it is ready. */
            rc = turns(x, 20, &err);
        }
        if (rc == 0) {
            rc = turns(x, TURNS, &err);
        }
        break;
    case OTHER_SIZE:
        break;
    }
    gpt_exchange_close(x);
    if (rc != 0) {
        (void)fprintf(stderr, "rank %u: status %d, %s\n", rank, rc, err.text);
    }
    _exit(rc == 0 ? 0 : 4);
}

static pid_t start(uint32_t rank, enum part part, int ready)
{
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        process_main(rank, part, ready);
    }
    return pid;
}

static void expect_good(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process ended with %#x",
                  (unsigned)status);
}

static void setup(void)
{
    (void)snprintf(name, sizeof name, "cistern-gpt-test/%d", (int)getpid());
}

static void await(int fd, size_t n)
{
    char bytes[WORLD];

    for (size_t got = 0; got < n;) {
        const ssize_t now = read(fd, bytes, n - got);

        ck_assert_int_gt(now, 0);
        got += (size_t)now;
    }
}

/* Processes find each other, whichever comes first, and see what the others wrote. */
START_TEST(processes_meet)
{
    int pipes[2];
    pid_t pids[WORLD];

    ck_assert_int_eq(pipe(pipes), 0);
    for (uint32_t i = 0; i < WORLD; i++) {
        const uint32_t rank = _i == 0 ? i : WORLD - 1 - i;

        pids[rank] = start(rank, MEET, pipes[1]);
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        expect_good(pids[r]);
    }
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}
END_TEST

/* If one rank is killed (rank 0, which created the memory, or another), all others get
 * CST_EPEERDIED. With a new process in its place they meet again. */
START_TEST(killed_processes_are_missed)
{
    const uint32_t victim = (uint32_t)_i;
    int pipes[2];
    pid_t pids[WORLD];

    ck_assert_int_eq(pipe(pipes), 0);
    for (uint32_t r = 0; r < WORLD; r++) {
        pids[r] = start(r, r == victim ? DIE_AND_BE_MISSED : MISS, pipes[1]);
    }
    await(pipes[0], WORLD);
    ck_assert_int_eq(kill(pids[victim], SIGKILL), 0);
    ck_assert_int_eq(waitpid(pids[victim], NULL, 0), pids[victim]);
    pids[victim] = start(victim, MEET, pipes[1]);
    for (uint32_t r = 0; r < WORLD; r++) {
        expect_good(pids[r]);
    }
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}
END_TEST

/* If one rank leaves, all others get CST_EPEERDIED. With a new process in its place they meet
 * again. */
START_TEST(leaving_is_told)
{
    const uint32_t leaver = (uint32_t)_i;
    int pipes[2];
    pid_t pids[WORLD];

    ck_assert_int_eq(pipe(pipes), 0);
    for (uint32_t r = 0; r < WORLD; r++) {
        pids[r] = start(r, r == leaver ? LEAVE : MISS, pipes[1]);
    }
    await(pipes[0], WORLD);
    expect_good(pids[leaver]);
    pids[leaver] = start(leaver, MEET, pipes[1]);
    for (uint32_t r = 0; r < WORLD; r++) {
        expect_good(pids[r]);
    }
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}
END_TEST

/* Ranks whose options give other region sizes are refused at once. */
START_TEST(other_sizes_are_refused)
{
    const pid_t host = start(0, MEET, -1), other = start(1, OTHER_SIZE, -1);

    expect_good(host);
    expect_good(other);
}
END_TEST

/* A name that is empty or too long is refused. A name of the greatest length is accepted. */
START_TEST(long_names_are_refused)
{
    char longer[108] = {0};
    struct gpt_exchange *x;
    struct cst_err err = {0};

    memset(longer, 'x', 107);
    ck_assert_int_eq(gpt_exchange_open_process(&x, longer, 0, 2, REGION, &err), CST_EINVAL);
    longer[106] = '\0';
    ck_assert_int_eq(gpt_exchange_open_process(&x, longer, 0, 2, REGION, &err), CST_OK);
    gpt_exchange_close(x);
    ck_assert_int_eq(gpt_exchange_open_process(&x, "", 0, 2, REGION, &err), CST_EINVAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *tcase = suite_case(suite, "exchange", setup, NULL);

    tcase_add_test(tcase, alone_meets_itself);
    tcase_add_test(tcase, threads_meet);
    tcase_add_test(tcase, meetings_look_while_they_wait);
    tcase_add_test(tcase, threads_do_not_wait_for_the_gone);
    tcase_add_loop_test(tcase, processes_meet, 0, 2);
    tcase_add_loop_test(tcase, killed_processes_are_missed, 0, WORLD);
    tcase_add_loop_test(tcase, leaving_is_told, 0, 2);
    tcase_add_test(tcase, other_sizes_are_refused);
    tcase_add_test(tcase, long_names_are_refused);
    return suite_run(suite);
}

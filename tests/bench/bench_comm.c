/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of two ranks, which are processes, against bare programs in the same processes:
 *
 *   - comm_all_reduce_1m: all-reduce of 1 MiB of fp32, against the copies and sums of which it
 *     consists, made by both processes at the same time without waiting for each other.
 *   - comm_all_reduce_4k: all-reduce of 4 KiB of fp32, against an exchange of two flags. Each
 *     process sets its own flag, and sleeps with futex until the other one is set.
 *   - comm_4k_copies: the same, against an exchange of flags that waits in a loop, and that also
 *     copies and sums the 4 KiB.
 *   - comm_4k_flags: the same, against an exchange of flags that waits in a loop.
 *   - comm_death_ms: from the death of a rank to the error of the other one, which waits for it in
 *     an all-reduce.
 *
 * Yardsticks and calls take turns; reports medians. With --calls, only the times of all-reduces in
 * microseconds are printed, for comparison with other libraries (tests/bench/collectives).
 *
 * Starts a private ./cisternd. Run from the build tree. Usage: bench_comm --json FILE | --calls */
#include "cistern/comm.h"
#include "kernels/math/total.h"
#include "proto/comm_memory.h"
#include "tests/bench/timing.h"
#include "tests/lib/child.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TURNS = 401,
    LIST_TURNS = 61,
    LARGE = 1 << 20, /* Bytes. */
    SMALL = 4096,
    PIECE = CST_COMM_SLOT_BYTES / 2, /* Bytes of a share of a piece of a large all-reduce. */
    DEATHS = 21,
};

/* What both processes share besides the daemon's memory. */
struct shared {
    struct cst_shared_head head;
    struct flag {
        _Alignas(128) _Atomic uint32_t value;
    } flags[2]; /* One per process. */
    double died;
    char slots[2][2][2 * PIECE];
};

struct bench {
    struct shared *shared;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_comm *comm;
    uint32_t rank, flag;
    float *in, *out;
    struct cst_totals totals;
};

static struct daemon_proc proc;

static _Noreturn void die(const char *what, const struct cst_err *err)
{
    (void)fprintf(stderr, "bench_comm: %s: %s\n", what, err != NULL ? err->text : "failed");
    _exit(1);
}

/* -- yardsticks ------------------------------------------------------------------------------- */

static bool is_flag_set(void *arg)
{
    const struct bench *b = arg;

    return (int32_t)(atomic_load(&b->shared->flags[!b->rank].value) - b->flag) >= 0;
}

/* Set the own flag, and wait for that of the other process. */
static void exchange_flags(struct bench *b, bool spins)
{
    const struct cst_shared_wait wait = {
        .attempt = UINT64_MAX, .n_processes = spins ? 2 : 0, .ready = is_flag_set, .arg = b};

    atomic_store(&b->shared->flags[b->rank].value, ++b->flag);
    cst_shared_notify(&b->shared->head);
    while (cst_shared_wait(&b->shared->head, &wait, 1000) != CST_OK) {
    }
}

static void wait_in_loop(struct bench *b)
{
    exchange_flags(b, true);
}

static void wait_with_futex(struct bench *b)
{
    exchange_flags(b, false);
}

/* Exchange SMALL bytes: copy the own ones, exchange flags, and sum both. Two slots take turns. */
static void move_small(struct bench *b)
{
    char *mine = b->shared->slots[b->rank][b->flag % 2];
    const char *other = b->shared->slots[!b->rank][b->flag % 2];
    const float *src[2];

    memcpy(mine, b->in, SMALL);
    exchange_flags(b, true);
    src[b->rank] = b->in;
    src[!b->rank] = (const float *)(const void *)other;
    b->totals.fp32(SMALL / sizeof(float), 2, src, b->out);
}

/* The copies and sums of an all-reduce of LARGE bytes, in its pieces, without any waiting. */
static void move_large(struct bench *b)
{
    for (size_t at = 0; at < LARGE; at += 2 * PIECE) {
        char *mine = b->shared->slots[b->rank][at / (2 * PIECE) % 2];
        const char *other = b->shared->slots[!b->rank][at / (2 * PIECE) % 2];
        const char *in = (const char *)b->in + at;
        char *out = (char *)b->out + at;

        memcpy(mine, in + !b->rank * PIECE, PIECE);
        for (size_t i = 0; i < PIECE; i += 16384) {
            const size_t own = b->rank * PIECE + i;
            const float *src[2] = {(const float *)(const void *)(in + own),
                                   (const float *)(const void *)(other + i)};

            b->totals.fp32(16384 / sizeof(float), 2, src, (float *)(void *)(out + own));
            memcpy(mine + PIECE + i, out + own, 16384);
        }
        memcpy(out + !b->rank * PIECE, other + PIECE, PIECE);
    }
}

/* -- calls ------------------------------------------------------------------------------------ */

static void all_reduce(struct bench *b, size_t bytes)
{
    struct cst_err err;

    if (cst_comm_all_reduce(b->comm, b->in, b->out, bytes / sizeof(float), CST_COMM_FP32, &err) !=
        CST_OK) {
        die("all_reduce", &err);
    }
}

static void large(struct bench *b)
{
    all_reduce(b, LARGE);
}

static void small(struct bench *b)
{
    all_reduce(b, SMALL);
}

/* Time of one of @n turns of @fn, which both processes begin together. */
static double time_of(struct bench *b, void (*fn)(struct bench *b), unsigned n)
{
    double from;

    exchange_flags(b, true);
    from = bench_now();
    for (unsigned i = 0; i < n; i++) {
        fn(b);
    }
    return (bench_now() - from) * 1e6 / n;
}

static void report(FILE *out, const char *name, double value, const char *unit, double yardstick,
                   unsigned runs)
{
    printf("%-20s %10.3f %s", name, value, unit);
    if (yardstick > 0) {
        printf(", yardstick %.3f, ratio %.2f", yardstick, value / yardstick);
    }
    printf("\n");
    if (out != NULL) {
        (void)fprintf(out, "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", ", name, value,
                      unit);
        if (yardstick > 0) {
            (void)fprintf(out, "\"yardstick\": %.6g, \"ratio\": %.4f, ", yardstick,
                          value / yardstick);
        }
        (void)fprintf(out, "\"runs\": %u}\n", runs);
    }
}

/* A call, and a bare program that it is compared with. */
static const struct pair {
    const char *name;
    void (*call)(struct bench *b);
    void (*bare)(struct bench *b);
    unsigned n; /* Calls in a turn. */
} pairs[] = {
    {"comm_all_reduce_1m", large, move_large, 1},
    {"comm_all_reduce_4k", small, wait_with_futex, 100},
    {"comm_4k_copies", small, move_small, 100},
    {"comm_4k_flags", small, wait_in_loop, 100},
};

enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

static void measure(struct bench *b, FILE *out)
{
    static double calls[N_PAIRS][TURNS], bare[N_PAIRS][TURNS];
    const unsigned turns = bench_sized(TURNS, 3);

    for (unsigned i = 0; i < turns; i++) {
        for (unsigned k = 0; k < N_PAIRS; k++) {
            bare[k][i] = time_of(b, pairs[k].bare, pairs[k].n);
            calls[k][i] = time_of(b, pairs[k].call, pairs[k].n);
        }
    }
    for (unsigned k = 0; k < N_PAIRS && b->rank == 0; k++) {
        report(out, pairs[k].name, bench_median(calls[k], turns), "us",
               bench_median(bare[k], turns), turns);
        /* They are sorted now. On a busy machine two processes seldom run at the same time. */
        printf("    shortest turn %.3f us, yardstick %.3f us, ratio %.2f\n", calls[k][0],
               bare[k][0], calls[k][0] / bare[k][0]);
    }
}

/* The times of all-reduces of several sizes. */
static void list(struct bench *b)
{
    static const size_t sizes[] = {1024, SMALL, 65536, LARGE, 16 * LARGE};
    const unsigned turns = bench_sized(LIST_TURNS, 1);

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double times[LIST_TURNS];
        const unsigned n = sizes[s] > LARGE ? 2 : sizes[s] == LARGE ? 10 : 200;

        for (unsigned i = 0; i < turns; i++) {
            double from;

            exchange_flags(b, true);
            from = bench_now();
            for (unsigned k = 0; k < n; k++) {
                all_reduce(b, sizes[s]);
            }
            times[i] = (bench_now() - from) * 1e6 / n;
        }
        if (b->rank == 0) {
            printf("%zu %.2f\n", sizes[s], bench_median(times, turns));
        }
    }
}

/* -- processes -------------------------------------------------------------------------------- */

static void open_job(struct bench *b, uint32_t rank, const char *name)
{
    const struct cst_job_spec spec = {.name = name, .rank = rank, .world = 2};
    struct cst_plan plan;
    struct cst_err err = {0};
    int tensor;

    if (cst_connect(&b->client, proc.socket, &err) != CST_OK ||
        cst_job_open(&b->job, b->client, &spec, &err) != CST_OK) {
        die("job", &err);
    }
    tensor = cst_tensor(b->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(b->job, "o", &tensor, 1);
    if (cst_commit(b->job, &plan, &err) != CST_OK || cst_sync(b->job, NULL, &err) != CST_OK ||
        cst_comm_open(&b->comm, b->job, CST_GROUP_ALL, &err) != CST_OK) {
        die("communicator", &err);
    }
}

/* Each rank has a processor of its own, as `cistern run` gives it. */
static void pin(uint32_t rank)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(rank % (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void start(struct bench *b, struct shared *shared, uint32_t rank, const char *name)
{
    *b = (struct bench){.shared = shared, .rank = rank, .totals = cst_totals_get()};
    b->in = aligned_alloc(4096, 16 * LARGE);
    b->out = aligned_alloc(4096, 16 * LARGE);
    for (size_t i = 0; i < 16 * LARGE / sizeof(float); i++) {
        b->in[i] = (float)(i % 97);
        b->out[i] = 0;
    }
    pin(rank);
    cst_shared_join(&shared->head);
    open_job(b, rank, name);
}

static void run_pair(struct shared *shared, FILE *out)
{
    pid_t pids[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        pids[rank] = child_start();
        if (pids[rank] == 0) {
            struct bench b;

            start(&b, shared, rank, "bench");
            if (out == NULL) {
                list(&b);
            } else {
                measure(&b, out);
            }
            cst_comm_close(b.comm);
            (void)cst_job_leave(b.job, NULL);
            cst_disconnect(b.client);
            (void)fflush(NULL);
            _exit(0);
        }
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
}

/* Rank 1 dies while rank 0 waits for it. */
static double one_death(struct shared *shared, unsigned turn)
{
    char name[32];
    pid_t victim;
    struct bench b;
    struct cst_err err = {0};
    double us;

    (void)snprintf(name, sizeof name, "death-%u", turn);
    victim = child_start();
    if (victim == 0) {
        start(&b, shared, 1, name);
        (void)usleep(20000); /* Rank 0 sleeps in its call by then. */
        shared->died = bench_now();
        (void)raise(SIGKILL);
    }
    start(&b, shared, 0, name);
    if (cst_comm_all_reduce(b.comm, b.in, b.out, 1000, CST_COMM_FP32, &err) != CST_EPEERDIED ||
        strstr(err.text, "rank 1 ") == NULL) {
        die("death", &err);
    }
    us = (bench_now() - shared->died) * 1e6;
    ck_assert(child_join(victim, "the victim lives"));
    cst_comm_close(b.comm);
    cst_disconnect(b.client);
    free(b.in);
    free(b.out);
    return us;
}

static FILE *results; /* NULL: --calls */

START_TEST(comm)
{
    struct shared *shared = child_share(sizeof *shared);
    const unsigned n_deaths = bench_sized(DEATHS, 2);
    double deaths[DEATHS];

    daemon_proc_start(&proc, NULL);
    run_pair(shared, results);
    for (unsigned i = 0; results != NULL && i < n_deaths; i++) {
        deaths[i] = one_death(shared, i) / 1000;
    }
    if (results != NULL) {
        report(results, "comm_death_ms", bench_median(deaths, n_deaths), "ms", 0, n_deaths);
        /* They are sorted now. */
        report(results, "comm_death_longest_ms", deaths[n_deaths - 1], "ms", 0, n_deaths);
    }
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    child_unshare(shared, sizeof *shared);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("comm");
    TCase *tc = suite_case(suite, "comm", NULL, NULL);

    if (argc == 3 && strcmp(argv[1], "--json") == 0) {
        results = fopen(argv[2], "ae");
        if (results == NULL) {
            perror(argv[2]);
            return 1;
        }
    } else if (argc != 2 || strcmp(argv[1], "--calls") != 0) {
        (void)fprintf(stderr, "usage: bench_comm --json FILE | --calls\n");
        return 2;
    }
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, comm);
    return suite_run(suite) + (results == NULL || fclose(results) == 0 ? 0 : 1);
}

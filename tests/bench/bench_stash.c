/* SPDX-License-Identifier: Apache-2.0 */
/* stash_vs_memcpy: the rate at which a worker's arrays go to the stash and come back in reverse
 * order (cst_put_start, cst_take_start), against memcpy of the same arrays by one thread. Both
 * move each array twice, and take turns.
 *
 * Starts a private ./cisternd. Run from the build tree. Usage: bench_stash --json FILE */
#include "cistern/cistern.h"
#include "tests/bench/timing.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 31, N_ARRAYS = 8, ARRAY_BYTES = 16 << 20 };

struct bench {
    struct cst_client *client;
    struct cst_job *job;
    int edge;
    char *arrays[N_ARRAYS], *copies[N_ARRAYS];
    struct cst_err err;
};

static FILE *results;

static void must(const struct bench *b, int rc)
{
    suite_must(rc == CST_OK, "%s", b->err.text);
}

static char *new_array(void)
{
    char *at = aligned_alloc(4096, ARRAY_BYTES);

    suite_must(at != NULL, "no memory");
    memset(at, 1, ARRAY_BYTES);
    return at;
}

static void open_job(struct bench *b, const char *socket)
{
    const struct cst_job_spec spec = {.name = "bench", .world = 1};
    int tensor;

    must(b, cst_connect(&b->client, socket, &b->err));
    must(b, cst_job_open(&b->job, b->client, &spec, &b->err));
    b->edge =
        cst_edge(b->job, &(struct cst_edge_spec){"stash", 0, 0, ARRAY_BYTES, N_ARRAYS, false});
    tensor = cst_tensor(b->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_operator(b->job, "o", &tensor, 1), 0);
    must(b, cst_commit(b->job, NULL, &b->err));
    must(b, cst_sync(b->job, NULL, &b->err));
    for (unsigned i = 0; i < N_ARRAYS; i++) {
        b->arrays[i] = new_array();
        b->copies[i] = new_array();
    }
}

/* Put all arrays, and take them back. */
static void by_stash(struct bench *b)
{
    for (uint32_t i = 0; i < N_ARRAYS; i++) {
        must(b, cst_put_start(b->job, b->edge, i, b->arrays[i], ARRAY_BYTES, &b->err));
    }
    for (uint32_t i = 0; i < N_ARRAYS; i++) {
        must(b, cst_edge_wait(b->job, b->edge, i, &b->err));
    }
    for (uint32_t i = N_ARRAYS; i-- > 0;) {
        must(b, cst_take_start(b->job, b->edge, i, b->arrays[i], ARRAY_BYTES, &b->err));
    }
    for (uint32_t i = N_ARRAYS; i-- > 0;) {
        must(b, cst_edge_wait(b->job, b->edge, i, &b->err));
    }
}

static void by_memcpy(struct bench *b)
{
    for (uint32_t i = 0; i < N_ARRAYS; i++) {
        memcpy(b->copies[i], b->arrays[i], ARRAY_BYTES);
    }
    for (uint32_t i = N_ARRAYS; i-- > 0;) {
        memcpy(b->arrays[i], b->copies[i], ARRAY_BYTES);
    }
}

/* Gigabytes per second of @move. Each byte that it copies counts once. */
static double rate_of(struct bench *b, void (*move)(struct bench *b))
{
    const double began = bench_now();

    move(b);
    return 2.0 * N_ARRAYS * ARRAY_BYTES / (bench_now() - began) / 1e9;
}

START_TEST(stash)
{
    unsigned turns = bench_sized(TURNS, 1);
    double rates[TURNS], yardsticks[TURNS], rate, yardstick;
    struct daemon_proc proc;
    struct bench b = {0};

    daemon_proc_start(&proc, NULL);
    open_job(&b, proc.socket);
    by_stash(&b);
    by_memcpy(&b);
    for (unsigned i = 0; i < turns; i++) {
        yardsticks[i] = rate_of(&b, by_memcpy);
        rates[i] = rate_of(&b, by_stash);
    }
    rate = bench_median(rates, turns);
    yardstick = bench_median(yardsticks, turns);
    printf("stash_vs_memcpy %.2f GB/s, yardstick %.2f, ratio %.3f\n", rate, yardstick,
           rate / yardstick);
    (void)fprintf(results,
                  "{\"name\": \"stash_vs_memcpy\", \"value\": %.2f, \"unit\": \"GB/s\", "
                  "\"yardstick\": %.2f, \"ratio\": %.4f, \"runs\": %d}\n",
                  rate, yardstick, rate / yardstick, turns);
    must(&b, cst_job_leave(b.job, &b.err));
    cst_disconnect(b.client);
    for (unsigned i = 0; i < N_ARRAYS; i++) {
        free(b.arrays[i]);
        free(b.copies[i]);
    }
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("stash");
    TCase *tc = suite_case(suite, "stash", NULL, NULL);

    if (argc != 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: bench_stash --json FILE\n");
        return 2;
    }
    results = fopen(argv[2], "ae");
    if (results == NULL) {
        perror(argv[2]);
        return 1;
    }
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, stash);
    return suite_run(suite) + (fclose(results) == 0 ? 0 : 1);
}

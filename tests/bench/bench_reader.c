/* SPDX-License-Identifier: Apache-2.0 */
/* reader_ready_ms: the time from the end of the updates of a step to a reader that has the step's
 * version, of a job with 1 GiB of weights; the yardstick is the limit, 10 ms. The end of the
 * updates is seen by asking the daemon, about every 0.1 ms. The time from the commit is printed to
 * stderr.
 *
 * bench_reader --follow JOB: read versions of JOB until the job ends, as a reader that is never the
 * cause of a wait; --follow-all reads all weights of each. Prints how many there were, and how many
 * were lost. bench_reader --json FILE measures. Starts a private ./cisternd. Run from the build
 * tree. */
#include "cistern/cistern.h"
#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"
#include "tests/bench/timing.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TENSORS = 64, MOST_STEPS = 32 };

static struct cst_err err;

static void must(int rc, const struct cst_err *why)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "bench_reader: %s\n", why->text);
        exit(1);
    }
}

/* -- follow ----------------------------------------------------------------------------------- */

/* Read all of @version, or one word of each page's worth of a tensor. Returns what depends on it.
 */
static uint64_t look(const struct cst_reader *reader, const struct cst_reader_version *version,
                     bool all)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < cst_reader_count(reader); i++) {
        const uint64_t *words = cst_reader_weights(reader, version, i);
        uint64_t n = all ? cst_reader_tensor(reader, i)->bytes / sizeof *words : 1;

        for (uint64_t k = 0; k < n; k++) {
            sum += words[k];
        }
    }
    return sum;
}

static int follow(const char *job, bool all)
{
    struct cst_reader_wish wish = {.any = true};
    struct cst_reader_version version;
    struct cst_reader *reader;
    uint64_t n = 0, n_lost = 0, sum = 0;

    must(cst_reader_open(&reader, NULL, job, &err), &err);
    while (cst_reader_next(reader, &wish, -1, &version, &err) == CST_OK) {
        sum += look(reader, &version, all);
        n_lost += cst_reader_check(reader, &version, &err) == CST_ESTALE;
        if (cst_reader_release(reader, &version, &err) != CST_OK) {
            break;
        }
        wish = (struct cst_reader_wish){.after = version.step};
        n++;
    }
    cst_reader_close(reader);
    (void)printf("%" PRIu64 " versions, %" PRIu64 " lost (%" PRIx64 ")\n", n, n_lost, sum & 1);
    return 0;
}

/* -- ready ------------------------------------------------------------------------------------ */

static struct daemon_proc proc;
static uint32_t n_steps;
static double committed[MOST_STEPS], readable[MOST_STEPS], updated[MOST_STEPS];

static void *read_all(void *arg)
{
    struct cst_reader *reader;
    struct cst_err why;

    (void)arg;
    must(cst_reader_open(&reader, proc.socket, "ready", &why), &why);
    for (uint32_t s = 0; s < n_steps; s++) {
        const struct cst_reader_wish wish = {.after = s};
        struct cst_reader_version version;

        must(cst_reader_next(reader, &wish, -1, &version, &why), &why);
        readable[s] = bench_now();
        must(cst_reader_release(reader, &version, &why), &why);
    }
    cst_reader_close(reader);
    return NULL;
}

/* True if the updates of the last step are done. */
static bool is_updated(struct cst_client *client)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {0};
    bool done;

    name.name = (char *)(uintptr_t) "ready";
    must(cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &name.base,
                        CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor,
                        &err),
         &err);
    done = ((const Cistern__JobInfoReply *)call.reply)->job->chunks_updating == 0;
    cstc_call_reset(&call);
    return done;
}

static void open_job(struct cst_job **job, struct cst_client *client, int64_t elems)
{
    const struct cst_job_spec spec = {.name = "ready",
                                      .world = 1,
                                      .states.versions = 2,
                                      .states.moments = CST_MOMENTS_MX8,
                                      .states.masters = CST_MASTERS_SPLIT};
    float *master = calloc((size_t)elems, sizeof *master);

    must(cst_job_open(job, client, &spec, &err), &err);
    for (int i = 0; i < N_TENSORS; i++) {
        char name[8];
        int t;

        (void)snprintf(name, sizeof name, "t%d", i);
        t = cst_tensor(*job, name, CST_BF16, 1, &elems, CST_GROUP_ALL);
        (void)cst_operator(*job, name, &t, 1);
    }
    must(cst_commit(*job, NULL, &err), &err);
    for (int64_t i = 0; i < elems && master != NULL; i++) {
        master[i] = (float)(random() % 65536) / 65536;
    }
    for (int i = 0; i < N_TENSORS && master != NULL; i++) {
        must(cst_tensor_write(*job, i, CST_STATE_MASTER, 0, (uint64_t)elems, master, &err), &err);
    }
    free(master);
    must(cst_sync(*job, NULL, &err), &err);
}

static const char *results; /* Path of the file. */

START_TEST(ready)
{
    const struct cst_hyper_params hyper = {.lr = 0.01, .weight_decay = 0.01};
    /* 64 tensors of 8 Mi elements are 1 GiB of bf16 weights. */
    const int64_t elems = bench_sized(8 << 20, 8 << 10);
    double after[MOST_STEPS], whole[MOST_STEPS];
    struct cst_client *client;
    struct cst_job *job;
    pthread_t thread;
    FILE *file;

    n_steps = bench_sized(12, 3);
    daemon_proc_start(&proc, (const char *const[]){"--host-memory=7G", NULL});
    must(cst_connect(&client, proc.socket, &err), &err);
    open_job(&job, client, elems);
    (void)pthread_create(&thread, NULL, read_all, NULL);
    for (uint32_t s = 0; s < n_steps; s++) {
        must(cst_step(job, &hyper, NULL, &err), &err);
        committed[s] = bench_now();
        while (!is_updated(client)) {
            (void)usleep(100);
        }
        updated[s] = bench_now();
        (void)usleep(20000);
    }
    (void)pthread_join(thread, NULL);
    for (uint32_t s = 0; s < n_steps; s++) {
        after[s] = (readable[s] - updated[s]) * 1e3;
        whole[s] = (readable[s] - committed[s]) * 1e3;
    }
    must(cst_job_leave(job, &err), &err);
    cst_disconnect(client);
    (void)daemon_proc_stop(&proc);
    (void)fprintf(stderr, "reader_ready_ms: %.3g ms after the commit, with the updates\n",
                  bench_median(whole, n_steps));
    file = fopen(results, "a");
    if (file == NULL) {
        (void)fprintf(stderr, "bench_reader: %s\n", results);
        exit(1);
    }
    bench_sort(after, n_steps);
    (void)fprintf(file,
                  "{\"name\": \"reader_ready_ms\", \"value\": %.4g, \"unit\": \"ms\", "
                  "\"yardstick\": 10, \"ratio\": %.4f, \"runs\": %" PRIu32 "}\n",
                  after[n_steps - 1], after[n_steps - 1] / 10, n_steps);
    (void)fclose(file);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("reader");
    TCase *tc = suite_case(suite, "reader", NULL, NULL);

    if (argc == 3 && strcmp(argv[1], "--follow") == 0) {
        return follow(argv[2], false);
    }
    if (argc == 3 && strcmp(argv[1], "--follow-all") == 0) {
        return follow(argv[2], true);
    }
    if (argc != 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: bench_reader --json FILE\n");
        return 2;
    }
    results = argv[2];
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, ready);
    return suite_run(suite);
}

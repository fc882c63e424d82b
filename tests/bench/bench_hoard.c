/* SPDX-License-Identifier: Apache-2.0 */
/* hoard_*: the time of one user's requests while another user has taken all that the daemon gives
 * of one thing (tests/lib/hoard), and goes on to ask for more. A request is a fetch of weights that
 * are in the pool; the result is the 99th percentile, compared with that of the same user alone.
 * Both are measured in turns, each on a daemon of its own, and the medians of the turns are
 * compared. The memory that the daemon then has is tested by tests/e2e/check_budgets.
 *
 * The hoarder runs at a lower priority, so that the daemon's time is measured and not the
 * processors'. On a machine with other work, run it by chrt --fifo 1, which the hoarder leaves.
 *
 * Needs root, or a user namespace with several uids; otherwise the program says so and
 * measures nothing. Run from the build tree. Usage: bench_hoard --json FILE [HOARD] */
#include "tests/bench/timing.h"
#include "tests/bench/victim.h"
#include "tests/lib/child.h"
#include "tests/lib/hoard.h"
#include "tests/lib/suite.h"
#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TURNS = 7,       /* Number of measurements beside the hoarder, and as many alone. */
    REQUESTS = 4000, /* Requests of one measurement. */
};

/* What the hoarder's process shares with this one. */
struct progress {
    atomic_uint n_pieces; /* 1 more than it holds; 0: it is not at the limit yet. */
    atomic_uint n_asked;  /* Refusals since. */
    atomic_bool stop;
    char text[512]; /* Of the refusal. */
};

static FILE *out;
static const char *wanted; /* Name of the hoard to measure; NULL: all. */

/* In a process of its own, which ends with status 0 when it is told to. */
static pid_t start_hoarder(const struct hoard *hoard, struct progress *progress)
{
    pid_t pid = child_start();

    if (pid == 0) {
        const struct sched_param usual = {0};
        unsigned n;

        (void)sched_setscheduler(0, SCHED_OTHER, &usual);
        (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 10);
        n = hoard_fill(hoard);
        (void)snprintf(progress->text, sizeof progress->text, "%s", hoard_refusal());
        atomic_store(&progress->n_pieces, n + 1);
        while (!atomic_load(&progress->stop)) {
            hoard_ask_again(hoard, n);
            atomic_fetch_add(&progress->n_asked, 1);
        }
        _exit(0);
    }
    return pid;
}

/* The 99th percentile of the requests of one measurement in us. */
static double look(struct raw_client *worker, uint64_t attempt)
{
    static double times[REQUESTS];
    const unsigned n = bench_sized(REQUESTS, 20);

    for (unsigned i = 0; i < n; i++) {
        times[i] = victim_request(worker, attempt, i % VICTIM_CHUNKS);
    }
    return bench_p99(times, n);
}

static void say(const char *name, double value, double yardstick, unsigned runs)
{
    (void)fprintf(out,
                  "{\"name\": \"hoard_%s\", \"value\": %.4g, \"unit\": \"us\", "
                  "\"yardstick\": %.4g, \"ratio\": %.3f, \"runs\": %u}\n",
                  name, value, yardstick, value / yardstick, runs);
    (void)fflush(out);
}

/* One measurement alone and one beside the hoarder. The @last one prints the refusal. */
static void measure(const struct hoard *hoard, double *alone, double *beside, bool last)
{
    struct progress *progress = child_share(sizeof *progress);
    struct raw_client worker;
    uint64_t attempt;
    pid_t hoarder;

    hoard_start(hoard);
    (void)victim_commit(&worker, proc.socket, "victim");
    attempt = raw_sync(&worker);
    *alone = look(&worker, attempt);
    hoarder = start_hoarder(hoard, progress);
    while (atomic_load(&progress->n_pieces) == 0) {
        ck_assert_int_eq(waitpid(hoarder, NULL, WNOHANG), 0); /* It has not ended. */
        (void)poll(NULL, 0, 1);
    }
    *beside = look(&worker, attempt);
    atomic_store(&progress->stop, true);
    ck_assert_int_eq(child_wait(hoarder), 0);
    if (last) {
        (void)printf("%s: %u pieces, %u refusals: %s\n", hoard->name,
                     atomic_load(&progress->n_pieces) - 1, atomic_load(&progress->n_asked),
                     progress->text);
    }
    raw_close(&worker);
    user_rig_stop();
    child_unshare(progress, sizeof *progress);
}

START_TEST(hoard)
{
    double alone[TURNS], beside[TURNS];
    const struct hoard *h = &hoards[_i];
    const unsigned turns = bench_sized(TURNS, 1);

    if (wanted != NULL && strcmp(wanted, h->name) != 0) {
        return;
    }
    for (unsigned turn = 0; turn < turns; turn++) {
        measure(h, &alone[turn], &beside[turn], turn + 1 == turns);
    }
    say(h->name, bench_median(beside, turns), bench_median(alone, turns), turns);
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("hoard");
    TCase *tc = suite_case(suite, "hoard", NULL, NULL);

    if (argc < 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: bench_hoard --json FILE [HOARD]\n");
        return 2;
    }
    if (lacks != NULL) {
        (void)printf("bench_hoard: %s\n", lacks);
        return 0;
    }
    wanted = argc > 3 ? argv[3] : NULL;
    out = fopen(argv[2], "ae");
    if (out == NULL) {
        perror(argv[2]);
        return 1;
    }
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, hoard, 0, (int)n_hoards);
    return suite_run(suite) + (fclose(out) == 0 ? 0 : 1);
}

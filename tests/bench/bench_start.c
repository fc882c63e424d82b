/* SPDX-License-Identifier: Apache-2.0 */
/* start_*: what one user's declarations cost the next daemon and another user. One user has a job
 * of 65 536 tensors and seven of 16 000, with 64 names in files each. Another one trains
 * cistern-gpt. The daemon is killed again and again; a manager starts the next one at once.
 * start_ready: from the kill to READY=1, median and longest. start_step: from the kill to the next
 * committed step of the other user when all jobs go on. start_step_again: the same after a kill at
 * once after that step. The yardsticks are 2 s and 5 s.
 *
 * Needs root, or a user namespace with several uids; otherwise the program says so and measures
 * nothing. Takes some 2 GiB of memory. Run from the build tree. Usage: bench_start --json FILE */
#include "tests/bench/timing.h"
#include "tests/lib/child.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILLS = 5, /* Kills when all jobs go on, and as many at once after the next step. */
    LARGE = 65536,
    SMALL = 16000,
    N_SMALL = 7,
};

static FILE *out;
static pid_t trainer; /* The other user's worker. */
static char text[64]; /* Path of what its job learns. */

/* Declare tensor number @i and an operator that uses it. */
static void declare(struct raw_client *client, uint32_t i)
{
    char name[16];

    ck_assert_msg(raw_status(client, raw_ask_named(client, i, 16)) == CST_OK, "%s",
                  client->err.text);
    (void)snprintf(name, sizeof name, "o%u", i);
    ck_assert_int_eq(raw_declare_operator(client, name, i), CST_OK);
}

/* Make job @name of @n tensors as USER_ALICE, with initialised states. */
static void make_job(const char *name, uint32_t n)
{
    static struct raw_client client;
    struct raw_job job = {.name = name, .world = 1, .timeout_ms = 600000, .chunk_elems = 65536};
    const double began = bench_now();

    user_rig_open(&client, USER_ALICE);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    for (uint32_t i = 0; i < n; i++) {
        declare(&client, i);
    }
    ck_assert_msg(raw_status(&client, raw_commit(&client, n, n)) == CST_OK, "%s", client.err.text);
    (void)raw_sync(&client);
    (void)printf("%s: %u tensors with %u names each, made in %.1f s\n", name, n, RAW_NAMES,
                 bench_now() - began);
    raw_close(&client);
}

/* Train a small job as USER_BOB, without an end. */
static pid_t train(void)
{
    pid_t pid = child_start();

    if (pid == 0) {
        user_become(USER_BOB);
        (void)setenv("CISTERN_SOCKET", proc.socket, 1);
        (void)execl("./cistern-gpt", "cistern-gpt", "--layers", "2", "--heads", "2", "--width",
                    "64", "--context", "32", "--batch", "4", "--threads", "1", "--steps", "1000000",
                    "--data", text, "--job", "bob", "--quiet", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static uint64_t step_of_bob(struct raw_client *manager)
{
    const Cistern__JobListPart *part = user_rig_list(manager);

    for (size_t i = 0; i < part->n_jobs; i++) {
        if (strcmp(part->jobs[i]->name, "bob") == 0) {
            return part->jobs[i]->step;
        }
    }
    return 0;
}

/* Wait until bob's job has made more than @step steps. */
static void await_step(uint64_t step)
{
    struct raw_client manager;

    raw_open(&manager, proc.manager);
    while (step_of_bob(&manager) <= step) {
        ck_assert_int_eq(waitpid(trainer, NULL, WNOHANG), 0); /* It has not ended. */
        (void)usleep(5000);
    }
    raw_close(&manager);
}

/* Kill the daemon. Stores the seconds to the next one's READY=1 and to bob's next step. */
static void kill_once(double *ready, double *step)
{
    uint64_t before = step_of_bob(&witness);
    double began = bench_now();

    raw_close(&witness);
    daemon_proc_kill_kept(&proc);
    *ready = bench_now() - began;
    user_admit(&proc);
    await_step(before);
    *step = bench_now() - began;
    raw_open(&witness, proc.manager);
}

static void say(const char *name, double value, double yardstick, unsigned runs)
{
    (void)fprintf(out,
                  "{\"name\": \"start_%s\", \"value\": %.3f, \"unit\": \"s\", \"yardstick\": %g, "
                  "\"ratio\": %.3f, \"runs\": %u}\n",
                  name, value, yardstick, value / yardstick, runs);
    (void)fflush(out);
}

static void say_all(const char *name, double *values, unsigned n, double yardstick)
{
    char longest[32];

    (void)snprintf(longest, sizeof longest, "%s_longest", name);
    say(name, bench_median(values, n), yardstick, n);
    say(longest, values[n - 1], yardstick, n);
}

/* Return whether the last daemon has said that all jobs of the one before go on. */
static bool all_go_on(void)
{
    FILE *file = fopen(proc.log, "re");
    char line[1200];
    bool all = false;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        all = strncmp(line, "PID=", 4) != 0 &&
              (all || strstr(line, "jobs of the earlier daemon go on, after") != NULL);
    }
    (void)fclose(file);
    return all;
}

static void await_all(void)
{
    while (!all_go_on()) {
        (void)usleep(20000);
    }
}

/* Remove the jobs and stop the daemon, which has other descriptors than the first one had. */
static void stop(void)
{
    settle_remove_jobs(&witness);
    while (raw_stat(&witness)->host_used > 0) {
    }
    base_fds = daemon_proc_fds(proc.pid);
    user_rig_stop();
}

START_TEST(start)
{
    double ready[2 * KILLS], step[KILLS], soon[KILLS];
    const unsigned kills = bench_sized(KILLS, 1), n_small = bench_sized(N_SMALL, 1);
    char name[] = "j0";

    daemon_proc_keep();
    user_rig_start_sized("", "--host-memory=8G", "--pool-memory=1G");
    make_job("large", bench_sized(LARGE, 200));
    for (unsigned i = 0; i < n_small; i++) {
        name[1] = (char)('0' + i);
        make_job(name, bench_sized(SMALL, 100));
    }
    trainer = train();
    await_step(3);
    for (unsigned i = 0; i < kills; i++) {
        kill_once(&ready[i], &step[i]);
        kill_once(&ready[kills + i], &soon[i]);
        (void)printf("ready after %.3f s, step after %.3f s; killed again: %.3f s, %.3f s\n",
                     ready[i], step[i], ready[kills + i], soon[i]);
        await_all();
    }
    say_all("ready", ready, 2 * kills, 2);
    say_all("step", step, kills, 5);
    say_all("step_again", soon, kills, 5);
    ck_assert_int_eq(kill(trainer, SIGKILL), 0);
    (void)child_wait(trainer);
    stop();
}
END_TEST

/* Write what bob's job learns, which he can read. */
static bool write_text(void)
{
    FILE *file;
    int fd;

    (void)snprintf(text, sizeof text, "/tmp/cistern-text-XXXXXX");
    fd = mkstemp(text);
    file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL || fchmod(fd, 0644) != 0) {
        return false;
    }
    for (unsigned i = 0; i < 4000; i++) {
        (void)fprintf(file, "and %u begat %u. ", i * i % 97, i * 7 % 31);
    }
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("start");
    TCase *tc = suite_case(suite, "start", NULL, NULL);
    int status;

    if (argc < 3 || strcmp(argv[1], "--json") != 0) {
        (void)fprintf(stderr, "usage: bench_start --json FILE\n");
        return 2;
    }
    if (lacks != NULL || access("./cistern-gpt", X_OK) != 0) {
        (void)printf("bench_start: %s\n", lacks != NULL ? lacks : "built without cistern-gpt");
        return 0;
    }
    out = fopen(argv[2], "ae");
    if (out == NULL || !write_text()) {
        perror(argv[2]);
        return 1;
    }
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, start);
    status = suite_run(suite) + (fclose(out) == 0 ? 0 : 1);
    (void)unlink(text);
    return status;
}

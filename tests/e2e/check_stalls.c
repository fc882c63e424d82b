/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that what one job has declared does not keep the daemon from others. The thread of the loop
 * must not do the long part of the work: the description and the ledger of a job with many names
 * are made by other threads. No time is asserted, but shares of the processor time that the daemon
 * used, which do not depend on what else the machine does. */
#include "cistern/cistern.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A description of 10 MiB. */
enum { N_TENSORS = 2048, N_AHEAD = 16, NAME_BYTES = 64 };

static void setup(void)
{
    daemon_proc_keep();
    job_rig_setup();
}

/* -- a job with many names --------------------------------------------------------------------- */

/* Declare the tensors, with some requests in flight. */
static void declare_names(struct raw_client *client)
{
    for (unsigned i = 0; i < N_TENSORS + N_AHEAD; i++) {
        if (i < N_TENSORS) {
            (void)raw_ask_named(client, i, NAME_BYTES);
        }
        if (i >= N_AHEAD) {
            ck_assert(raw_receive(client));
            ck_assert_uint_eq(client->reply.type, CISTERN__MSG_TYPE__MSG_OK);
        }
    }
}

static void open_large(struct raw_client *client)
{
    job_rig_open(client, 0, 1);
    declare_names(client);
    ck_assert_int_eq(raw_declare_operator(client, "o", 0), CST_OK);
}

/* -- whose processor time -----------------------------------------------------------------------
 */

/* Processor time of the daemon, ns. */
struct spent {
    uint64_t loop; /* Of the thread of the loop, */
    uint64_t all;  /* and of all its threads. */
};

static struct spent spent_so_far(void)
{
    struct spent spent;
    struct timespec all;
    clockid_t clock;
    char path[64];
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)proc.pid, (int)proc.pid);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%" SCNu64, &spent.loop), 1);
    (void)fclose(file);
    ck_assert_int_eq(clock_getcpuclockid(proc.pid, &clock), 0);
    ck_assert_int_eq(clock_gettime(clock, &all), 0);
    spent.all = (uint64_t)all.tv_sec * 1000000000 + (uint64_t)all.tv_nsec;
    return spent;
}

static struct spent spent_since(const struct spent *from)
{
    const struct spent now = spent_so_far();

    return (struct spent){.loop = now.loop - from->loop, .all = now.all - from->all};
}

static void tell(const char *what, const struct spent *spent)
{
    (void)printf("%s: the loop used %" PRIu64 " of %" PRIu64 " us\n", what, spent->loop / 1000,
                 spent->all / 1000);
}

/* -- tests ------------------------------------------------------------------------------------- */

static uint64_t save_begin(struct raw_client *client)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;

    name.name = (char *)(uintptr_t) "j";
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_SAVE, &name.base);
}

/* Send the request Save of @client and a request of the witness while the daemon is stopped, so
 * that it sees both at the same time. Returns how many requests of the witness it answers before it
 * answers the Save. */
static unsigned answers_before_save(struct raw_client *client)
{
    unsigned n = 0;

    ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0);
    (void)save_begin(client);
    (void)raw_ask(&witness, CISTERN__MSG_TYPE__MSG_PING, NULL);
    ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    raw_expect(&witness, 0, CISTERN__MSG_TYPE__MSG_PONG, NULL);
    for (; raw_is_quiet(client); n++) {
        (void)raw_ask(&witness, CISTERN__MSG_TYPE__MSG_PING, NULL);
        raw_expect(&witness, 0, CISTERN__MSG_TYPE__MSG_PONG, NULL);
    }
    ck_assert(raw_receive(client));
    ck_assert_uint_eq(client->reply.type, CISTERN__MSG_TYPE__MSG_SAVE_BEGUN);
    cst_frame_close_fds(&client->reply);
    return n;
}

/* Begin and end a save. */
static void save(struct raw_client *saver)
{
    (void)save_begin(saver);
    raw_expect(saver, 0, CISTERN__MSG_TYPE__MSG_SAVE_BEGUN, NULL);
    cst_frame_close_fds(&saver->reply);
    ck_assert_int_eq(raw_call(saver, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL), CST_OK);
}

/* The search for a plan copies no names, the ledger is made by a thread during the commit, so that
 * the first sync, from which the job is kept, has little left to do, and a save's description is
 * made by a thread, too. The unit of measure is the making of the description. */
START_TEST(the_loop_leaves_names_to_threads)
{
    struct raw_client client, saver;
    struct spent from, commit, sync, saved;

    open_large(&client);
    raw_open(&saver, proc.socket);
    from = spent_so_far();
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, N_TENSORS, 1)), CST_OK);
    commit = spent_since(&from);
    from = spent_so_far();
    (void)raw_sync(&client);
    sync = spent_since(&from);
    from = spent_so_far();
    save(&saver);
    saved = spent_since(&from);
    tell("commit", &commit);
    tell("sync", &sync);
    tell("save", &saved);
    ck_assert_uint_lt(saved.loop, saved.all / 2);
    ck_assert_uint_lt(sync.loop, saved.all / 2);
    ck_assert_uint_lt(commit.loop, saved.all * 2);
    raw_close(&saver);
    raw_close(&client);
    settle_remove_jobs(&witness);
}
END_TEST

/* While the description of a job is made, others are served. */
START_TEST(a_save_does_not_keep_others_waiting)
{
    struct raw_client client, saver;
    unsigned n;

    open_large(&client);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, N_TENSORS, 1)), CST_OK);
    (void)raw_sync(&client);
    raw_open(&saver, proc.socket);
    n = answers_before_save(&saver);
    (void)printf("%u pings were answered before the save\n", n);
    ck_assert_uint_gt(n, 0);
    ck_assert_int_eq(raw_call(&saver, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL), CST_OK);
    raw_close(&saver);
    raw_close(&client);
    settle_remove_jobs(&witness);
}
END_TEST

/* A job is removed, and a client that saves it disconnects, while its description or its ledger is
 * made. */
START_TEST(a_job_ends_while_it_is_described)
{
    struct raw_client client, saver, second;

    open_large(&client);
    (void)raw_commit(&client, N_TENSORS, 1);
    while (strcmp(raw_job_info(&witness, "j")->state, "declaring") == 0) {
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    raw_close(&client);

    open_large(&client);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, N_TENSORS, 1)), CST_OK);
    (void)raw_sync(&client);
    raw_open(&saver, proc.socket);
    (void)save_begin(&saver);
    raw_close(&saver);
    raw_open(&second, proc.socket);
    (void)save_begin(&second);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    ck_assert(raw_receive(&second));
    cst_frame_close_fds(&second.reply);
    raw_close(&second);
    raw_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stalls");
    TCase *tc = suite_case(suite, "names", setup, job_rig_teardown);

    tcase_add_test(tc, the_loop_leaves_names_to_threads);
    tcase_add_test(tc, a_save_does_not_keep_others_waiting);
    tcase_add_test(tc, a_job_ends_while_it_is_described);
    return suite_run(suite);
}

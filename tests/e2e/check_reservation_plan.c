/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plans that choose device updates, states in device memory and pools, when jobs share the
 * memory of paced accelerators. */
#include "cistern/cistern.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>

enum { N_TENSORS = 8, ELEMS = 50000 };

static struct daemon_proc proc;
static struct raw_client witness;

static void setup(void)
{
    daemon_proc_start_with(&proc,
                           "[host]\nnodes = 0\n[engine]\nupdate_rate = 1M\n[paced]\ndevices = 2\n"
                           "up = 256M\ndown = 256M\nupdate = 128M\nmemory = 16M\n",
                           (const char *[]){"--engine-threads=1", NULL});
    raw_open(&witness, proc.socket);
}

static void teardown(void)
{
    settle_remove_jobs(&witness);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

/* Open, declare and send everything but the commit. */
static void join(struct raw_client *client, struct raw_job job)
{
    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, N_TENSORS, ELEMS), CST_OK);
}

static uint64_t commit(struct raw_client *client)
{
    return raw_commit(client, N_TENSORS, N_TENSORS);
}

static void fill(struct raw_client *client, const char *device, uint64_t bytes)
{
    join(client, (struct raw_job){
                     .name = "full", .world = 1, .device_update_bytes = bytes, .device = device});
    ck_assert_msg(raw_status(client, commit(client)) == CST_OK, "%s", client->err.text);
}

/* If another job has all device memory, there are no reservations and states of the plan's choice,
 * and the reason is reported. If it has a part (_i = 1), they fit into the rest. */
START_TEST(little_left)
{
    struct raw_client full, client;
    const Cistern__JobInfo *info;

    fill(&full, "host", _i == 0 ? 16 << 20 : 8 << 20);
    join(&client,
         (struct raw_job){.name = "auto", .world = 1, .device_states = CST_DEVICE_UPDATE_AUTO});
    ck_assert_msg(raw_status(&client, commit(&client)) == CST_OK, "%s", client.err.text);
    info = raw_job_info(&witness, "auto");
    ck_assert_int_eq(info->device_update_bytes > 0, _i == 1);
    ck_assert_uint_le(info->device_update_bytes + info->device_states, 8 << 20);
    ck_assert(raw_explains(&client, "auto", "t0", "planned with the rates"));
    ck_assert_int_eq(raw_explains(&client, "auto", "t0", "no memory of an accelerator is free"),
                     _i == 0);
    raw_close(&client);
    raw_close(&full);
}
END_TEST

/* The rank whose device has the least free memory limits the size of all pools, whichever rank that
 * is. */
START_TEST(least_of_ranks)
{
    static const char *const devices[] = {"paced:0", "paced:1"};
    struct raw_client full, ranks[2];
    uint64_t ids[2];

    fill(&full, devices[_i], 12 << 20);
    for (uint32_t r = 0; r < 2; r++) {
        join(&ranks[r],
             (struct raw_job){.name = "auto", .rank = r, .world = 2, .device = devices[r]});
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = commit(&ranks[r]);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_msg(raw_status(&ranks[r], ids[r]) == CST_OK, "%s", ranks[r].err.text);
    }
    ck_assert(raw_explains(&ranks[0], "auto", "t0", " plans within "));
    ck_assert(!raw_explains(&ranks[0], "auto", "t0", " plans within 16 MiB per rank"));
    for (uint32_t r = 0; r < 2; r++) {
        raw_close(&ranks[r]);
    }
    raw_close(&full);
}
END_TEST

/* Two jobs are planned at a time, each for the whole accelerator. The second one has its plan, but
 * no reservation and no states there, and the reason is reported. */
START_TEST(planned_at_once)
{
    static const char *const names[] = {"one", "two"};
    struct raw_client clients[2];
    uint64_t ids[2];
    unsigned n_with = 0, n_told = 0;

    for (unsigned i = 0; i < 2; i++) {
        join(&clients[i], (struct raw_job){.name = names[i],
                                           .world = 1,
                                           .device = "paced:0",
                                           .device_states = CST_DEVICE_UPDATE_AUTO});
    }
    ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0); /* so that the daemon finds both commits */
    for (unsigned i = 0; i < 2; i++) {
        ids[i] = commit(&clients[i]);
    }
    ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_msg(raw_status(&clients[i], ids[i]) == CST_OK, "%s", clients[i].err.text);
        n_with += raw_job_info(&witness, names[i])->device_states > 0;
        ck_assert(raw_explains(&clients[i], names[i], "t0", "planned with the rates"));
        n_told += raw_explains(&clients[i], names[i], "t0", "planned ones did not fit: ");
    }
    ck_assert_uint_eq(n_with, 1);
    ck_assert_uint_eq(n_told, 1);
    ck_assert(daemon_proc_logged(&proc, "continuing without updates and states on accelerators"));
    raw_close(&clients[0]);
    raw_close(&clients[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reservation_plan");
    TCase *left = suite_case(suite, "left", setup, teardown);

    tcase_add_loop_test(left, little_left, 0, 2);
    tcase_add_loop_test(left, least_of_ranks, 0, 2);
    tcase_add_test(left, planned_at_once);
    return suite_run(suite);
}

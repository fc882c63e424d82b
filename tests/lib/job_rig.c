/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/job_rig.h"

#include "tests/lib/patience.h"

#include <check.h>

struct daemon_proc proc;
struct raw_client witness;
unsigned base_fds;

void job_rig_setup(void)
{
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

void job_rig_teardown(void)
{
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

void job_rig_open(struct raw_client *client, uint32_t rank, uint32_t world)
{
    struct raw_job job = {
        .name = "j", .rank = rank, .world = world, .timeout_ms = (uint32_t)patience_ms(20000)};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
}

void job_rig_declare(struct raw_client *client, uint32_t rank, uint32_t world, uint32_t n)
{
    job_rig_open(client, rank, world);
    ck_assert_msg(raw_declare_many(client, n, 1000) == CST_OK, "%s", client->err.text);
}

void job_rig_commit(struct raw_client *client, uint32_t n)
{
    job_rig_declare(client, 0, 1, n);
    ck_assert_msg(raw_status(client, raw_commit(client, n, n)) == CST_OK, "%s", client->err.text);
}

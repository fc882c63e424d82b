/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/gpu_rig.h"

#include "tests/lib/patience.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char gpu_path[64];

void gpu_rig_setup(void)
{
    (void)setenv("CISTERN_ENGINE_CUDA", "./tests/lib/engine_stub", 1);
    gpu_path[0] = '\0';
    proc.pid = 0;
}

void gpu_rig_start(const char *a, const char *b)
{
    daemon_proc_start(&proc, (const char *[]){"--gpus=all", "--engine-threads=2", a != NULL ? a : b,
                                              a != NULL ? b : NULL, NULL});
    raw_open(&witness, proc.socket);
    if (getenv("STUB_GATE") == NULL) {
        base_fds = settle_base_fds(&witness, &proc);
    }
}

void gpu_rig_teardown(void)
{
    if (proc.pid != 0) {
        settle_remove_jobs(&witness);
        settle(&witness, &proc, settle_fds(&witness, base_fds));
        raw_close(&witness);
        ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    }
    if (gpu_path[0] != '\0') {
        (void)unlink(gpu_path);
    }
}

const char *gpu_rig_path(const char *what)
{
    (void)snprintf(gpu_path, sizeof gpu_path, "/tmp/cistern-gpu-%s-%d", what, (int)getpid());
    return gpu_path;
}

const Cistern__StatReply *gpu_rig_await(bool (*seen)(const Cistern__StatReply *stat))
{
    for (uint64_t until = patience_until(20000); !patience_over(until);) {
        const Cistern__StatReply *stat = raw_stat(&witness);

        if (seen(stat)) {
            return stat;
        }
        (void)poll(NULL, 0, 1);
    }
    ck_abort_msg("what was waited for did not come");
}

void gpu_rig_declare(struct raw_client *client, const char *name, uint32_t rank, uint32_t world,
                     const char *device, uint64_t pool_bytes)
{
    struct raw_job job = {.name = name,
                          .rank = rank,
                          .world = world,
                          .device = device,
                          .pool_bytes = pool_bytes,
                          .chunk_elems = 1 << 19, /* a block has 1 MiB */
                          .timeout_ms = (uint32_t)patience_ms(20000)};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_msg(raw_declare_many(client, 8, 1 << 19) == CST_OK, "%s", client->err.text);
}

int gpu_rig_commit(struct raw_client *client)
{
    return raw_status(client, raw_commit(client, 8, 8));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the daemon's GPUs: how they are found and chosen, and the messages if there are none.
 * check_gpu_engine tests their memory and engines. */
#include "tests/lib/gpu_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool not_looking(const Cistern__StatReply *stat)
{
    return stat->gpu == NULL || strcmp(stat->gpu, "looking") != 0;
}

static int try_open(struct raw_client *client, const char *device, char got[64])
{
    struct raw_job job = {.name = "j", .rank = 1, .world = 2, .device = device};
    int rc;

    raw_open(client, proc.socket);
    rc = raw_job_open(client, &job);
    (void)snprintf(got, 64, "%s", job.got);
    return rc;
}

/* -- listing ---------------------------------------------------------------------------------- */

/* GPUs are listed with their budgets. Their engines do not run until a job needs one. */
START_TEST(listed)
{
    const Cistern__StatReply *stat;

    gpu_rig_start("--gpu-memory=32M", NULL);
    stat = gpu_rig_await(not_looking);
    ck_assert_ptr_null(stat->gpu);
    ck_assert_uint_eq(stat->n_gpus, 2);
    ck_assert_str_eq(stat->gpus[1]->uuid, GPU1);
    ck_assert_uint_eq(stat->gpus[1]->index, 1);
    ck_assert_uint_eq(stat->gpus[1]->memory_bytes, 64 * MIB);
    ck_assert_uint_eq(stat->gpus[1]->pool_budget, 32 * MIB);
    ck_assert_uint_eq(stat->gpus[1]->pool_used, 0);
    ck_assert_uint_eq(stat->gpus[1]->driver, 13000);
    ck_assert_uint_eq(stat->n_engines, 3);
    ck_assert_str_eq(stat->engines[0]->kind, "host");
    ck_assert_str_eq(stat->engines[2]->kind, "cuda");
    ck_assert_str_eq(stat->engines[2]->device, GPU1);
    ck_assert_str_eq(stat->engines[2]->state, "off");
}
END_TEST

/* GPUs are listed in the configuration's order, and missing ones are reported. */
START_TEST(listed_in_part)
{
    const Cistern__StatReply *stat;

    gpu_rig_start("--gpus=1, GPU-7777", NULL);
    stat = gpu_rig_await(not_looking);
    ck_assert_uint_eq(stat->n_gpus, 1);
    ck_assert_str_eq(stat->gpus[0]->uuid, GPU1);
    ck_assert_uint_eq(stat->gpus[0]->index, 0);
    ck_assert_ptr_nonnull(stat->gpu);
    ck_assert_ptr_nonnull(strstr(stat->gpu, "GPU-7777"));
}
END_TEST

/* If there is no GPU, the daemon works, and stat and a worker's error give the reason. */
START_TEST(none)
{
    static const struct {
        const char *option, *variable, *value, *words;
    } rows[] = {
        {"--gpus=none", NULL, NULL, "devices = none"},
        {NULL, "STUB_ERROR", "no NVIDIA driver: nothing there", "no NVIDIA driver: nothing there"},
        {NULL, "STUB_GPUS", "0", "neither GPUs nor an error"},
        {"--gpus=GPU-7777", NULL, NULL, "GPU-7777"},
        {"--engine-cuda=/bin/false", NULL, NULL, "exited with status 1 and printed no error"},
        {"--engine-cuda=/bin/echo", NULL, NULL, "not JSON"},
    };
    const Cistern__StatReply *stat;
    struct raw_client client;
    char got[64];

    if (rows[_i].variable != NULL) {
        (void)setenv(rows[_i].variable, rows[_i].value, 1);
    }
    gpu_rig_start(rows[_i].option, NULL);
    stat = gpu_rig_await(not_looking);
    ck_assert_uint_eq(stat->n_gpus, 0);
    ck_assert_ptr_nonnull(stat->gpu);
    ck_assert_msg(strstr(stat->gpu, rows[_i].words) != NULL, "%s", stat->gpu);
    ck_assert_int_eq(try_open(&client, "cuda", got), CST_EUNSUPPORTED);
    raw_says(&client, rows[_i].words);
    raw_close(&client);
    ck_assert_int_eq(try_open(&client, "host", got), CST_OK);
    raw_close(&client);
}
END_TEST

/* If the named engine program does not exist, the daemon does not start, as with the host's
 * engine. */
START_TEST(no_program)
{
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
    (void)setenv("CISTERN_ENGINE_CUDA", "/nowhere/engine", 1);
    {
        struct daemon_proc other = proc;

        (void)snprintf(other.socket, sizeof other.socket, "%s/other.sock", proc.dir);
        (void)snprintf(other.manager, sizeof other.manager, "%s/other-m.sock", proc.dir);
        ck_assert_int_ne(daemon_proc_refused(&other, (const char *[]){"--gpus=all", NULL}), 0);
        ck_assert(daemon_proc_logged(&other, "/nowhere/engine"));
    }
}
END_TEST

/* -- search for GPUs -------------------------------------------------------------------------- */

static void start_gated(void)
{
    ck_assert_int_eq(mkfifo(gpu_rig_path("gate"), 0600), 0);
    (void)setenv("STUB_GATE", gpu_path, 1);
    gpu_rig_start(NULL, NULL);
    ck_assert_str_eq(raw_stat(&witness)->gpu, "looking");
    base_fds = daemon_proc_fds(proc.pid) - 2; /* without the probe's pipe and its other end */
}

static void open_gate(void)
{
    int fd = open(gpu_path, O_WRONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
}

/* A worker on a GPU waits for the end of the search. A worker on the host does not, nor does any
 * other client. */
START_TEST(looking)
{
    struct raw_job job = {.name = "w", .world = 1, .device = "cuda:1"};
    struct raw_client client, host;
    const Cistern__JobOpened *opened;
    char got[64];
    uint64_t id;

    start_gated();
    raw_open(&client, proc.socket);
    id = raw_job_ask(&client, &job);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(try_open(&host, "auto", got), CST_OK);
    ck_assert_str_eq(got, "host");
    ck_assert(raw_is_quiet(&client));
    open_gate();
    opened = raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_JOB_OPENED,
                        &cistern__job_opened__descriptor);
    ck_assert_str_eq(opened->device, GPU1);
    raw_close(&client);
    raw_close(&host);
}
END_TEST

static void put_field(uint8_t *body, size_t *n, unsigned field, uint8_t value)
{
    if (field > 15) {
        body[(*n)++] = (uint8_t)((field & 15) << 3 | 0x80);
        body[(*n)++] = (uint8_t)(field >> 4);
    } else {
        body[(*n)++] = (uint8_t)(field << 3);
    }
    body[(*n)++] = value;
}

/* Write a JobPlan whose two lists are not packed, as the daemon would pack them. Returns its
 * length. */
static size_t put_loose_plan(uint8_t *body)
{
    size_t n = 0;

    for (unsigned field = 1; field <= 18; field++) {
        put_field(body, &n, field, 1);
    }
    put_field(body, &n, 19, 0);
    body[n - 3] |= 1; /* the wire type of a double */
    memset(body + n, 0, 7);
    return n + 7;
}

/* A JobOpen of the largest length, which would become longer when it is packed again in order to
 * wait, is refused. */
START_TEST(too_long_to_wait)
{
    static const uint8_t start[] = {0x0a, 1, 'j', 0x10, 0, 0x18, 1, 0x22, 4, 'c', 'u', 'd', 'a'};
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame frame = {.type = CISTERN__MSG_TYPE__MSG_JOB_OPEN,
                              .request = 77,
                              .body = body,
                              .body_bytes = sizeof body};
    struct raw_client client;
    struct cst_err err;
    size_t n = sizeof start, n_plan, left;

    memcpy(body, start, sizeof start);
    n_plan = put_loose_plan(body + n + 3);
    body[n++] = 0xaa; /* field 21, a message */
    body[n++] = 1;
    body[n++] = (uint8_t)n_plan;
    n += n_plan;
    body[n++] = 0xa2; /* field 100, which is unknown, with all remaining bytes */
    body[n++] = 6;
    left = sizeof body - n - 3;
    body[n++] = (uint8_t)(left | 0x80);
    body[n++] = (uint8_t)(left >> 7 | 0x80);
    body[n++] = (uint8_t)(left >> 14);
    start_gated();
    raw_open(&client, proc.socket);
    ck_assert_int_eq(cst_frame_send(client.sock, 0, &frame, &err), CST_OK);
    ck_assert_int_eq(raw_status(&client, frame.request), CST_EPROTO);
    raw_says(&client, "a JobOpen of 65538 bytes, at most 65536 are allowed");
    open_gate();
    raw_close(&client);
}
END_TEST

/* A client that disconnects during the search is forgotten. The daemon can be stopped while it
 * searches. _i: 1: it is stopped. */
START_TEST(looking_in_vain)
{
    struct raw_job job = {.name = "w", .world = 1, .device = "cuda"};
    struct raw_client client;

    start_gated();
    raw_open(&client, proc.socket);
    (void)raw_job_ask(&client, &job);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    if (_i == 1) {
        raw_close(&witness);
        ck_assert_int_eq(daemon_proc_stop(&proc), 0);
        proc.pid = 0;
        raw_close(&client);
        return;
    }
    raw_close(&client);
    open_gate();
    (void)gpu_rig_await(not_looking);
    ck_assert_uint_eq(raw_stat(&witness)->n_jobs, 0);
}
END_TEST

/* A connection has one request that waits for the search, of at most 64 KiB. It is forgotten when
 * the client disconnects: clients that come and go do not fill the daemon's memory. */
START_TEST(requests_that_wait)
{
    enum { N_CLIENTS = 400, CONFIG_BYTES = 16 << 10 };
    static char config[CONFIG_BYTES + 1];
    Cistern__JobOpen open_message = CISTERN__JOB_OPEN__INIT;
    uint64_t before, id;

    memset(config, 'x', CONFIG_BYTES);
    open_message.name = (char *)(uintptr_t) "w";
    open_message.world = 1;
    open_message.device = (char *)(uintptr_t) "cuda";
    open_message.model_config = open_message.adapter_config = config;
    start_gated();
    before = daemon_proc_heap(proc.pid);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        struct raw_client client;

        raw_open(&client, proc.socket);
        id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open_message.base);
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open_message.base),
                         CST_ENOCREDIT);
        ck_assert_uint_ne(id, client.id);
        raw_says(&client, "a request of this connection already waits until");
        raw_close(&client);
        while (raw_stat(&witness)->n_sessions > 1) {
        }
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_uint_lt(daemon_proc_heap(proc.pid), before + 4 * MIB);
#else
    (void)before;
#endif
    open_gate();
    (void)gpu_rig_await(not_looking);
    ck_assert_uint_eq(raw_stat(&witness)->n_jobs, 0);
}
END_TEST

/* -- choosing --------------------------------------------------------------------------------- */

/* The device that a worker (rank 1) asks for, and the device that it gets. */
START_TEST(chosen)
{
    static const struct {
        const char *device;
        int status;
        const char *what; /* the chosen device, or the error */
    } rows[] = {
        {NULL, CST_OK, "host"},          {"auto", CST_OK, "host"},
        {"host", CST_OK, "host"},        {"cuda", CST_OK, GPU1},
        {"cuda:0", CST_OK, GPU0},        {GPU0, CST_OK, GPU0},
        {"cuda:2", CST_ENOTFOUND, GPU0}, {"GPU-9", CST_ENOTFOUND, "cuda:1 " GPU1},
        {"GPU-0", CST_EINVAL, GPU1},     {"tpu", CST_EUNSUPPORTED, "'tpu'"},
    };
    struct raw_client client;
    char got[64];

    gpu_rig_start(NULL, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(try_open(&client, rows[i].device, got), rows[i].status);
        if (rows[i].status == CST_OK) {
            ck_assert_str_eq(got, rows[i].what);
        } else {
            raw_says(&client, rows[i].what);
        }
        raw_close(&client);
        settle_remove_jobs(&witness);
    }
}
END_TEST

/* Ranks of one job may be on different devices. Each gets its own slabs with their device. */
START_TEST(mixed)
{
    static const char *const devices[] = {"cuda:1", "host"};
    struct raw_client clients[2];
    uint64_t ids[2];

    gpu_rig_start(NULL, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        gpu_rig_declare(&clients[r], "m", r, 2, devices[r], 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 2; r++) {
        Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
        const Cistern__PoolPart *part;

        ck_assert_msg(raw_status(&clients[r], ids[r]) == CST_OK, "%s", clients[r].err.text);
        ids[r] = raw_ask(&clients[r], CISTERN__MSG_TYPE__MSG_POOL, &get.base);
        part = raw_expect(&clients[r], ids[r], CISTERN__MSG_TYPE__MSG_POOL_PART,
                          &cistern__pool_part__descriptor);
        ck_assert_int_eq(part->device, r == 0);
        ck_assert_uint_eq(clients[r].reply.n_fds, 1);
        cst_frame_close_fds(&clients[r].reply);
    }
    ck_assert_str_eq(raw_job_info(&witness, "m")->device, "several devices");
    ck_assert_str_eq(raw_job_info(&witness, "m")->ranks[0]->device, GPU1);
    ck_assert_str_eq(raw_job_info(&witness, "m")->ranks[1]->device, "host");
    raw_close(&clients[0]);
    raw_close(&clients[1]);
}
END_TEST

/* A pool stays on its device: a worker that returns must ask for that device or for any. */
START_TEST(come_back)
{
    struct raw_job job = {.name = "b", .world = 1, .chunk_elems = 1 << 19, .device = "host"};
    struct raw_client client;

    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "b", 0, 1, "cuda:0", 0);
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&client);
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_EMISMATCH);
    raw_says(&client, GPU0);
    job.device = "cuda:1";
    ck_assert_int_eq(raw_job_open(&client, &job), CST_EMISMATCH);
    job.device = "auto";
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_str_eq(job.got, GPU0);
    raw_close(&client);
}
END_TEST

/* Explain names the GPU, its engine and the reduce site. */
START_TEST(explained)
{
    struct raw_client client;

    gpu_rig_start(NULL, NULL);
    gpu_rig_declare(&client, "x", 0, 1, "cuda:1", 0);
    ck_assert_msg(gpu_rig_commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert(raw_explains(&witness, "x", "t3", "cuda:1, " GPU1 ", Stub, engine 2"));
    ck_assert(raw_explains(&witness, "x", "t3", "on the GPU of engine 2"));
    raw_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu");
    TCase *tcase = suite_case(suite, "gpu", gpu_rig_setup, gpu_rig_teardown);

    tcase_add_test(tcase, listed);
    tcase_add_test(tcase, listed_in_part);
    tcase_add_loop_test(tcase, none, 0, 6);
    tcase_add_test(tcase, no_program);
    tcase_add_test(tcase, looking);
    tcase_add_test(tcase, too_long_to_wait);
    tcase_add_loop_test(tcase, looking_in_vain, 0, 2);
    tcase_add_test(tcase, requests_that_wait);
    tcase_add_test(tcase, chosen);
    tcase_add_test(tcase, mixed);
    tcase_add_test(tcase, come_back);
    tcase_add_test(tcase, explained);
    return suite_run(suite);
}

/* GPUs from the outside: how they are found, chosen, shared, started and ended, and what is said
 * where there are none. The engine program is tests/lib/engine_stub, whose GPUs have 64 MiB each.
 */
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STUB "./tests/lib/engine_stub"
#define GPU0 "GPU-00000000-stub-0"
#define GPU1 "GPU-00000000-stub-1"
#define MIB (UINT64_C(1) << 20)

static struct daemon_proc proc;
static struct raw_client witness; /* looks at the books and removes jobs */
static unsigned base_fds;
static char path[64]; /* of a file or FIFO of the test's; empty: none */

/* -- set-up and tear-down --------------------------------------------------------------------- */

static void setup(void)
{
    (void)setenv("CISTERN_ENGINE_CUDA", STUB, 1);
    path[0] = '\0';
    proc.pid = 0;
}

/* NULL ends the options; more than @a and @b are not needed. */
static void open_daemon(const char *a, const char *b)
{
    daemon_proc_start(&proc, (const char *[]){"--gpus=all", "--engine-threads=2", a != NULL ? a : b,
                                              a != NULL ? b : NULL, NULL});
    raw_open(&witness, proc.socket);
    if (getenv("STUB_GATE") == NULL) {
        base_fds = settle_base_fds(&witness, &proc);
    }
}

static void teardown(void)
{
    if (proc.pid != 0) {
        settle_remove_jobs(&witness);
        settle(&witness, &proc, settle_fds(&witness, base_fds));
        raw_close(&witness);
        ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    }
    if (path[0] != '\0') {
        (void)unlink(path);
    }
}

static const char *make_path(const char *what)
{
    (void)snprintf(path, sizeof path, "/tmp/cistern-gpu-%s-%d", what, (int)getpid());
    return path;
}

/* Each Stat is a turn of the daemon; it must see @seen within some seconds. */
static const Cistern__StatReply *await(bool (*seen)(const Cistern__StatReply *stat))
{
    for (int i = 0; i < 10000; i++) {
        const Cistern__StatReply *stat = raw_stat(&witness);

        if (seen(stat)) {
            return stat;
        }
        (void)poll(NULL, 0, 1);
    }
    ck_abort_msg("what was waited for did not come");
}

static bool not_looking(const Cistern__StatReply *stat)
{
    return stat->gpu == NULL || strcmp(stat->gpu, "looking") != 0;
}

static bool are_off(const Cistern__StatReply *stat)
{
    bool off = stat->n_engines > 1;

    for (size_t i = 1; i < stat->n_engines; i++) {
        off = off && strcmp(stat->engines[i]->state, "off") == 0;
    }
    return off;
}

static bool is_restarted(const Cistern__StatReply *stat)
{
    return stat->n_engines > 1 && stat->engines[1]->restarts > 0 &&
           strcmp(stat->engines[1]->state, "ready") == 0;
}

static void says(const struct raw_client *client, const char *what)
{
    ck_assert_msg(strstr(client->err.text, what) != NULL, "'%s' does not say '%s'",
                  client->err.text, what);
}

/* Connect, open @name as @rank of @world on @device, and declare two tensors. */
static void open_rank(struct raw_client *client, const char *name, uint32_t rank, uint32_t world,
                      const char *device, uint64_t pool_bytes)
{
    struct raw_job job = {.name = name,
                          .rank = rank,
                          .world = world,
                          .device = device,
                          .pool_bytes = pool_bytes,
                          .chunk_elems = 1 << 19, /* 1 MiB a block */
                          .timeout_ms = 20000};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_msg(raw_declare_many(client, 8, 1 << 19) == CST_OK, "%s", client->err.text);
}

static int commit(struct raw_client *client)
{
    return raw_status(client, raw_commit(client, 8, 8));
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

/* -- which there are -------------------------------------------------------------------------- */

/* They are listed with their budgets; their engines are off until a job wants one. */
START_TEST(listed)
{
    const Cistern__StatReply *stat;

    open_daemon("--gpu-memory=32M", NULL);
    stat = await(not_looking);
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

/* The configuration's order counts, and what of it is not there is said. */
START_TEST(listed_in_part)
{
    const Cistern__StatReply *stat;

    open_daemon("--gpus=1, GPU-7777", NULL);
    stat = await(not_looking);
    ck_assert_uint_eq(stat->n_gpus, 1);
    ck_assert_str_eq(stat->gpus[0]->uuid, GPU1);
    ck_assert_uint_eq(stat->gpus[0]->index, 0);
    ck_assert_ptr_nonnull(stat->gpu);
    ck_assert_ptr_nonnull(strstr(stat->gpu, "GPU-7777"));
}
END_TEST

/* Why there is none: the daemon works, stat and a worker's error say it. */
START_TEST(none)
{
    static const struct {
        const char *option, *variable, *value, *words;
    } rows[] = {
        {"--gpus=none", NULL, NULL, "devices = none"},
        {NULL, "STUB_ERROR", "no NVIDIA driver: nothing there", "no NVIDIA driver: nothing there"},
        {NULL, "STUB_GPUS", "0", "neither GPUs nor an error"},
        {"--gpus=GPU-7777", NULL, NULL, "GPU-7777"},
        {"--engine-cuda=/bin/false", NULL, NULL, "exited with status 1 without a word"},
        {"--engine-cuda=/bin/echo", NULL, NULL, "not JSON"},
    };
    const Cistern__StatReply *stat;
    struct raw_client client;
    char got[64];

    if (rows[_i].variable != NULL) {
        (void)setenv(rows[_i].variable, rows[_i].value, 1);
    }
    open_daemon(rows[_i].option, NULL);
    stat = await(not_looking);
    ck_assert_uint_eq(stat->n_gpus, 0);
    ck_assert_ptr_nonnull(stat->gpu);
    ck_assert_msg(strstr(stat->gpu, rows[_i].words) != NULL, "%s", stat->gpu);
    ck_assert_int_eq(try_open(&client, "cuda", got), CST_EUNSUPPORTED);
    says(&client, rows[_i].words);
    raw_close(&client);
    ck_assert_int_eq(try_open(&client, "host", got), CST_OK);
    raw_close(&client);
}
END_TEST

/* A program that was named and is not there keeps the daemon from starting, as the host's does. */
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

/* -- while they are looked for ---------------------------------------------------------------- */

static void start_gated(void)
{
    ck_assert_int_eq(mkfifo(make_path("gate"), 0600), 0);
    (void)setenv("STUB_GATE", path, 1);
    open_daemon(NULL, NULL);
    ck_assert_str_eq(raw_stat(&witness)->gpu, "looking");
    base_fds = daemon_proc_fds(proc.pid) - 2; /* of the probe: its pipe and its end */
}

static void open_gate(void)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
}

/* A worker on a GPU waits for the answer, one on the host does not, nor does anybody else. */
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

/* Whoever hangs up meanwhile is forgotten; the daemon goes down in order while it looks. _i: 1, it
 * does so. */
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
    (void)await(not_looking);
    ck_assert_uint_eq(raw_stat(&witness)->n_jobs, 0);
}
END_TEST

/* -- choosing --------------------------------------------------------------------------------- */

/* What a worker (rank 1) says, and what it gets. */
START_TEST(chosen)
{
    static const struct {
        const char *device;
        int status;
        const char *what; /* device that it became, or words */
    } rows[] = {
        {NULL, CST_OK, "host"},          {"auto", CST_OK, "host"},
        {"host", CST_OK, "host"},        {"cuda", CST_OK, GPU1},
        {"cuda:0", CST_OK, GPU0},        {GPU0, CST_OK, GPU0},
        {"cuda:2", CST_ENOTFOUND, GPU0}, {"GPU-9", CST_ENOTFOUND, "cuda:1 " GPU1},
        {"GPU-0", CST_EINVAL, GPU1},     {"tpu", CST_EUNSUPPORTED, "'tpu'"},
    };
    struct raw_client client;
    char got[64];

    open_daemon(NULL, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(try_open(&client, rows[i].device, got), rows[i].status);
        if (rows[i].status == CST_OK) {
            ck_assert_str_eq(got, rows[i].what);
        } else {
            says(&client, rows[i].what);
        }
        raw_close(&client);
        settle_remove_jobs(&witness);
    }
}
END_TEST

static const Cistern__JobInfo *info_of(const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;
    const Cistern__JobInfoReply *reply;
    uint64_t id;

    message.name = (char *)(uintptr_t)name;
    id = raw_ask(&witness, CISTERN__MSG_TYPE__MSG_JOB_INFO, &message.base);
    reply = raw_expect(&witness, id, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY,
                       &cistern__job_info_reply__descriptor);
    return reply->job;
}

/* Ranks of a job are on different devices; each gets its own slabs, which say what they are. */
START_TEST(mixed)
{
    static const char *const devices[] = {"cuda:1", "host"};
    struct raw_client clients[2];
    uint64_t ids[2];

    open_daemon(NULL, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        open_rank(&clients[r], "m", r, 2, devices[r], 0);
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
    ck_assert_str_eq(info_of("m")->device, "several devices");
    ck_assert_str_eq(info_of("m")->ranks[0]->device, GPU1);
    ck_assert_str_eq(info_of("m")->ranks[1]->device, "host");
    raw_close(&clients[0]);
    raw_close(&clients[1]);
}
END_TEST

/* A pool stays where it is: a worker that comes back must want that device, or any. */
START_TEST(come_back)
{
    struct raw_job job = {.name = "b", .world = 1, .chunk_elems = 1 << 19, .device = "host"};
    struct raw_client client;

    open_daemon(NULL, NULL);
    open_rank(&client, "b", 0, 1, "cuda:0", 0);
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&client);
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_EMISMATCH);
    says(&client, GPU0);
    job.device = "cuda:1";
    ck_assert_int_eq(raw_job_open(&client, &job), CST_EMISMATCH);
    job.device = "auto";
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_str_eq(job.got, GPU0);
    raw_close(&client);
}
END_TEST

/* Explain names the GPU, its engine and the way of the reduction. */
START_TEST(explained)
{
    Cistern__Explain message = CISTERN__EXPLAIN__INIT;
    const Cistern__ExplainReply *reply;
    struct raw_client client;
    bool pool = false, way = false;
    uint64_t id;

    open_daemon(NULL, NULL);
    open_rank(&client, "x", 0, 1, "cuda:1", 0);
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    message.job = (char *)(uintptr_t) "x";
    message.tensor = (char *)(uintptr_t) "t3";
    id = raw_ask(&witness, CISTERN__MSG_TYPE__MSG_EXPLAIN, &message.base);
    reply = raw_expect(&witness, id, CISTERN__MSG_TYPE__MSG_EXPLAIN_REPLY,
                       &cistern__explain_reply__descriptor);
    for (size_t i = 0; i < reply->n_lines; i++) {
        pool = pool || strstr(reply->lines[i], "cuda:1, " GPU1 ", Stub, engine 2") != NULL;
        way = way || strstr(reply->lines[i], "on the GPU of engine 2") != NULL;
    }
    ck_assert(pool && way);
    raw_close(&client);
}
END_TEST

/* -- memory ----------------------------------------------------------------------------------- */

/* What a job takes is in the card's books, in multiples of the granularity, until it goes. */
START_TEST(books)
{
    struct raw_client client;
    const Cistern__StatReply *stat;

    open_daemon(NULL, NULL);
    open_rank(&client, "b", 0, 1, "cuda:0", 5 * MIB); /* five blocks of 1 MiB */
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->gpus[0]->pool_used, 6 * MIB);
    ck_assert_uint_eq(stat->gpus[1]->pool_used, 0);
    ck_assert_uint_eq(stat->pool_used, 0);
    ck_assert_uint_eq(info_of("b")->ranks[0]->pool->capacity, 5 * MIB);
    raw_close(&client);
    settle_remove_jobs(&witness);
    ck_assert_uint_eq(raw_stat(&witness)->gpus[0]->pool_used, 0);
}
END_TEST

/* More than the card's budget is refused with the numbers; another card has its own. */
START_TEST(over_budget)
{
    struct raw_client first, second;

    open_daemon("--gpu-memory=12M", NULL);
    open_rank(&first, "a", 0, 1, "cuda:0", 8 * MIB);
    ck_assert_msg(commit(&first) == CST_OK, "%s", first.err.text);
    open_rank(&second, "b", 0, 1, "cuda:0", 8 * MIB);
    ck_assert_int_eq(commit(&second), CST_EBUDGET);
    says(&second, "pools of cuda:0 (" GPU0 ", Stub): b wants 8388608 bytes, 8388608 of 12582912");
    raw_close(&second);
    open_rank(&second, "c", 0, 1, "cuda:1", 8 * MIB);
    ck_assert_msg(commit(&second) == CST_OK, "%s", second.err.text);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* Ranks that ask for nothing share what is left of their own card. */
START_TEST(shared)
{
    static const char *const devices[] = {"cuda:0", "cuda:0", "cuda:1"};
    struct raw_client clients[3];
    uint64_t ids[3];

    open_daemon("--gpu-memory=20M", NULL);
    for (uint32_t r = 0; r < 3; r++) {
        open_rank(&clients[r], "s", r, 3, devices[r], 0);
    }
    for (uint32_t r = 0; r < 3; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 3; r++) {
        const Cistern__Committed *committed = raw_expect(
            &clients[r], ids[r], CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);

        ck_assert_uint_eq(committed->n_blocks, r < 2 ? 10 : 16);
    }
    ck_assert_uint_eq(raw_stat(&witness)->gpus[0]->pool_used, 20 * MIB);
    for (uint32_t r = 0; r < 3; r++) {
        raw_close(&clients[r]);
    }
}
END_TEST

/* A card with no room for the smallest pool says so, by name. */
START_TEST(no_room)
{
    struct raw_client client;

    open_daemon("--gpu-memory=2M", NULL);
    open_rank(&client, "n", 0, 1, "cuda:1", 0);
    ck_assert_int_eq(commit(&client), CST_EBUDGET);
    says(&client, "pools of cuda:1");
    says(&client, "2 blocks of 1048576 bytes are left for rank 0");
    raw_close(&client);
}
END_TEST

/* GPUs that cannot reach each other's memory cannot share a job; each alone can have one. */
START_TEST(unreachable)
{
    struct raw_client clients[2];
    uint64_t ids[2];

    (void)setenv("STUB_UNREACHABLE", "1", 1);
    open_daemon(NULL, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        open_rank(&clients[r], "u", r, 2, "cuda", 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&clients[r], ids[r]), CST_EUNSUPPORTED);
        says(&clients[r], "cannot reach the pool slab");
        says(&clients[r], GPU0);
        says(&clients[r], GPU1);
        says(&clients[r], "no way from one GPU to the other");
        raw_close(&clients[r]);
    }
    open_rank(&clients[0], "alone", 0, 1, "cuda:0", 0);
    ck_assert_msg(commit(&clients[0]) == CST_OK, "%s", clients[0].err.text);
    raw_close(&clients[0]);
}
END_TEST

/* Commit job @name of two ranks on @devices; both must get @status and @words. */
static void expect_pair(const char *name, const char *const devices[2], int status,
                        const char *words)
{
    struct raw_client clients[2];
    uint64_t ids[2];

    for (uint32_t r = 0; r < 2; r++) {
        open_rank(&clients[r], name, r, 2, devices[r], 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ids[r] = raw_commit(&clients[r], 8, 8);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_msg(raw_status(&clients[r], ids[r]) == status, "%s", clients[r].err.text);
        if (status != CST_OK) {
            says(&clients[r], words);
        }
    }
    raw_close(&clients[0]);
    raw_close(&clients[1]);
    settle_remove_jobs(&witness);
}

/* A card that others have filled: the commit fails with its name, everything is given back, also
 * what other GPUs waited for; a job without that card goes on. */
START_TEST(full)
{
    (void)setenv("STUB_FULL", GPU1, 1);
    open_daemon(NULL, NULL);
    expect_pair("full", (const char *[]){"cuda:0", "cuda:1"}, CST_ENOMEM,
                "pool slab of 16777216 bytes on " GPU1 ": the GPU is out of memory");
    expect_pair("rest", (const char *[]){"cuda:0", "host"}, CST_OK, "");
}
END_TEST

/* The engine dies whenever it is to make memory: the commit fails, those who waited for that memory
 * wait no more, and when it can, it is made. */
START_TEST(fatal)
{
    (void)setenv("STUB_FATAL", make_path("fatal"), 1);
    (void)close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    open_daemon(NULL, NULL);
    expect_pair("fatal", (const char *[]){"cuda:0", "cuda:1"}, CST_EENGINE, "engine 2: 6 deaths");
    ck_assert_int_eq(unlink(path), 0);
    expect_pair("again", (const char *[]){"cuda:0", "cuda:1"}, CST_OK, "");
}
END_TEST

/* -- copies ----------------------------------------------------------------------------------- */

static void write_config(const char *text)
{
    FILE *file = fopen(make_path("conf"), "we");

    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static uint64_t commit_saying(struct raw_client *client, bool copies)
{
    Cistern__Commit message = CISTERN__COMMIT__INIT;

    message.n_tensors = message.n_operators = 8;
    message.has_copies = true;
    message.copies = copies;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_COMMIT, &message.base);
}

static uint64_t ask_arenas(struct raw_client *client, uint32_t first)
{
    Cistern__ArenaGet message = CISTERN__ARENA_GET__INIT;

    message.first = first;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_ARENA, &message.base);
}

/* Where workers copy weights, one that cannot is refused, one that can gets the arenas, sealed; a
 * rank on the host has nothing to do with it. */
START_TEST(workers_copy)
{
    const Cistern__Committed *committed;
    const Cistern__ArenaPart *part;
    struct raw_client client;
    char option[80];
    uint64_t id;

    write_config("[gpu]\ncopies = worker\n");
    (void)snprintf(option, sizeof option, "--config=%s", path);
    open_daemon(option, NULL);
    open_rank(&client, "w", 0, 1, "cuda:1", 0);
    ck_assert_int_eq(commit(&client), CST_EUNSUPPORTED);
    says(&client, "copies = worker");
    ck_assert_int_eq(raw_status(&client, commit_saying(&client, false)), CST_EUNSUPPORTED);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EINVAL);
    id = commit_saying(&client, true);
    committed =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);
    ck_assert_uint_gt(committed->n_arenas, 0);
    part = raw_expect(&client, ask_arenas(&client, 0), CISTERN__MSG_TYPE__MSG_ARENA_PART,
                      &cistern__arena_part__descriptor);
    ck_assert_uint_eq(part->n_segment, committed->n_arenas);
    ck_assert_uint_eq(client.reply.n_fds, part->n_segment);
    for (size_t i = 0; i < part->n_segment; i++) {
        int seals = fcntl(client.reply.fds[i], F_GET_SEALS);

        ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    }
    cst_frame_close_fds(&client.reply);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, committed->n_arenas)), CST_EINVAL);
    ck_assert_str_eq(info_of("w")->copies, "worker");
    raw_close(&client);
    open_rank(&client, "h", 0, 1, "host", 0);
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EDENIED);
    ck_assert_ptr_null(info_of("h")->copies);
    raw_close(&client);
}
END_TEST

/* Where engines copy, nobody gets arenas, whatever he can do. */
START_TEST(engines_copy)
{
    const Cistern__Committed *committed;
    struct raw_client client;

    open_daemon(NULL, NULL);
    open_rank(&client, "e", 0, 1, "cuda:1", 0);
    committed = raw_expect(&client, commit_saying(&client, true), CISTERN__MSG_TYPE__MSG_COMMITTED,
                           &cistern__committed__descriptor);
    ck_assert(!committed->has_n_arenas);
    ck_assert_int_eq(raw_status(&client, ask_arenas(&client, 0)), CST_EDENIED);
    ck_assert_str_eq(info_of("e")->copies, "engine");
    raw_close(&client);
}
END_TEST

/* -- engines ---------------------------------------------------------------------------------- */

/* An engine starts with the first job that wants its GPU, ends when none has for the configured
 * time, and starts again. */
START_TEST(started_and_ended)
{
    struct raw_client client;
    char option[80];

    write_config("[gpu]\nidle = 1\n");
    (void)snprintf(option, sizeof option, "--config=%s", path);
    open_daemon(option, NULL);
    (void)await(are_off);
    for (int i = 0; i < 2; i++) {
        open_rank(&client, "e", 0, 1, "cuda:1", 0);
        ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
        ck_assert_str_eq(raw_stat(&witness)->engines[2]->state, "ready");
        ck_assert_str_eq(raw_stat(&witness)->engines[1]->state, "off");
        ck_assert_uint_eq(raw_stat(&witness)->engines[2]->restarts, 0);
        raw_close(&client);
        settle_remove_jobs(&witness);
        (void)await(are_off);
    }
}
END_TEST

/* An engine that cannot start fails the commit with words; the next one tries again. */
START_TEST(broken)
{
    struct raw_client client;

    (void)setenv("STUB_BROKEN", make_path("broken"), 1);
    (void)close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    open_daemon(NULL, NULL);
    open_rank(&client, "f", 0, 1, "cuda:0", 0);
    ck_assert_int_eq(commit(&client), CST_EENGINE);
    says(&client, "engine 1: 6 deaths");
    ck_assert_str_eq(raw_stat(&witness)->engines[1]->state, "failed");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    raw_close(&client);
}
END_TEST

/* An engine that dies while nobody does anything comes back with the pool's memory. */
START_TEST(restarted)
{
    struct raw_client client;

    open_daemon(NULL, NULL);
    open_rank(&client, "r", 0, 1, "cuda:0", 0);
    ck_assert_msg(commit(&client) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(kill(raw_stat(&witness)->engines[1]->pid, SIGKILL), 0);
    (void)await(is_restarted);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu");
    TCase *tcase = tcase_create("gpu");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, listed);
    tcase_add_test(tcase, listed_in_part);
    tcase_add_loop_test(tcase, none, 0, 6);
    tcase_add_test(tcase, no_program);
    tcase_add_test(tcase, looking);
    tcase_add_loop_test(tcase, looking_in_vain, 0, 2);
    tcase_add_test(tcase, chosen);
    tcase_add_test(tcase, mixed);
    tcase_add_test(tcase, come_back);
    tcase_add_test(tcase, explained);
    tcase_add_test(tcase, books);
    tcase_add_test(tcase, over_budget);
    tcase_add_test(tcase, shared);
    tcase_add_test(tcase, no_room);
    tcase_add_test(tcase, unreachable);
    tcase_add_test(tcase, full);
    tcase_add_test(tcase, fatal);
    tcase_add_test(tcase, workers_copy);
    tcase_add_test(tcase, engines_copy);
    tcase_add_test(tcase, started_and_ended);
    tcase_add_test(tcase, broken);
    tcase_add_test(tcase, restarted);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}

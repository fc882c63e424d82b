/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/hoard.h"

#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MIB = 1 << 20,
    NAME_BYTES = 250,  /* Bytes of each name of a tensor. */
    MAX_CLIENTS = 320, /* Connections of alice. */
    MAX_FILES = 8192,  /* Files in memory of a process. */
    N_LONG = 600,      /* Tensors with long names in a committed job. */
    N_DESCRIBED = 100, /* Tensors with long names in a job that is saved. */
};

static struct raw_client clients[MAX_CLIENTS];
static bool is_open[MAX_CLIENTS];
static struct raw_client *asked; /* The client of the last request. */
static int kept[MAX_FILES];      /* Descriptors of alice. */
static unsigned n_kept;
static uint64_t attempt; /* Of alice's job. */

int hoard_declare(struct raw_client *client, uint32_t i)
{
    int rc = raw_status(client, raw_ask_named(client, i, NAME_BYTES));
    char name[16];

    (void)snprintf(name, sizeof name, "o%u", i);
    return rc == CST_OK ? raw_declare_operator(client, name, i) : rc;
}

/* -- alice's connections ---------------------------------------------------------------------- */

/* Make connection @n the one that asks. If it is open, it is closed. */
static void use(unsigned n)
{
    ck_assert_uint_lt(n, MAX_CLIENTS);
    asked = &clients[n];
    if (is_open[n]) {
        raw_close(asked);
    }
    is_open[n] = true;
}

/* Open job number @n of @world ranks on a connection of its own. Returns the status. */
static int open_job(unsigned n, uint32_t world)
{
    char name[16];
    struct raw_job job = {.name = name, .world = world, .timeout_ms = 600000, .chunk_elems = 4096};

    (void)snprintf(name, sizeof name, "j%u", n);
    use(n);
    user_rig_open(asked, USER_ALICE);
    return raw_job_open(asked, &job);
}

/* Declare @n tensors with long names and commit the job. Returns the status. */
static int commit_long(uint32_t n)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = hoard_declare(asked, i);
    }
    return rc == CST_OK ? raw_status(asked, raw_commit(asked, n, n)) : rc;
}

static void keep_reply(void)
{
    for (unsigned i = 0; i < asked->reply.n_fds; i++) {
        ck_assert_uint_lt(n_kept, MAX_FILES);
        kept[n_kept++] = asked->reply.fds[i];
    }
}

static void begin_job(void)
{
    ck_assert_int_eq(open_job(0, 1), CST_OK);
}

static void begin_training(void)
{
    begin_job();
    ck_assert_int_eq(raw_declare_many(asked, 1, 4096), CST_OK);
    ck_assert_int_eq(raw_status(asked, raw_commit(asked, 1, 1)), CST_OK);
    attempt = raw_sync(asked);
}

static void begin_described(void)
{
    begin_job();
    ck_assert_msg(commit_long(N_DESCRIBED) == CST_OK, "%s", asked->err.text);
    attempt = raw_sync(asked);
}

/* -- pieces ----------------------------------------------------------------------------------- */

static int take_states(unsigned n)
{
    char name[16];

    (void)snprintf(name, sizeof name, "j%u", n);
    use(n);
    return user_rig_commit(asked, USER_ALICE, name, 3 << 20, 1 << 16);
}

static int take_pool(unsigned n)
{
    char name[16];

    (void)snprintf(name, sizeof name, "j%u", n);
    use(n);
    return user_rig_commit(asked, USER_ALICE, name, 3 << 20, 4 * MIB);
}

static int take_device_pool(unsigned n)
{
    char name[16];
    struct raw_job job = {
        .name = name, .world = 1, .device = "paced:0", .pool_bytes = MIB, .chunk_elems = 4096};

    (void)snprintf(name, sizeof name, "j%u", n);
    use(n);
    user_rig_open(asked, USER_ALICE);
    ck_assert_msg(raw_job_open(asked, &job) == CST_OK, "%s", asked->err.text);
    ck_assert_int_eq(raw_declare_many(asked, 768, 4096), CST_OK);
    return raw_status(asked, raw_commit(asked, 768, 768));
}

static int take_declaration(unsigned n)
{
    return hoard_declare(asked, n);
}

/* Begin a save of job number @n, keep the description, and end the save, as the client also does
 * after a failure. Returns the status of the begin. */
static int save(unsigned n)
{
    char text[16];
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct cst_err err;
    int rc;

    (void)snprintf(text, sizeof text, "j%u", n);
    name.name = text;
    rc = raw_call(asked, CISTERN__MSG_TYPE__MSG_SAVE, &name.base);
    if (rc == CST_OK) {
        keep_reply();
    }
    err = asked->err;
    ck_assert_int_eq(raw_call(asked, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL), CST_OK);
    asked->err = err;
    return rc;
}

/* A job that uses what is reserved for it: its ledger and its description. */
static int take_committed(unsigned n)
{
    int rc = open_job(n, 1);

    rc = rc == CST_OK ? commit_long(N_LONG) : rc;
    if (rc == CST_OK) {
        (void)raw_sync(asked);
        ck_assert_int_eq(save(n), CST_OK);
    }
    return rc;
}

/* Save, and make the description wrong by other counters. */
static int take_description(unsigned n)
{
    Cistern__Restore counters = CISTERN__RESTORE__INIT;
    int rc = save(0);

    if (rc == CST_OK) {
        counters.step = counters.adam_step = n + 1;
        ck_assert_int_eq(raw_call(asked, CISTERN__MSG_TYPE__MSG_RESTORE, &counters.base), CST_OK);
    }
    return rc;
}

static int take_staging(unsigned n)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;
    int rc;

    use(n);
    user_rig_open(asked, USER_ALICE);
    get.bytes = 4 * MIB;
    rc = raw_call(asked, CISTERN__MSG_TYPE__MSG_STAGING, &get.base);
    if (rc == CST_OK) {
        cst_frame_close_fds(&asked->reply);
    }
    return rc;
}

static int take_comm(unsigned n)
{
    Cistern__CommOpen open = CISTERN__COMM_OPEN__INIT;
    int rc;

    (void)n;
    open.attempt = attempt;
    rc = raw_call(asked, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &open.base);
    if (rc == CST_OK) {
        keep_reply();
    }
    return rc;
}

/* Alice writes the memory of a communicator after it was closed, and keeps its descriptor. */
static int take_closed_comm(unsigned n)
{
    Cistern__CommClose message = CISTERN__COMM_CLOSE__INIT;
    Cistern__CommOpened *opened;
    struct stat st;
    void *base;
    int rc = take_comm(n);

    if (rc == CST_OK) {
        ck_assert_int_eq(fstat(asked->reply.fds[0], &st), 0);
        base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                    asked->reply.fds[0], 0);
        ck_assert(base != MAP_FAILED);
        opened = cistern__comm_opened__unpack(NULL, asked->reply.body_bytes, asked->reply.body);
        ck_assert_ptr_nonnull(opened);
        message.id = opened->id;
        cistern__comm_opened__free_unpacked(opened, NULL);
        ck_assert_int_eq(raw_call(asked, CISTERN__MSG_TYPE__MSG_COMM_CLOSE, &message.base), CST_OK);
        memset(base, 1, (size_t)st.st_size);
        (void)munmap(base, (size_t)st.st_size);
    }
    return rc;
}

static int take_connection(unsigned n)
{
    use(n);
    return user_rig_greet(asked, USER_ALICE);
}

static int take_job(unsigned n)
{
    return open_job(n, 1);
}

static int take_ranks(unsigned n)
{
    return open_job(n, 30);
}

/* A commit that waits for the other rank. The request beyond the limit is refused at once. */
static int take_request(unsigned n)
{
    uint64_t id;

    ck_assert_int_eq(open_job(n, 2), CST_OK);
    ck_assert_int_eq(raw_declare_many(asked, 1, 10), CST_OK);
    id = raw_commit(asked, 1, 1);
    return n < 10 ? CST_OK : raw_status(asked, id);
}

#define OF_HOST "of 32.0 MiB of host memory (host in [quota], by default 50%): "

const struct hoard hoards[] = {
    {.name = "states",
     .host = "--host-memory=256M",
     .take = take_states,
     .words = "of 128.0 MiB of host memory (host in [quota], by default 50%): "},
    {.name = "pools",
     .host = "--host-memory=512M",
     .take = take_pool,
     .words = "of 8.0 MiB of pools of the host device (pool in [quota], by default 50%): "},
    {.name = "device_pools",
     .config = "[paced]\ndevices = 1\nmemory = 4M\n[quota]\npool = 2M\n",
     .host = "--host-memory=512M",
     .take = take_device_pool,
     .words = "of 2.0 MiB of memory of paced:0 (pool in [quota]): "},
    {.name = "declarations", .begin = begin_job, .take = take_declaration, .words = OF_HOST},
    {.name = "committed",
     .host = "--host-memory=256M",
     .keeps = true,
     .take = take_committed,
     .words = "of 128.0 MiB of host memory (host in [quota], by default 50%): "},
    {.name = "descriptions",
     .keeps = true,
     .begin = begin_described,
     .take = take_description,
     .words = OF_HOST},
    {.name = "staging", .take = take_staging, .words = OF_HOST "staging wants"},
    {.name = "communicators", .begin = begin_training, .take = take_comm, .words = OF_HOST},
    {.name = "kept",
     .cleared = true,
     .begin = begin_training,
     .take = take_closed_comm,
     .words = OF_HOST},
    {.name = "connections",
     .config = "[job]\nmax_sessions = 40\n",
     .take = take_connection,
     .status = CST_EBUSY,
     .words = "20 of 20 connections (sessions in [quota], by default 50%): ",
     .most_bytes = 16 << 10},
    {.name = "requests",
     .config = "[quota]\nrequests = 10\n",
     .take = take_request,
     .status = CST_ENOCREDIT,
     .words = "10 of 10 requests in flight (requests in [quota]): ",
     .most_bytes = 92 << 10}, /* With a connection and a job of two ranks each. */
    {.name = "jobs",
     .take = take_job,
     .words = "32 of 32 jobs (jobs in [quota], by default 50%): ",
     .most_bytes = 56 << 10}, /* With a connection each. */
    {.name = "files",
     .config = "[quota uid:61001]\nfiles = 40\n",
     .host = "--host-memory=1G",
     .begin = begin_training,
     .take = take_comm,
     .words = "of 40 open files (files in [quota uid:61001]): "},
    {.name = "ranks",
     .config = "[quota uid:61001]\nfiles = 100\n",
     .take = take_ranks,
     .words = "90 of 100 open files (files in [quota uid:61001]): ",
     .most_bytes = 184 << 10}, /* Of 30 ranks. */
};
const unsigned n_hoards = sizeof hoards / sizeof *hoards;

/* -- hoarding --------------------------------------------------------------------------------- */

void hoard_start(const struct hoard *hoard)
{
    if (hoard->keeps) {
        daemon_proc_keep();
    }
    user_rig_start_sized(hoard->config != NULL ? hoard->config : "",
                         hoard->host != NULL ? hoard->host : "--host-memory=64M",
                         hoard->pool != NULL ? hoard->pool : "--pool-memory=16M");
}

static void check_refusal(const struct hoard *hoard, int rc)
{
    ck_assert_msg(rc == (hoard->status != 0 ? hoard->status : CST_EBUDGET), "%s: status %d, %s",
                  hoard->name, rc, asked->err.text);
    ck_assert_msg(strstr(asked->err.text, "uid 61001 has ") != NULL &&
                      strstr(asked->err.text, hoard->words) != NULL,
                  "%s: '%s' does not say '%s'", hoard->name, asked->err.text, hoard->words);
}

unsigned hoard_fill(const struct hoard *hoard)
{
    unsigned n = 0;
    int rc;

    if (hoard->begin != NULL) {
        hoard->begin();
    }
    while ((rc = hoard->take(n)) == CST_OK) {
        n++;
    }
    check_refusal(hoard, rc);
    return n;
}

void hoard_ask_again(const struct hoard *hoard, unsigned n)
{
    check_refusal(hoard, hoard->take(n));
}

void hoard_drop(void)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        if (is_open[i]) {
            raw_close(&clients[i]);
            is_open[i] = false;
        }
    }
    while (n_kept > 0) {
        (void)close(kept[--n_kept]);
    }
}

const char *hoard_refusal(void)
{
    return asked->err.text;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Files in memory, each of which counts once. */
struct files {
    ino_t seen[MAX_FILES];
    unsigned n;
    uint64_t bytes;
};

static void add_file(struct files *files, const struct stat *st)
{
    for (unsigned i = 0; i < files->n; i++) {
        if (files->seen[i] == st->st_ino) {
            return;
        }
    }
    ck_assert_uint_lt(files->n, MAX_FILES);
    files->seen[files->n++] = st->st_ino;
    files->bytes += (uint64_t)st->st_blocks * 512;
}

static void add_files(struct files *files, pid_t pid)
{
    char dir[32], path[300], target[64];
    struct dirent *entry;
    struct stat st;
    DIR *open;

    (void)snprintf(dir, sizeof dir, "/proc/%d/fd", (int)pid);
    open = opendir(dir);
    ck_assert_ptr_nonnull(open);
    while ((entry = readdir(open)) != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (readlink(path, target, sizeof target) >= 7 && memcmp(target, "/memfd:", 7) == 0 &&
            stat(path, &st) == 0) {
            add_file(files, &st);
        }
    }
    (void)closedir(open);
}

uint64_t hoard_memory(pid_t daemon, pid_t keeper)
{
    static struct files files;

    files.n = 0;
    files.bytes = 0;
    add_files(&files, daemon);
    if (keeper != 0) {
        add_files(&files, keeper);
    }
    return daemon_proc_heap(daemon) + files.bytes;
}

uint64_t hoard_budgeted(void)
{
    const Cistern__StatReply *stat = raw_stat(&witness);
    uint64_t bytes = stat->host_used + stat->pool_used;

    for (size_t i = 0; i < stat->n_gpus; i++) {
        bytes += stat->gpus[i]->pool_used;
    }
    return bytes;
}

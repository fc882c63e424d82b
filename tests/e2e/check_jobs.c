/* Jobs from the outside: who is which rank, what ranks may declare, what fits, who waits for whom,
 * what is left when a job goes. After every test the daemon has as many descriptors, and as many
 * bytes in its books, as before. */
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

/* -- set-up and tear-down --------------------------------------------------------------------- */

static struct daemon_proc proc;
static struct raw_client witness; /* looks at the books and removes jobs */
static unsigned base_fds;

static void setup(void)
{
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

static void teardown(void)
{
    settle(&witness, &proc, base_fds);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

static int remove_job(const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;

    message.name = (char *)(uintptr_t)name;
    return raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base);
}

/* Connect and open job "j" as @rank of @world. */
static void open_rank(struct raw_client *client, uint32_t rank, uint32_t world)
{
    struct raw_job job = {.name = "j", .rank = rank, .world = world, .timeout_ms = 20000};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
}

/* The same, and declare @n tensors of 1000 elements with an operator each. */
static void open_declared(struct raw_client *client, uint32_t rank, uint32_t world, uint32_t n)
{
    open_rank(client, rank, world);
    ck_assert_msg(raw_declare_many(client, n, 1000) == CST_OK, "%s", client->err.text);
}

/* The same, committed; of one rank. */
static void open_committed(struct raw_client *client, uint32_t n)
{
    open_declared(client, 0, 1, n);
    ck_assert_msg(raw_status(client, raw_commit(client, n, n)) == CST_OK, "%s", client->err.text);
}

static void assert_says(const struct raw_client *client, const char *words)
{
    ck_assert_msg(strstr(client->err.text, words) != NULL, "'%s' does not say '%s'",
                  client->err.text, words);
}

static Cistern__JobInfo *job_info(const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;
    Cistern__JobInfoReply *reply;
    uint64_t id;

    message.name = (char *)(uintptr_t)name;
    id = raw_ask(&witness, CISTERN__MSG_TYPE__MSG_JOB_INFO, &message.base);
    reply = raw_expect(&witness, id, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY,
                       &cistern__job_info_reply__descriptor);
    return reply->job;
}

/* -- opening -------------------------------------------------------------------------------- */

/* A name, rank or world that cannot be is refused; the connection may try again. */
START_TEST(nonsense_is_not_opened)
{
    static const char long_name[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct raw_job jobs[] = {
        {.name = "", .world = 1},
        {.name = long_name, .world = 1},
        {.name = "a b", .world = 1},
        {.name = "a/b", .world = 1},
        {.name = "a", .world = 0},
        {.name = "a", .world = 65},
        {.name = "a", .rank = 2, .world = 2},
    };
    struct raw_client client;

    raw_open(&client, proc.socket);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ck_assert_int_eq(raw_job_open(&client, &jobs[i]), CST_EINVAL);
    }
    jobs[0].name = long_name + 1; /* 63 characters */
    ck_assert_int_eq(raw_job_open(&client, &jobs[0]), CST_OK);
    ck_assert_int_eq(raw_job_open(&client, &jobs[0]), CST_EINVAL); /* one job per connection */
    raw_close(&client);
}
END_TEST

/* A device that the daemon lacks is refused with what it has. */
START_TEST(an_unknown_device_is_refused)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    struct raw_client client;

    raw_open(&client, proc.socket);
    open.name = (char *)(uintptr_t) "j";
    open.world = 1;
    open.device = (char *)(uintptr_t) "GPU-12345";
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base),
                     CST_EUNSUPPORTED);
    assert_says(&client, "'host'");
    raw_close(&client);
}
END_TEST

/* Of two workers that claim one rank the second hears EBUSY with the pid of the first, which does
 * not notice. */
START_TEST(a_rank_has_one_worker)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .world = 2};
    char pid[16];

    open_rank(&first, 0, 2);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EBUSY);
    (void)snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    assert_says(&second, pid);
    job.rank = 1; /* the other one is free */
    ck_assert_int_eq(raw_job_open(&second, &job), CST_OK);
    ck_assert(!job.created);
    ck_assert_int_eq(raw_declare_many(&first, 1, 10), CST_OK);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* The token of an earlier JobOpened takes the rank over, even from a connection that still stands;
 * a wrong one does not. */
START_TEST(a_token_takes_the_rank_over)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .world = 1};

    raw_open(&first, proc.socket);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&first, &job), CST_OK);
    job.send_token = true;
    job.token[0] ^= 1;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EBUSY);
    job.token[0] ^= 1;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_OK);
    ck_assert(!raw_receive(&first));
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* A rank that disagrees on the world or the chunk capacity is refused with both numbers. */
START_TEST(ranks_agree_on_the_job)
{
    struct raw_client first, second;
    struct raw_job job = {.name = "j", .rank = 1, .world = 3};

    open_rank(&first, 0, 2);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EMISMATCH);
    assert_says(&second, "2 ranks, not 3");
    job.world = 2;
    job.chunk_elems = 8192;
    ck_assert_int_eq(raw_job_open(&second, &job), CST_EMISMATCH);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* -- declaring ------------------------------------------------------------------------------ */

/* Zero-size, overflowing and duplicate tensors are refused and leave what was declared before. */
START_TEST(bad_tensors_are_refused)
{
    static const int64_t zero[] = {4, 0, 3}, negative[] = {-5},
                         huge[] = {1 << 30, 1 << 30, 1 << 30}, good[] = {10};
    struct raw_client client;

    open_rank(&client, 0, 1);
    ck_assert_int_eq(raw_declare(&client, "t", 1, good), CST_OK);
    ck_assert_int_eq(raw_declare(&client, "zero", 3, zero), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "negative", 1, negative), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "huge", 3, huge), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "none", 0, good), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "", 1, good), CST_EINVAL);
    ck_assert_int_eq(raw_declare(&client, "t", 1, good), CST_EEXIST);
    ck_assert_int_eq(raw_declare(&client, "u", 1, good), CST_OK);
    raw_close(&client);
}
END_TEST

/* A job has at most 65536 tensors: as many can be committed and every one has a place; one more is
 * refused. */
START_TEST(a_job_has_65536_tensors)
{
    static const int64_t shape[] = {1};
    struct raw_client client;
    uint64_t id;

    open_rank(&client, 0, 1);
    ck_assert_int_eq(raw_declare_many(&client, 65536, 1), CST_OK);
    ck_assert_int_eq(raw_declare(&client, "one too many", 1, shape), CST_EINVAL);
    assert_says(&client, "65536");
    id = raw_commit(&client, 65536, 65536);
    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    for (uint32_t first = 0; first < 65536;) {
        Cistern__LayoutGet get = CISTERN__LAYOUT_GET__INIT;
        const Cistern__LayoutPart *part;

        get.first = first;
        id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_LAYOUT, &get.base);
        part = raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_LAYOUT_PART,
                          &cistern__layout_part__descriptor);
        ck_assert_uint_eq(part->first, first);
        ck_assert_uint_gt(part->n_chunk, 0);
        ck_assert_uint_eq(part->n_chunk, part->n_offset);
        first += (uint32_t)part->n_chunk;
    }
    raw_close(&client);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

/* -- committing ----------------------------------------------------------------------------- */

/* A pool that is too small is refused with the operator that needs more and the bytes that are
 * short; nothing is kept. */
START_TEST(a_pool_too_small_is_refused)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1, .pool_bytes = 8192, .chunk_elems = 4096};

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 8, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 8, 8)), CST_EPOOL);
    assert_says(&client, "operator 'o7' needs 3: 16384 bytes short");
    ck_assert_uint_eq(raw_stat(&witness)->pool_used, 0);
    raw_close(&client);
}
END_TEST

/* A job over the budget for host memory, or for pools, is refused with all numbers, and nothing is
 * kept. */
START_TEST(a_job_over_budget_is_refused)
{
    struct raw_client client;
    struct raw_job job = {.name = "k", .world = 1, .pool_bytes = 65 << 20, .chunk_elems = 4096};

    open_rank(&client, 0, 1);
    ck_assert_int_eq(raw_declare_many(&client, 20, 1 << 20), CST_OK); /* 16 bytes each: 320 MiB */
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 20, 20)), CST_EBUDGET);
    assert_says(&client, "268435456");
    ck_assert_uint_eq(raw_stat(&witness)->host_used, 0);
    raw_close(&client);

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 8192, 4096),
                     CST_OK); /* 64 MiB of weights, as much of gradients */
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 8192, 8192)), CST_EBUDGET);
    ck_assert_uint_eq(raw_stat(&witness)->pool_used, 0);
    raw_close(&client);
}
END_TEST

/* A rank that waits for others at commit hears, after its timeout, which rank is missing; it can
 * commit again. */
START_TEST(a_commit_without_the_others_times_out)
{
    struct raw_client client, other;
    struct raw_job job = {.name = "j", .world = 2, .timeout_ms = 50};
    uint64_t id;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 1, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_ETIMEDOUT);
    assert_says(&client, "rank 1 (absent)");
    job.rank = 1;
    raw_open(&other, proc.socket);
    ck_assert_int_eq(raw_job_open(&other, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&other, 1, 1000), CST_OK);
    id = raw_commit(&other, 1, 1);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
    ck_assert_int_eq(raw_status(&other, id), CST_OK);
    raw_close(&client);
    raw_close(&other);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

static int declare_operator(struct raw_client *client, const char *name)
{
    Cistern__Declare message = CISTERN__DECLARE__INIT;
    Cistern__OperatorDecl decl = CISTERN__OPERATOR_DECL__INIT, *pointer = &decl;
    uint32_t tensor = 0;

    decl.name = (char *)(uintptr_t)name;
    decl.n_tensors = 1;
    decl.tensors = &tensor;
    message.n_operators = 1;
    message.operators = &pointer;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &message.base);
}

/* An operator's name of 64 bytes is not the one of 63 that another rank declared. */
START_TEST(long_operator_names_differ)
{
    char name[65];
    struct raw_client one, other;

    memset(name, 'x', sizeof name);
    name[63] = name[64] = '\0';
    open_declared(&one, 0, 2, 1);
    open_declared(&other, 1, 2, 1);
    ck_assert_int_eq(declare_operator(&one, name), CST_OK);
    name[63] = 'x';
    ck_assert_int_eq(declare_operator(&other, name), CST_EINVAL);
    raw_close(&one);
    raw_close(&other);
}
END_TEST

/* A commit that is cancelled gets its own reply, and the rank can commit again. */
START_TEST(a_commit_can_be_cancelled)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    struct raw_client client;
    uint64_t id;

    open_declared(&client, 0, 2, 1);
    id = raw_commit(&client, 1, 1);
    cancel.request = id;
    (void)raw_ask(&client, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ck_assert_int_eq(raw_status(&client, id), CST_ECANCELLED);
    ck_assert_int_eq(raw_status(&client, 0), CST_OK);
    raw_close(&client);
}
END_TEST

/* A worker that leaves while its job is being populated gets an answer to its Commit; a Cancel that
 * comes for it afterwards finds nothing. The engine is stopped meanwhile, so that populating lasts.
 */
START_TEST(a_worker_leaves_a_job_that_is_populated)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    struct raw_client client;
    pid_t engine = raw_stat(&witness)->engines[0]->pid;
    uint64_t leave;

    open_declared(&client, 0, 1, 1);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    cancel.request = raw_commit(&client, 1, 1);
    leave = raw_ask(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL);
    (void)raw_ask(&client, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ck_assert_int_eq(raw_status(&client, cancel.request), CST_ECANCELLED);
    ck_assert_int_eq(raw_status(&client, leave), CST_OK);
    ck_assert_int_eq(raw_status(&client, 0), CST_OK);
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    raw_close(&client);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

/* The slabs of a pool come as sealed memfds of mode 0600 that together hold its blocks. */
START_TEST(pool_slabs_are_sealed)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    const Cistern__Committed *committed;
    const Cistern__PoolPart *part;
    struct raw_client client;
    struct stat st;
    uint64_t id;

    open_declared(&client, 0, 1, 4);
    id = raw_commit(&client, 4, 4);
    committed =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor);
    ck_assert_uint_eq(committed->n_slabs, 1);
    ck_assert_uint_eq(committed->n_params, 4000);
    ck_assert_uint_eq(committed->pool_bytes, committed->n_blocks * committed->chunk_elems * 2);
    id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base);
    part =
        raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_POOL_PART, &cistern__pool_part__descriptor);
    ck_assert_uint_eq(part->n_bytes, 1);
    ck_assert_uint_eq(client.reply.n_fds, 1);
    ck_assert_uint_eq(part->bytes[0], committed->pool_bytes);
    ck_assert_int_eq(fcntl(client.reply.fds[0], F_GET_SEALS) &
                         (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ck_assert_int_eq(fstat(client.reply.fds[0], &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_size, part->bytes[0]);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_uint_ge((uint64_t)st.st_blocks * 512,
                      part->bytes[0]); /* populated: nobody meets SIGBUS */
    cst_frame_close_fds(&client.reply);
    get.first = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base), CST_EINVAL);
    raw_close(&client);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

/* -- a life --------------------------------------------------------------------------------- */

static uint64_t sync_attempt(struct raw_client *client)
{
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    const Cistern__Synced *synced =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_SYNCED, &cistern__synced__descriptor);

    return synced->attempt;
}

static const Cistern__BatchDone *batch(struct raw_client *client, uint64_t attempt,
                                       Cistern__BatchItem__Kind kind, uint32_t n,
                                       const uint64_t *generations)
{
    Cistern__BatchItem items[8], *pointers[8];
    Cistern__Batch message = CISTERN__BATCH__INIT;
    uint64_t id;

    for (uint32_t i = 0; i < n; i++) {
        cistern__batch_item__init(&items[i]);
        items[i].kind = kind;
        items[i].chunk = i;
        items[i].has_generation = generations != NULL;
        items[i].generation = generations != NULL ? generations[i] : 0;
        pointers[i] = &items[i];
    }
    message.attempt = attempt;
    message.n_items = n;
    message.items = pointers;
    id = raw_ask(client, CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    return raw_expect(client, id, CISTERN__MSG_TYPE__MSG_BATCH_DONE,
                      &cistern__batch_done__descriptor);
}

static void step(struct raw_client *client, uint64_t attempt, uint64_t expected)
{
    Cistern__Step message = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;
    const Cistern__Stepped *stepped;
    uint64_t id;

    hyper.lr = 0.1f;
    hyper.beta1 = 0.9f;
    hyper.beta2 = 0.99f;
    hyper.eps = 1e-8f;
    hyper.grad_scale = 1.0f;
    message.attempt = attempt;
    message.hyper = &hyper;
    id = raw_ask(client, CISTERN__MSG_TYPE__MSG_STEP, &message.base);
    stepped = raw_expect(client, id, CISTERN__MSG_TYPE__MSG_STEPPED, &cistern__stepped__descriptor);
    ck_assert_uint_eq(stepped->step, expected);
}

/* One step by raw frames: fetch, a second fetch that hits, release, gradients, step; and the books
 * of the pool balance throughout. */
START_TEST(a_whole_step)
{
    const Cistern__BatchDone *done;
    const Cistern__Books *books;
    struct raw_client client;
    uint64_t attempt, generation;

    open_committed(&client, 1);
    attempt = sync_attempt(&client);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, 1, NULL);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    generation = done->results[0]->generation;
    books = raw_stat(&witness)->pool;
    ck_assert_uint_gt(books->leased, 0);
    ck_assert_uint_eq(books->capacity, books->free + books->cached + books->leased + books->moving +
                                           books->pending + books->quarantined);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, 1, &generation);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, 1, NULL);
    ck_assert(done->results[0]->hit);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, 1,
                 &done->results[0]->generation);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_GRAD, 1, NULL);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER, 1,
                 &done->results[0]->generation);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    step(&client, attempt, 1);
    ck_assert_str_eq(job_info("j")->state, "training");
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    ck_assert_str_eq(job_info("j")->ranks[0]->state, "left");
    raw_close(&client);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

/* A committed job outlives its worker: who comes back finds its step, is compared with what was
 * declared, and commits at once; but not with another pool. */
START_TEST(a_job_outlives_its_worker)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};

    open_committed(&client, 2);
    step(&client, sync_attempt(&client), 1);
    raw_close(&client);

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert(job.committed && job.initialised && !job.created);
    ck_assert_uint_eq(job.step, 1);
    ck_assert_int_eq(raw_declare_many(&client, 3, 1000), CST_EMISMATCH);
    raw_close(&client);

    job.pool_bytes = 1;
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_EMISMATCH);
    assert_says(&client, "pool of rank 0");
    raw_close(&client);

    job.pool_bytes = 0;
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
    step(&client, sync_attempt(&client), 2);
    raw_close(&client);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}
END_TEST

/* Removing a job with a living worker answers what waits with ECANCELLED, later requests with
 * ENOTFOUND, and returns all its memory before the remover hears OK. */
START_TEST(a_job_is_removed_from_under_its_worker)
{
    struct raw_client first, second;
    const Cistern__StatReply *stat;
    uint64_t id;

    open_declared(&first, 0, 2, 2);
    open_declared(&second, 1, 2, 2);
    id = raw_commit(&first, 2, 2);
    ck_assert_int_eq(raw_status(&second, raw_commit(&second, 2, 2)), CST_OK);
    ck_assert_int_eq(raw_status(&first, id), CST_OK);
    id = raw_ask(&first, CISTERN__MSG_TYPE__MSG_SYNC, NULL); /* waits for the second */
    ck_assert_int_eq(raw_call(&first, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(remove_job("j"), CST_OK);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->host_used, 0);
    ck_assert_uint_eq(stat->pool_used, 0);
    ck_assert_int_eq(raw_status(&first, id), CST_ECANCELLED);
    ck_assert_int_eq(raw_call(&second, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_ENOTFOUND);
    ck_assert_int_eq(remove_job("j"), CST_ENOTFOUND);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* A job that was never committed goes with its last worker. */
START_TEST(a_job_without_commit_goes_with_its_worker)
{
    struct raw_client client;

    open_declared(&client, 0, 2, 3);
    raw_close(&client);
    settle(&witness, &proc, base_fds);
}
END_TEST

/* A job whose time to live is over is removed. */
START_TEST(a_job_has_a_time_to_live)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    struct raw_client client;

    raw_open(&client, proc.socket);
    open.name = (char *)(uintptr_t) "j";
    open.world = 1;
    open.has_ttl_s = 1;
    open.ttl_s = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 1, 10), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&client);
    while (raw_stat(&witness)->n_jobs > 0) {
        (void)usleep(20000); /* the second is what is tested */
    }
    ck_assert(daemon_proc_logged(&proc, "no worker for 1 s"));
}
END_TEST

/* -- deaths --------------------------------------------------------------------------------- */

/* A worker process that is rank 1 of 2 of a committed job; it says so through @ready and then waits
 * for its death. With @heir, a child of its own inherits the connection and outlives it, until
 * @heir is closed. */
static pid_t start_worker(int *ready, int *heir)
{
    int to_parent[2], to_heir[2];
    pid_t pid;
    char byte = 0;

    ck_assert_int_eq(pipe(to_parent), 0);
    ck_assert_int_eq(pipe(to_heir), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct raw_client client;

        (void)close(to_heir[1]);
        open_declared(&client, 1, 2, 2);
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
        if (heir != NULL && fork() == 0) {
            (void)!read(to_heir[0], &byte, 1);
            _exit(0);
        }
        ck_assert_int_eq(write(to_parent[1], &byte, 1), 1);
        for (;;) {
            (void)pause();
        }
    }
    (void)close(to_parent[1]);
    (void)close(to_heir[0]);
    *ready = to_parent[0];
    if (heir != NULL) {
        *heir = to_heir[1];
    } else {
        (void)close(to_heir[1]);
    }
    return pid;
}

/* Rank 0, which waits in Sync, hears EPEERDIED when the process of rank 1 dies; a new rank 1
 * attaches at once, and both go on. */
static void check_death(bool with_heir)
{
    struct raw_client first, second;
    int ready, heir = -1;
    pid_t worker;
    char byte;
    uint64_t id;

    open_declared(&first, 0, 2, 2);
    worker = start_worker(&ready, with_heir ? &heir : NULL);
    ck_assert_int_eq(raw_status(&first, raw_commit(&first, 2, 2)), CST_OK);
    ck_assert_int_eq(read(ready, &byte, 1), 1);
    id = raw_ask(&first, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
    open_declared(&second, 1, 2, 2); /* the rank is free: EBUSY would fail here */
    ck_assert_int_eq(raw_status(&second, raw_commit(&second, 2, 2)), CST_OK);
    (void)raw_ask(&second, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    if (raw_status(&first, id) != CST_OK) { /* whether a waiting Sync ends or goes on is the core's
                                               affair; it must not hang */
        ck_assert_int_eq(first.err.status, CST_EPEERDIED);
        ck_assert_int_eq(raw_call(&first, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_OK);
    }
    ck_assert_int_eq(raw_status(&second, 0), CST_OK);
    if (with_heir) {
        (void)close(heir);
    }
    (void)close(ready);
    raw_close(&first);
    raw_close(&second);
    ck_assert_int_eq(remove_job("j"), CST_OK);
}

START_TEST(a_dead_worker_is_replaced)
{
    check_death(false);
}
END_TEST

/* A child that inherited the connection does not keep the rank. */
START_TEST(a_dead_worker_with_a_living_child_is_replaced)
{
    check_death(true);
}
END_TEST

/* The timeout of a job whose worker stops. */
enum { STOPPED_TIMEOUT_MS = 200 };

static void open_second(struct raw_client *client, const char *name, uint32_t rank, uint32_t world)
{
    struct raw_job job = {
        .name = name, .rank = rank, .world = world, .timeout_ms = STOPPED_TIMEOUT_MS};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, 2, 1000), CST_OK);
}

/* A process that is rank 1 of 2 of job "stops", which stops at its start signal and, when it goes
 * on, syncs once and leaves. */
static pid_t start_stopping(void)
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct raw_client client;

        open_second(&client, "stops", 1, 2);
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
        (void)raise(SIGSTOP);
        (void)sync_attempt(&client);
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
        raw_close(&client);
        _exit(0);
    }
    return pid;
}

/* A worker that is stopped holds up nobody but its own peers, and those no longer than their
 * timeout, which names it; the job stands, and when the worker goes on so do they. */
START_TEST(a_stopped_worker_holds_up_its_peers_alone)
{
    struct raw_client peer, other;
    int status;
    pid_t worker = start_stopping();

    open_second(&peer, "stops", 0, 2);
    ck_assert_int_eq(raw_status(&peer, raw_commit(&peer, 2, 2)), CST_OK);
    ck_assert_int_eq(waitpid(worker, &status, WUNTRACED), worker);
    ck_assert(WIFSTOPPED(status));
    (void)raw_ask(&peer, CISTERN__MSG_TYPE__MSG_SYNC, NULL);

    open_committed(&other, 1);
    step(&other, sync_attempt(&other), 1);
    ck_assert_int_eq(raw_call(&other, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&other);
    ck_assert_int_eq(remove_job("j"), CST_OK);

    ck_assert_int_eq(raw_status(&peer, 0), CST_ETIMEDOUT);
    assert_says(&peer, "rank 1");
    (void)raw_ask(&peer, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    if (raw_status(&peer, 0) != CST_OK) { /* it was long in waking up */
        ck_assert_int_eq(peer.err.status, CST_ETIMEDOUT);
        ck_assert_int_eq(raw_call(&peer, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_OK);
    }
    ck_assert_int_eq(waitpid(worker, &status, 0), worker);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    raw_close(&peer);
    ck_assert_int_eq(remove_job("stops"), CST_OK);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}

int main(void)
{
    Suite *suite = suite_create("jobs");
    TCase *tc;

    tc = add_case(suite, "open");
    tcase_add_test(tc, nonsense_is_not_opened);
    tcase_add_test(tc, an_unknown_device_is_refused);
    tcase_add_test(tc, a_rank_has_one_worker);
    tcase_add_test(tc, a_token_takes_the_rank_over);
    tcase_add_test(tc, ranks_agree_on_the_job);
    tc = add_case(suite, "declare");
    tcase_add_test(tc, bad_tensors_are_refused);
    tcase_add_test(tc, a_job_has_65536_tensors);
    tc = add_case(suite, "commit");
    tcase_add_test(tc, a_pool_too_small_is_refused);
    tcase_add_test(tc, a_job_over_budget_is_refused);
    tcase_add_test(tc, a_commit_without_the_others_times_out);
    tcase_add_test(tc, long_operator_names_differ);
    tcase_add_test(tc, a_commit_can_be_cancelled);
    tcase_add_test(tc, a_worker_leaves_a_job_that_is_populated);
    tcase_add_test(tc, pool_slabs_are_sealed);
    tc = add_case(suite, "life");
    tcase_add_test(tc, a_whole_step);
    tcase_add_test(tc, a_job_outlives_its_worker);
    tcase_add_test(tc, a_job_is_removed_from_under_its_worker);
    tcase_add_test(tc, a_job_without_commit_goes_with_its_worker);
    tcase_add_test(tc, a_job_has_a_time_to_live);
    tc = add_case(suite, "death");
    tcase_add_test(tc, a_dead_worker_is_replaced);
    tcase_add_test(tc, a_dead_worker_with_a_living_child_is_replaced);
    tcase_add_test(tc, a_stopped_worker_holds_up_its_peers_alone);
    return suite_run(suite);
}

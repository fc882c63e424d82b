/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the runs of jobs: a step; workers that return, stop and die; and what is left when a job
 * ends. After every test the daemon has its initial number of descriptors and bytes in use. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- a worker's run ------------------------------------------------------------------------- */

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

/* Ask for a step with factors of parameter groups. Returns the id of the request. */
static uint64_t ask_step(struct raw_client *client, uint64_t attempt, double *lr, size_t n_lr,
                         double *decay, size_t n_decay)
{
    Cistern__Step message = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;

    hyper.lr = 0.1;
    hyper.beta1 = 0.9;
    hyper.beta2 = 0.99;
    hyper.eps = 1e-8;
    hyper.grad_scale = 1;
    hyper.lr_factor = lr;
    hyper.n_lr_factor = n_lr;
    hyper.decay_factor = decay;
    hyper.n_decay_factor = n_decay;
    message.attempt = attempt;
    message.hyper = &hyper;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_STEP, &message.base);
}

static void step(struct raw_client *client, uint64_t attempt, uint64_t expected)
{
    uint64_t id = ask_step(client, attempt, NULL, 0, NULL, 0);
    const Cistern__Stepped *stepped =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_STEPPED, &cistern__stepped__descriptor);

    ck_assert_uint_eq(stepped->step, expected);
}

/* Factors of parameter groups that are too many, of different numbers or out of range are refused,
 * and the step goes on. */
START_TEST(factors_are_checked)
{
    double factors[65] = {0}, bad[] = {-1, NAN, INFINITY};
    struct raw_client client;
    uint64_t attempt;

    job_rig_commit(&client, 1);
    attempt = raw_sync(&client);
    ck_assert_int_eq(raw_status(&client, ask_step(&client, attempt, factors, 65, factors, 65)),
                     CST_EINVAL);
    raw_says(&client, "65 and 65 factors");
    ck_assert_int_eq(raw_status(&client, ask_step(&client, attempt, factors, 2, factors, 1)),
                     CST_EINVAL);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(raw_status(&client, ask_step(&client, attempt, factors, 1, &bad[i], 1)),
                         CST_EINVAL);
        ck_assert_int_eq(raw_status(&client, ask_step(&client, attempt, &bad[i], 1, factors, 1)),
                         CST_EINVAL);
    }
    step(&client, attempt, 1);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* One step in raw messages: fetch, a second fetch that hits, release, gradients, step. The numbers
 * of the pool's blocks always balance. */
START_TEST(a_whole_step)
{
    const Cistern__BatchDone *done;
    const Cistern__Books *books;
    struct raw_client client;
    uint64_t attempt, generation;

    job_rig_commit(&client, 1);
    attempt = raw_sync(&client);
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
    ck_assert_str_eq(raw_job_info(&witness, "j")->state, "training");
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    ck_assert_str_eq(raw_job_info(&witness, "j")->ranks[0]->state, "left");
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* Number of blocks of the pool that are cached now. */
static uint64_t cached_blocks(void)
{
    return raw_job_info(&witness, "j")->ranks[0]->pool->cached;
}

/* EVICT frees the block of weights that are not leased, so that the next fetch copies them again.
 * PREFETCH loads weights, so that it does not. Leased weights stay, and a hint for an unknown chunk
 * is refused without effect. */
START_TEST(hints)
{
    const Cistern__BatchDone *done;
    const Cistern__RankInfo *rank;
    struct raw_client client;
    uint64_t attempt, generation, cached, evictions;
    Cistern__BatchItem unknown = CISTERN__BATCH_ITEM__INIT, *items = &unknown;
    Cistern__Batch message = CISTERN__BATCH__INIT;

    job_rig_commit(&client, 1);
    attempt = raw_sync(&client);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, 1, NULL);
    generation = done->results[0]->generation;
    rank = raw_job_info(&witness, "j")->ranks[0];
    evictions = rank->evictions;
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__EVICT, 1, NULL);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    /* The weights are leased. */
    ck_assert_uint_eq(raw_job_info(&witness, "j")->ranks[0]->evictions, evictions);
    (void)batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, 1, &generation);
    cached = cached_blocks();
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__EVICT, 1, NULL);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    ck_assert_uint_lt(cached_blocks(), cached);
    ck_assert_uint_eq(raw_job_info(&witness, "j")->ranks[0]->evictions, evictions + 1);
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__PREFETCH, 1, NULL);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    while (cached_blocks() < cached) {
    }
    done = batch(&client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, 1, NULL);
    ck_assert(done->results[0]->hit);
    unknown.kind = CISTERN__BATCH_ITEM__KIND__PREFETCH;
    unknown.chunk = 7;
    message.attempt = attempt;
    message.n_items = 1;
    message.items = &items;
    done = raw_expect(&client, raw_ask(&client, CISTERN__MSG_TYPE__MSG_BATCH, &message.base),
                      CISTERN__MSG_TYPE__MSG_BATCH_DONE, &cistern__batch_done__descriptor);
    ck_assert_int_eq(done->results[0]->status, CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(done->results[0]->text, "chunk 7"));
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* A committed job outlives its worker. A returning worker finds the job's step, its declarations
 * are compared, and its commit is answered at once. Another size of the pool is refused. */
START_TEST(a_job_outlives_its_worker)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};

    job_rig_commit(&client, 2);
    step(&client, raw_sync(&client), 1);
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
    raw_says(&client, "rank 0 asks for a pool of 1 bytes");
    ck_assert_int_eq(client.err.reason, CST_REASON_POOL);
    raw_close(&client);

    job.pool_bytes = 0;
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
    step(&client, raw_sync(&client), 2);
    raw_close(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* When a job with a living worker is removed, pending requests get ECANCELLED and later ones
 * ENOTFOUND. All its memory is free before the remover gets OK. */
START_TEST(a_job_is_removed_from_under_its_worker)
{
    struct raw_client first, second;
    const Cistern__StatReply *stat;
    uint64_t id;

    job_rig_declare(&first, 0, 2, 2);
    job_rig_declare(&second, 1, 2, 2);
    id = raw_commit(&first, 2, 2);
    ck_assert_int_eq(raw_status(&second, raw_commit(&second, 2, 2)), CST_OK);
    ck_assert_int_eq(raw_status(&first, id), CST_OK);
    id = raw_ask(&first, CISTERN__MSG_TYPE__MSG_SYNC, NULL); /* waits for the second rank */
    ck_assert_int_eq(raw_call(&first, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->host_used, 0);
    ck_assert_uint_eq(stat->pool_used, 0);
    ck_assert_int_eq(raw_status(&first, id), CST_ECANCELLED);
    ck_assert_int_eq(raw_call(&second, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_ENOTFOUND);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_ENOTFOUND);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* A job that was never committed ends with its last worker. */
START_TEST(a_job_without_commit_goes_with_its_worker)
{
    struct raw_client client;

    job_rig_declare(&client, 0, 2, 3);
    raw_close(&client);
    settle(&witness, &proc, base_fds);
}
END_TEST

/* A job is removed when its ttl is over. */
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
        (void)usleep(20000); /* the ttl of a second is what is tested */
    }
    ck_assert(daemon_proc_logged(&proc, "no worker for 1 s"));
}
END_TEST

/* -- deaths --------------------------------------------------------------------------------- */

/* Start a worker process as rank 1 of 2 of a committed job. It reports through @ready and waits for
 * its death. With @heir, a child of the process inherits the connection and outlives it, until
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
        job_rig_declare(&client, 1, 2, 2);
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

/* Rank 0, which waits in Sync, gets EPEERDIED when the process of rank 1 dies. A new rank 1
 * attaches at once, and both go on. */
static void check_death(bool with_heir)
{
    struct raw_client first, second;
    int ready, heir = -1;
    pid_t worker;
    char byte;
    uint64_t id;

    job_rig_declare(&first, 0, 2, 2);
    worker = start_worker(&ready, with_heir ? &heir : NULL);
    ck_assert_int_eq(raw_status(&first, raw_commit(&first, 2, 2)), CST_OK);
    ck_assert_int_eq(read(ready, &byte, 1), 1);
    id = raw_ask(&first, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
    job_rig_declare(&second, 1, 2, 2); /* the rank is free: otherwise EBUSY would fail here */
    ck_assert_int_eq(raw_status(&second, raw_commit(&second, 2, 2)), CST_OK);
    (void)raw_ask(&second, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    /* Whether a waiting Sync ends or goes on is the core's decision; it must not hang. */
    if (raw_status(&first, id) != CST_OK) {
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
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
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

/* The timeout of the job whose worker stops. */
enum { STOPPED_TIMEOUT_MS = 200 };

static void open_second(struct raw_client *client, const char *name, uint32_t rank, uint32_t world)
{
    struct raw_job job = {
        .name = name, .rank = rank, .world = world, .timeout_ms = STOPPED_TIMEOUT_MS};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, 2, 1000), CST_OK);
}

/* Start a process as rank 1 of 2 of job "stops". It stops at a signal; when it continues, it syncs
 * once and leaves. */
static pid_t start_stopping(void)
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct raw_client client;

        open_second(&client, "stops", 1, 2);
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 2, 2)), CST_OK);
        (void)raise(SIGSTOP);
        (void)raw_sync(&client);
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
        raw_close(&client);
        _exit(0);
    }
    return pid;
}

/* A stopped worker delays only the other ranks of its job, and those no longer than their timeout,
 * which names it. The job stays, and when the worker continues, so do they. */
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

    job_rig_commit(&other, 1);
    step(&other, raw_sync(&other), 1);
    ck_assert_int_eq(raw_call(&other, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&other);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);

    ck_assert_int_eq(raw_status(&peer, 0), CST_ETIMEDOUT);
    raw_says(&peer, "rank 1");
    (void)raw_ask(&peer, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    if (raw_status(&peer, 0) != CST_OK) { /* the worker woke up late */
        ck_assert_int_eq(peer.err.status, CST_ETIMEDOUT);
        ck_assert_int_eq(raw_call(&peer, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_OK);
    }
    ck_assert_int_eq(waitpid(worker, &status, 0), worker);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    raw_close(&peer);
    ck_assert_int_eq(raw_job_remove(&witness, "stops"), CST_OK);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

int main(void)
{
    Suite *suite = suite_create("life");
    TCase *tc;

    tc = suite_case(suite, "life", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, a_whole_step);
    tcase_add_test(tc, factors_are_checked);
    tcase_add_test(tc, hints);
    tcase_add_test(tc, a_job_outlives_its_worker);
    tcase_add_test(tc, a_job_is_removed_from_under_its_worker);
    tcase_add_test(tc, a_job_without_commit_goes_with_its_worker);
    tcase_add_test(tc, a_job_has_a_time_to_live);
    tc = suite_case(suite, "death", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, a_dead_worker_is_replaced);
    tcase_add_test(tc, a_dead_worker_with_a_living_child_is_replaced);
    tcase_add_test(tc, a_stopped_worker_holds_up_its_peers_alone);
    return suite_run(suite);
}

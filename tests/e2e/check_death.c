/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker that dies at every message of its run: it kills itself before the reply to
 * message k. Then its rank is free, a successor does a whole run in its place, and nothing is left
 * behind. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- a worker's run ------------------------------------------------------------------------- */

struct worker {
    struct raw_client client;
    uint64_t attempt;
    uint64_t generation; /* generation of the last lease */
};

static void ask_open(struct worker *w)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open.name = (char *)(uintptr_t) "mortal";
    open.world = 1;
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base);
}

static void ask_declare(struct worker *w)
{
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors = &tensor;
    Cistern__OperatorDecl op = CISTERN__OPERATOR_DECL__INIT, *ops = &op;
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    int64_t shape[] = {100, 70};
    uint32_t number = 0;

    tensor.name = (char *)(uintptr_t) "t";
    tensor.dtype = 1;
    tensor.n_shape = 2;
    tensor.shape = shape;
    op.name = (char *)(uintptr_t) "o";
    op.n_tensors = 1;
    op.tensors = &number;
    declare.n_tensors = declare.n_operators = 1;
    declare.tensors = &tensors;
    declare.operators = &ops;
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

static void ask_commit(struct worker *w)
{
    (void)raw_commit(&w->client, 1, 1);
}

static void ask_layout(struct worker *w)
{
    Cistern__LayoutGet get = CISTERN__LAYOUT_GET__INIT;

    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_LAYOUT, &get.base);
}

static void ask_pool(struct worker *w)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;

    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_POOL, &get.base);
}

static void ask_staging(struct worker *w)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;

    get.bytes = 65536;
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base);
}

static void ask_io(struct worker *w, uint16_t type, Cistern__TensorIo__Row row)
{
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;

    io.row = row;
    io.n_elems = 7000;
    (void)raw_ask(&w->client, type, &io.base);
}

static void ask_write(struct worker *w)
{
    ask_io(w, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, CISTERN__TENSOR_IO__ROW__MASTER);
}

static void ask_read(struct worker *w)
{
    ask_io(w, CISTERN__MSG_TYPE__MSG_TENSOR_READ, CISTERN__TENSOR_IO__ROW__EXP_AVG);
}

static void ask_sync(struct worker *w)
{
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
}

static void ask_item(struct worker *w, Cistern__BatchItem__Kind kind)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch batch = CISTERN__BATCH__INIT;

    item.kind = kind;
    item.has_generation = 1;
    item.generation = w->generation;
    batch.attempt = w->attempt;
    batch.n_items = 1;
    batch.items = &items;
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base);
}

static void ask_fetch(struct worker *w)
{
    ask_item(w, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT);
}

static void ask_release(struct worker *w)
{
    ask_item(w, CISTERN__BATCH_ITEM__KIND__RELEASE);
}

static void ask_fetch_grad(struct worker *w)
{
    ask_item(w, CISTERN__BATCH_ITEM__KIND__FETCH_GRAD);
}

static void ask_hand_in(struct worker *w)
{
    ask_item(w, CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER);
}

static void ask_step(struct worker *w)
{
    Cistern__Step step = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;

    hyper.lr = 0.1f;
    hyper.grad_scale = 1.0f;
    hyper.eps = 1e-8f;
    step.attempt = w->attempt;
    step.hyper = &hyper;
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_STEP, &step.base);
}

static void ask_leave(struct worker *w)
{
    (void)raw_ask(&w->client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL);
}

/* The messages of a worker in order. They include a second step, so that a worker dies after an
 * update. */
static const struct {
    void (*ask)(struct worker *w);
    uint16_t reply;
} life[] = {
    {ask_open, CISTERN__MSG_TYPE__MSG_JOB_OPENED},
    {ask_declare, CISTERN__MSG_TYPE__MSG_OK},
    {ask_commit, CISTERN__MSG_TYPE__MSG_COMMITTED},
    {ask_layout, CISTERN__MSG_TYPE__MSG_LAYOUT_PART},
    {ask_pool, CISTERN__MSG_TYPE__MSG_POOL_PART},
    {ask_staging, CISTERN__MSG_TYPE__MSG_STAGING_PART},
    {ask_write, CISTERN__MSG_TYPE__MSG_OK},
    {ask_sync, CISTERN__MSG_TYPE__MSG_SYNCED},
    {ask_fetch, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_release, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_fetch, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_fetch_grad, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_hand_in, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_step, CISTERN__MSG_TYPE__MSG_STEPPED},
    {ask_fetch, CISTERN__MSG_TYPE__MSG_BATCH_DONE},
    {ask_read, CISTERN__MSG_TYPE__MSG_OK},
    {ask_step, CISTERN__MSG_TYPE__MSG_STEPPED},
    {ask_leave, CISTERN__MSG_TYPE__MSG_OK},
};

enum { N_LIFE = sizeof life / sizeof *life, WRITE = 6 };

static void take_reply(struct worker *w, unsigned i)
{
    raw_expect(&w->client, 0, life[i].reply, NULL);
    if (life[i].reply == CISTERN__MSG_TYPE__MSG_SYNCED) {
        Cistern__Synced *synced =
            cistern__synced__unpack(NULL, w->client.reply.body_bytes, w->client.reply.body);

        w->attempt = synced->attempt;
        cistern__synced__free_unpacked(synced, NULL);
    }
    if (life[i].reply == CISTERN__MSG_TYPE__MSG_BATCH_DONE) {
        Cistern__BatchDone *done =
            cistern__batch_done__unpack(NULL, w->client.reply.body_bytes, w->client.reply.body);

        ck_assert_msg(done->results[0]->status == CST_OK, "message %u: %s", i,
                      done->results[0]->text);
        if (done->results[0]->has_generation) {
            w->generation = done->results[0]->generation;
        }
        cistern__batch_done__free_unpacked(done, NULL);
    }
    cst_frame_close_fds(&w->client.reply);
}

/* Run up to the end of message @last - 1. */
static void live(struct worker *w, unsigned last)
{
    raw_open(&w->client, proc.socket);
    for (unsigned i = 0; i < last; i++) {
        life[i].ask(w);
        take_reply(w, i);
    }
}

/* -- set-up and tear-down --------------------------------------------------------------------- */

static void teardown(void)
{
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

/* -- deaths --------------------------------------------------------------------------------- */

/* A process that dies after it has sent message @last. */
static void die_at(unsigned last)
{
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct worker w = {.attempt = 0};

        live(&w, last);
        life[last].ask(&w);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
                  "the worker did not get as far as message %u", last);
}

/* Whichever message was the last one, the numbers of blocks balance, and a successor does a whole
 * run as that rank. */
START_TEST(a_successor_lives_on)
{
    struct worker w = {.attempt = 0};

    die_at((unsigned)_i);
    settle_balanced(&witness);
    raw_open(&w.client, proc.socket);
    for (unsigned i = 0; i < N_LIFE; i++) {
        if (i == WRITE && _i > WRITE) {
            /* The weights exist since the dead worker's Sync, and a write during a step is
             * refused. */
            continue;
        }
        life[i].ask(&w);
        take_reply(&w, i);
    }
    settle_balanced(&witness);
    raw_close(&w.client);
    ck_assert_int_eq(raw_job_remove(&witness, "mortal"), CST_OK);
    settle(&witness, &proc, base_fds);
}
END_TEST

/* Removing the job of a worker that has just died frees everything. */
START_TEST(the_job_can_be_removed)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;

    die_at((unsigned)_i);
    name.name = (char *)(uintptr_t) "mortal";
    if (raw_call(&witness, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base) != CST_OK) {
        ck_assert_int_eq(witness.err.status,
                         CST_ENOTFOUND); /* the job was never committed and went with its worker */
        ck_assert_int_le(_i, 2);
    }
    settle(&witness, &proc, base_fds);
}
END_TEST

/* A client that has asked for a job's removal may disconnect before it is done. The engine is
 * stopped meanwhile, so that the removal takes time. */
START_TEST(the_remover_may_go)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct worker w = {.attempt = 0};
    struct raw_client remover;
    pid_t engine = raw_stat(&witness)->engines[0]->pid;

    live(&w, 5);
    raw_open(&remover, proc.socket);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    name.name = (char *)(uintptr_t) "mortal";
    (void)raw_ask(&remover, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base);
    ck_assert_int_eq(raw_call(&remover, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&remover);
    raw_close(&w.client);
    while (raw_stat(&witness)->n_sessions > 1) {
    }
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    while (raw_stat(&witness)->host_used > 0) {
    }
    settle(&witness, &proc, base_fds);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("death");
    TCase *tc = suite_case(suite, "death", job_rig_setup, teardown);

    tcase_add_loop_test(tc, a_successor_lives_on, 0, N_LIFE);
    tcase_add_loop_test(tc, the_job_can_be_removed, 0, N_LIFE);
    tcase_add_test(tc, the_remover_may_go);
    return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training with a real daemon and engine. The results must have the bits of a computation
 * in this process: for every world, every pool, every form of the calls, and whichever process
 * dies. After every test the daemon has its initial number of descriptors and bytes in use. */
#include "tests/lib/patience.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct daemon_proc proc;
/* A manager's client that reads the daemon's statistics and removes jobs. */
static struct raw_client witness;
static unsigned base_fds;
static struct train_report *reports[TRAIN_MAX_WORLD];
static bool grad_over;           /* the gradient's sum takes the place of the weights */
static enum cst_overlap overlap; /* when the jobs' updates are made */

static void setup(void)
{
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

static void setup_over(void)
{
    grad_over = true;
    setup();
}

static void setup_early(void)
{
    overlap = CST_OVERLAP_EARLY;
    setup();
}

static void setup_delayed(void)
{
    overlap = CST_OVERLAP_DELAYED;
    setup();
}

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, base_fds);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
}

static struct train_order order_of(const char *name, uint32_t rank, uint32_t world,
                                   uint64_t n_steps)
{
    return (struct train_order){
        .socket = proc.socket,
        .name = name,
        .rank = rank,
        .world = world,
        .n_steps = n_steps,
        .overlap = {.when = overlap,
                    .delay_from = overlap == CST_OVERLAP_DELAYED && n_steps > 2 ? 1 : 0},
        .grad_over = grad_over,
        .bad = {.step = TRAIN_NEVER},
        .die_at = UINT32_MAX,
        .kill_at = UINT32_MAX};
}

/* Run a job with the order @like for all ranks, from step @from to its end, and check the
 * reports. */
static void run_from(const struct train_order *like, uint64_t from)
{
    pid_t pids[TRAIN_MAX_WORLD];

    for (uint32_t r = 0; r < like->world; r++) {
        struct train_order order = *like;

        order.rank = r;
        memset(reports[r], 0, sizeof *reports[r]);
        pids[r] = train_worker_start(&order, reports[r]);
    }
    for (uint32_t r = 0; r < like->world; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check(reports, like->world, from, like->n_steps, like->bad);
}

static void run_job(const struct train_order *like)
{
    run_from(like, 0);
}

/* 1, 2 and 4 ranks have the expected results, with the largest and the smallest pool. */
START_TEST(test_worlds_and_pools)
{
    static const uint32_t worlds[] = {1, 2, 4};
    struct train_order order = order_of("big", 0, worlds[_i], 4);

    run_job(&order);
    ck_assert_uint_gt(reports[0]->plan.n_blocks, reports[0]->plan.min_blocks);
    order.name = "smallest";
    order.pool_bytes = reports[0]->plan.min_blocks * reports[0]->plan.block_bytes;
    run_job(&order);
    ck_assert_uint_eq(reports[0]->plan.n_blocks, reports[0]->plan.min_blocks);
}
END_TEST

/* A pool that is a byte too small is refused with the missing bytes. */
START_TEST(test_pool_too_small)
{
    struct train_order order = order_of("probe", 0, 1, 1);
    struct cst_job_spec spec = {
        .name = "small", .world = 1, .planning.chunk_elems = TRAIN_CHUNK_ELEMS};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};

    run_job(&order);
    spec.memory.pool_bytes = reports[0]->plan.min_blocks * reports[0]->plan.block_bytes - 1;
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    ck_assert_int_eq(train_declare(&train_small, job, 1), CST_OK);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_EPOOL);
    ck_assert_msg(strstr(err.text, ": 1 bytes short") != NULL, "%s", err.text);
    cst_disconnect(client);
}
END_TEST

/* Steps with several micro-batches have the expected results. */
START_TEST(test_micro_batches)
{
    struct train_order order = order_of("micro", 0, 2, 4);

    order.micro_batches = 3;
    run_job(&order);
}
END_TEST

/* The forms that do not wait have the expected results. */
START_TEST(test_try_forms)
{
    struct train_order order = order_of("try", 0, 2, 3);

    order.try_forms = true;
    order.pool_bytes = 6ull * 2 * TRAIN_CHUNK_ELEMS;
    run_job(&order);
}
END_TEST

/* A worker that forks in every operator continues its training, and its children find unusable
 * handles. */
START_TEST(test_forks)
{
    struct train_order order = order_of("forks", 0, 2, 2);

    order.forks = true;
    run_job(&order);
}
END_TEST

/* A step with an infinite, NaN or huge gradient is skipped and counted. The states do not change by
 * a bit, and training goes on. */
START_TEST(test_bad_gradient)
{
    static const uint16_t values[] = {0x7f80, 0xff80, 0x7fc0,
                                      0xffc1, 0x7f81, 0x7e96}; /* infinities, NaNs, 1e38 */
    struct train_order order = order_of("until", 0, 2, 1);
    struct train_states *before = malloc(sizeof *before);

    ck_assert_ptr_nonnull(before);
    run_job(&order);
    *before = reports[0]->run.states;
    order.name = "skipped"; /* the skipped step is the last one */
    order.n_steps = 2;
    order.bad = (struct train_bad){.step = 1, .value = values[_i]};
    run_job(&order);
    ck_assert(reports[0]->run.results[1].skipped && reports[1]->run.results[1].skipped);
    ck_assert_mem_eq(before, &reports[0]->run.states, sizeof *before);
    order.name = "on";
    order.n_steps = 4;
    run_job(&order);
    ck_assert(!reports[1]->run.results[2].skipped);
    ck_assert_uint_eq(reports[0]->run.results[3].n_skipped, 1);
    free(before);
}
END_TEST

/* In a step that was prepared and does not clip, such a gradient only spares its tile. */
START_TEST(test_bad_tile)
{
    static const uint16_t values[] = {0x7f80, 0x7fc0, 0x7e96}; /* infinity, NaN, 1e38 */
    struct train_order order = order_of("bad", 0, 2, 4);

    order.bad = (struct train_bad){.step = 1, .value = values[_i]};
    run_job(&order);
    ck_assert(!reports[0]->run.results[1].skipped);
    ck_assert(reports[0]->run.results[1].overflow && !reports[0]->run.results[2].overflow);
    ck_assert(!(reports[0]->run.results[1].grad_norm < 1e37));
    ck_assert_uint_eq(raw_job_info(&witness, "bad")->n_overflows, 1);
    ck_assert_uint_eq(raw_job_info(&witness, "bad")->n_skipped, 0);
}
END_TEST

/* Workers leave after two steps. Others continue at the job's step without writing states. */
START_TEST(test_come_back)
{
    struct train_order order = order_of("back", 0, 2, 2);

    run_job(&order);
    order.n_steps = 5;
    run_from(&order, 2);
}
END_TEST

/* One of two ranks is killed at every point of its run, and a new process takes its place. The
 * final states are those of an undisturbed run. _i: the rank that dies. */
START_TEST(test_killed_anywhere)
{
    struct train_order orders[2] = {order_of("dry", 0, 2, 2), order_of("dry", 1, 2, 2)};
    uint32_t victim = (uint32_t)_i, n_points, n_redone = 0;
    const Cistern__JobInfo *info;
    uint64_t n_dropped = 0; /* gradients of chunks that were already updated */
    pid_t pids[2];

    run_job(&orders[0]);
    n_points = reports[victim]->n_points;
    ck_assert_uint_gt(n_points, 2 * 2 * (unsigned)train_small.n_operators);
    for (uint32_t point = suite_first(5); point < n_points; point += suite_stride(5)) {
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        for (uint32_t r = 0; r < 2; r++) {
            orders[r].name = name;
            orders[r].die_at = r == victim ? point : UINT32_MAX;
            orders[r].pool_bytes = point % 2 == 0 ? 0 : 6ull * 2 * TRAIN_CHUNK_ELEMS;
            memset(reports[r], 0, sizeof *reports[r]);
            pids[r] = train_worker_start(&orders[r], reports[r]);
        }
        ck_assert_msg(train_worker_join_dying(pids[victim], reports[victim]), "point %u", point);
        orders[victim].die_at = UINT32_MAX;
        pids[victim] = train_worker_start(&orders[victim], reports[victim]);
        train_worker_join(pids[victim], reports[victim]);
        train_worker_join(pids[1 - victim], reports[1 - victim]);
        n_redone += reports[1 - victim]->n_syncs;
        train_check_states(reports, 2, 2, (struct train_bad){.step = TRAIN_NEVER});
        info = raw_job_info(&witness, name);
        ck_assert(info->has_chunks_ahead == (overlap == CST_OVERLAP_EARLY));
        ck_assert_uint_eq(info->chunks_ahead, 0);
        n_dropped += info->grads_dropped;
        settle_remove_jobs(&witness);
    }
    ck_assert_uint_gt(n_redone, n_points / 2 / suite_stride(5));
    ck_assert(n_dropped == 0 || overlap == CST_OVERLAP_EARLY);
    ck_assert(n_dropped > 0 || overlap != CST_OVERLAP_EARLY || suite_stride(5) > 1);
}
END_TEST

/* The engine is killed at every point of a worker's run: in the copies for an operator, in the sums
 * of gradients just handed in, in the updates just committed. Another one takes over, no step is
 * interrupted, and the bits are those of an undisturbed run. */
START_TEST(test_engine_killed_anywhere)
{
    struct train_order order = order_of("dry", 0, 2, 2);
    uint64_t n_kills = 0;
    uint32_t n_points;

    run_job(&order);
    n_points = reports[0]->n_points;
    for (uint32_t point = suite_first(5); point < n_points; point += suite_stride(5)) {
        struct train_order orders[2];
        pid_t pids[2];
        char name[32];

        (void)snprintf(name, sizeof name, "engine-%u", point);
        for (uint32_t r = 0; r < 2; r++) {
            orders[r] = order_of(name, r, 2, 2);
            orders[r].pool_bytes = point % 2 == 0 ? 0 : 6ull * 2 * TRAIN_CHUNK_ELEMS;
            memset(reports[r], 0, sizeof *reports[r]);
        }
        orders[0].kill_at = point;
        orders[0].victim = raw_stat(&witness)->engines[0]->pid;
        ck_assert_int_gt(orders[0].victim, 0);
        for (uint32_t r = 0; r < 2; r++) {
            pids[r] = train_worker_start(&orders[r], reports[r]);
        }
        for (uint32_t r = 0; r < 2; r++) {
            train_worker_join(pids[r], reports[r]);
            ck_assert_uint_eq(reports[r]->n_syncs, 0);
        }
        train_check_states(reports, 2, 2, (struct train_bad){.step = TRAIN_NEVER});
        settle_remove_jobs(&witness);
        ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, ++n_kills);
    }
}
END_TEST

/* -- one process, both ranks: calls that must fail --------------------------------------------- */

struct pair {
    struct cst_client *client[2];
    struct cst_job *job[2];
};

static void declare_pair(struct pair *pair, const char *name)
{
    struct cst_err err = {0};

    for (uint32_t r = 0; r < 2; r++) {
        struct cst_job_spec spec = {.name = name,
                                    .rank = r,
                                    .world = 2,
                                    .planning.chunk_elems = TRAIN_CHUNK_ELEMS,
                                    .limits.timeout_ms = (uint32_t)patience_ms(20000)};

        ck_assert_int_eq(cst_connect(&pair->client[r], proc.socket, &err), CST_OK);
        ck_assert_int_eq(cst_job_open(&pair->job[r], pair->client[r], &spec, &err), CST_OK);
    }
}

/* Call @call for both ranks until both have a result. */
static void drive_pair(struct pair *pair, int (*call)(struct cst_job *, void *, struct cst_err *),
                       void *args[2], int rc[2], struct cst_err err[2])
{
    rc[0] = rc[1] = CST_EAGAIN;
    while (rc[0] == CST_EAGAIN || rc[1] == CST_EAGAIN) {
        for (int r = 0; r < 2; r++) {
            if (rc[r] == CST_EAGAIN) {
                rc[r] = call(pair->job[r], args[r], &err[r]);
            }
        }
    }
}

static int call_commit(struct cst_job *job, void *arg, struct cst_err *err)
{
    (void)arg;
    return cst_try_commit(job, NULL, err);
}

static int call_sync(struct cst_job *job, void *arg, struct cst_err *err)
{
    return cst_try_sync(job, arg, err);
}

static int call_step(struct cst_job *job, void *arg, struct cst_err *err)
{
    return cst_try_step(job, arg, NULL, err);
}

/* Parameters that differ between ranks fail the step for both. After a sync the step can be done
 * with equal ones. */
START_TEST(test_params_differ)
{
    struct cst_hyper_params params[2] = {{.lr = 0.5f}, {.lr = 0.25f}};
    void *args[2] = {&params[0], &params[1]}, *none[2] = {NULL, NULL};
    struct cst_param_group group = {.lr = 0.5, .weight_decay = 1};
    struct cst_err err[2] = {{0}, {0}};
    struct pair pair;
    uint64_t step;
    int rc[2];

    declare_pair(&pair, "params");
    ck_assert_int_eq(train_declare(&train_small, pair.job[0], 2), CST_OK);
    ck_assert_int_eq(train_declare(&train_small, pair.job[1], 2), CST_OK);
    drive_pair(&pair, call_commit, none, rc, err);
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s / %s", err[0].text, err[1].text);
    drive_pair(&pair, call_sync, none, rc, err);
    ck_assert(rc[0] == CST_OK && rc[1] == CST_OK);
    drive_pair(&pair, call_step, args, rc, err);
    ck_assert_msg(rc[0] == CST_EMISMATCH && rc[1] == CST_EMISMATCH, "%d %d", rc[0], rc[1]);
    params[1] = params[0];
    args[0] = args[1] = &step;
    drive_pair(&pair, call_sync, args, rc, err);
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s / %s", err[0].text, err[1].text);
    ck_assert_uint_eq(step, 0);
    /* Factors of parameter groups differ, too. */
    ck_assert_int_eq(cst_param_groups(pair.job[1], &group, 1, NULL), CST_OK);
    args[0] = &params[0];
    args[1] = &params[1];
    drive_pair(&pair, call_step, args, rc, err);
    ck_assert_msg(rc[0] == CST_EMISMATCH && rc[1] == CST_EMISMATCH, "%d %d", rc[0], rc[1]);
    ck_assert_ptr_nonnull(strstr(err[0].text, "the factors of parameter groups"));
    ck_assert_int_eq(cst_param_groups(pair.job[1], NULL, 0, NULL), CST_OK);
    group.lr = -1;
    ck_assert_int_eq(cst_param_groups(pair.job[1], &group, 1, NULL), CST_EINVAL);
    ck_assert_int_eq(cst_param_groups(pair.job[1], &group, 65, NULL), CST_EINVAL);
    args[0] = args[1] = &step;
    drive_pair(&pair, call_sync, args, rc, err);
    ck_assert_uint_eq(step, 0);
    args[0] = &params[0];
    args[1] = &params[1];
    drive_pair(&pair, call_step, args, rc, err);
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s / %s", err[0].text, err[1].text);
    cst_disconnect(pair.client[0]);
    cst_disconnect(pair.client[1]);
}
END_TEST

static void declare_gain(struct cst_job *job, int64_t n)
{
    int zero = 0;

    ck_assert_int_eq(cst_tensor(job, "gain", CST_BF16, 1, &n, CST_GROUP_ALL), 0);
    ck_assert_int_eq(cst_operator(job, "norm", &zero, 1), 0);
}

/* A tensor that the ranks declare differently is named to both of them, with both values, and
 * neither waits any longer. A worker that replaces one of them can agree with the other, which only
 * commits again. _i: which one is replaced. */
START_TEST(test_declarations_differ)
{
    struct cst_job_spec spec = {.name = "differ",
                                .rank = (uint32_t)_i,
                                .world = 2,
                                .planning.chunk_elems = TRAIN_CHUNK_ELEMS};
    struct cst_err err[2] = {{0}, {0}};
    void *none[2] = {NULL, NULL};
    struct pair pair;
    int rc[2];

    declare_pair(&pair, "differ");
    declare_gain(pair.job[0], 100);
    declare_gain(pair.job[1], 200);
    drive_pair(&pair, call_commit, none, rc, err);
    ck_assert_int_eq(rc[0], CST_EMISMATCH);
    ck_assert_int_eq(rc[1], CST_EMISMATCH);
    ck_assert_str_eq(err[0].text, err[1].text);
    ck_assert_msg(strstr(err[0].text, "'gain'") != NULL && strstr(err[0].text, "100 in rank 0") &&
                      strstr(err[0].text, "200 in rank 1"),
                  "%s", err[0].text);
    cst_disconnect(pair.client[_i]);
    ck_assert_int_eq(cst_connect(&pair.client[_i], proc.socket, &err[0]), CST_OK);
    ck_assert_msg(cst_job_open(&pair.job[_i], pair.client[_i], &spec, &err[0]) == CST_OK, "%s",
                  err[0].text);
    declare_gain(pair.job[_i], _i == 0 ? 200 : 100);
    drive_pair(&pair, call_commit, none, rc, err);
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s / %s", err[0].text, err[1].text);
    cst_disconnect(pair.client[0]);
    cst_disconnect(pair.client[1]);
}
END_TEST

/* A rank loses its connection while its last step closes (the engine is stopped, so that this takes
 * time) and returns at once. It is told that the step is committed, although the other rank has
 * left: it need not wait. */
START_TEST(test_lost_in_the_last_step)
{
    struct cst_job_spec spec = {.name = "last",
                                .rank = 1,
                                .world = 2,
                                .planning.chunk_elems = TRAIN_CHUNK_ELEMS,
                                .limits.timeout_ms = (uint32_t)patience_ms(20000)};
    struct cst_hyper_params params = {.lr = 0.5f};
    struct cst_err err[2] = {{0}, {0}};
    void *none[2] = {NULL, NULL};
    struct pair pair;
    pid_t engine;
    int rc[2];

    engine = raw_stat(&witness)->engines[0]->pid;
    declare_pair(&pair, "last");
    declare_gain(pair.job[0], 100);
    declare_gain(pair.job[1], 100);
    drive_pair(&pair, call_commit, none, rc, err);
    drive_pair(&pair, call_sync, none, rc, err);
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s / %s", err[0].text, err[1].text);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(cst_try_step(pair.job[r], &params, NULL, &err[r]), CST_EAGAIN);
        (void)raw_stat(&witness); /* the daemon has read the request by now */
    }
    cst_disconnect(pair.client[1]);
    ck_assert_int_eq(cst_connect(&pair.client[1], proc.socket, &err[1]), CST_OK);
    ck_assert_int_eq(cst_job_open(&pair.job[1], pair.client[1], &spec, &err[1]), CST_OK);
    declare_gain(pair.job[1], 100);
    ck_assert_uint_eq(cst_job_steps(pair.job[1]), 0);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(cst_try_commit(pair.job[1], NULL, &err[1]), CST_EAGAIN);
        (void)raw_stat(&witness);
    }
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    ck_assert_msg(cst_step(pair.job[0], &params, NULL, &err[0]) == CST_OK, "%s", err[0].text);
    ck_assert_int_eq(cst_job_leave(pair.job[0], &err[0]), CST_OK);
    ck_assert_msg(cst_commit(pair.job[1], NULL, &err[1]) == CST_OK, "%s", err[1].text);
    ck_assert_uint_eq(cst_job_steps(pair.job[1]), 1);
    ck_assert(cst_job_initialised(pair.job[1]));
    cst_disconnect(pair.client[0]);
    cst_disconnect(pair.client[1]);
}
END_TEST

/* A rank with a living worker is not given to a second one. */
START_TEST(test_rank_taken)
{
    struct cst_job_spec spec = {.name = "taken", .rank = 0, .world = 2};
    struct cst_err err = {0};
    struct cst_client *client;
    struct cst_job *job;
    struct pair pair;
    char pid[32];

    declare_pair(&pair, "taken");
    spec.planning.chunk_elems = TRAIN_CHUNK_ELEMS;
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_EBUSY);
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    ck_assert_msg(strstr(err.text, pid) != NULL, "%s", err.text);
    cst_disconnect(client);
    cst_disconnect(pair.client[0]);
    cst_disconnect(pair.client[1]);
}
END_TEST

/* Between sync and step, states can be read but not written. */
START_TEST(test_write_in_step)
{
    struct cst_job_spec spec = {
        .name = "write", .world = 1, .planning.chunk_elems = TRAIN_CHUNK_ELEMS};
    struct cst_err err = {0};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_io io[TRAIN_MAX_IO];
    float value = 2.0f, got = 0;

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    ck_assert_int_eq(train_declare(&train_small, job, 1), CST_OK);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_tensor_write(job, 4, CST_STATE_MASTER, 0, 1, &value, &err), CST_OK);
    ck_assert_int_eq(cst_sync(job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_op_begin(job, 3, CST_FORWARD, io, 2, &err), CST_OK);
    ck_assert_uint_eq(*(const uint16_t *)io[1].weight, 0x4000);
    ck_assert_int_eq(cst_tensor_write(job, 4, CST_STATE_MASTER, 0, 1, &got, &err), CST_EBUSY);
    ck_assert_int_eq(cst_tensor_read(job, 4, CST_STATE_MASTER, 0, 1, &got, &err), CST_OK);
    ck_assert_float_eq(got, value);
    ck_assert_int_eq(cst_tensor_write(job, 4, CST_STATE_GRAD, 0, 1, &got, &err), CST_EINVAL);
    ck_assert_int_eq(cst_op_end(job, 3, &err), CST_OK);
    cst_disconnect(client);
}
END_TEST

static void add_overlapped(TCase *tcase)
{
    tcase_set_timeout(tcase, 60);
    suite_add_loop(tcase, test_worlds_and_pools, 0, 3);
    tcase_add_test(tcase, test_micro_batches);
    tcase_add_test(tcase, test_come_back);
    suite_add_loop(tcase, test_killed_anywhere, 0, 2);
    tcase_add_test(tcase, test_engine_killed_anywhere);
}

int main(void)
{
    Suite *suite = suite_create("train");
    TCase *bits = suite_case(suite, "bits", setup, teardown);
    TCase *faults = suite_case(suite, "faults", setup, teardown);
    TCase *over = suite_case(suite, "over", setup_over, teardown);
    TCase *early = suite_case(suite, "early", setup_early, teardown);
    TCase *delayed = suite_case(suite, "delayed", setup_delayed, teardown);

    suite_add_loop(bits, test_worlds_and_pools, 0, 3);
    tcase_add_test(bits, test_micro_batches);
    tcase_add_test(bits, test_try_forms);
    tcase_add_test(bits, test_forks);
    suite_add_loop(bits, test_bad_gradient, 0, 6);
    tcase_add_test(bits, test_come_back);
    suite_add_loop(bits, test_killed_anywhere, 0, 2);
    tcase_add_test(bits, test_engine_killed_anywhere);
    suite_add_loop(over, test_worlds_and_pools, 0, 3);
    suite_add_loop(over, test_bad_gradient, 0, 6);
    tcase_add_test(over, test_come_back);
    suite_add_loop(over, test_killed_anywhere, 0, 2);
    tcase_add_test(over, test_engine_killed_anywhere);
    add_overlapped(early);
    suite_add_loop(early, test_bad_tile, 0, 3);
    add_overlapped(delayed);
    suite_add_loop(delayed, test_bad_gradient, 0, 6);
    tcase_add_test(faults, test_pool_too_small);
    tcase_add_test(faults, test_params_differ);
    suite_add_loop(faults, test_declarations_differ, 0, 2);
    tcase_add_test(faults, test_lost_in_the_last_step);
    tcase_add_test(faults, test_rank_taken);
    tcase_add_test(faults, test_write_in_step);
    return suite_run(suite);
}

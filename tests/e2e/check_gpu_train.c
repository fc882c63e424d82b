/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training with ranks on GPUs and a real daemon. The results must have the bits of a
 * computation in this process, wherever the ranks are and whichever process dies. The GPUs are
 * those of tests/lib/engine_stub: their memory is memfds, and their engines are processes that
 * execute the commands of a GPU's engine. */
#include "tests/lib/child.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_cases.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STUB "./tests/lib/engine_stub"

static void open_daemon(const char *config)
{
    /* Unless the environment names another program. */
    (void)setenv("CISTERN_ENGINE_CUDA", STUB, 0);
    (void)setenv("CISTERN_ENGINE_HOST", STUB, 1);
    train_rig_start(config, (const char *[]){"--gpus=all", "--engine-threads=2", NULL});
    train_like.streams = &train_thread;
}

static void setup(void)
{
    (void)unsetenv("STUB_DELAY_US");
    (void)unsetenv("TRAIN_STREAM_DELAY_US");
    open_daemon("");
}

/* Fixture: workers copy weights themselves. */
static void setup_copies(void)
{
    (void)unsetenv("STUB_DELAY_US");
    (void)unsetenv("TRAIN_STREAM_DELAY_US");
    open_daemon("[gpu]\ncopies = worker\n");
}

/* Delay every engine and every worker's stream, so that missing waits are detected. */
static void dawdle(void)
{
    (void)setenv("STUB_DELAY_US", "3000", 1);
    (void)setenv("TRAIN_STREAM_DELAY_US", "3000", 1);
}

/* Fixture: workers would copy weights, but because gradients take the place of weights, engines
 * do. */
static void setup_over(void)
{
    setup_copies();
    train_like.grad_over = true;
}

static void setup_slow_over(void)
{
    dawdle();
    open_daemon("[gpu]\ngather = 4096\n");
    train_like.grad_over = true;
}

static void setup_slow(void)
{
    dawdle();
    open_daemon("[gpu]\ngather = 4096\n");
}

static void setup_slow_copies(void)
{
    dawdle();
    open_daemon("[gpu]\ncopies = worker\n");
}

/* -- a GPU that is lost ------------------------------------------------------------------------ */

static char broken[64]; /* while this file exists, no engine of a GPU starts */

static void open_to_lose(const char *config)
{
    (void)snprintf(broken, sizeof broken, "/tmp/cistern-lost-%d", (int)getpid());
    (void)setenv("STUB_BROKEN", broken, 1);
    (void)setenv("STUB_DELAY_US", "10000", 1);
    (void)unsetenv("TRAIN_STREAM_DELAY_US");
    open_daemon(config);
}

static void setup_lost(void)
{
    open_to_lose("");
}

static void setup_lost_copies(void)
{
    open_to_lose("[gpu]\ncopies = worker\n");
}

static void setup_lost_fatal(void)
{
    char fatal[64];

    (void)snprintf(fatal, sizeof fatal, "/tmp/cistern-lost-%d", (int)getpid());
    (void)setenv("STUB_FATAL", fatal, 1);
    open_to_lose("");
}

static void teardown_lost(void)
{
    (void)unlink(broken);
    train_rig_stop();
}

static const Cistern__EngineInfo *first_gpu(void)
{
    return raw_stat(&witness)->engines[1];
}

/* Let the GPU's engine die in a step after the first one, and whenever it is restarted. */
static void lose_first_gpu(const char *job)
{
    while (raw_stat(&witness)->n_jobs == 0 || raw_job_info(&witness, job)->step == 0 ||
           first_gpu()->in_flight == 0) {
        (void)poll(NULL, 0, 1);
    }
    ck_assert_int_ge(close(open(broken, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
    ck_assert_int_eq(kill(first_gpu()->pid, SIGKILL), 0);
    while (strcmp(first_gpu()->state, "failed") != 0) {
        (void)poll(NULL, 0, 1);
    }
}

/* Start both ranks of a job at @at. */
static void send_both(const struct train_placement *at, struct train_order orders[2], pid_t pids[2])
{
    for (uint32_t r = 0; r < 2; r++) {
        orders[r] = train_rig_order(at, at->name, r);
        pids[r] = train_rig_send(&orders[r]);
    }
}

/* Rank 0's GPU is lost in a step, with updates at the commit, early and delayed updates (_i). Rank
 * 0 is told the GPU and the reason, and the other rank waits for it. All states can be read without
 * the GPU, as of the last commit; with early updates, the next step's may have begun. When the GPU
 * returns, a new worker completes the steps. */
START_TEST(gpu_lost)
{
    const struct train_placement at = {"lost", 2, {"cuda:0", "host"}};
    struct train_order orders[2];
    const Cistern__JobInfo *info;
    pid_t pids[2];

    train_like.overlap.when = (enum cst_overlap)_i;
    send_both(&at, orders, pids);
    lose_first_gpu(at.name);
    train_worker_join_failing(pids[0]);
    ck_assert_msg(strstr(reports[0]->error, "EENGINE") != NULL, "%s", reports[0]->error);
    ck_assert_msg(strstr(reports[0]->error, "GPU-00000000-stub-0") != NULL, "%s",
                  reports[0]->error);
    info = raw_job_info(&witness, at.name);
    ck_assert_str_ne(info->state, "failed");
    if (info->chunks_ahead == 0) {
        struct train_order reader = orders[0];

        reader.n_steps = info->step;
        train_worker_join(train_rig_send(&reader), reports[0]);
        train_check_states(reports, 2, reader.n_steps, train_like.bad);
        ck_assert_str_ne(first_gpu()->state, "ready");
    }
    ck_assert_int_eq(unlink(broken), 0);
    train_worker_join(train_rig_send(&orders[0]), reports[0]);
    train_worker_join(pids[1], reports[1]);
    ck_assert_uint_eq(reports[1]->n_syncs, 1);
    train_check_states(reports, 2, orders[0].n_steps, train_like.bad);
}
END_TEST

/* Rank 0's GPU is lost in a step for good. Its worker returns on the host, or on the other rank's
 * GPU (_i): its pool is allocated there, and the job completes. The lost GPU is not used again. */
START_TEST(gpu_left)
{
    static const struct train_placement at = {"left", 2, {"cuda:0", "cuda:1"}};
    struct train_order orders[2], late;
    pid_t pids[2];

    send_both(&at, orders, pids);
    late = orders[0];
    lose_first_gpu(at.name);
    train_worker_join_failing(pids[0]);
    orders[0].device = _i == 0 ? "host" : "cuda:1";
    train_worker_join(train_rig_send(&orders[0]), reports[0]);
    train_worker_join(pids[1], reports[1]);
    train_check_states(reports, 2, orders[0].n_steps, train_like.bad);
    ck_assert_str_eq(first_gpu()->state, "failed");
    train_worker_join_failing(train_rig_send(&late));
    ck_assert_msg(strstr(reports[0]->error, "EMISMATCH") != NULL, "%s", reports[0]->error);
}
END_TEST

/* Both ranks were on the lost GPU. One moves to the host, so the other one cannot return to that
 * GPU. */
START_TEST(gpu_left_by_all)
{
    static const struct train_placement at = {"all", 2, {"cuda:0", "cuda:0"}};
    struct train_order orders[2];
    pid_t pids[2];

    send_both(&at, orders, pids);
    lose_first_gpu(at.name);
    for (uint32_t r = 0; r < 2; r++) {
        train_worker_join_failing(pids[r]);
    }
    orders[0].device = "host";
    pids[0] = train_rig_send(&orders[0]);
    while (strcmp(raw_job_info(&witness, at.name)->ranks[0]->device, "host") != 0) {
        (void)poll(NULL, 0, 1);
    }
    train_worker_join_failing(train_rig_send(&orders[1]));
    ck_assert_msg(strstr(reports[1]->error, "continues without GPU-00000000-stub-0") != NULL, "%s",
                  reports[1]->error);
    orders[1].device = "host";
    train_worker_join(train_rig_send(&orders[1]), reports[1]);
    train_worker_join(pids[0], reports[0]);
    train_check_states(reports, 2, orders[0].n_steps, train_like.bad);
}
END_TEST

/* The GPU to which the rank moves cannot allocate its pool: the commit fails with a message, and
 * the rank then moves to the host. */
START_TEST(gpu_left_in_vain)
{
    static const struct train_placement at = {"vain", 2, {"cuda:0", "cuda:1"}};
    struct train_order orders[2];
    pid_t pids[2];

    send_both(&at, orders, pids);
    lose_first_gpu(at.name);
    train_worker_join_failing(pids[0]);
    /* The engine of this GPU dies when it allocates memory while that file exists. */
    orders[0].device = "cuda:1";
    train_worker_join_failing(train_rig_send(&orders[0]));
    ck_assert_msg(strstr(reports[0]->error, "EENGINE") != NULL, "%s", reports[0]->error);
    ck_assert_int_eq(unlink(broken), 0);
    /* The worker may or may not have been told that its GPU was gone. */
    (void)kill(pids[1], SIGKILL);
    (void)child_wait(pids[1]);
    orders[0].device = "host";
    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = train_rig_send(&orders[r]);
    }
    for (uint32_t r = 0; r < 2; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check_states(reports, 2, orders[0].n_steps, train_like.bad);
}
END_TEST

/* If workers copy, the daemon loads nothing by itself, and `cistern job` says so. */
START_TEST(workers_copy)
{
    const Cistern__JobInfo *job;

    train_rig_run(&train_placements[TRAIN_PEERS], "worker", 0);
    job = raw_job_info(&witness, "worker");
    ck_assert_str_eq(job->copies, "worker");
    for (size_t r = 0; r < job->n_ranks; r++) {
        ck_assert_uint_gt(job->ranks[r]->bytes_up, 0);
        ck_assert_uint_eq(job->ranks[r]->prefetches, 0);
    }
}
END_TEST

enum { N_SHARED = 3000 };

struct user {
    struct cst_client *client;
    struct cst_job *job;
    struct train_stream *stream; /* NULL: on the host */
};

/* Open job @name on @device with a frozen tensor, and if there is a base job with another
 * tensor. */
static void open_user(struct user *user, const char *name, const char *device, const char *base)
{
    const struct cst_job_spec spec = {
        .name = name, .world = 1, .device = device, .model.base = base};
    const int64_t n = N_SHARED;
    const struct cst_tensor_spec frozen = {.name = "frozen",
                                           .dtype = CST_BF16,
                                           .n_dims = 1,
                                           .shape = &n,
                                           .pattern = CST_PATTERN_FROZEN};
    struct cst_err err = {0};
    int tensor;

    *user = (struct user){0};
    ck_assert_int_eq(cst_connect(&user->client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&user->job, user->client, &spec, &err), CST_OK);
    if (strcmp(device, "host") != 0) {
        ck_assert_int_eq(train_thread.open(&user->stream, user->job, &err), CST_OK);
    }
    tensor = cst_tensor_as(user->job, &frozen);
    ck_assert_int_eq(cst_operator(user->job, "frozen", &tensor, 1), 0);
    if (base != NULL) {
        tensor = cst_tensor(user->job, "adapter", CST_BF16, 1, &n, CST_GROUP_ALL);
        ck_assert_int_eq(cst_operator(user->job, "adapter", &tensor, 1), 1);
    }
    ck_assert_msg(cst_commit(user->job, NULL, &err) == CST_OK, "%s", err.text);
}

static void close_user(struct user *user)
{
    struct cst_err err = {0};

    ck_assert_msg(cst_job_leave(user->job, &err) == CST_OK, "%s", err.text);
    cst_disconnect(user->client);
    if (user->stream != NULL) {
        train_thread.close(user->stream);
    }
}

struct look {
    const uint16_t *weight; /* weights in the pool */
    uint16_t seen[N_SHARED];
};

static void look_at(void *arg)
{
    struct look *look = arg;

    memcpy(look->seen, look->weight, sizeof look->seen);
}

/* A job on a GPU can use the weights of a base job on the host: the GPU's engine, or the worker,
 * maps them, too. */
START_TEST(a_base_elsewhere)
{
    static struct look look;
    uint16_t weight[N_SHARED];
    struct user base, user;
    struct cst_err err = {0};
    struct cst_io io;

    for (int i = 0; i < N_SHARED; i++) {
        weight[i] = (uint16_t)(7 * i);
    }
    open_user(&base, "base", "host", NULL);
    ck_assert_int_eq(cst_tensor_write(base.job, 0, CST_STATE_WEIGHT, 0, N_SHARED, weight, &err),
                     CST_OK);
    ck_assert_int_eq(cst_sync(base.job, NULL, &err), CST_OK);
    close_user(&base);
    open_user(&user, "user", "cuda:0", "base");
    ck_assert_int_eq(cst_sync(user.job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_op_begin(user.job, 0, CST_FORWARD, &io, 1, &err), CST_OK);
    look.weight = io.weight;
    ck_assert_int_eq(train_thread.run(user.stream, look_at, &look, &err), CST_OK);
    ck_assert_int_eq(cst_op_end(user.job, 0, &err), CST_OK);
    close_user(&user); /* all work that the user has enqueued is then done */
    ck_assert_mem_eq(look.seen, weight, sizeof weight);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_train");
    TCase *plain = suite_case(suite, "bits", setup, train_rig_stop);
    TCase *slow = suite_case(suite, "slow", setup_slow, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", setup, train_rig_stop);
    TCase *copies = suite_case(suite, "copies", setup_copies, train_rig_stop);
    TCase *slow_copies = suite_case(suite, "slow_copies", setup_slow_copies, train_rig_stop);
    TCase *over = suite_case(suite, "over", setup_over, train_rig_stop);
    TCase *slow_over = suite_case(suite, "slow_over", setup_slow_over, train_rig_stop);
    TCase *lost = suite_case(suite, "lost", setup_lost, teardown_lost);
    TCase *fatal = suite_case(suite, "fatal", setup_lost_fatal, teardown_lost);
    TCase *lost_copies = suite_case(suite, "lost_copies", setup_lost_copies, teardown_lost);

    train_cases_use("cuda");
    train_cases_bits(plain);
    train_cases_micro_batch_bits(plain);
    tcase_add_test(plain, a_base_elsewhere);
    train_cases_bits(slow);
    train_cases_micro_batch_bits(slow);
    tcase_set_timeout(slow, 120);
    train_cases_engine_killed(deaths, 0, 3);
    train_cases_worker_killed(deaths);
    tcase_set_timeout(deaths, 180);
    suite_add_loop(lost, gpu_lost, 0, CST_OVERLAP_COUNT);
    suite_add_loop(lost, gpu_left, 0, 2);
    tcase_add_test(lost, gpu_left_by_all);
    tcase_add_test(fatal, gpu_left_in_vain);
    suite_add_loop(lost_copies, gpu_left, 0, 2);
    train_cases_bits(copies);
    tcase_add_test(copies, a_base_elsewhere);
    tcase_add_test(copies, workers_copy);
    train_cases_engine_killed(copies, 0, 3);
    train_cases_worker_killed(copies);
    tcase_set_timeout(copies, 180);
    train_cases_bits(slow_copies);
    train_cases_micro_batch_bits(slow_copies);
    tcase_set_timeout(slow_copies, 120);
    train_cases_bits(over);
    train_cases_engine_killed(over, 0, 3);
    train_cases_worker_killed(over);
    tcase_set_timeout(over, 180);
    train_cases_bits(slow_over);
    tcase_set_timeout(slow_over, 120);
    return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of SIGKILL of the engine in the middle of a long copy, a long reduction and a long update,
 * while two ranks train with libcistern: every call succeeds, and the bits are those of an
 * undisturbed run. tests/kernels/check_undo kills at every instruction of a tile, and
 * check_engine_kill at random moments of a long list of commands; here the daemon must notice the
 * death and repeat commands. */
#include "cistern/cistern.h"
#include "kernels/math/cast.h"
#include "tests/lib/patience.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/two_ranks.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { WORLD = 2, N_ELEMS = 1 << 22, N_STEPS = 2 };
enum { N_DEATHS = 8, UPDATE_US = 4000 }; /* this number of updates takes 2 to 6 ms */

enum phase { IN_COPY, IN_REDUCE, IN_UPDATE, N_PHASES, NEVER = N_PHASES };

static struct daemon_proc proc;
static struct raw_client witness;
static unsigned base_fds;

struct states {
    float master[N_ELEMS], exp_avg[N_ELEMS], exp_avg_sq[N_ELEMS];
    uint16_t weight[N_ELEMS], grad[N_ELEMS];
};

static struct states *calm, *struck; /* final states of the undisturbed and the disturbed run */

static void setup(void)
{
    calm = calloc(1, sizeof *calm);
    struck = calloc(1, sizeof *struck);
    ck_assert(calm != NULL && struck != NULL);
    daemon_proc_start(&proc, (const char *[]){"--engine-threads=1", NULL});
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

static void teardown(void)
{
    settle(&witness, &proc, base_fds);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    free(calm);
    free(struck);
}

/* -- a job of two ranks in this process -------------------------------------------------------- */

struct run {
    struct cst_client *client[WORLD];
    struct cst_job *job[WORLD];
    enum phase phase;  /* phase of the first step in which the engine is killed */
    uint64_t delay_us; /* time from the commands' arrival at the engine to the kill */
    bool over;         /* the gradient's sum takes the place of the weights */
};

static int try_forward(struct cst_job *job, void *arg, struct cst_err *err)
{
    return cst_try_op_begin(job, 0, CST_FORWARD, arg, 1, err);
}

static int try_backward(struct cst_job *job, void *arg, struct cst_err *err)
{
    return cst_try_op_begin(job, 0, CST_BACKWARD, arg, 1, err);
}

static int try_step(struct cst_job *job, void *arg, struct cst_err *err)
{
    const struct cst_hyper_params params = {.lr = 0.01f, .weight_decay = 0.1f, .clip_norm = 1.0f};

    return cst_try_step(job, &params, arg, err);
}

static void open_job(struct run *run)
{
    float *start = calloc(N_ELEMS, sizeof *start);
    const int64_t shape = N_ELEMS;
    const int tensor = 0;

    ck_assert_ptr_nonnull(start);
    for (uint32_t r = 0; r < WORLD; r++) {
        struct cst_job_spec spec = {.name = "big",
                                    .rank = r,
                                    .world = WORLD,
                                    .memory.pool_bytes = 3ull * 2 * N_ELEMS,
                                    .planning.chunk_elems = N_ELEMS,
                                    .states.grad_over_weight = run->over,
                                    .limits.timeout_ms = (uint32_t)patience_ms(20000)};

        OK(cst_connect(&run->client[r], proc.socket, &err));
        OK(cst_job_open(&run->job[r], run->client[r], &spec, &err));
        ck_assert_int_eq(cst_tensor(run->job[r], "t", CST_BF16, 1, &shape, CST_GROUP_ALL), 0);
        ck_assert_int_eq(cst_operator(run->job[r], "o", &tensor, 1), 0);
    }
    two_ranks_drive(run->client, run->job, two_ranks_commit, NULL);
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        start[i] = (float)(i % 1021) / 1021.0f - 0.5f;
    }
    OK(cst_tensor_write(run->job[0], 0, CST_STATE_MASTER, 0, N_ELEMS, start, &err));
    free(start);
}

static void close_job(struct run *run, struct states *out)
{
    OK(cst_tensor_read(run->job[0], 0, CST_STATE_MASTER, 0, N_ELEMS, out->master, &err));
    OK(cst_tensor_read(run->job[0], 0, CST_STATE_EXP_AVG, 0, N_ELEMS, out->exp_avg, &err));
    OK(cst_tensor_read(run->job[0], 0, CST_STATE_EXP_AVG_SQ, 0, N_ELEMS, out->exp_avg_sq, &err));
    OK(cst_tensor_read(run->job[0], 0, CST_STATE_WEIGHT, 0, N_ELEMS, out->weight, &err));
    if (run->over) { /* the weight rows hold weights again */
        memcpy(out->grad, calm->grad, sizeof out->grad);
    } else {
        OK(cst_tensor_read(run->job[0], 0, CST_STATE_GRAD, 0, N_ELEMS, out->grad, &err));
    }
    for (unsigned r = 0; r < WORLD; r++) {
        cst_disconnect(run->client[r]);
    }
    settle_remove_jobs(&witness);
}

/* -- killing the engine ------------------------------------------------------------------------ */

static pid_t engine(void)
{
    return raw_stat(&witness)->engines[0]->pid;
}

/* Stop the engine, so that commands that are issued now are under way when it dies. For a death in
 * the update phase an update is already under way. Returns the engine's pid. */
static pid_t hold(const struct run *run, uint64_t step, enum phase phase)
{
    pid_t pid = 0;

    if (run->phase == phase && step == 0) {
        pid = engine();
        ck_assert_int_gt(pid, 0);
        while (phase != IN_UPDATE && raw_stat(&witness)->engines[0]->in_flight > 0) {
        }
        ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    }
    return pid;
}

/* The daemon has sent its commands: let the engine work on them for a while, and kill it. */
static void strike(const struct run *run, pid_t pid)
{
    /* The moment of the kill is random. */
    struct timespec ts = {.tv_nsec = (long)run->delay_us * 1000};

    if (pid == 0) {
        return;
    }
    for (unsigned i = 0; i < 10000 && raw_stat(&witness)->engines[0]->in_flight == 0; i++) {
    }
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    (void)nanosleep(&ts, NULL);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
}

/* -- training ---------------------------------------------------------------------------------- */

static void write_grad(const struct cst_io *io, unsigned rank, uint64_t step)
{
    const uint16_t *weight = io->weight;
    uint16_t *grad = io->grad;

    for (uint32_t i = 0; i < N_ELEMS; i++) {
        float noise = (float)((i * 2654435761u + rank * 97 + (uint32_t)step * 31) >> 16 & 255);

        grad[i] = cst_fp32_to_bf16(cst_bf16_to_fp32(weight[i]) * 0.25f + noise / 256.0f);
    }
}

/* After the sync the daemon knows the first chunks and prefetches them. */
static void sync_ranks(struct run *run)
{
    pid_t held = hold(run, 0, IN_COPY);

    two_ranks_drive(run->client, run->job, two_ranks_sync, NULL);
    strike(run, held);
}

static void forward(struct run *run)
{
    struct cst_io io[WORLD];
    void *args[WORLD] = {&io[0], &io[1]};

    two_ranks_drive(run->client, run->job, try_forward, args);
    for (unsigned r = 0; r < WORLD; r++) {
        OK(cst_op_end(run->job[r], 0, &err));
    }
}

static void backward(struct run *run, uint64_t step)
{
    struct cst_io io[WORLD];
    void *args[WORLD] = {&io[0], &io[1]};
    pid_t held;

    two_ranks_drive(run->client, run->job, try_backward, args);
    held = hold(run, step, IN_REDUCE);
    for (unsigned r = 0; r < WORLD; r++) {
        write_grad(&io[r], r, step);
        OK(cst_op_end(run->job[r], 0, &err));
    }
    strike(run, held);
}

/* The step is committed before its updates are done, so the engine is left with these only. */
static void step(struct run *run, uint64_t number)
{
    struct cst_step_result result[WORLD];
    void *args[WORLD] = {&result[0], &result[1]};

    two_ranks_drive(run->client, run->job, try_step, args);
    for (unsigned r = 0; r < WORLD; r++) {
        ck_assert_uint_eq(result[r].step, number + 1);
        ck_assert(!result[r].skipped);
    }
    strike(run, hold(run, number, IN_UPDATE));
}

static void train(struct run *run, struct states *out)
{
    open_job(run);
    sync_ranks(run);
    for (uint64_t s = 0; s < N_STEPS; s++) {
        forward(run);
        backward(run, s);
        step(run, s);
    }
    close_job(run, out);
}

/* Number of deaths with work under way, from the daemon's log. */
static unsigned count_hits(void)
{
    FILE *file = fopen(proc.log, "re");
    char line[1200];
    unsigned n = 0;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        n += strstr(line, "commands in flight") != NULL &&
             strstr(line, " with 0 commands in flight") == NULL;
    }
    (void)fclose(file);
    return n;
}

/* The results have the bits of an undisturbed run. _i: the phase, with early and late kills, then
 * all of these with gradients in weight rows. At least one kill must hit work under way. */
START_TEST(the_bits_are_those_of_a_calm_run)
{
    static const uint64_t delays_us[] = {0, 100, 300, 600, 1000, 2000};
    struct run run = {.phase = NEVER};

    train(&run, calm);
    for (unsigned i = 0; i < sizeof delays_us / sizeof *delays_us; i++) {
        run = (struct run){
            .phase = (enum phase)(_i % N_PHASES), .delay_us = delays_us[i], .over = _i >= N_PHASES};
        train(&run, struck);
        ck_assert_msg(memcmp(calm, struck, sizeof *calm) == 0, "%u us into phase %d: other bits",
                      (unsigned)delays_us[i], _i);
        ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, i + 1);
    }
    ck_assert_uint_ge(count_hits(), 1);
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Kills at random moments of the update phase, each with work under way. CST_TEST_DEATHS sets their
 * number. */
START_TEST(deaths_in_the_update)
{
    const char *env = getenv("CST_TEST_DEATHS");
    const unsigned wanted = env != NULL ? (unsigned)atoi(env) : suite_is_sparse() ? 3 : N_DEATHS;
    struct run run = {.phase = NEVER};
    uint64_t random = (uint64_t)time(NULL);
    unsigned n_runs = 0;

    printf("seed %llu\n", (unsigned long long)random);
    train(&run, calm);
    for (unsigned hits = 0; hits < wanted; hits = count_hits()) {
        run = (struct run){.phase = IN_UPDATE,
                           .delay_us = next_random(&random) % UPDATE_US,
                           .over = hits % 2 != 0};
        train(&run, struck);
        ck_assert_msg(memcmp(calm, struck, sizeof *calm) == 0, "%u us into the update: other bits",
                      (unsigned)run.delay_us);
        ck_assert_uint_lt(++n_runs, 4 * wanted);
    }
    printf("%u deaths, of them %u with an update under way\n", n_runs, count_hits());
}
END_TEST

/* -- an engine that is given up ---------------------------------------------------------------- */

/* Fixture: an update takes two seconds, so that it is under way whenever the engine dies. */
static void setup_slow(void)
{
    calm = calloc(1, sizeof *calm);
    struck = calloc(1, sizeof *struck);
    ck_assert(calm != NULL && struck != NULL);
    daemon_proc_start_with(&proc, "[engine]\nupdate_rate = 2M\n",
                           (const char *[]){"--engine-threads=1", NULL});
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

/* Kill the engine and its successors until the daemon gives up. */
static void kill_for_good(void)
{
    const Cistern__StatReply *stat;
    pid_t last = 0;

    do {
        stat = raw_stat(&witness);
        if (stat->engines[0]->pid > 0 && (pid_t)stat->engines[0]->pid != last) {
            last = (pid_t)stat->engines[0]->pid;
            (void)kill(last, SIGKILL);
        }
    } while (strcmp(stat->engines[0]->state, "failed") != 0);
}

static void expect_state(const char *state)
{
    ck_assert_str_eq(raw_job_info(&witness, "big")->state, state);
}

/* All ranks hand in their gradients and ask for the step, while the engine is stopped. */
static void ask_for_step(struct run *run)
{
    struct cst_io io[WORLD];
    struct cst_step_result result;
    void *args[WORLD] = {&io[0], &io[1]};
    struct cst_err why = {0};

    two_ranks_drive(run->client, run->job, try_backward, args);
    ck_assert_int_eq(kill(engine(), SIGSTOP), 0);
    for (unsigned r = 0; r < WORLD; r++) {
        write_grad(&io[r], r, 0);
        OK(cst_op_end(run->job[r], 0, &err));
    }
    for (unsigned i = 0; i < 20; i++) { /* the daemon has turns to read all requests */
        for (unsigned r = 0; r < WORLD; r++) {
            ck_assert_int_eq(try_step(run->job[r], &result, &why), CST_EAGAIN);
        }
        (void)raw_stat(&witness);
    }
}

static void refuse_step(struct run *run)
{
    struct cst_step_result result;
    struct cst_err err = {0};
    int rc = CST_EAGAIN;

    for (unsigned r = 0; r < WORLD; r++) {
        while (rc == CST_EAGAIN) {
            rc = try_step(run->job[r], &result, &err);
        }
        ck_assert_int_eq(rc, CST_EENGINE);
        ck_assert_ptr_nonnull(strstr(err.text, "times in a row without completing a command"));
        rc = CST_EAGAIN;
    }
}

static void come_back(struct run *run, uint64_t at)
{
    const int64_t shape = N_ELEMS;
    const int tensor = 0;

    for (uint32_t r = 0; r < WORLD; r++) {
        struct cst_job_spec spec = {.name = "big",
                                    .rank = r,
                                    .world = WORLD,
                                    .memory.pool_bytes = 3ull * 2 * N_ELEMS,
                                    .planning.chunk_elems = N_ELEMS,
                                    .states.grad_over_weight = run->over,
                                    .limits.timeout_ms = 20000};

        OK(cst_connect(&run->client[r], proc.socket, &err));
        OK(cst_job_open(&run->job[r], run->client[r], &spec, &err));
        ck_assert_uint_eq(cst_job_steps(run->job[r]), at);
        ck_assert_int_eq(cst_tensor(run->job[r], "t", CST_BF16, 1, &shape, CST_GROUP_ALL), 0);
        ck_assert_int_eq(cst_operator(run->job[r], "o", &tensor, 1), 0);
    }
    two_ranks_drive(run->client, run->job, two_ranks_commit, NULL);
    two_ranks_drive(run->client, run->job, two_ranks_sync, NULL);
}

/* The engine is given up in the middle of an update (_i 0), or of a sum of a step that all ranks
 * have asked for (1). The job is interrupted, not failed, and both ranks are told why. A worker
 * that returns has the engine started again: the unfinished commands are done, and the final bits
 * are those of an undisturbed run. */
START_TEST(a_job_outlives_its_engine)
{
    struct run run = {.phase = NEVER};
    struct cst_err err = {0};
    struct cst_io io;

    train(&run, calm);
    open_job(&run);
    sync_ranks(&run);
    forward(&run);
    if (_i == 0) {
        backward(&run, 0);
        step(&run, 0);
        kill_for_good();
        expect_state("interrupted");
        ck_assert_int_eq(cst_op_begin(run.job[0], 0, CST_FORWARD, &io, 1, &err), CST_EENGINE);
    } else {
        ask_for_step(&run);
        kill_for_good();
        expect_state("interrupted");
        refuse_step(&run);
    }
    for (unsigned r = 0; r < WORLD; r++) {
        cst_disconnect(run.client[r]);
    }
    expect_state("interrupted");
    come_back(&run, _i == 0 ? 1 : 0);
    for (uint64_t s = _i == 0 ? 1 : 0; s < N_STEPS; s++) {
        forward(&run);
        backward(&run, s);
        step(&run, s);
    }
    close_job(&run, struck);
    ck_assert_msg(memcmp(calm, struck, sizeof *calm) == 0, "other bits");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine death");
    TCase *tc = suite_case(suite, "killed in", setup, teardown);

    tcase_set_timeout(tc, 300);
    suite_add_loop(tc, the_bits_are_those_of_a_calm_run, 0, 2 * N_PHASES);
    tcase_add_test(tc, deaths_in_the_update);
    tc = suite_case(suite, "given up", setup_slow, teardown);
    tcase_set_timeout(tc, 300);
    suite_add_loop(tc, a_job_outlives_its_engine, 0, 2);
    return suite_run(suite);
}

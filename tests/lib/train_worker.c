/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_worker.h"

#include "tests/lib/child.h"
#include "tests/lib/patience.h"
#include "tests/lib/train_work.h"
#include "tests/lib/user.h"

#include "cistern/device.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct worker {
    const struct train_order *order;
    struct train_report *report;
    struct train_model model;
    struct cst_client *client;
    struct cst_job *job;
    struct train_work work;
    uint32_t point;
};

/* A point at which the worker can be killed, or kill another process. */
static void pass(struct worker *w)
{
    w->report->n_points = w->point + 1;
    if (w->point == w->order->kill_at) {
        (void)kill(w->order->victim, SIGKILL);
    }
    if (w->point++ == w->order->die_at) {
        (void)raise(SIGKILL);
    }
}

static void await(struct worker *w)
{
    struct pollfd pfd = {.fd = cst_client_fd(w->client), .events = POLLIN};

    (void)poll(&pfd, 1, -1);
}

/* -- calls with and without waiting ------------------------------------------------------------ */

static int commit(struct worker *w, struct cst_err *err)
{
    int rc;

    if (!w->order->try_forms) {
        return cst_commit(w->job, &w->report->plan, err);
    }
    while ((rc = cst_try_commit(w->job, &w->report->plan, err)) == CST_EAGAIN) {
        await(w);
    }
    return rc;
}

static int sync_once(struct worker *w, uint64_t *step, struct cst_err *err)
{
    int rc;

    if (!w->order->try_forms) {
        return cst_sync(w->job, step, err);
    }
    while ((rc = cst_try_sync(w->job, step, err)) == CST_EAGAIN) {
        await(w);
    }
    return rc;
}

static int begin(struct worker *w, int op, enum cst_direction direction, struct cst_io *io,
                 struct cst_err *err)
{
    uint32_t n = w->model.operators[op].n_tensors;
    int rc;

    if (!w->order->try_forms) {
        return cst_op_begin(w->job, op, direction, io, n, err);
    }
    while ((rc = cst_try_op_begin(w->job, op, direction, io, n, err)) == CST_EAGAIN) {
        await(w);
    }
    return rc;
}

/* The form that does not wait adds a point at which the worker can die: the step is requested and
 * not answered. Every other step uses the form that waits. */
static int step(struct worker *w, uint64_t number, const struct cst_hyper_params *params,
                struct cst_step_result *result, struct cst_err *err)
{
    bool at_once = !w->order->try_forms && number % 2 == 1;
    int rc =
        at_once ? cst_step(w->job, params, result, err) : cst_try_step(w->job, params, result, err);

    pass(w);
    if (rc != CST_EAGAIN) {
        return rc;
    }
    if (!w->order->try_forms) {
        return cst_step(w->job, params, result, err);
    }
    while ((rc = cst_try_step(w->job, params, result, err)) == CST_EAGAIN) {
        await(w);
    }
    return rc;
}

/* -- a worker's run ---------------------------------------------------------------------------- */

/* The child finds that its handle is unusable, and the parent is not affected. */
static int fork_once(struct worker *w, int op, struct cst_err *err)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        bool dead = cst_op_end(w->job, op, NULL) == CST_EFORKED &&
                    cst_ping(w->client, NULL, NULL) == CST_EFORKED;

        cst_disconnect(w->client);
        _exit(dead ? 0 : 1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        return cst_err_set(err, CST_EINTERNAL, "the forked child could use the job");
    }
    return CST_OK;
}

/* Check that frozen tensors have no gradient, and that all others have one in backward. */
static int check_io(const struct worker *w, int op, bool backward, const struct cst_io *io,
                    struct cst_err *err)
{
    for (uint32_t k = 0; k < w->model.operators[op].n_tensors; k++) {
        const struct train_tensor *t = &w->model.tensors[w->model.operators[op].tensors[k]];

        if ((io[k].grad != NULL) != (backward && train_is_trained(t)) ||
            (io[k].grad == NULL && io[k].accumulate)) {
            return cst_err_set(err, CST_EINTERNAL, "tensor '%s' and its gradient", t->name);
        }
    }
    return CST_OK;
}

static int run_op(struct worker *w, int op, enum cst_direction direction, uint64_t number,
                  double *loss, struct cst_err *err)
{
    struct cst_io io[TRAIN_MAX_IO];
    int rc = begin(w, op, direction, io, err);

    rc = rc == CST_OK ? check_io(w, op, direction == CST_BACKWARD, io, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    pass(w);
    rc = w->order->forks ? fork_once(w, op, err) : CST_OK;
    if (rc == CST_OK) {
        rc = train_work_compute(&w->work, op, direction == CST_BACKWARD, number, io, loss, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_op_end(w->job, op, err);
    pass(w);
    return rc;
}

static int run_micro_batch(struct worker *w, uint64_t moment, double *loss, struct cst_err *err)
{
    const int n = w->model.n_operators;
    int rc = CST_OK;

    for (int at = 0; rc == CST_OK && at < 2 * n; at++) {
        const int op = at < n ? at : 2 * n - 1 - at;

        if (train_runs(&w->model.operators[op], at >= n, w->order->rank, moment)) {
            rc = run_op(w, op, at < n ? CST_FORWARD : CST_BACKWARD, moment, loss, err);
        }
    }
    return rc;
}

static int run_step(struct worker *w, uint64_t *number, struct cst_err *err)
{
    const uint32_t n =
        train_micro_batches(&w->model, w->order->rank, *number, w->report->micro_batches);
    struct cst_param_group groups[TRAIN_PARAM_GROUPS];
    const uint32_t n_groups = train_param_groups(*number, groups);
    struct cst_step_result result;
    struct cst_hyper_params params;
    double loss = 0;
    int rc = train_work_begin(&w->work, err);

    rc = rc == CST_OK ? cst_param_groups(w->job, groups, n_groups, err) : rc;
    if (rc == CST_OK && w->order->overlap.when == CST_OVERLAP_EARLY) {
        params = train_params(*number, 0);
        rc = cst_prepare_step(w->job, &params, err);
    }

    for (uint32_t m = 0; rc == CST_OK && m < n; m++) {
        if (m > 0) {
            rc = cst_accumulate(w->job, err);
            pass(w);
        }
        rc = rc == CST_OK ? run_micro_batch(w, train_moment(*number, m), &loss, err) : rc;
    }
    rc = rc == CST_OK ? train_work_end(&w->work, &loss, err) : rc;
    if (rc == CST_OK) {
        params = train_params(*number, loss);
        rc = step(w, *number, &params, &result, err);
    }
    if (rc == CST_OK) {
        w->report->run.results[*number] = result;
        *number = result.step;
        pass(w);
    }
    return rc;
}

/* Open the job. A rank that returns may be earlier than the daemon's notice of its death, and then
 * tries again. */
static int open_job(struct worker *w, struct cst_err *err)
{
    struct cst_job_spec spec = {
        .name = w->order->name,
        .rank = w->order->rank,
        .world = w->order->world,
        .device = w->order->device,
        .memory.pool_bytes = w->order->pool_bytes,
        .memory.device_update_bytes = w->order->device_update_bytes,
        .memory.device_states = w->order->device_states,
        .states.disk = w->order->disk,
        .states.disk_bytes = w->order->disk_bytes,
        .planning.chunk_elems = TRAIN_CHUNK_ELEMS,
        .updates.micro_batches = w->order->micro_batches,
        .model.base = w->order->base,
        .states.grad_over_weight = w->order->grad_over,
        .updates.overlap = w->order->overlap.when,
        .updates.delay_from = w->order->overlap.delay_from,
        .limits.timeout_ms = (uint32_t)patience_ms(20000),
    };
    int rc = CST_EBUSY;

    for (uint64_t until = patience_until(20000); rc == CST_EBUSY && !patience_over(until);) {
        rc = cst_job_open(&w->job, w->client, &spec, err);
        if (rc == CST_EBUSY) {
            (void)poll(NULL, 0, 1);
        }
    }
    if (rc == CST_OK && w->order->streams != NULL && strcmp(cst_job_device(w->job), "host") != 0) {
        rc = w->order->streams->open(&w->work.stream, w->job, err);
    }
    return rc;
}

/* Write the initial weights of a tensor. The frozen tensors of a base job have theirs. */
static int write_tensor(struct worker *w, int t, struct cst_err *err)
{
    const struct train_tensor *tensor = &w->model.tensors[t];
    float *master = malloc(tensor->n_elems * sizeof *master);
    int rc = master == NULL ? CST_ENOMEM : CST_OK;

    for (uint64_t i = 0; rc == CST_OK && i < tensor->n_elems; i++) {
        master[i] = train_start(tensor->start + i);
    }
    if (rc == CST_OK && (train_is_trained(tensor) || w->order->base == NULL)) {
        rc = cst_tensor_write(w->job, t, CST_STATE_MASTER, 0, tensor->n_elems, master, err);
    }
    free(master);
    pass(w);
    return rc;
}

static int write_start(struct worker *w, struct cst_err *err)
{
    int rc = CST_OK;

    for (int t = 0; rc == CST_OK && t < w->model.n_tensors; t++) {
        rc = write_tensor(w, t, err);
    }
    return rc;
}

static int read_tensor(struct worker *w, int t, struct cst_err *err)
{
    struct train_states *s = &w->report->run.states;
    const struct train_tensor *tensor = &w->model.tensors[t];
    const uint64_t n = tensor->n_elems, at = tensor->start;
    const struct {
        enum cst_state state;
        void *data;
    } rows[] = {{CST_STATE_WEIGHT, s->weight + at},
                {CST_STATE_MASTER, s->master + at},
                {CST_STATE_EXP_AVG, s->exp_avg + at},
                {CST_STATE_EXP_AVG_SQ, s->exp_avg_sq + at},
                {CST_STATE_GRAD, s->grad + at}};
    const size_t n_rows = sizeof rows / sizeof *rows - (w->model.reads_grads ? 0 : 1);
    int rc = CST_OK;

    for (size_t k = 0; rc == CST_OK && k < n_rows; k++) {
        rc = cst_tensor_read(w->job, t, rows[k].state, 0, n, rows[k].data, err);
        if (!train_is_trained(tensor) && rows[k].state != CST_STATE_WEIGHT) {
            rc = rc == CST_EUNSUPPORTED
                     ? CST_OK
                     : cst_err_set(err, CST_EINTERNAL, "a state of a frozen tensor was read");
        }
    }
    return rc;
}

static int read_states(struct worker *w, struct cst_err *err)
{
    int rc = CST_OK;

    for (int t = 0; rc == CST_OK && t < w->model.n_tensors; t++) {
        rc = read_tensor(w, t, err);
    }
    w->report->has_states = rc == CST_OK;
    return rc;
}

static bool is_void(int rc)
{
    return rc == CST_EPEERDIED || rc == CST_ESTALE;
}

/* Sync. Another rank may die while this rank waits; then it waits again. */
static int sync_all(struct worker *w, uint64_t *number, struct cst_err *err)
{
    int rc;

    do {
        rc = sync_once(w, number, err);
    } while (is_void(rc));
    return rc;
}

/* A rank that finds all steps done after its commit does not sync, because the other ranks may have
 * left with the last step. */
static int train(struct worker *w, struct cst_err *err)
{
    uint64_t number = cst_job_steps(w->job);
    int rc = CST_OK;

    if (!cst_job_initialised(w->job) && w->order->rank == 0) {
        rc = write_start(w, err);
    }
    while (rc == CST_OK && number < w->order->n_steps) {
        rc = sync_all(w, &number, err);
        while (rc == CST_OK && number < w->order->n_steps) {
            pass(w);
            rc = run_step(w, &number, err);
        }
        if (is_void(rc)) {
            w->report->n_syncs++;
            rc = CST_OK;
        }
    }
    return rc;
}

static int live(struct worker *w, struct cst_err *err)
{
    int rc = cst_connect(&w->client, w->order->socket, err);

    pass(w);
    rc = rc == CST_OK ? open_job(w, err) : rc;
    pass(w);
    if (rc == CST_OK) {
        rc = train_declare(&w->model, w->job, w->order->world);
        if (rc != CST_OK) {
            *err = *cst_job_error(w->job);
        }
    }
    if (rc == CST_OK) {
        do {
            rc = commit(w, err);
        } while (is_void(rc));
    }
    pass(w);
    rc = rc == CST_OK ? train(w, err) : rc;
    rc = rc == CST_OK && w->order->rank == 0 ? read_states(w, err) : rc;
    return rc == CST_OK ? cst_job_leave(w->job, err) : rc;
}

/* -- functions for tests ----------------------------------------------------------------------- */

struct train_report *train_report_new(void)
{
    return child_share(sizeof(struct train_report));
}

void train_report_free(struct train_report *report)
{
    child_unshare(report, sizeof *report);
}

pid_t train_worker_start(const struct train_order *order, struct train_report *report)
{
    pid_t pid = child_start();

    if (pid == 0) {
        struct train_order mine = *order;
        struct worker w = {.order = &mine, .report = report};
        struct cst_err err = {0};
        int rc;

        if (mine.uid != 0) {
            user_become(mine.uid);
        }
        report->micro_batches = mine.micro_batches > 1 ? mine.micro_batches : 1;
        report->overlap = mine.overlap;
        report->mixture = mine.mixture;
        train_model_make(&w.model, mine.mixture, mine.world);
        w.work = (struct train_work){
            .streams = mine.streams, .model = &w.model, .rank = mine.rank, .bad = mine.bad};
        if (order->setting != NULL) {
            (void)putenv((char *)(uintptr_t)order->setting);
        }
        rc = live(&w, &err);
        if (rc != CST_OK) {
            (void)snprintf(report->error, sizeof report->error, "rank %u, point %u: %s: %s",
                           mine.rank, w.point, cst_status_name(rc), err.text);
        }
        cst_disconnect(w.client);
        if (w.work.stream != NULL) {
            train_work_close(&w.work);
            exit(rc == CST_OK ? 0 : 1); /* the driver writes its last messages at exit */
        }
        _exit(rc == CST_OK ? 0 : 1);
    }
    return pid;
}

bool train_worker_join_dying(pid_t pid, const struct train_report *report)
{
    return child_join(pid, report->error);
}

int train_worker_join_any(pid_t pid)
{
    int status = child_wait(pid);

    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void train_worker_join_failing(pid_t pid)
{
    ck_assert_int_eq(train_worker_join_any(pid), 1);
}

void train_worker_join(pid_t pid, const struct train_report *report)
{
    ck_assert(!train_worker_join_dying(pid, report));
}

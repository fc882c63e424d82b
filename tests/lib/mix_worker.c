/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/mix_worker.h"

#include "tests/lib/child.h"
#include "tests/lib/patience.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct worker {
    const struct mix_order *order;
    struct mix_report *report;
    struct mix_model model;
    struct cst_client *client;
    struct cst_job *job;
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

/* Check that frozen tensors have no gradient, and that all others have one in backward. */
static int check_io(const struct worker *w, int op, bool backward, const struct cst_io *io,
                    struct cst_err *err)
{
    for (uint32_t k = 0; k < w->model.operators[op].n_tensors; k++) {
        const struct mix_tensor *t = &w->model.tensors[w->model.operators[op].tensors[k]];

        if ((io[k].grad != NULL) != (backward && t->pattern != CST_PATTERN_FROZEN) ||
            (io[k].grad == NULL && io[k].accumulate)) {
            return cst_err_set(err, CST_EINTERNAL, "tensor '%s' and its gradient", t->name);
        }
    }
    return CST_OK;
}

static int run_op(struct worker *w, int op, bool backward, uint64_t number, uint32_t micro,
                  double *loss, struct cst_err *err)
{
    struct cst_io io[MIX_MAX_IO];
    int rc = cst_op_begin(w->job, op, backward ? CST_BACKWARD : CST_FORWARD, io,
                          w->model.operators[op].n_tensors, err);

    if (rc == CST_OK) {
        rc = check_io(w, op, backward, io, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    pass(w);
    if (backward) {
        mix_backward(&w->model, op, w->order->rank, number, micro, io);
    } else {
        *loss += mix_forward(&w->model, op, io);
    }
    rc = cst_op_end(w->job, op, err);
    pass(w);
    return rc;
}

static int run_micro_batch(struct worker *w, uint64_t number, uint32_t micro, double *loss,
                           struct cst_err *err)
{
    int n = w->model.n_operators, rc = CST_OK;

    for (int at = 0; rc == CST_OK && at < 2 * n; at++) {
        int op = at < n ? at : 2 * n - 1 - at;

        if ((w->model.operators[op].ranks >> w->order->rank & 1) != 0 &&
            !mix_idle(&w->model, op, w->order->rank, number, micro)) {
            rc = run_op(w, op, at >= n, number, micro, loss, err);
        }
    }
    return rc;
}

static int run_step(struct worker *w, uint64_t *number, struct cst_err *err)
{
    uint32_t n = mix_micro_batches(w->order->rank, *number, w->order->micro_batches);
    struct cst_step_result result;
    struct cst_hyper_params params;
    double loss = 0;
    int rc = CST_OK;

    for (uint32_t m = 0; rc == CST_OK && m < n; m++) {
        rc = m > 0 ? cst_accumulate(w->job, err) : CST_OK;
        pass(w);
        rc = rc == CST_OK ? run_micro_batch(w, *number, m, &loss, err) : rc;
    }
    if (rc == CST_OK) {
        params = mix_params(*number, loss);
        rc = cst_step(w->job, &params, &result, err);
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
    struct cst_job_spec spec = {.name = w->order->name,
                                .rank = w->order->rank,
                                .world = w->order->world,
                                .pool_bytes = w->order->pool_bytes,
                                .chunk_elems = MIX_CHUNK_ELEMS,
                                .micro_batches = w->order->micro_batches,
                                .base = w->order->base,
                                .timeout_ms = (uint32_t)patience_ms(20000)};
    int rc = CST_EBUSY;

    for (uint64_t until = patience_until(20000); rc == CST_EBUSY && !patience_over(until);) {
        rc = cst_job_open(&w->job, w->client, &spec, err);
        if (rc == CST_EBUSY) {
            (void)poll(NULL, 0, 1);
        }
    }
    return rc;
}

static int write_start(struct worker *w, struct cst_err *err)
{
    int rc = CST_OK;

    for (int t = 0; rc == CST_OK && t < w->model.n_tensors; t++) {
        const struct mix_tensor *tensor = &w->model.tensors[t];
        float *master = malloc(tensor->n_elems * sizeof *master);

        for (uint64_t i = 0; master != NULL && i < tensor->n_elems; i++) {
            master[i] = mix_start(tensor->start + i);
        }
        if (master == NULL) {
            rc = CST_ENOMEM;
        } else if (tensor->pattern != CST_PATTERN_FROZEN || w->order->base == NULL) {
            rc = cst_tensor_write(w->job, t, CST_STATE_MASTER, 0, tensor->n_elems, master, err);
        }
        free(master);
        pass(w);
    }
    return rc;
}

static int read_tensor(struct worker *w, int t, struct cst_err *err)
{
    struct mix_states *s = &w->report->run.states;
    uint64_t n = w->model.tensors[t].n_elems, at = w->model.tensors[t].start;
    bool trained = w->model.tensors[t].pattern != CST_PATTERN_FROZEN;
    const struct {
        enum cst_state state;
        void *data;
    } rows[] = {{CST_STATE_WEIGHT, s->weight + at},
                {CST_STATE_GRAD, s->grad + at},
                {CST_STATE_MASTER, s->master + at},
                {CST_STATE_EXP_AVG, s->exp_avg + at},
                {CST_STATE_EXP_AVG_SQ, s->exp_avg_sq + at}};
    int rc = CST_OK;

    for (size_t k = 0; rc == CST_OK && k < sizeof rows / sizeof *rows; k++) {
        rc = cst_tensor_read(w->job, t, rows[k].state, 0, n, rows[k].data, err);
        if (!trained && rows[k].state != CST_STATE_WEIGHT) {
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
        rc = cst_sync(w->job, number, err);
    } while (is_void(rc));
    return rc;
}

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
        rc = mix_declare(&w->model, w->job);
        if (rc != CST_OK) {
            *err = *cst_job_error(w->job);
        }
    }
    if (rc == CST_OK) {
        do {
            rc = cst_commit(w->job, &w->report->plan, err);
        } while (is_void(rc));
    }
    pass(w);
    rc = rc == CST_OK ? train(w, err) : rc;
    rc = rc == CST_OK && w->order->rank == 0 ? read_states(w, err) : rc;
    return rc == CST_OK ? cst_job_leave(w->job, err) : rc;
}

/* -- functions for tests ---------------------------------------------------------------------- */

struct mix_report *mix_report_new(void)
{
    return child_share(sizeof(struct mix_report));
}

void mix_report_free(struct mix_report *report)
{
    child_unshare(report, sizeof *report);
}

pid_t mix_worker_start(const struct mix_order *order, struct mix_report *report)
{
    pid_t pid = child_start();

    if (pid == 0) {
        struct mix_order mine = *order;
        struct worker w = {.order = &mine, .report = report};
        struct cst_err err = {0};
        int rc;

        mix_model_make(&w.model, mine.world);
        rc = live(&w, &err);
        if (rc != CST_OK) {
            (void)snprintf(report->error, sizeof report->error, "rank %u, point %u: %s: %s",
                           mine.rank, w.point, cst_status_name(rc), err.text);
        }
        cst_disconnect(w.client);
        _exit(rc == CST_OK ? 0 : 1);
    }
    return pid;
}

bool mix_worker_join(pid_t pid, const struct mix_report *report)
{
    return child_join(pid, report->error);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The losses of a step, which the stream computes in the order of its work. The step needs their
 * sum. */
struct train_losses {
    pthread_mutex_t mutex;
    pthread_cond_t one_more;
    double sum;                 /* sum of `n` losses */
    unsigned n;                 /* number of forwards that are done */
    struct train_losses *older; /* losses of earlier steps */
};

struct train_task {
    struct train_task *older;
    const struct train_model *model;
    struct train_losses *losses;
    struct train_bad bad;
    struct cst_io io[TRAIN_MAX_IO];
    uint64_t number;
    uint32_t rank;
    int op;
    bool backward;
};

static void do_task(void *arg)
{
    struct train_task *task = arg;
    double loss;

    if (task->backward) {
        train_backward(task->model, task->op, task->rank, task->number, task->bad, task->io);
    } else {
        loss = train_forward(task->model->operators[task->op].n_tensors, task->io);
        (void)pthread_mutex_lock(&task->losses->mutex);
        task->losses->sum += loss;
        task->losses->n++;
        (void)pthread_cond_signal(&task->losses->one_more);
        (void)pthread_mutex_unlock(&task->losses->mutex);
    }
}

static int enqueue(struct train_work *w, int op, bool backward, uint64_t number,
                   const struct cst_io *io, struct cst_err *err)
{
    struct train_task *task = malloc(sizeof *task);

    if (task == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a task");
    }
    *task = (struct train_task){.older = w->tasks,
                                .model = w->model,
                                .losses = w->losses,
                                .bad = w->bad,
                                .number = number,
                                .rank = w->rank,
                                .op = op,
                                .backward = backward};
    w->tasks = task;
    w->n_forwards += backward ? 0 : 1;
    memcpy(task->io, io, w->model->operators[op].n_tensors * sizeof *io);
    return w->streams->run(w->stream, do_task, task, err);
}

int train_work_compute(struct train_work *w, int op, bool backward, uint64_t number,
                       const struct cst_io *io, double *loss, struct cst_err *err)
{
    if (w->stream != NULL) {
        return enqueue(w, op, backward, number, io, err);
    }
    if (backward) {
        train_backward(w->model, op, w->rank, number, w->bad, io);
    } else {
        *loss += train_forward(w->model->operators[op].n_tensors, io);
    }
    return CST_OK;
}

int train_work_begin(struct train_work *w, struct cst_err *err)
{
    struct train_losses *losses;

    if (w->stream == NULL) {
        return CST_OK;
    }
    losses = calloc(1, sizeof *losses);
    if (losses == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for losses");
    }
    (void)pthread_mutex_init(&losses->mutex, NULL);
    (void)pthread_cond_init(&losses->one_more, NULL);
    losses->older = w->losses;
    w->losses = losses;
    w->n_forwards = 0;
    return CST_OK;
}

void train_work_close(struct train_work *w)
{
    struct train_losses *losses = w->losses;

    w->streams->close(w->stream);
    while (w->tasks != NULL) {
        struct train_task *older = w->tasks->older;

        free(w->tasks);
        w->tasks = older;
    }
    while (losses != NULL) {
        struct train_losses *older = losses->older;

        (void)pthread_mutex_destroy(&losses->mutex);
        (void)pthread_cond_destroy(&losses->one_more);
        free(losses);
        losses = older;
    }
}

int train_work_end(struct train_work *w, double *loss, struct cst_err *err)
{
    struct train_losses *losses = w->losses;
    int rc = CST_OK;

    if (w->stream == NULL) {
        return CST_OK;
    }
    (void)pthread_mutex_lock(&losses->mutex);
    while (rc == CST_OK && losses->n < w->n_forwards) {
        struct timespec until;

        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (pthread_cond_timedwait(&losses->one_more, &losses->mutex, &until) != 0) {
            rc = w->streams->check(w->stream, err);
        }
    }
    *loss = losses->sum;
    (void)pthread_mutex_unlock(&losses->mutex);
    return rc;
}

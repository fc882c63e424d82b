/* SPDX-License-Identifier: Apache-2.0 */
/* A worker on the simulated daemon: it connects, declares n tensors of FAKE_TENSOR_ELEMS elements
 * with one operator each, commits and syncs. */
#ifndef FAKE_JOB_H
#define FAKE_JOB_H

#include "cistern/device.h"
#include "tests/lib/fake_daemon.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CK_OK(call)                                                                                \
    do {                                                                                           \
        int ck_rc = (call);                                                                        \
        ck_assert_msg(ck_rc == CST_OK, "%s: %s (%s)", #call, cst_status_name(ck_rc), err.text);    \
    } while (0)

/* A job on the simulated daemon. */
struct fake_job {
    struct fake_daemon fake;               /* set its options before fake_job_start */
    struct cst_client *client;             /* connected to `fake` */
    struct cst_job *job;                   /* the job "run7" */
    const struct cst_device_calls *device; /* device of fake_job_live's job; NULL: the host */
};

/* Connect to the running daemon and open a job as rank 0 of 1. */
static inline void fake_job_open(struct fake_job *f)
{
    struct cst_job_spec spec = {.name = "run7", .world = 1};
    struct cst_err err = {0};

    CK_OK(cst_connect(&f->client, f->fake.path, &err));
    CK_OK(cst_job_open(&f->job, f->client, &spec, &err));
}

/* Declare @n tensors, each with an operator of its own. */
static inline void fake_job_declare(struct fake_job *f, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t shape[2] = {2, FAKE_TENSOR_ELEMS / 2};
        char name[16];

        (void)snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(cst_tensor(f->job, name, CST_BF16, 2, shape, CST_GROUP_ALL), i);
        (void)snprintf(name, sizeof name, "o%d", i);
        ck_assert_int_eq(cst_operator(f->job, name, &i, 1), i);
    }
}

/* Start the daemon, open the job, declare @n tensors, commit and sync. */
static inline void fake_job_start(struct fake_job *f, int n)
{
    struct cst_err err = {0};

    fake_daemon_start(&f->fake);
    fake_job_open(f);
    fake_job_declare(f, n);
    CK_OK(cst_commit(f->job, NULL, &err));
    CK_OK(cst_sync(f->job, NULL, &err));
}

/* Disconnect and stop the daemon. */
static inline void fake_job_stop(struct fake_job *f)
{
    cst_disconnect(f->client);
    fake_daemon_stop(&f->fake);
}

/* Run the one-tensor operator @op. Every element of its gradient, if there is one, becomes
 * @grad. */
static inline void fake_job_run(struct fake_job *f, int op, enum cst_direction direction,
                                uint16_t grad)
{
    struct cst_err err = {0};
    struct cst_io io;

    CK_OK(cst_op_begin(f->job, op, direction, &io, 1, &err));
    for (uint64_t i = 0; io.grad != NULL && i < io.n_elems; i++) {
        ((uint16_t *)io.grad)[i] = grad;
    }
    CK_OK(cst_op_end(f->job, op, &err));
}

/* Check that the daemon's log is @want. */
static inline void fake_job_expect_log(struct fake_job *f, const char *want)
{
    struct cst_err err = {0};
    char *log;

    CK_OK(cst_ping(f->client, NULL, &err));
    log = fake_daemon_log(&f->fake);
    ck_assert_str_eq(log, want);
    free(log);
}

/* Do everything that a worker does once, from connect to leave. @f->fake must run. The caller
 * disconnects f->client afterwards. Returns the first failure. */
static inline int fake_job_live(struct fake_job *f, struct cst_err *err)
{
    struct cst_job_spec spec = {.name = "run7", .world = 1, .updates.micro_batches = 2};
    struct cst_hyper_params params = {.lr = 1.0f};
    struct cst_rank_stat stat;
    struct cst_io io;
    const int64_t shape = 8, whole = 16;
    const uint32_t rank = 0;
    struct cst_tensor_spec tensor = {.name = "t",
                                     .dtype = CST_BF16,
                                     .n_dims = 1,
                                     .shape = &shape,
                                     .pattern = CST_PATTERN_TENSOR,
                                     .lr_scale = 1.0f,
                                     .decay_scale = 1.0f,
                                     .whole_shape = &whole,
                                     .first = &shape};
    uint16_t data[4] = {0};
    int zero = 0, rc = cst_connect(&f->client, f->fake.path, err);

    rc = rc == CST_OK ? cst_job_open(&f->job, f->client, &spec, err) : rc;
    rc = rc == CST_OK && f->device != NULL ? cst_job_use_device(f->job, f->device, NULL, err) : rc;
    rc = rc == CST_OK ? cst_group(f->job, &rank, 1) : rc;
    tensor.group = rc;
    rc = rc >= 0 ? cst_tensor_as(f->job, &tensor) : rc;
    rc = rc == CST_OK ? cst_operator(f->job, "o", &zero, 1) : rc;
    rc = rc == CST_OK ? cst_commit(f->job, NULL, err) : rc;
    rc = rc == CST_OK ? cst_tensor_write(f->job, 0, CST_STATE_WEIGHT, 0, 4, data, err) : rc;
    rc = rc == CST_OK ? cst_sync(f->job, NULL, err) : rc;
    for (int d = CST_FORWARD; d <= CST_BACKWARD; d++) {
        rc = rc == CST_OK ? cst_op_begin(f->job, 0, (enum cst_direction)d, &io, 1, err) : rc;
        if (rc == CST_OK && d == CST_BACKWARD) {
            memset(io.grad, 0, 2 * io.n_elems);
        }
        rc = rc == CST_OK ? cst_op_end(f->job, 0, err) : rc;
    }
    rc = rc == CST_OK ? cst_accumulate(f->job, err) : rc;
    rc = rc == CST_OK ? cst_step(f->job, &params, NULL, err) : rc;
    rc = rc == CST_OK ? cst_stat(f->job, &stat, err) : rc;
    return rc == CST_OK ? cst_job_leave(f->job, err) : rc;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes that train a model of train_model.h through libcistern. A worker can be told
 * to die, or to kill another process, at any point of its run. */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include "tests/lib/train_model.h"
#include "tests/lib/train_stream.h"

#include <sys/types.h>

/* Instructions to a worker. */
struct train_order {
    const char *socket; /* the daemon's socket */
    const char *name;   /* name of the job */
    /* Name of the base job, which holds the frozen tensors; NULL: the job holds them itself. */
    const char *base;
    bool mixture;         /* train the mixture instead of the small model */
    uint32_t rank, world; /* the worker's rank and the number of ranks */
    const char *device;   /* device of this rank's pool; NULL: auto */
    /* Kind of stream on which the worker computes, if not on the host. */
    const struct train_stream_kind *streams;
    uint64_t n_steps;             /* number of steps to be committed in all */
    uint32_t micro_batches;       /* micro-batches of a step; 0: 1 */
    struct train_overlap overlap; /* when chunks are updated */
    bool grad_over;               /* the gradient's sum takes the place of the chunk's weights */
    uint64_t pool_bytes;          /* bytes of the rank's pool; 0: as many as it can use */
    uint64_t device_update_bytes; /* bytes of the rank's device reservation; 0: none */
    /* Bytes of the rank's device reservation that are for states; 0: none. */
    uint64_t device_states;
    const char *disk;     /* directories for states, separated by commas; NULL: none */
    uint64_t disk_bytes;  /* bytes of states there; 0: all */
    struct train_bad bad; /* a gradient that is not finite */
    /* Point at which the worker kills itself with SIGKILL, counted from 0; UINT32_MAX: never. */
    uint32_t die_at;
    uint32_t kill_at; /* point at which the worker kills `victim` with SIGKILL; UINT32_MAX: never */
    pid_t victim;     /* the process that `kill_at` kills */
    bool try_forms;   /* use the calls that do not wait, together with poll */
    bool forks;       /* fork in each operator; the child tries to use the job */
    uid_t uid;        /* user of the worker (tests/lib/user.h); 0: the test's user */
    const char *setting; /* "NAME=value" for the environment of this worker only; NULL: none */
};

/* The worker's report, in shared memory. */
struct train_report {
    struct train_run run;   /* results that this rank received, and the states if it read them */
    struct cst_plan plan;   /* plan from the rank's commit */
    bool mixture;           /* the model, from the order */
    uint32_t micro_batches; /* micro-batches of a step, from the order */
    struct train_overlap overlap; /* when chunks were updated, from the order */
    bool has_states;              /* run.states is filled in */
    uint32_t n_points;            /* number of points that the worker has passed */
    uint32_t n_syncs;             /* number of syncs after which a step was repeated */
    char error[768];              /* reason for an exit status that is not 0 */
};

/* Allocate a report that children share. */
struct train_report *train_report_new(void);
void train_report_free(struct train_report *report);

/* Start a process that executes @order and writes @report. *@order is copied. */
pid_t train_worker_start(const struct train_order *order, struct train_report *report);

/* Wait for the process. Fails the test with the report's message unless the exit status is 0. */
void train_worker_join(pid_t pid, const struct train_report *report);

/* Wait for the process. True if SIGKILL ended it, false if it exited with status 0. Otherwise the
 * test fails. */
bool train_worker_join_dying(pid_t pid, const struct train_report *report);

/* Wait for the process and return its exit status. Fails the test if a signal ended it. */
int train_worker_join_any(pid_t pid);

/* Wait for the process. Fails the test unless the process exits with an error. */
void train_worker_join_failing(pid_t pid);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes that train the model of train_model.h through libcistern, and can be told to
 * die, or to kill, at any point of their life. */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include "tests/lib/train_model.h"
#include "tests/lib/train_stream.h"

#include <sys/types.h>

#define TRAIN_MAX_WORLD 4

/* What a worker is told. */
struct train_order {
    const char *socket;                      /* of the daemon */
    const char *name;                        /* of the job */
    uint32_t rank, world;                    /* its place */
    const char *device;                      /* of this rank; NULL: auto */
    const struct train_stream_kind *streams; /* where it computes if that is not the host */
    uint64_t n_steps;                        /* to be committed in all */
    uint32_t micro_batches;                  /* per step; 0: 1 */
    struct train_overlap overlap;            /* when chunks are updated */
    bool grad_over;                          /* gradients take their weights' places */
    uint64_t pool_bytes;                     /* of this rank; 0: all it can use */
    uint64_t update_room;                    /* same; 0: none */
    uint64_t device_states;                  /* same; 0: none */
    struct train_bad bad;                    /* a gradient that is no number */
    uint32_t die_at;     /* kill -9 itself at this point, counted from 0; UINT32_MAX: never */
    uint32_t kill_at;    /* kill -9 victim at this point; UINT32_MAX: never */
    pid_t victim;        /* a process */
    bool try_forms;      /* use the calls that do not wait, with poll */
    bool forks;          /* forks in each operator; the child tries to use the job */
    uid_t uid;           /* the worker is this user (tests/lib/user.h); 0: as the test */
    const char *setting; /* "NAME=value" of the environment, for it alone; NULL: none */
};

/* What it tells, in shared memory. */
struct train_report {
    struct train_run run;         /* results as this rank saw them; states if it read them */
    struct cst_plan plan;         /* from its commit */
    uint32_t micro_batches;       /* per step, as it was told */
    struct train_overlap overlap; /* same */
    bool has_states;              /* run.states is filled */
    uint32_t n_points;            /* points passed */
    uint32_t n_syncs;             /* after which steps were done again */
    char error[512];              /* why its exit status is not 0 */
};

/* Memory for a report that children share. */
struct train_report *train_report_new(void);
void train_report_free(struct train_report *report);

/* Start a process that does @order and writes @report; *order is copied. */
pid_t train_worker_start(const struct train_order *order, struct train_report *report);

/* Wait for it; fails the test, with its words, unless its exit status is 0. */
void train_worker_join(pid_t pid, const struct train_report *report);

/* Wait for it. True if it died by SIGKILL; false if it ended well; else the test fails. */
bool train_worker_join_dying(pid_t pid, const struct train_report *report);

/* Wait for it; its exit status: the test fails if it was killed. */
int train_worker_join_any(pid_t pid);

/* Wait for it; the test fails unless it ends with words in its report. */
void train_worker_join_failing(pid_t pid);

#endif

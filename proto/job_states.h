/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a job as its users see them: the words of JobInfo.state in cistern.proto. The
 * daemon chooses a word, and programs compare its number. No state; any thread. */
#ifndef CST_JOB_STATES_H
#define CST_JOB_STATES_H

enum cst_job_state {
    /* Before the first step. */
    CST_JOB_IS_DECLARING,
    CST_JOB_IS_STARTING,
    CST_JOB_IS_PLANNING,
    CST_JOB_IS_POPULATING,
    CST_JOB_IS_READY,
    /* Later. */
    CST_JOB_IS_TRAINING,
    CST_JOB_IS_IDLE,        /* Workers left between two steps. */
    CST_JOB_IS_DONE,        /* All workers have left in good order. */
    CST_JOB_IS_INTERRUPTED, /* A worker died or left in the middle of a step. */
    CST_JOB_IS_PAUSED,      /* Its workers wait until it is resumed. */
    CST_JOB_IS_FAILED,
    CST_JOB_IS_REVIVING,  /* An earlier daemon had the job, and it is not ready yet. */
    CST_JOB_IS_RESHAPING, /* Another job is to take its place, or it takes that of another. */
    CST_JOB_IS_CLOSING,
    CST_JOB_STATE_COUNT,
};

/* Words by number; NULL after the last one. cst_name_find (proto/optimizers.h) finds the number, or
 * CST_JOB_STATE_COUNT for the word of a later version. */
extern const char *const cst_job_state_names[CST_JOB_STATE_COUNT + 1];

#endif

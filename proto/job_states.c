/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job_states.h"

const char *const cst_job_state_names[CST_JOB_STATE_COUNT + 1] = {
    [CST_JOB_IS_DECLARING] = "declaring",
    [CST_JOB_IS_STARTING] = "starting",
    [CST_JOB_IS_PLANNING] = "planning",
    [CST_JOB_IS_POPULATING] = "populating",
    [CST_JOB_IS_READY] = "ready",
    [CST_JOB_IS_TRAINING] = "training",
    [CST_JOB_IS_IDLE] = "idle",
    [CST_JOB_IS_DONE] = "done",
    [CST_JOB_IS_INTERRUPTED] = "interrupted",
    [CST_JOB_IS_PAUSED] = "paused",
    [CST_JOB_IS_FAILED] = "failed",
    [CST_JOB_IS_REVIVING] = "reviving",
    [CST_JOB_IS_RESHAPING] = "reshaping",
    [CST_JOB_IS_CLOSING] = "closing",
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of a job in one process: a test determines the order of their calls. */
#ifndef CST_TESTS_TWO_RANKS_H
#define CST_TESTS_TWO_RANKS_H

#include "cistern/cistern.h"

#include <check.h>

/* Fail the test unless @call, which can use `err`, has the status CST_OK. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        struct cst_err err = {0};                                                                  \
        int rc_ = (call);                                                                          \
        ck_assert_msg(rc_ == CST_OK, #call ": %s: %s", cst_status_name(rc_), err.text);            \
    } while (0)

/* A call that does not wait: cst_try_commit and the like. @arg: what the call needs. */
typedef int two_ranks_call(struct cst_job *job, void *arg, struct cst_err *err);

/* Repeat @call for the ranks, whose jobs are @job and whose connections are @client, until both
 * have a result. The test fails unless it is CST_OK. @args: what each call needs, or NULL. */
void two_ranks_drive(struct cst_client *const client[2], struct cst_job *const job[2],
                     two_ranks_call *call, void *const args[2]);

/* Calls that need nothing: @arg is not used. */
two_ranks_call two_ranks_commit, two_ranks_sync;

#endif

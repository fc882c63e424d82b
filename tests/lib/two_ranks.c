/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/two_ranks.h"

#include "tests/lib/patience.h"

#include <poll.h>

void two_ranks_drive(struct cst_client *const client[2], struct cst_job *const job[2],
                     two_ranks_call *call, void *const args[2])
{
    int rc[2] = {CST_EAGAIN, CST_EAGAIN};

    for (;;) {
        struct cst_err err = {0};
        struct pollfd fds[2];

        for (int r = 0; r < 2; r++) {
            rc[r] = rc[r] == CST_EAGAIN ? call(job[r], args != NULL ? args[r] : NULL, &err) : rc[r];
            ck_assert_msg(rc[r] == CST_OK || rc[r] == CST_EAGAIN, "rank %d: %s: %s", r,
                          cst_status_name(rc[r]), err.text);
            fds[r] = (struct pollfd){.fd = rc[r] == CST_OK ? -1 : cst_client_fd(client[r]),
                                     .events = POLLIN};
        }
        if (rc[0] == CST_OK && rc[1] == CST_OK) {
            return;
        }
        ck_assert_int_gt(poll(fds, 2, patience_ms(20000)), 0);
    }
}

int two_ranks_commit(struct cst_job *job, void *arg, struct cst_err *err)
{
    (void)arg;
    return cst_try_commit(job, NULL, err);
}

int two_ranks_sync(struct cst_job *job, void *arg, struct cst_err *err)
{
    (void)arg;
    return cst_try_sync(job, NULL, err);
}

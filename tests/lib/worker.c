/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/worker.h"

#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <poll.h>

_Atomic uint32_t *reached;

void worker_setup(void)
{
    job_rig_setup();
    reached = child_share(sizeof *reached);
}

void worker_teardown(void)
{
    settle_remove_jobs(&witness);
    child_unshare((void *)reached, sizeof *reached);
    job_rig_teardown();
}

void worker_must(const struct worker *w, int rc)
{
    suite_must(rc == CST_OK, "%s", w->err.text);
}

void worker_open(struct worker *w, const struct cst_job_spec *spec)
{
    worker_must(w, cst_connect(&w->client, proc.socket, &w->err));
    worker_must(w, cst_job_open(&w->job, w->client, spec, &w->err));
}

void worker_leave(struct worker *w)
{
    worker_must(w, cst_job_leave(w->job, &w->err));
    cst_disconnect(w->client);
}

void worker_await(const _Atomic uint32_t *count, uint32_t least)
{
    uint64_t until = patience_until(20000);

    while (*count < least) {
        suite_must(!patience_over(until), "no child has reached point %u", least);
        (void)poll(NULL, 0, 1);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/settle.h"

#include "tests/lib/patience.h"

#include <check.h>
#include <poll.h>
#include <string.h>

void settle_balanced(struct raw_client *witness)
{
    const Cistern__Books *b = raw_stat(witness)->pool;

    ck_assert_uint_eq(b->capacity,
                      b->free + b->cached + b->leased + b->moving + b->pending + b->quarantined);
}

static uint64_t gpu_bytes(const Cistern__StatReply *stat)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < stat->n_gpus; i++) {
        sum += stat->gpus[i]->pool_used;
    }
    return sum;
}

/* The daemon closes connections and returns segments in later turns of its event loop. Each Stat is
 * one turn. */
void settle(struct raw_client *witness, const struct daemon_proc *proc, unsigned n_fds)
{
    const uint64_t until = patience_until(20000);
    const Cistern__StatReply *stat;

    settle_balanced(witness);
    do {
        stat = raw_stat(witness);
        if (stat->n_sessions == 1 && stat->n_jobs == 0 && stat->host_used == 0 &&
            stat->pool_used == 0 && gpu_bytes(stat) == 0 && daemon_proc_fds(proc->pid) == n_fds) {
            settle_balanced(witness);
            return;
        }
        (void)poll(NULL, 0, 1); /* The daemon has work to do, which more questions would delay. */
    } while (!patience_over(until));
    ck_abort_msg("%u sessions, %u jobs, %llu and %llu bytes, %u descriptors where there were %u",
                 stat->n_sessions, stat->n_jobs, (unsigned long long)stat->host_used,
                 (unsigned long long)stat->pool_used, daemon_proc_fds(proc->pid), n_fds);
}

unsigned settle_base_fds(struct raw_client *witness, const struct daemon_proc *proc)
{
    for (uint64_t until = patience_until(20000); !patience_over(until);) {
        const char *gpu = raw_stat(witness)->gpu;

        if (gpu == NULL || strcmp(gpu, "looking") != 0) {
            return daemon_proc_fds(proc->pid);
        }
        (void)poll(NULL, 0, 1);
    }
    ck_abort_msg("GPUs are looked for without end");
}

unsigned settle_fds(struct raw_client *witness, unsigned base_fds)
{
    const Cistern__StatReply *stat = raw_stat(witness);

    for (size_t i = 0; i < stat->n_engines; i++) {
        bool up = stat->engines[i]->has_pid && strcmp(stat->engines[i]->kind, "host") != 0;

        base_fds += up ? 3 : 0;
    }
    return base_fds;
}

/* The list changes while it is read, so its first part is read repeatedly. */
void settle_remove_jobs(struct raw_client *witness)
{
    for (;;) {
        Cistern__JobListGet get = CISTERN__JOB_LIST_GET__INIT;
        const Cistern__JobListPart *part;
        uint64_t id = raw_ask(witness, CISTERN__MSG_TYPE__MSG_JOB_LIST, &get.base);

        part = raw_expect(witness, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
                          &cistern__job_list_part__descriptor);
        if (part->n_jobs == 0) {
            return;
        }
        for (size_t i = 0; i < part->n_jobs; i++) {
            Cistern__JobName name = CISTERN__JOB_NAME__INIT;
            int rc;

            name.name = part->jobs[i]->name;
            rc = raw_call(witness, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base);
            ck_assert_msg(rc == CST_OK || rc == CST_ENOTFOUND || rc == CST_EBUSY, "%s",
                          witness->err.text); /* EBUSY: a base job can be removed only after the
                                               * jobs that use it */
        }
    }
}

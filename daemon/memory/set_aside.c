/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/set_aside.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "proto/size.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/job/jobs.h"
#include "daemon/engine/gpus.h"
#include "daemon/memory/tiers/tier.h"

#include <stdio.h>

void cstd_set_aside_count(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu,
                          struct cst_card *out)
{
    const struct cstd_job *job;

    cst_card_init(out, gpu->memory_bytes);
    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        bool rests = job->successor != NULL || job->state == CSTD_JOB_REVIVING ||
                     (job->memory.parked && !job->resumes);

        for (uint32_t r = 0; r < job->world; r++) {
            if (job->workers[r].tier->gpu == gpu && (!rests || job->workers[r].present)) {
                cst_card_add_rank(out, cst_card_activations(&job->model, r));
            }
        }
    }
}

void cstd_set_aside_update(struct cstd_daemon *daemon, struct cstd_gpu *gpu)
{
    struct cst_card card;
    char words[CST_CARD_WORDS], size[CST_SIZE_TEXT];

    if (!gpu->pool_auto) {
        return;
    }
    cstd_set_aside_count(daemon, gpu, &card);
    cst_card_words(&card, words, sizeof words);
    gpu->pool.set_aside = cst_card_bytes(&card);
    (void)snprintf(gpu->set_aside_words, sizeof gpu->set_aside_words, "of the card's %s (%s)",
                   cst_size_text(gpu->memory_bytes, size), words);
    cstd_quota_set_total(daemon->quota, gpu->pool.resource, cstd_budget_size(&gpu->pool));
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/job_ranks.h"

#include <stdlib.h>
#include <string.h>

static bool is_missing_ranks(const Cistern__JobInfo *job)
{
    return job->n_ranks > 0 && job->n_ranks < job->world;
}

bool cli_job_ranks_next(const Cistern__JobInfo *job, Cistern__JobName *next)
{
    cistern__job_name__init(next);
    next->name = job->name;
    next->has_uid = 1;
    next->uid = job->uid;
    next->has_first_rank = 1;
    next->first_rank = (uint32_t)job->n_ranks;
    return is_missing_ranks(job);
}

int cli_job_ranks_join(Cistern__JobInfo *job, Cistern__JobInfo *page, bool *more,
                       struct cst_err *err)
{
    Cistern__RankInfo **ranks;

    *more = false;
    if (page->n_ranks == 0 || page->world != job->world) {
        return CST_OK;
    }
    ranks = reallocarray(job->ranks, job->n_ranks + page->n_ranks, sizeof(Cistern__RankInfo *));
    if (ranks == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the %u ranks of job '%s'", job->world,
                           job->name);
    }
    memcpy(ranks + job->n_ranks, page->ranks, page->n_ranks * sizeof(Cistern__RankInfo *));
    job->ranks = ranks;
    job->n_ranks += page->n_ranks;
    page->n_ranks = 0;
    *more = is_missing_ranks(job);
    return CST_OK;
}

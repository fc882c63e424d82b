/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a Commit. */
#ifndef CSTD_COMMITTED_H
#define CSTD_COMMITTED_H

#include "daemon/job/pool_info.h"
#include "proto/cistern.pb-c.h"

#include <stdint.h>

struct cst_core_stats;
struct cstd_job;

/* A Committed message and the storage of its parts. It is not to be copied. */
struct cstd_committed {
    Cistern__Committed message;
    struct cstd_pool_info pool;
};

/* Fill @out with what @rank of @job is told, which has its memory and core. @stats: of the core. */
void cstd_committed_fill(const struct cstd_job *job, uint32_t rank,
                         const struct cst_core_stats *stats, struct cstd_committed *out);

#endif

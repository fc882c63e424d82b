/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a rank's pool that Committed and JobInfo contain. */
#ifndef CSTD_POOL_INFO_H
#define CSTD_POOL_INFO_H

#include "daemon/job/job.h"
#include "proto/cistern.pb-c.h"

/* Description of a pool by size class. */
struct cstd_pool_info {
    Cistern__PoolClass classes[CST_LAYOUT_MAX_CLASSES];
    /* Pointers to the first n_classes entries of classes; n_classes is the layout's. */
    Cistern__PoolClass *pointers[CST_LAYOUT_MAX_CLASSES];
};

/* Fill @out with the pool of @rank of @job, which must be committed. */
void cstd_pool_info(const struct cstd_job *job, uint32_t rank, struct cstd_pool_info *out);

#endif

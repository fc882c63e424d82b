/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a job (JobDescription in proto/cistern.proto): what was declared, the options,
 * what the job has done. It can have hundreds of megabytes, hence it is made in a thread. */
#ifndef CSTD_DESCRIBE_H
#define CSTD_DESCRIBE_H

#include "offload/base/stats.h"

#include <stdint.h>

struct cstd_description;
struct cstd_job;

/* Called on the loop thread: a description was made, or @err says why not. */
typedef void (*cstd_describe_cb)(struct cstd_job *job, const struct cst_err *err);

/* Get a sealed memfd with the description of @job, which has a core. It is made once per committed
 * step, so that frequent saves cost other users nothing. *fd belongs to the job and is valid until
 * the next call; *bytes is its length. Its memory was charged with that of the job. CST_EAGAIN: it
 * is being made; @done follows, never within this call, and until then job->describing is set, and
 * the job must not be freed. If it is being made already, @done is that of the first call.
 * CST_EBUDGET: processes of the user hold earlier descriptions, and a limit is exceeded.
 * CST_ENOMEM: out of memory, or too many open files. Loop thread only. */
int cstd_describe(struct cstd_job *job, cstd_describe_cb done, int *fd, uint64_t *bytes,
                  struct cst_err *err);

/* What a job has done. */
struct cstd_progress {
    struct cst_core_stats stats;
    uint64_t *missed; /* Per tensor: steps that it has missed; NULL: the job does not count them. */
};

/* Copy how far the core of @job is. The caller closes *out, also after an error. CST_ENOMEM. Loop
 * thread only. */
int cstd_describe_progress(const struct cstd_job *job, struct cstd_progress *out,
                           struct cst_err *err);

void cstd_describe_progress_close(struct cstd_progress *progress);

/* Make the description of @job, which has made @progress. The caller owns out->fd. Any thread,
 * while the job has its model and its layout. CST_ENOMEM as above. */
int cstd_describe_make(const struct cstd_job *job, const struct cstd_progress *progress,
                       struct cstd_description *out, struct cst_err *err);

/* The description of @job is wrong now. Loop thread only. */
void cstd_describe_outdate(struct cstd_job *job);

/* The description of @job is no longer needed. Loop thread only. */
void cstd_describe_forget(struct cstd_job *job);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of the node: looked for when the daemon starts, without anybody waiting but those who
 * want one; then a list that does not change, each with a budget and an engine.
 *
 *   start: devices = none, or no engine program --> NONE (why)
 *      \--> LOOKING --probe ends--> FOUND (list), or NONE (why) */
#ifndef CST_GPUS_H
#define CST_GPUS_H

#include "daemon/gpu_list.h"

#include <stddef.h>
#include <sys/queue.h>

struct cst_daemon;
struct cst_pending;
struct cst_probe;
struct cst_gpus_wish; /* private */

enum cst_gpus_state { CST_GPUS_NONE, CST_GPUS_LOOKING, CST_GPUS_FOUND };

struct cst_gpus {
    struct cst_daemon *daemon;
    enum cst_gpus_state state;
    char why[384];             /* NONE: the words; FOUND: what else was wanted and is not there, or
                                  empty */
    struct cst_gpu_list list;  /* FOUND */
    struct cst_gpu_list paced; /* accelerators that are none, in any state */
    struct cst_probe *probe;   /* LOOKING */
    TAILQ_HEAD(, cst_gpus_wish) wishes; /* JobOpens that wait for the list */
};

/* Begin; engines of the nodes are there, and those of paced accelerators are next. Never fails:
 * what is wrong is why, or in the log. */
void cst_gpus_start(struct cst_gpus *gpus, struct cst_daemon *daemon);

/* The accelerator whose engine is number @engine; NULL: none. */
struct cst_gpu *cst_gpus_of_engine(struct cst_gpus *gpus, unsigned engine);

/* End the probe, if it runs; forget who waits. */
void cst_gpus_stop(struct cst_gpus *gpus);

/* What JobOpen.device @device (NULL: "auto") means for @rank: *out is NULL for the host.
 * CST_EAGAIN: still looking; CST_EUNSUPPORTED: no GPU, with why, or no paced accelerator;
 * CST_ENOTFOUND, CST_EINVAL. */
int cst_gpus_choose(struct cst_gpus *gpus, const char *device, uint32_t rank, struct cst_gpu **out,
                    struct cst_err *err);

/* Keep JobOpen @request with its packed body until the list is there; then it is served again as if
 * it had just come. CST_ENOMEM: @request is the caller's. */
int cst_gpus_wait(struct cst_gpus *gpus, struct cst_pending *request, const void *body, size_t n,
                  struct cst_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of the machine. The daemon looks for them when it starts, and only requests for a GPU
 * wait for the result. Afterwards the list is constant, and each GPU has a budget and an engine.
 *
 *   start: devices = none, or no engine program --> NONE (why)
 *      \--> LOOKING --probe ends--> FOUND (list), or NONE (why) */
#ifndef CST_GPUS_H
#define CST_GPUS_H

#include "daemon/settings/gpu_list.h"
#include "daemon/session/held.h"

#include <stddef.h>
#include <sys/queue.h>

struct cstd_daemon;
struct cstd_pending;
struct cstd_probe;

enum cstd_gpus_state { CSTD_GPUS_NONE, CSTD_GPUS_LOOKING, CSTD_GPUS_FOUND };

struct cstd_gpus {
    struct cstd_daemon *daemon;
    enum cstd_gpus_state state;
    /* NONE: the reason. FOUND: the configured GPUs that do not exist, or empty. */
    char why[sizeof((struct cst_err *)NULL)->text];
    struct cstd_gpu_list list; /* FOUND: the GPUs. */
    /* From [paced]: simulated accelerators, always available whatever the probe finds. */
    struct cstd_gpu_list paced;
    struct cstd_probe *probe;     /* LOOKING: the running probe. */
    struct cstd_held_list wishes; /* JobOpen requests that wait for the list. */
    /* Called when the probe has ended, before the requests are served; NULL: nothing to do. */
    void (*on_known)(struct cstd_daemon *daemon);
};

/* Make the simulated accelerators and start to look for GPUs. The nodes' engines must exist
 * already, because engines of accelerators follow them. The function cannot fail: problems are
 * stored in why or written to the log. */
void cstd_gpus_start(struct cstd_gpus *gpus, struct cstd_daemon *daemon);

/* Run the loop until the GPUs are known. Only while nothing else uses the loop, which is before the
 * daemon serves anybody. */
void cstd_gpus_await(struct cstd_gpus *gpus);

/* Returns the accelerator whose engine has the index @engine, or whose UUID is @uuid; NULL: there
 * is none. */
struct cstd_gpu *cstd_gpus_of_engine(struct cstd_gpus *gpus, unsigned engine);
struct cstd_gpu *cstd_gpus_of_uuid(struct cstd_gpus *gpus, const char *uuid);

/* Returns the engines of the accelerators whose memory @gpu cannot access. A GPU and
 * a simulated accelerator cannot access each other's. */
struct cst_set cstd_gpus_unreachable(const struct cstd_gpus *gpus, const struct cstd_gpu *gpu);

/* Cancel the probe if it runs, and forget the waiting requests. */
void cstd_gpus_stop(struct cstd_gpus *gpus);

/* Find the device that JobOpen.device @device (NULL: "auto") names for @rank. *out is NULL for the
 * host. CST_EAGAIN: the probe has not ended yet; CST_EUNSUPPORTED: no GPU or simulated accelerator
 * is available, with the reason; CST_ENOTFOUND, CST_EINVAL: as cstd_gpu_list_find. */
int cstd_gpus_choose(struct cstd_gpus *gpus, const char *device, uint32_t rank,
                     struct cstd_gpu **out, struct cst_err *err);

/* Keep the JobOpen @message, request @id of @session, until the probe has ended. @serve is then
 * called for it, as if the request had just arrived. Errors: see cstd_hold. */
int cstd_gpus_wait(struct cstd_gpus *gpus, struct cstd_session *session, uint64_t id,
                   const ProtobufCMessage *message, cstd_held_fn serve, struct cst_err *err);

#endif

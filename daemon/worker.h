/* SPDX-License-Identifier: Apache-2.0 */
/* Who works on a job as which rank.
 *
 *   ABSENT   --a session attaches-----------------------------------> ATTACHED
 *   ATTACHED --the session ends, the process lives------------------> HUNG UP
 *   ATTACHED --the worker leaves, or its process ends---------------> ABSENT
 *   HUNG UP  --the process attaches again, or who has its token does-> ATTACHED
 *   HUNG UP  --the process ends-------------------------------------> ABSENT
 *
 * The blocks of a rank that has hung up may still be touched. Without a core nothing can be, and
 * a session's end is the worker's. */
#ifndef CST_WORKER_H
#define CST_WORKER_H

#include "daemon/job.h"

/* JobOpen, checked for form. */
struct cst_job_wish {
    const char *name;       /* of the job */
    uint32_t rank, world;   /* this rank, and the number of ranks */
    uint64_t pool_bytes;    /* 0: as much as is of use */
    uint64_t chunk_elems;   /* 0: chosen */
    uint64_t update_room;   /* Bytes of this rank's device. 0: none; for a job whose memory is
                               decided, as much as its rank has. CST_PLAN_ROOM_AUTO: as the
                               plan says. */
    uint64_t device_states; /* As update_room. */
    uint32_t micro_batches; /* at least 1 */
    bool recompute;         /* hint: each forward pass is done again */
    struct cst_job_options options;
    const char *base;     /* name of a job; NULL: none */
    struct cst_gpu *gpu;  /* NULL: the host */
    bool any_device;      /* "auto": what its rank has, if that is decided */
    const uint8_t *token; /* CST_JOB_TOKEN_BYTES; NULL: none */
    uint32_t timeout_ms;  /* longest wait for other ranks; 0: the configured one */
    uint32_t ttl_s;       /* life without a worker; 0: the configured one */
};

/* Attach @session as a rank of the job of that name, made if it is not there. CST_EINVAL,
 * CST_EMISMATCH, CST_ENOTFOUND (its base), CST_EBUSY (with the holder's pid), CST_EBUDGET (too many
 * jobs), CST_ENOMEM. *created tells whether it was made. */
int cst_worker_attach(struct cst_session *session, const struct cst_job_wish *wish, bool *created,
                      struct cst_err *err);

/* Whoever claims @rank may be the one that the others wait for. */
bool cst_worker_is_awaited(const struct cst_job *job, uint32_t rank);

/* The session of @rank is gone. */
void cst_worker_hangup(struct cst_job *job, uint32_t rank);

/* The worker of @rank went in good order; what the core had to be told it was told. */
void cst_worker_left(struct cst_job *job, uint32_t rank);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for their final reply: the batch or step that the core, an engine or another
 * rank will answer. Each is known to the core by tags, one per item; a tag finds its request in
 * O(1). Objects are kept and used again, so that a request costs no allocation.
 *
 *   tag: | serial (32 bits, never 0) | index in the table (20) | item (12) | */
#ifndef CST_PENDING_H
#define CST_PENDING_H

#include "offload/core.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define CST_PENDING_MAX_ITEMS                                                                      \
    128 /* of a Batch: so that a reply with words for all fits in a frame */

struct cst_quota_account;
struct cst_session;
struct cst_staging;
struct cst_job;

struct cst_pending_item {
    int status;            /* 0 or negative */
    bool done;             /* it has its result */
    bool hit;              /* FETCH_WEIGHT */
    bool grad, ahead;      /* with asked_ns */
    uint32_t rank, chunk;  /* with asked_ns */
    uint64_t asked_ns;     /* of a FETCH that was not granted at once; 0: it is none */
    uint32_t slab;         /* FETCH */
    uint64_t offset;       /* FETCH, bytes */
    uint64_t generation;   /* FETCH */
    struct cst_place home; /* FETCH_WEIGHT, with home_bytes: what the worker is to copy */
    uint64_t home_bytes;   /* 0: nothing */
    char *text;            /* owned; words, with a status */
};

struct cst_pending {
    TAILQ_ENTRY(cst_pending) link;     /* in the session's list of what is in flight */
    TAILQ_ENTRY(cst_pending) job_link; /* in the job's list */
    struct cst_session *session;       /* NULL: it is gone, the reply goes nowhere */
    struct cst_job *job;               /* NULL: not the job's */
    struct cst_quota_account *account; /* that counts it, a reference; NULL: none does */
    uint64_t id;                       /* the client's number */
    uint16_t type;                     /* enum Cistern__MsgType */
    uint32_t serial;                   /* in tags */
    uint32_t index;                    /* in the table */
    uint32_t n_items;                  /* tags it has */
    uint32_t n_left;                   /* of them without result */
    bool waits_commit;                 /* it is a worker's Commit at the barrier */
    struct cst_staging *staging;       /* it uses; NULL */
    struct cst_pending_item *items;    /* n_items */
    uint32_t capacity;                 /* of items */
    struct cst_pending *next_free;     /* while not in use */
};

TAILQ_HEAD(cst_pending_list, cst_pending);

struct cst_pendings {
    struct cst_pending **table; /* by index; NULL where none was made yet */
    uint32_t n, capacity;       /* of table */
    struct cst_pending *free;   /* ready for use */
    uint32_t serial;            /* of the last one opened */
};

void cst_pendings_init(struct cst_pendings *requests);
void cst_pendings_close(struct cst_pendings *requests);

/* Take a request object with @n_items items (1..CST_PENDING_MAX_ITEMS), in no list. CST_ENOMEM. */
int cst_pending_open(struct cst_pending **out, struct cst_pendings *requests, uint64_t id,
                     uint16_t type, uint32_t n_items, struct cst_err *err);

/* Put it back. Its tags find nothing from now on. It is in no list any more. */
void cst_pending_close(struct cst_pendings *requests, struct cst_pending *request);

static inline uint64_t cst_pending_tag(const struct cst_pending *request, uint32_t item)
{
    return (uint64_t)request->serial << 32 | (uint64_t)request->index << 12 | item;
}

/* The request of @tag and which item of it; NULL: it was answered otherwise. */
struct cst_pending *cst_pending_find(const struct cst_pendings *requests, uint64_t tag,
                                     uint32_t *item);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for their final reply: batches, steps and others that the core, an engine or
 * another rank completes later. The core knows a request by tags, one per item; a tag leads to its
 * request in O(1). Request objects are reused, hence a request usually needs no allocation. Loop
 * thread only.
 *
 *   tag: | serial (32 bits, never 0) | index in the table (20) | item (12) | */
#ifndef CST_PENDING_H
#define CST_PENDING_H

#include "offload/core/core.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define CSTD_PENDING_MAX_ITEMS                                                                     \
    128 /* Most items of a Batch: a reply with words for every item still fits in a frame. */

struct cstd_held;
struct cstd_quota_account;
struct cstd_reader;
struct cstd_session;
struct cstd_staging;
struct cstd_standby;
struct cstd_job;

struct cstd_pending_item {
    int status;             /* Result of the item: 0 or negative. */
    enum cst_reason reason; /* What a negative status is about. */
    bool done;              /* The item has its result. */
    bool hit;               /* FETCH_WEIGHT: the weights were in a block. */
    /* Valid if asked_ns is not 0: the fetch is of a gradient's block; the worker does not wait for
     * it yet. */
    bool grad, ahead;
    uint32_t rank, chunk; /* Valid if asked_ns is not 0: the rank that fetches, and the chunk. */
    /* When a fetch that could not be granted at once was requested; 0: any other item. */
    uint64_t asked_ns;
    uint32_t slab;       /* Fetches: the block's slab. */
    uint64_t offset;     /* Fetches: the block's offset in its slab, bytes. */
    uint64_t generation; /* Fetches: generation of the lease. */
    /* FETCH_WEIGHT with home_bytes > 0: the weight row that the worker is to copy to the block. */
    struct cst_place home;
    uint64_t home_bytes; /* Bytes that the worker is to copy; 0: none. */
    char *text;          /* Words that explain a negative status; owned; may be NULL. */
};

struct cstd_pending {
    TAILQ_ENTRY(cstd_pending) link;     /* Entry in the session's list of requests in flight. */
    TAILQ_ENTRY(cstd_pending) job_link; /* Entry in the job's list of requests in flight. */
    struct cstd_session *session;       /* NULL: the session has ended, and the reply is dropped. */
    struct cstd_job *job;               /* NULL: the request does not end with a job. */
    /* Account that is charged with the request, a reference; NULL: none. */
    struct cstd_quota_account *account;
    uint64_t id;      /* Request number, chosen by the client. */
    uint16_t type;    /* Type of the request, enum Cistern__MsgType. */
    uint32_t serial;  /* Serial number, part of the tags. */
    uint32_t index;   /* Place in cstd_pendings.table, part of the tags. */
    uint32_t n_items; /* Number of items, and of tags. */
    uint32_t n_left;  /* Number of items without a result. */
    /* The request is a worker's Commit, which waits for the other ranks. */
    bool waits_commit;
    /* The request is a Leave, or a Save of what is recorded, which waits until the last step is on
     * the drives (durable.h). */
    bool waits_seal;
    bool paused; /* The request is a Batch, and its job is paused. */
    /* The request is a Save of what is recorded. */
    bool recorded;
    /* The request is a Save, which waits for the description of its job. */
    bool waits_description;
    /* The request is the last Restore of a load, after those with `more`. */
    bool restores;
    struct cstd_reader *reader;   /* The reader that waits (readers.h), or NULL. */
    struct cstd_staging *staging; /* Staging segment that the request uses, or NULL. */
    struct cstd_standby *standby; /* The standby whose request this is (standby.h), or NULL. */
    struct cstd_held *held;       /* What waits to be served as this request (held.h), or NULL. */
    /* Called when the request is over; NULL: nothing to do. */
    void (*on_close)(struct cstd_pending *request);
    struct cstd_pending_item *items; /* Array of n_items items. */
    uint32_t capacity;               /* Allocated length of items. */
    struct cstd_pending *next_free;  /* Next free object, while this one is not in use. */
};

TAILQ_HEAD(cst_pending_list, cstd_pending);

struct cstd_pendings {
    struct cstd_pending **table; /* All objects by index; the first n entries are set. */
    uint32_t n, capacity;        /* Used and allocated length of table. */
    struct cstd_pending *free;   /* List of the objects that are not in use. */
    uint32_t serial;             /* Serial number of the request that was opened last. */
};

/* @requests is zeroed by init. Close frees all request objects. */
void cstd_pendings_init(struct cstd_pendings *requests);
void cstd_pendings_close(struct cstd_pendings *requests);

/* Take a request object with @n_items items (1..CSTD_PENDING_MAX_ITEMS). The object is in no list,
 * and all its items are zeroed. CST_ENOMEM. */
int cstd_pending_open(struct cstd_pending **out, struct cstd_pendings *requests, uint64_t id,
                      uint16_t type, uint32_t n_items, struct cst_err *err);

/* Give the request object back. The caller has removed @request from its lists. Its tags lead to no
 * request from now on. */
void cstd_pending_close(struct cstd_pendings *requests, struct cstd_pending *request);

/* Return the tag of item @item. */
static inline uint64_t cstd_pending_tag(const struct cstd_pending *request, uint32_t item)
{
    return (uint64_t)request->serial << 32 | (uint64_t)request->index << 12 | item;
}

/* True if @tag is that of a request; false: it has no serial number, and is used otherwise. */
static inline bool cstd_pending_is_tag(uint64_t tag)
{
    return tag >> 32 != 0;
}

/* Return the request of @tag, and set *item to the item's number. NULL: the request is closed
 * already. */
struct cstd_pending *cstd_pending_find(const struct cstd_pendings *requests, uint64_t tag,
                                       uint32_t *item);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that have no answer yet: a slab of them and queues over it. Each is in one place at a
 * time, and that place answers its tag. */
#ifndef CST_REQUEST_H
#define CST_REQUEST_H

#include "offload/core.h"
#include "offload/heap.h"

#define CST_NO_REQUEST UINT32_MAX

enum cst_request_where {
    CST_REQUEST_UNUSED,
    CST_REQUEST_QUEUED, /* a fetch that waits for a block, in its rank's demand or ahead queue */
    CST_REQUEST_JOINED, /* a fetch that waits for the copy into a block, in the block's queue */
    CST_REQUEST_SYNC,   /* waits for other ranks */
    CST_REQUEST_STEP,   /* waits for other ranks, then for the norm */
    CST_REQUEST_IO,     /* READ or WRITE: waits for its command */
};

struct cst_request {
    enum cst_request_where where;
    enum cst_event_kind kind;
    uint64_t tag;
    uint64_t deadline;       /* ns, CST_CORE_NEVER: none */
    uint32_t rank;           /* of fetch, sync, step */
    uint32_t chunk;          /* of fetch and IO */
    uint32_t block;          /* JOINED: which */
    uint32_t next;           /* in its queue or in the list of unused ones */
    bool ahead;              /* a fetch that nobody waits for yet */
    bool coming;             /* a fetch of weights that were on their way when it came */
    enum cst_row row;        /* READ */
    struct cst_place dst;    /* READ, to do it again, as are the next two */
    uint64_t first, n_elems; /* READ: elements of the chunk's row */
    uint64_t version;        /* READ: of the row when its copy was issued */
};

struct cst_queue {
    uint32_t head, tail; /* numbers of requests, CST_NO_REQUEST: empty */
};

struct cst_requests {
    struct cst_request *v; /* owned */
    uint32_t capacity;
    uint32_t unused;      /* list */
    uint32_t n;           /* in use */
    struct cst_heap late; /* those that can be late, the earliest deadline on top */
    uint32_t *late_at;    /* per request: its place in late; owned */
};

void cst_requests_init(struct cst_requests *requests);
void cst_requests_close(struct cst_requests *requests);

/* Room for one more. CST_ENOMEM. */
int cst_requests_reserve(struct cst_requests *requests);

/* A new one for @event, in no queue; reserved before. */
uint32_t cst_requests_add(struct cst_requests *requests, const struct cst_event *event,
                          enum cst_request_where where);
/* It is answered and in no queue. */
void cst_requests_remove(struct cst_requests *requests, uint32_t request);

/* From now on it is late when its deadline has come; it is not, whatever the time. */
void cst_requests_time(struct cst_requests *requests, uint32_t request);
void cst_requests_untime(struct cst_requests *requests, uint32_t request);
/* The one that will be late first, or CST_NO_REQUEST. */
uint32_t cst_requests_next_late(const struct cst_requests *requests);

/* The one with @tag, or CST_NO_REQUEST. */
uint32_t cst_requests_find(const struct cst_requests *requests, uint64_t tag);

void cst_queue_init(struct cst_queue *queue);
bool cst_queue_empty(const struct cst_queue *queue);
void cst_queue_push(struct cst_requests *requests, struct cst_queue *queue, uint32_t request);
/* Take the first out; CST_NO_REQUEST if there is none. */
uint32_t cst_queue_pop(struct cst_requests *requests, struct cst_queue *queue);
/* Take @request, which is in it, out. */
void cst_queue_remove(struct cst_requests *requests, struct cst_queue *queue, uint32_t request);

#endif

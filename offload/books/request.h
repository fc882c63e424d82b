/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that have not been answered yet: an array of them and queues over it. Each request is in
 * one place at a time, and the owner of that place answers its tag. Place, queue and deadline are
 * changed here only; the fields from `ahead` on, and `chunk`, by the part that added the
 * request. */
#ifndef CST_REQUEST_H
#define CST_REQUEST_H

#include "offload/base/event.h"
#include "offload/base/heap.h"

#define CST_NO_REQUEST UINT32_MAX

enum cst_request_where {
    CST_REQUEST_UNUSED,
    /* A fetch that waits for a block, in the demand or ahead queue of its part. */
    CST_REQUEST_QUEUED,
    CST_REQUEST_JOINED, /* A fetch that waits for a load, in the queue of the block. */
    CST_REQUEST_SYNC,   /* A SYNC that waits for other ranks. */
    CST_REQUEST_STEP,   /* A STEP that waits for other ranks and then for the norm. */
    CST_REQUEST_NEXT,   /* A NEXT that waits for a unit. */
    CST_REQUEST_IO,     /* A READ or WRITE that waits for its command. */
};

struct cst_request {
    enum cst_request_where where;
    enum cst_event_kind kind;
    uint64_t tag;
    uint64_t deadline; /* In ns; CST_CORE_NEVER: none. */
    uint32_t rank;     /* Fetch, SYNC, STEP: the rank. */
    uint32_t chunk;    /* Fetch, READ, WRITE: the chunk. */
    uint32_t block;    /* JOINED: the block. */
    uint32_t next;     /* Next request in its queue or in the list of unused ones. */
    bool ahead;        /* Fetch: the worker does not wait for it yet. */
    /* Fetch of weights: their copy was under way when the worker began to wait. */
    bool coming;
    enum cst_row row;     /* READ, WRITE: the row. */
    bool raw, exponents;  /* READ: as in struct cst_event. */
    struct cst_place dst; /* READ: destination, kept to repeat the copy. */
    /* READ: range of elements in the chunk's row, kept to repeat the copy. */
    uint64_t first, n_elems;
    uint64_t version; /* READ: version of the row when its copy was issued. */
};

struct cst_queue {
    uint32_t head, tail; /* Numbers of requests; CST_NO_REQUEST: the queue is empty. */
};

struct cst_requests {
    struct cst_request *v; /* Owned. */
    uint32_t capacity;
    uint32_t unused;      /* First request in the list of unused ones. */
    uint32_t n;           /* Requests in use. */
    struct cst_heap late; /* Requests with a running deadline, the earliest on top. */
    uint32_t *late_at;    /* Per request: its place in `late`; owned. */
};

/* Initialise an empty array of requests, or free one. */
void cst_requests_init(struct cst_requests *requests);
void cst_requests_close(struct cst_requests *requests);

/* Make room for one more request. CST_ENOMEM. */
int cst_requests_reserve(struct cst_requests *requests);

/* Add a request for @event, in no queue. Room must have been reserved. Returns its number. */
uint32_t cst_requests_add(struct cst_requests *requests, const struct cst_event *event,
                          enum cst_request_where where);
/* Remove a request that is answered and in no queue. */
void cst_requests_remove(struct cst_requests *requests, uint32_t request);

/* A fetch, whose deadline stops, now waits for the load of @block. */
void cst_requests_join(struct cst_requests *requests, uint32_t request, uint32_t block);
/* A fetch waits in the queue of its part. */
void cst_requests_enqueue(struct cst_requests *requests, uint32_t request);

/* Start the request's deadline, which is @deadline if the request had none so far; or stop it. */
void cst_requests_time(struct cst_requests *requests, uint32_t request, uint64_t deadline);
void cst_requests_untime(struct cst_requests *requests, uint32_t request);
/* Replace the request's running deadline by @deadline. */
void cst_requests_extend(struct cst_requests *requests, uint32_t request, uint64_t deadline);
/* The request with the earliest running deadline, or CST_NO_REQUEST. */
uint32_t cst_requests_next_late(const struct cst_requests *requests);

/* The request with @tag, or CST_NO_REQUEST. */
uint32_t cst_requests_find(const struct cst_requests *requests, uint64_t tag);

/* Initialise an empty queue. */
void cst_queue_init(struct cst_queue *queue);
/* True if the queue has no requests. */
static inline bool cst_queue_empty(const struct cst_queue *queue)
{
    return queue->head == CST_NO_REQUEST;
}
/* Append @request, which must be in no queue. */
void cst_queue_push(struct cst_requests *requests, struct cst_queue *queue, uint32_t request);
/* Take out the first request; CST_NO_REQUEST: there is none. */
uint32_t cst_queue_pop(struct cst_requests *requests, struct cst_queue *queue);
/* Take out @request, which must be in the queue. O(length of the queue). */
void cst_queue_remove(struct cst_requests *requests, struct cst_queue *queue, uint32_t request);

#endif

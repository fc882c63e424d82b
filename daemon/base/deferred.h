/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of deferred work. Some work must not be done inside the callback that finds it necessary,
 * for example closing a session while its message is being answered, or freeing a job while the
 * actions of its core are carried out. Such work is queued and done before the loop sleeps again.
 * Loop thread only. */
#ifndef CSTD_DEFERRED_H
#define CSTD_DEFERRED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

/* Address of the object of @type whose member @member is *@part. */
#define cstd_owner_of(part, type, member) ((type *)(void *)((char *)(part)-offsetof(type, member)))

struct cstd_deferred;
typedef void (*cstd_deferred_fn)(struct cstd_deferred *later);

/* An item of work; embedded in the object that the work is about. */
struct cstd_deferred {
    TAILQ_ENTRY(cstd_deferred) link;
    cstd_deferred_fn fn; /* Does the work; may free the object. */
    bool queued;         /* The item is in the queue. */
};

struct cstd_deferred_queue {
    TAILQ_HEAD(, cstd_deferred) items; /* In order of queueing. */
};

/* Initialise an empty queue. */
static inline void cstd_deferred_init(struct cstd_deferred_queue *queue)
{
    TAILQ_INIT(&queue->items);
}

/* Queue @later. An item that is already queued is not queued again. */
static inline void cstd_deferred_add(struct cstd_deferred_queue *queue, struct cstd_deferred *later)
{
    if (!later->queued) {
        later->queued = true;
        TAILQ_INSERT_TAIL(&queue->items, later, link);
    }
}

/* Remove @later from the queue, because its object is about to be freed. */
static inline void cstd_deferred_remove(struct cstd_deferred_queue *queue,
                                        struct cstd_deferred *later)
{
    if (later->queued) {
        later->queued = false;
        TAILQ_REMOVE(&queue->items, later, link);
    }
}

/* Run all items, including those that are queued meanwhile. */
static inline void cstd_deferred_run(struct cstd_deferred_queue *queue)
{
    while (!TAILQ_EMPTY(&queue->items)) {
        struct cstd_deferred *later = TAILQ_FIRST(&queue->items);

        cstd_deferred_remove(queue, later);
        later->fn(later);
    }
}

#endif

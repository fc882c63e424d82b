/* SPDX-License-Identifier: Apache-2.0 */
/* Work that must not happen inside the callback that finds it necessary (closing a session while
 * its message is being answered, taking a job apart while its core's actions are carried out):
 * queued, and done before the loop sleeps again. Loop thread only. */
#ifndef CST_LATER_H
#define CST_LATER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

/* The object of @type in which @part is the member @member. */
#define cst_owner_of(part, type, member) ((type *)(void *)((char *)(part)-offsetof(type, member)))

struct cst_later;
typedef void (*cst_later_fn)(struct cst_later *later);

/* Embedded in the object that the work is about. */
struct cst_later {
    TAILQ_ENTRY(cst_later) link;
    cst_later_fn fn; /* may free the object */
    bool queued;     /* it is in the queue */
};

struct cst_later_queue {
    TAILQ_HEAD(, cst_later) items; /* in order of queueing */
};

static inline void cst_later_init(struct cst_later_queue *queue)
{
    TAILQ_INIT(&queue->items);
}

/* Queue @later once, however often it is called before it runs. */
static inline void cst_later_add(struct cst_later_queue *queue, struct cst_later *later)
{
    if (!later->queued) {
        later->queued = true;
        TAILQ_INSERT_TAIL(&queue->items, later, link);
    }
}

/* Its object goes: forget it. */
static inline void cst_later_remove(struct cst_later_queue *queue, struct cst_later *later)
{
    if (later->queued) {
        later->queued = false;
        TAILQ_REMOVE(&queue->items, later, link);
    }
}

/* Run everything, what it queues included. */
static inline void cst_later_run(struct cst_later_queue *queue)
{
    while (!TAILQ_EMPTY(&queue->items)) {
        struct cst_later *later = TAILQ_FIRST(&queue->items);

        cst_later_remove(queue, later);
        later->fn(later);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/simulate/timers.h"

#include "cistern/status.h"

#include <stdlib.h>

void cst_timers_init(struct cst_timers *timers)
{
    *timers = (struct cst_timers){0};
}

void cst_timers_close(struct cst_timers *timers)
{
    free(timers->heap);
    cst_timers_init(timers);
}

static bool before(const struct cst_timer *a, const struct cst_timer *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

static int reserve(struct cst_timers *timers)
{
    uint32_t grown = timers->capacity == 0 ? 64 : 2 * timers->capacity;
    struct cst_timer *heap;

    if (timers->n < timers->capacity) {
        return CST_OK;
    }
    heap = realloc(timers->heap, grown * sizeof *heap);
    if (heap == NULL) {
        return CST_ENOMEM;
    }
    timers->heap = heap;
    timers->capacity = grown;
    return CST_OK;
}

int cst_timers_set(struct cst_timers *timers, uint64_t at, unsigned kind, uint64_t arg)
{
    struct cst_timer timer = {.at = at, .kind = kind, .arg = arg};
    uint32_t i = timers->n;

    if (reserve(timers) != CST_OK) {
        return CST_ENOMEM;
    }
    timer.sequence = ++timers->sequence;
    timers->n++;
    while (i > 0 && before(&timer, &timers->heap[(i - 1) / 2])) {
        timers->heap[i] = timers->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    timers->heap[i] = timer;
    return CST_OK;
}

uint64_t cst_timers_next(const struct cst_timers *timers)
{
    return timers->n == 0 ? UINT64_MAX : timers->heap[0].at;
}

struct cst_timer cst_timers_take(struct cst_timers *timers)
{
    struct cst_timer first = timers->heap[0];
    struct cst_timer last = timers->heap[--timers->n];
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= timers->n) {
            break;
        }
        if (child + 1 < timers->n && before(&timers->heap[child + 1], &timers->heap[child])) {
            child++;
        }
        if (!before(&timers->heap[child], &last)) {
            break;
        }
        timers->heap[i] = timers->heap[child];
        i = child;
    }
    if (timers->n > 0) {
        timers->heap[i] = last;
    }
    return first;
}

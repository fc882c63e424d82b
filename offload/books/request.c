/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/base/core_config.h"
#include "offload/books/request.h"

#include <assert.h>
#include <stdlib.h>

void cst_requests_init(struct cst_requests *requests)
{
    *requests = (struct cst_requests){.unused = CST_NO_REQUEST};
}

void cst_requests_close(struct cst_requests *requests)
{
    free(requests->v);
    free(requests->late_at);
    cst_heap_close(&requests->late);
    cst_requests_init(requests);
}

int cst_requests_reserve(struct cst_requests *requests)
{
    uint32_t grown = requests->capacity == 0 ? 64 : 2 * requests->capacity;
    struct cst_request *v;
    uint32_t *at;

    if (requests->unused != CST_NO_REQUEST) {
        return CST_OK;
    }
    v = realloc(requests->v, grown * sizeof *v);
    if (v == NULL) {
        return CST_ENOMEM;
    }
    /* If a later allocation fails, this larger array does no harm. */
    requests->v = v;
    at = realloc(requests->late_at, grown * sizeof *at);
    if (at == NULL) {
        return CST_ENOMEM;
    }
    requests->late_at = at;
    requests->late.at = at;
    if (cst_heap_grow(&requests->late, grown, at) != CST_OK) {
        return CST_ENOMEM;
    }
    for (uint32_t i = grown; i-- > requests->capacity;) {
        v[i] = (struct cst_request){.where = CST_REQUEST_UNUSED, .next = requests->unused};
        at[i] = CST_HEAP_OUT;
        requests->unused = i;
    }
    requests->capacity = grown;
    return CST_OK;
}

uint32_t cst_requests_add(struct cst_requests *requests, const struct cst_event *event,
                          enum cst_request_where where)
{
    uint32_t i = requests->unused;
    struct cst_request *r;

    assert(i != CST_NO_REQUEST);
    r = &requests->v[i];
    requests->unused = r->next;
    requests->n++;
    *r = (struct cst_request){
        .where = where,
        .kind = event->kind,
        .tag = event->tag,
        .deadline = CST_CORE_NEVER,
        .rank = event->rank,
        .chunk = event->chunk,
        .ahead = event->ahead,
        .row = event->row,
        .raw = event->raw,
        .exponents = event->exponents,
        .next = CST_NO_REQUEST,
    };
    return i;
}

void cst_requests_join(struct cst_requests *requests, uint32_t request, uint32_t block)
{
    cst_requests_untime(requests, request);
    requests->v[request].where = CST_REQUEST_JOINED;
    requests->v[request].block = block;
}

void cst_requests_enqueue(struct cst_requests *requests, uint32_t request)
{
    requests->v[request].where = CST_REQUEST_QUEUED;
}

void cst_requests_time(struct cst_requests *requests, uint32_t request, uint64_t deadline)
{
    if (requests->v[request].deadline == CST_CORE_NEVER) {
        requests->v[request].deadline = deadline;
    }
    deadline = requests->v[request].deadline;
    if (deadline != CST_CORE_NEVER) {
        /* The heap has the greatest key on top, so the key is the inverted deadline. */
        cst_heap_put(&requests->late, request, (struct cst_heap_key){.major = ~deadline});
    }
}

void cst_requests_untime(struct cst_requests *requests, uint32_t request)
{
    if (requests->late_at[request] != CST_HEAP_OUT) {
        cst_heap_remove(&requests->late, request);
    }
}

void cst_requests_extend(struct cst_requests *requests, uint32_t request, uint64_t deadline)
{
    cst_requests_untime(requests, request);
    requests->v[request].deadline = CST_CORE_NEVER;
    cst_requests_time(requests, request, deadline);
}

uint32_t cst_requests_next_late(const struct cst_requests *requests)
{
    const struct cst_heap_item *item = cst_heap_top(&requests->late);

    return item == NULL ? CST_NO_REQUEST : item->id;
}

void cst_requests_remove(struct cst_requests *requests, uint32_t request)
{
    cst_requests_untime(requests, request);
    requests->v[request] =
        (struct cst_request){.where = CST_REQUEST_UNUSED, .next = requests->unused};
    requests->unused = request;
    requests->n--;
}

uint32_t cst_requests_find(const struct cst_requests *requests, uint64_t tag)
{
    for (uint32_t i = 0; i < requests->capacity; i++) {
        if (requests->v[i].where != CST_REQUEST_UNUSED && requests->v[i].tag == tag) {
            return i;
        }
    }
    return CST_NO_REQUEST;
}

void cst_queue_init(struct cst_queue *queue)
{
    *queue = (struct cst_queue){.head = CST_NO_REQUEST, .tail = CST_NO_REQUEST};
}

void cst_queue_push(struct cst_requests *requests, struct cst_queue *queue, uint32_t request)
{
    requests->v[request].next = CST_NO_REQUEST;
    if (queue->head == CST_NO_REQUEST) {
        queue->head = request;
    } else {
        requests->v[queue->tail].next = request;
    }
    queue->tail = request;
}

uint32_t cst_queue_pop(struct cst_requests *requests, struct cst_queue *queue)
{
    uint32_t first = queue->head;

    if (first != CST_NO_REQUEST) {
        cst_queue_remove(requests, queue, first);
    }
    return first;
}

void cst_queue_remove(struct cst_requests *requests, struct cst_queue *queue, uint32_t request)
{
    uint32_t before = CST_NO_REQUEST;

    for (uint32_t i = queue->head; i != request; i = requests->v[i].next) {
        assert(i != CST_NO_REQUEST);
        before = i;
    }
    if (before == CST_NO_REQUEST) {
        queue->head = requests->v[request].next;
    } else {
        requests->v[before].next = requests->v[request].next;
    }
    if (queue->tail == request) {
        queue->tail = before;
    }
    requests->v[request].next = CST_NO_REQUEST;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/pending.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REQUESTS = 1 << 20 };

void cstd_pendings_init(struct cstd_pendings *requests)
{
    *requests = (struct cstd_pendings){.n = 0};
}

void cstd_pendings_close(struct cstd_pendings *requests)
{
    for (uint32_t i = 0; i < requests->n; i++) {
        free(requests->table[i]->items);
        free(requests->table[i]);
    }
    free(requests->table);
    *requests = (struct cstd_pendings){.n = 0};
}

static struct cstd_pending *make(struct cstd_pendings *requests)
{
    struct cstd_pending *request;

    if (requests->n == requests->capacity) {
        uint32_t capacity = requests->capacity == 0 ? 64 : requests->capacity * 2;
        struct cstd_pending **table =
            capacity <= MAX_REQUESTS ? realloc(requests->table, capacity * sizeof *table) : NULL;

        if (table == NULL) {
            return NULL;
        }
        requests->table = table;
        requests->capacity = capacity;
    }
    request = calloc(1, sizeof *request);
    if (request != NULL) {
        request->index = requests->n;
        requests->table[requests->n++] = request;
    }
    return request;
}

static bool reserve(struct cstd_pending *request, uint32_t n_items)
{
    struct cstd_pending_item *items;

    if (n_items <= request->capacity) {
        return true;
    }
    items = realloc(request->items, n_items * sizeof *items);
    if (items == NULL) {
        return false;
    }
    request->items = items;
    request->capacity = n_items;
    return true;
}

int cstd_pending_open(struct cstd_pending **out, struct cstd_pendings *requests, uint64_t id,
                      uint16_t type, uint32_t n_items, struct cst_err *err)
{
    struct cstd_pending *request = requests->free != NULL ? requests->free : make(requests);

    if (request == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a request");
    }
    requests->free = request->next_free;
    request->next_free = NULL;
    if (!reserve(request, n_items)) {
        request->next_free = requests->free;
        requests->free = request;
        return cst_err_set(err, CST_ENOMEM, "no memory for a request of %u items", n_items);
    }
    memset(request->items, 0, n_items * sizeof *request->items);
    requests->serial += requests->serial == UINT32_MAX ? 2 : 1; /* 0 is never a serial number. */
    request->serial = requests->serial;
    request->session = NULL;
    request->job = NULL;
    request->account = NULL;
    request->id = id;
    request->type = type;
    request->n_items = request->n_left = n_items;
    request->waits_commit = request->waits_description = false;
    request->waits_seal = request->recorded = request->paused = false;
    request->staging = NULL;
    request->held = NULL;
    request->reader = NULL;
    request->on_close = NULL;
    *out = request;
    return CST_OK;
}

void cstd_pending_close(struct cstd_pendings *requests, struct cstd_pending *request)
{
    for (uint32_t i = 0; i < request->n_items; i++) {
        free(request->items[i].text);
    }
    request->n_items = 0;
    request->serial = 0;
    request->next_free = requests->free;
    requests->free = request;
}

struct cstd_pending *cstd_pending_find(const struct cstd_pendings *requests, uint64_t tag,
                                       uint32_t *item)
{
    uint32_t index = (uint32_t)(tag >> 12) & (MAX_REQUESTS - 1);
    struct cstd_pending *request = index < requests->n ? requests->table[index] : NULL;

    *item = (uint32_t)tag & 0xfff;
    /* An object that was closed and used again has another serial number. */
    return request != NULL && request->serial == (uint32_t)(tag >> 32) && *item < request->n_items
               ? request
               : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/served.h"

#include <stdlib.h>

void cste_served_init(struct cste_served *served)
{
    *served = (struct cste_served){0};
    (void)pthread_mutex_init(&served->mutex, NULL);
    (void)pthread_cond_init(&served->given_back, NULL);
}

void cste_served_close(struct cste_served *served)
{
    (void)pthread_mutex_destroy(&served->mutex);
    (void)pthread_cond_destroy(&served->given_back);
}

int cste_served_add(struct cste_served *served, uint32_t id, const void *base, uint64_t bytes,
                    struct cst_err *err)
{
    struct cste_served_segment *segment = malloc(sizeof *segment);

    if (segment == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to serve segment %u", id);
    }
    (void)pthread_mutex_lock(&served->mutex);
    *segment =
        (struct cste_served_segment){.id = id, .base = base, .bytes = bytes, .next = served->list};
    served->list = segment;
    (void)pthread_mutex_unlock(&served->mutex);
    return CST_OK;
}

/* Returns the link to segment @id, or to NULL. The mutex is held. */
static struct cste_served_segment **find(struct cste_served *served, uint32_t id)
{
    struct cste_served_segment **link = &served->list;

    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    return link;
}

void cste_served_remove(struct cste_served *served, uint32_t id, void (*interrupt)(void *arg),
                        void *arg)
{
    struct cste_served_segment *segment;

    (void)pthread_mutex_lock(&served->mutex);
    segment = *find(served, id);
    if (segment == NULL) {
        (void)pthread_mutex_unlock(&served->mutex);
        return;
    }
    segment->gone = true;
    if (segment->n_holds > 0) {
        (void)pthread_mutex_unlock(&served->mutex);
        interrupt(arg);
        (void)pthread_mutex_lock(&served->mutex);
    }
    while (segment->n_holds > 0) {
        (void)pthread_cond_wait(&served->given_back, &served->mutex);
    }
    *find(served, id) = segment->next;
    (void)pthread_mutex_unlock(&served->mutex);
    free(segment);
}

int cste_served_hold(struct cste_served *served, uint32_t id, uint64_t offset, uint64_t bytes,
                     struct cste_served_segment **out, uint64_t *segment_bytes)
{
    struct cste_served_segment *segment;
    int rc = CST_OK;

    (void)pthread_mutex_lock(&served->mutex);
    segment = *find(served, id);
    if (segment == NULL || segment->gone) {
        rc = CST_ENOTFOUND;
    } else if (offset > segment->bytes || bytes > segment->bytes - offset) {
        *segment_bytes = segment->bytes;
        rc = CST_EINVAL;
    } else {
        segment->n_holds++;
        *out = segment;
    }
    (void)pthread_mutex_unlock(&served->mutex);
    return rc;
}

bool cste_served_lasts(struct cste_served *served, const struct cste_served_segment *segment)
{
    bool lasts;

    (void)pthread_mutex_lock(&served->mutex);
    lasts = !segment->gone;
    (void)pthread_mutex_unlock(&served->mutex);
    return lasts;
}

void cste_served_release(struct cste_served *served, struct cste_served_segment *segment)
{
    (void)pthread_mutex_lock(&served->mutex);
    if (--segment->n_holds == 0 && segment->gone) {
        (void)pthread_cond_broadcast(&served->given_back);
    }
    (void)pthread_mutex_unlock(&served->mutex);
}

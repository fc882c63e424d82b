/* SPDX-License-Identifier: Apache-2.0 */
/* The segments of this machine that other machines may read. A thread holds a segment while it
 * sends from it; a segment that is removed cannot be held any more. Any thread. */
#ifndef CST_NET_SERVED_H
#define CST_NET_SERVED_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdint.h>

struct cste_served_segment {
    uint32_t id;
    const char *base; /* Mapped memory; borrowed until cste_served_remove returns. */
    uint64_t bytes;
    bool gone; /* It is being removed. */
    unsigned n_holds;
    struct cste_served_segment *next;
};

struct cste_served {
    pthread_mutex_t mutex;
    pthread_cond_t given_back; /* A segment that is gone is held no more. */
    struct cste_served_segment *list;
};

void cste_served_init(struct cste_served *served);

/* No segment is left. */
void cste_served_close(struct cste_served *served);

/* Serve @bytes at @base as segment @id, which no other segment has. CST_ENOMEM. */
int cste_served_add(struct cste_served *served, uint32_t id, const void *base, uint64_t bytes,
                    struct cst_err *err);

/* Stop serving segment @id, if it is served. @interrupt is called with @arg while somebody holds
 * it: it makes those who do give it back soon, which this call awaits. */
void cste_served_remove(struct cste_served *served, uint32_t id, void (*interrupt)(void *arg),
                        void *arg);

/* Hold segment @id, in which [@offset, @offset + @bytes) must lie, until cste_served_release.
 * CST_ENOTFOUND: it is not served. CST_EINVAL: bounds; *segment_bytes receives its length. *out is
 * set on success only. */
int cste_served_hold(struct cste_served *served, uint32_t id, uint64_t offset, uint64_t bytes,
                     struct cste_served_segment **out, uint64_t *segment_bytes);

/* Returns whether the held @segment is still to be served. */
bool cste_served_lasts(struct cste_served *served, const struct cste_served_segment *segment);

void cste_served_release(struct cste_served *served, struct cste_served_segment *segment);

#endif

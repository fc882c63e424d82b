/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of shared memory that the daemon passed as a memfd. It is believed only as far as the
 * kernel confirms it: large enough, and sealed so that nobody can make it smaller under our feet (a
 * SIGBUS). */
#ifndef CST_SEGMENT_H
#define CST_SEGMENT_H

#include "cistern/status.h"

#include <stdint.h>

struct cst_segment {
    void *base;     /* NULL: not mapped */
    uint64_t bytes; /* mapped */
};

/* Map @bytes of @fd, shared and writable; not inherited by forked children. @fd stays the caller's
 * and may be closed. CST_EPROTO: it is not what the daemon says; CST_ENOMEM. */
int cst_segment_map(struct cst_segment *segment, int fd, uint64_t bytes, struct cst_err *err);

/* Unmap; harmless when it is not mapped. Not to be called in a forked child. */
void cst_segment_unmap(struct cst_segment *segment);

#endif

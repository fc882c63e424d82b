/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of shared memory that the daemon sent as a memfd. The worker checks two properties with
 * the kernel: the memfd is large enough, and it is sealed against shrinking and growing. Otherwise
 * another process could shrink it, and an access would raise SIGBUS. */
#ifndef CST_SEGMENT_H
#define CST_SEGMENT_H

#include "cistern/status.h"

#include <stdint.h>

struct cstc_segment {
    void *base;     /* Address; NULL: not mapped. */
    uint64_t bytes; /* Length of the mapping. */
};

/* Map @bytes of @fd, shared and writable. Forked children do not inherit the mapping. @fd belongs
 * to the caller, who may close it afterwards. CST_EPROTO: the memfd is not as the daemon says;
 * CST_ENOMEM. */
int cstc_segment_map(struct cstc_segment *segment, int fd, uint64_t bytes, struct cst_err *err);

/* Unmap the segment, if it is mapped. Must not be called in a forked child. */
void cstc_segment_unmap(struct cstc_segment *segment);

#endif

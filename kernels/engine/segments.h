/* SPDX-License-Identifier: Apache-2.0 */
/* The set of segments by id. A segment is memory that the daemon passed in as a sealed memfd or as
 * a handle of GPU memory. Every place (segment id, offset) of a command is checked by
 * cste_segments_find before it is used. One thread (the loop) owns the set. Other threads access
 * the memory of a segment while a command holds the segment.
 *
 *   ADDING --mapped, populated--> READY --SEGMENT_DROP, all commands before it are over--> DROPPING
 *          --last use given back--> unmapped, removed */
#ifndef CST_SEGMENTS_H
#define CST_SEGMENTS_H

#include "kernels/engine/device.h"
#include "proto/table.h"

/* States of a segment. */
enum cste_segment_state {
    CSTE_SEGMENT_ADDING,   /* no command may use the segment yet */
    CSTE_SEGMENT_READY,    /* commands may use the segment */
    CSTE_SEGMENT_DROPPING, /* no new uses; the segment is unmapped when the last use ends */
};

/* A segment of an engine. The loop thread owns it. */
struct cste_segment {
    uint32_t id;                   /* Id, never 0. */
    enum cste_segment_state state; /* State, as in the diagram above. */
    struct cste_mem mem;           /* Mapped memory. It has no address while it is not mapped. */
    /* Number of holds by commands. A command may hold a segment more than once. */
    uint32_t n_uses;
};

/* The set of segments. */
struct cste_segments {
    struct cste_segment **v; /* Owned array of borrowed segments, sorted by id. */
    uint32_t n;              /* Number of segments. */
    uint32_t capacity;       /* Capacity of v. */
};

/* Initialise an empty set. */
void cste_segments_init(struct cste_segments *segments);

/* Free the set. The segments belong to their owners. */
void cste_segments_close(struct cste_segments *segments);

/* Check that @fd is a memfd of at least @bytes that nobody can shrink or grow. CST_EINVAL: @fd is
 * something else; the message gives the reason. Any thread. */
int cste_segments_check_fd(int fd, uint64_t bytes, struct cst_err *err);

/* Add @segment, which stays the caller's. CST_EINVAL: its id is 0; CST_EEXIST: the id is taken;
 * CST_ENOMEM. */
int cste_segments_add(struct cste_segments *segments, struct cste_segment *segment,
                      struct cst_err *err);

/* Returns the segment with @id in any state; NULL: there is none. */
struct cste_segment *cste_segments_get(const struct cste_segments *segments, uint32_t id);

/* Remove @segment from the set. */
void cste_segments_remove(struct cste_segments *segments, struct cste_segment *segment);

/* Find the segment of @place, and check that @bytes from the offset on lie in it and that the
 * offset is a multiple of @align. @what names the place in the message text. CST_ENOTFOUND: there
 * is no such segment, or it is not READY; CST_EINVAL: bounds or alignment. */
int cste_segments_find(const struct cste_segments *segments, struct cst_place place, uint64_t bytes,
                       uint64_t align, const char *what, struct cste_segment **out,
                       struct cst_err *err);

#endif

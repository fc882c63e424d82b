/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: memory that the daemon passed in, as sealed memfds or as handles of a GPU's, by id, and
 * what a place (segment id, offset) means. Every place that a command names goes through
 * cst_segments_find before it is used. One thread (the loop) owns the set; other threads read a
 * segment's memory while a use of it is held.
 *
 *   ADDING --mapped, populated--> READY --SEGMENT_DROP, all commands before it are over--> DROPPING
 *          --last use given back--> unmapped, gone */
#ifndef CST_SEGMENTS_H
#define CST_SEGMENTS_H

#include "kernels/device.h"
#include "proto/table.h"

enum cst_segment_state {
    CST_SEGMENT_ADDING,   /* no command may use it yet */
    CST_SEGMENT_READY,    /* commands may use it */
    CST_SEGMENT_DROPPING, /* no new uses; unmapped when the last one ends */
};

struct cst_segment {
    uint32_t id;                  /* never 0 */
    enum cst_segment_state state; /* see above */
    struct cst_mem mem;           /* where it is mapped; no address while it is not */
    uint32_t n_uses;              /* commands that hold it */
};

struct cst_segments {
    struct cst_segment **v; /* owned array of borrowed segments, by id */
    uint32_t n;             /* segments in it */
    uint32_t capacity;      /* room in v */
};

void cst_segments_init(struct cst_segments *segments);

/* Free the set. The segments are their owners'. */
void cst_segments_close(struct cst_segments *segments);

/* CST_OK if @fd is memory of at least @bytes that nobody can shrink or grow; else CST_EINVAL with
 * what is wrong. Any thread. */
int cst_segments_check_fd(int fd, uint64_t bytes, struct cst_err *err);

/* Put @segment in. CST_EINVAL: its id is 0; CST_EEXIST: the id is taken; CST_ENOMEM. */
int cst_segments_add(struct cst_segments *segments, struct cst_segment *segment,
                     struct cst_err *err);

/* The segment with @id in whatever state; NULL: none. */
struct cst_segment *cst_segments_get(const struct cst_segments *segments, uint32_t id);

/* Take @segment out. */
void cst_segments_remove(struct cst_segments *segments, struct cst_segment *segment);

/* The segment of @place, if @bytes from its offset on lie in it and the offset is a multiple of
 * @align. @what names the place in the words. CST_ENOTFOUND: no such segment, or it is not READY;
 * CST_EINVAL: bounds or alignment. */
int cst_segments_find(const struct cst_segments *segments, struct cst_place place, uint64_t bytes,
                      uint64_t align, const char *what, struct cst_segment **out,
                      struct cst_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/segments.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void cste_segments_init(struct cste_segments *segments)
{
    *segments = (struct cste_segments){0};
}

void cste_segments_close(struct cste_segments *segments)
{
    free(segments->v);
}

int cste_segments_check_fd(int fd, uint64_t bytes, struct cst_err *err)
{
    struct stat st;
    int seals;

    if (bytes == 0) {
        return cst_err_set(err, CST_EINVAL, "a segment of 0 bytes");
    }
    if (fstat(fd, &st) != 0) {
        return cst_err_errno(err, CST_EINVAL, errno, "fstat");
    }
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes) {
        return cst_err_set(err, CST_EINVAL, "the fd has %jd bytes, the message says %" PRIu64,
                           (intmax_t)st.st_size, bytes);
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        return cst_err_set(err, CST_EINVAL, "the fd is no memfd: it has no seals");
    }
    /* If the file could shrink, an access to the segment could cause SIGBUS. */
    if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
        return cst_err_set(err, CST_EINVAL, "the memfd has seals 0x%x, SHRINK and GROW are needed",
                           (unsigned)seals);
    }
    return CST_OK;
}

/* Returns the number of segments with an id below @id. */
static uint32_t rank_of(const struct cste_segments *segments, uint32_t id)
{
    uint32_t low = 0, high = segments->n;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (segments->v[mid]->id < id) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static int make_room(struct cste_segments *segments)
{
    uint32_t capacity = segments->capacity > 0 ? segments->capacity * 2 : 16;
    struct cste_segment **v;

    if (segments->n < segments->capacity) {
        return CST_OK;
    }
    v = realloc(segments->v, capacity * sizeof *v);
    if (v == NULL) {
        return CST_ENOMEM;
    }
    segments->v = v;
    segments->capacity = capacity;
    return CST_OK;
}

int cste_segments_add(struct cste_segments *segments, struct cste_segment *segment,
                      struct cst_err *err)
{
    uint32_t at = rank_of(segments, segment->id);

    if (segment->id == 0) {
        return cst_err_set(err, CST_EINVAL, "segment id 0 is never used");
    }
    if (cste_segments_get(segments, segment->id) != NULL) {
        return cst_err_set(err, CST_EEXIST, "segment %u is there already", segment->id);
    }
    if (make_room(segments) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the %uth segment", segments->n + 1);
    }
    memmove(segments->v + at + 1, segments->v + at, (segments->n - at) * sizeof *segments->v);
    segments->v[at] = segment;
    segments->n++;
    return CST_OK;
}

struct cste_segment *cste_segments_get(const struct cste_segments *segments, uint32_t id)
{
    uint32_t at = rank_of(segments, id);

    return at < segments->n && segments->v[at]->id == id ? segments->v[at] : NULL;
}

void cste_segments_remove(struct cste_segments *segments, struct cste_segment *segment)
{
    uint32_t at = rank_of(segments, segment->id);

    if (at < segments->n && segments->v[at] == segment) {
        segments->n--;
        memmove(segments->v + at, segments->v + at + 1, (segments->n - at) * sizeof *segments->v);
    }
}

int cste_segments_find(const struct cste_segments *segments, struct cst_place place, uint64_t bytes,
                       uint64_t align, const char *what, struct cste_segment **out,
                       struct cst_err *err)
{
    struct cste_segment *segment = cste_segments_get(segments, place.segment);

    if (segment == NULL || segment->state == CSTE_SEGMENT_DROPPING) {
        return cst_err_set(err, CST_ENOTFOUND, "%s: no segment %u", what, place.segment);
    }
    if (segment->state == CSTE_SEGMENT_ADDING) {
        return cst_err_set(err, CST_ENOTFOUND, "%s: segment %u is still being added", what,
                           place.segment);
    }
    if (place.offset > segment->mem.bytes || bytes > segment->mem.bytes - place.offset) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: %" PRIu64 " bytes at %" PRIu64 " of segment %u, which has %" PRIu64,
                           what, bytes, place.offset, place.segment, segment->mem.bytes);
    }
    if (place.offset % align != 0) {
        return cst_err_set(err, CST_EINVAL, "%s: offset %" PRIu64 " is no multiple of %" PRIu64,
                           what, place.offset, align);
    }
    *out = segment;
    return CST_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of command uses to resolve its places and to divide its work. */
#include "kernels/engine/work_kinds.h"

void cste_work_hold(struct cste_work *work, struct cste_segment *segment)
{
    segment->n_uses++;
    work->uses[work->n_uses++] = segment;
}

int cste_work_find(struct cste_work *work, struct cst_place place, uint64_t bytes, uint64_t align,
                   const char *what, struct cste_addr *out)
{
    struct cste_segment *segment;
    int rc = cste_segments_find(work->context->segments, place, bytes, align, what, &segment,
                                &work->err);

    if (rc == CST_OK) {
        cste_work_hold(work, segment);
        *out = (struct cste_addr){.mem = &segment->mem, .offset = place.offset};
    }
    return rc;
}

bool cste_work_overlap(struct cste_addr a, uint64_t a_bytes, struct cste_addr b, uint64_t b_bytes)
{
    return a.mem == b.mem && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
}

uint64_t cste_work_cut(struct cste_work *work, uint64_t total, uint64_t grain)
{
    work->grain = grain;
    return total / grain + (total % grain != 0);
}

uint64_t cste_work_share(const struct cste_work *work, uint64_t piece, uint64_t total,
                         uint64_t *first)
{
    *first = piece * work->grain;
    return total - *first < work->grain ? total - *first : work->grain;
}

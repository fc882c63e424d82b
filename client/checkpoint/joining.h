/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tensors of a file, which are wholes, from the parts that a job has. A whole is made band by
 * band. A band is a range of its elements; each part has the elements of the band in one range,
 * too:
 *
 *   a whole of 4 x 6, cut into 2 x 2        its first band   +-----+-----+
 *   parts of 2 x 3, in bands of 12    ->                     | a 0..5    |  all of a, all of b
 *                                                            |     b 0..5|
 *                                                            +-----+-----+
 *
 * The ranges are read piece by piece, and several pieces are in flight at a time. Their data comes
 * in the same order. A tensor that is not cut is read without a band, in the format of the job.
 * Moments of a whole are joined in fp32 and encoded in its own blocks, in the way of a job that is
 * opened again for one rank (cst_job_spec.reshape). */
#ifndef CST_JOINING_H
#define CST_JOINING_H

#include "client/checkpoint/content.h"
#include "client/checkpoint/wholes.h"

/* Elements of a band: whole blocks of moments. */
#define CSTC_JOINING_BAND (UINT64_C(1) << 21)

/* A range of elements of a part. */
struct cstc_joining_range {
    uint32_t tensor; /* Number of the part. */
    uint64_t first, n_elems;
};

/* A place in the sequence of pieces. */
struct cstc_joining_place {
    uint32_t entry;          /* Index into the content. */
    uint64_t first, n_elems; /* The band; 0 elements: it is not known yet. */
    /* The ranges of the band; of a tensor that is not cut, the band alone. */
    struct cstc_joining_range ranges[CST_BOX_MAX_PARTS];
    uint32_t n_ranges, range; /* `range`: the one of the next piece. */
    uint64_t done;            /* Its elements before the next piece. */
};

struct cstc_joining {
    const struct cstc_content *content; /* Of the description of `wholes`; borrowed. */
    const struct cstc_wholes *wholes;   /* Borrowed. */
    uint64_t most;                      /* Largest piece, in bytes: cstc_state_most. */
    struct cst_reshard back;            /* From the wholes to the parts. */
    struct cstc_joining_place next, taken;
    void *band;    /* The elements of the band that is taken, as they are read; owned. */
    void *encoded; /* The band's moments in the format of the file; owned. */
};

/* Begin. CST_ENOMEM. The caller closes *joining. */
int cstc_joining_open(struct cstc_joining *joining, const struct cstc_content *content,
                      const struct cstc_wholes *wholes, struct cst_err *err);
void cstc_joining_close(struct cstc_joining *joining);

/* Store the next piece in *out. Returns false after the last one. `most` is set. */
bool cstc_joining_next(struct cstc_joining *joining, struct cstc_state_piece *out);

/* Elements of a file that are complete. */
struct cstc_joining_data {
    uint32_t entry; /* Index into the content. */
    /* Range of the entry's elements; n_elems 0: more pieces are needed. */
    uint64_t first, n_elems;
    const void *data; /* In the format of the file. Valid until the next call. */
    uint64_t bytes;
};

/* Take over the next piece's data, and store in *out what is complete with it. */
void cstc_joining_take(struct cstc_joining *joining, const struct cstc_state_piece *piece,
                       const void *data, struct cstc_joining_data *out);

#endif

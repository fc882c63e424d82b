/* SPDX-License-Identifier: Apache-2.0 */
/* Building blocks of the cases in tests/lib/cuda_cases.h: seeded numbers, rows on the device with
 * their expected contents, and tiles. */
#ifndef CST_TESTS_CUDA_ROWS_H
#define CST_TESTS_CUDA_ROWS_H

#include "tests/lib/cuda_cases.h"

#define CASES_MAX_TILES 48
#define CASES_SPANS 5

/* Kinds of numbers in rows. */
enum cases_fill {
    ORDINARY, /* numbers around 1 */
    /* Finite numbers from 2^-20 to 2^20: each addition is rounded, so the order of a sum shows. */
    WIDE,
    INFINITE, /* as WIDE, with some infinities but no NaN */
    HOSTILE,  /* any bits, special values, subnormals */
    N_FILL,
};

/* The state of one run of cases. */
struct cases {
    struct cases_device *device;
    struct cases_result *result;
    uint64_t state; /* state of the random numbers */
    const char *op; /* name of the kernel, for messages */
    char what[96];  /* the current case, for messages */
};

/* A row on the device and its expected content. */
struct cases_row {
    unsigned char *want; /* expected content, on the host; at first the row's initial content */
    void *at;            /* address on the device */
    size_t bytes;
    size_t elem_bytes;
    const char *name;
};

/* Random bits, or a random number of the kind @fill. */
uint64_t cases_next(struct cases *c);
float cases_float(struct cases *c, enum cases_fill fill);

/* Return @p. Ends the program if @p is NULL. */
void *cases_need(void *p);

/* Report that the current case has failed. Only the first message is kept. */
void cases_failed(struct cases *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Place a row of @n elements of 1, 2, 4 or 8 bytes, which begins @shift elements above an aligned
 * address, and fill it. cases_compare frees it. */
struct cases_row cases_row(struct cases *c, const char *name, uint64_t n, size_t elem_bytes,
                           size_t shift, enum cases_fill fill);

/* Compare the row on the device with its expected bits, and free the row. */
void cases_compare(struct cases *c, struct cases_row *row);

/* Check that no memory around the rows was written, and free everything that was placed. */
void cases_end(struct cases *c);

/* Make @n tiles that do not overlap, with gaps between them that must not be written. Tiles
 * begin at any element or, with @aligned, at multiples of 64. Returns the number of elements of
 * the rows. */
uint64_t cases_tiles(struct cases *c, struct cst_cuda_tile *tiles, uint64_t n, bool aligned);

/* Place @bytes on the device, copied from @from. */
void *cases_place(struct cases *c, const void *from, size_t bytes);

/* The cases of the update kernels, one function per format of the moments. */
void cases_update_fp32(struct cases *c);
void cases_update_bf16(struct cases *c);
void cases_update_mx8(struct cases *c);

/* The cases of Muon: directions, norms, and products. */
void cases_muon_directions(struct cases *c);
void cases_muon_phases(struct cases *c);

#endif

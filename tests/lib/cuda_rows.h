/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases of tests/lib/cuda_cases.h are made of: seeded numbers, rows on the device with
 * what they must become, tiles. */
#ifndef CST_TESTS_CUDA_ROWS_H
#define CST_TESTS_CUDA_ROWS_H

#include "tests/lib/cuda_cases.h"

#define CASES_MAX_TILES 48
#define CASES_SPANS 5

enum cases_fill {
    ORDINARY, /* numbers around 1 */
    WIDE,     /* finite, 2^-20 to 2^20: every sum is rounded, so its order shows */
    INFINITE, /* as WIDE, with an infinity here and there, no NaN */
    HOSTILE,  /* any bits, special values, subnormals */
    N_FILL,
};

/* One run of cases. */
struct cases {
    struct cases_device *device;
    struct cases_result *result;
    uint64_t state; /* of the generator */
    const char *op; /* for words */
    char what[96];  /* the case in hand */
};

/* A row on the device and what it must become. */
struct cases_row {
    unsigned char *want; /* on the host; at first what it is */
    void *at;            /* on the device */
    size_t bytes;
    size_t elem_bytes;
    const char *name;
};

uint64_t cases_next(struct cases *c);
float cases_float(struct cases *c, enum cases_fill fill);

/* @p, or the end of the program where it is NULL. */
void *cases_need(void *p);

/* The case in hand failed; the first words stay. */
void cases_failed(struct cases *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* @n elements of 1, 2, 4 or 8 bytes, @shift elements above an aligned address, filled. */
struct cases_row cases_row(struct cases *c, const char *name, uint64_t n, size_t elem_bytes,
                           size_t shift, enum cases_fill fill);

/* The row on the device has the bits that it should have. Ends the row. */
void cases_compare(struct cases *c, struct cases_row *row);

/* Nothing around the rows was written. Takes back all that was placed. */
void cases_end(struct cases *c);

/* Tiles that do not overlap, with gaps between them that nobody may write, at any element or,
 * @aligned, at multiples of 64. Returns the elements of the rows. */
uint64_t cases_tiles(struct cases *c, struct cst_cuda_tile *tiles, uint64_t n, bool aligned);

/* @bytes of @from on the device. */
void *cases_place(struct cases *c, const void *from, size_t bytes);

/* The cases of the update kernels, those of a format of the moments each. */
void cases_update_fp32(struct cases *c);
void cases_update_bf16(struct cases *c);
void cases_update_mx8(struct cases *c);

#endif

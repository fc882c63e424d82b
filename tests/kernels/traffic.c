/* SPDX-License-Identifier: Apache-2.0 */
/* traffic WHAT PARAMS: measured by traffic.sh under a simulated cache. Does one operation on rows
 * in memory that was not accessed before, on one thread and with an undo slot as an engine does,
 * and prints
 *
 *   ISA R N C
 *
 * in bytes per parameter. R is of the rows that are read, and N of those that are written without
 * being read just before; both are computed by hand, and are what a cache smaller than a row has to
 * load. C is the result of cst_tile_done, which counts rows that are read and written twice, and
 * must be the number of the operation. WHAT: nothing; fp32, bf16, mx8 (AdamW with such moments);
 * fused (fp32, the update sums two contributions); reduce (of two); twice (reduce, then an update:
 * the gradient is written to memory and read again). */
#include "kernels/math/tile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N_SRC = 2 };

/* The operation. */
struct what {
    const char *name;
    enum cst_moments moments;
    uint32_t n_src;
    bool reduce, update;
    double read, only_written, counted; /* bytes per parameter */
};

#define MX8 (33.0 / 32)

static const struct what whats[] = {
    {.name = "nothing"},
    {.name = "fp32", .update = true, .read = 14, .only_written = 2, .counted = 28},
    {.name = "bf16",
     .moments = CST_MOMENTS_BF16,
     .update = true,
     .read = 10,
     .only_written = 2,
     .counted = 20},
    {.name = "mx8",
     .moments = CST_MOMENTS_MX8,
     .update = true,
     .read = 6 + 2 * MX8,
     .only_written = 2,
     .counted = 12 + 4 * MX8},
    {.name = "fused", .n_src = N_SRC, .update = true, .read = 16, .only_written = 2, .counted = 30},
    {.name = "reduce", .n_src = N_SRC, .reduce = true, .read = 4, .only_written = 2, .counted = 6},
    {.name = "twice",
     .n_src = N_SRC,
     .reduce = true,
     .update = true,
     .read = 18,
     .only_written = 4,
     .counted = 34},
};

/* Allocate @bytes of zeros that are in no cache. NULL if memory is exhausted. */
static void *fresh(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static bool make_rows(struct cst_rows *rows, const uint16_t **src, enum cst_moments moments,
                      size_t n)
{
    bool ok = true;

    *rows = (struct cst_rows){.weight = fresh(n * sizeof *rows->weight),
                              .grad = fresh(n * sizeof *rows->grad),
                              .master = fresh(n * sizeof *rows->master)};
    for (int k = 0; k < 2; k++) {
        uint8_t *values = fresh(cst_table_moment_bytes(moments, n));

        rows->moments[k] = (struct cst_update_moment){
            .values = values,
            .exponents = moments == CST_MOMENTS_MX8 && values != NULL ? values + n : NULL};
        ok = ok && values != NULL;
    }
    for (int r = 0; r < N_SRC; r++) {
        src[r] = fresh(n * sizeof **src);
        ok = ok && src[r] != NULL;
    }
    return ok && rows->weight != NULL && rows->grad != NULL && rows->master != NULL;
}

/* The table of a job with one tensor. NULL if memory is exhausted. */
static struct cst_table_header *make_table(enum cst_moments moments, uint64_t n)
{
    struct cst_table_header size, *table;

    cst_table_size(&size, 1, 1, cst_table_n_tiles(n));
    table = fresh(size.total_bytes);
    if (table != NULL) {
        *table = size;
        table->moments = moments;
        table->grad_bytes = sizeof(uint16_t);
        *cst_table_chunks(table) = (struct cst_table_chunk){.n_elems = n, .n_spans = 1};
        *cst_table_spans(table) =
            (struct cst_table_span){.n_elems = n, .lr_scale = 1.0f, .decay_scale = 1.0f};
    }
    return table;
}

static uint64_t run(const struct what *what, struct cst_tile_work *work, const uint16_t **src,
                    struct cst_undo_slot *undo)
{
    static const struct cst_tile_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1.0f};
    uint64_t bytes = 0;

    if (what->reduce) {
        const void *rows[CST_TILE_MAX_SRC];

        for (uint32_t r = 0; r < what->n_src; r++) {
            rows[r] = src[r];
        }
        bytes = cst_tile_reduce_range(work, what->n_src, rows, 0, UINT64_MAX, undo).bytes;
    } else { /* the update sums */
        work->src = src;
        work->n_src = what->n_src;
    }
    if (what->update) {
        bytes += cst_tile_update_range(work, &hyper, 0, UINT64_MAX, undo).bytes;
    }
    return bytes;
}

static const struct what *find(const char *name)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        if (strcmp(whats[i].name, name) == 0) {
            return &whats[i];
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const struct what *what = argc == 3 ? find(argv[1]) : NULL;
    uint64_t n = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    struct cst_tile_work work = {.kernels = cst_kernels_get(NULL), .mark = 1};
    const uint16_t *src[N_SRC];
    struct cst_undo_slot *undo = fresh(sizeof *undo);
    double counted;

    if (what == NULL || n == 0 || n % CST_TILE_ELEMS != 0) {
        (void)fprintf(stderr, "usage: traffic WHAT PARAMS\n");
        return 2;
    }
    work.table = make_table(what->moments, n);
    if (work.table == NULL || undo == NULL || !make_rows(&work.rows, src, what->moments, n)) {
        (void)fprintf(stderr, "traffic: no memory\n");
        return 1;
    }
    counted = (double)run(what, &work, src, undo) / (double)n;
    (void)printf("%s %g %g %g\n", work.kernels->isa, what->read, what->only_written, counted);
    return counted < what->counted || counted > what->counted;
}

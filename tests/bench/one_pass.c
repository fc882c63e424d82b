/* SPDX-License-Identifier: Apache-2.0 */
/* one_pass ISA WHAT TILES: prepares rows of TILES tiles with random values and executes the
 * operation WHAT once over them, on one thread and with an undo slot as an engine does. It prints
 * the bytes per element that the operation reads and writes. tests/bench/instructions counts its
 * instructions. WHAT is a name of the table below, "nothing" for the preparation alone, or "list",
 * which prints the names. */
#include "tests/bench/update_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An operation. */
struct what {
    const char *name;
    void (*run)(struct cst_update_job *job, const struct what *what); /* NULL: an update. */
    struct cst_update_way way;                                        /* The update. */
    uint32_t n_src;                                                   /* Contributions to a sum. */
    double bytes; /* Bytes per element of what is no update. */
};

static void reduce(struct cst_update_job *job, const struct what *what)
{
    (void)job->work.kernels->reduce(job->params, what->n_src, job->src, job->work.rows.weight);
}

static void accumulate(struct cst_update_job *job, const struct what *what)
{
    (void)job->work.kernels->accumulate(job->params, what->n_src, job->src, true, job->wide);
}

static void accumulate_fp32(struct cst_update_job *job, const struct what *what)
{
    (void)what;
    const float *sum = job->master;

    (void)job->work.kernels->accumulate_fp32(job->params, 1, &sum, false, job->wide);
}

static void cast(struct cst_update_job *job, const struct what *what)
{
    (void)what;
    job->work.kernels->cast(job->params, job->master, job->work.rows.weight);
}

static void upcast(struct cst_update_job *job, const struct what *what)
{
    (void)what;
    job->work.kernels->upcast(job->params, job->src[0], job->wide);
}

static void expand(struct cst_update_job *job, const struct what *what)
{
    (void)what;
    job->work.kernels->expand(job->params, job->src[0], job->wide, job->work.rows.weight);
}

static void update(struct cst_update_job *job)
{
    (void)cst_tile_update_range(&job->work, &job->hyper, 0, UINT64_MAX, job->undo);
}

/* The norm is the sum of squares that all sums return. With one contribution it is all there is. */
static const struct what whats[] = {
    {.name = "update"},
    {.name = "update_split", .way.masters = CST_MASTERS_SPLIT},
    {.name = "update_bf16", .way.moments = CST_MOMENTS_BF16},
    {.name = "update_bf16_nearest",
     .way = {.moments = CST_MOMENTS_BF16, .rounding = CST_ROUNDING_NEAREST}},
    {.name = "update_mx8", .way.moments = CST_MOMENTS_MX8},
    {.name = "update_mx8_nearest",
     .way = {.moments = CST_MOMENTS_MX8, .rounding = CST_ROUNDING_NEAREST}},
    {.name = "update_lion", .way.optimizer = CST_OPTIMIZER_LION},
    {.name = "update_lion_mx8",
     .way = {.optimizer = CST_OPTIMIZER_LION, .moments = CST_MOMENTS_MX8}},
    {.name = "reduce_2_update", .way.n_src = 2},
    {.name = "norm", .run = reduce, .n_src = 1, .bytes = 4},
    {.name = "reduce_2", .run = reduce, .n_src = 2, .bytes = 6},
    {.name = "reduce_4", .run = reduce, .n_src = 4, .bytes = 10},
    {.name = "accumulate", .run = accumulate, .n_src = 1, .bytes = 10},
    {.name = "accumulate_fp32", .run = accumulate_fp32, .bytes = 8},
    {.name = "cast", .run = cast, .bytes = 6},
    {.name = "upcast", .run = upcast, .bytes = 6},
    {.name = "expand", .run = expand, .bytes = 8},
};

static const struct what *find(const char *name)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        if (strcmp(whats[i].name, name) == 0) {
            return &whats[i];
        }
    }
    return NULL;
}

static int list(void)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        (void)printf("%s\n", whats[i].name);
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const struct cst_kernels *kernels = argc == 4 ? cst_kernels_get(argv[1]) : NULL;
    const struct what *what = argc == 4 ? find(argv[2]) : NULL;
    struct cst_update_job job;
    double bytes = 0;

    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        return list();
    }
    if (kernels == NULL || (what == NULL && strcmp(argv[2], "nothing") != 0)) {
        (void)fprintf(stderr, "usage: one_pass ISA WHAT TILES\n");
        return 2;
    }
    cst_update_job_open(&job, strtoul(argv[3], NULL, 10) * CST_TILE_ELEMS, 1, kernels);
    cst_update_job_fill(&job, 0);
    if (what != NULL && what->run != NULL) {
        what->run(&job, what);
        bytes = what->bytes;
    } else if (what != NULL) {
        cst_update_job_set(&job, &what->way);
        job.work.mark = 1;
        update(&job);
        bytes = cst_update_job_bytes(&what->way);
    }
    (void)printf("%s %g\n", kernels->isa, bytes);
    return EXIT_SUCCESS;
}

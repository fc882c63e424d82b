/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/kernel_digest.h"

#include "kernels/math/kernels.h"

#include <string.h>
#include <xxhash.h>

/* A multiple of CST_UPDATE_GROUP, and some elements after it: kernels treat a tail in another way.
 */
enum {
    ELEMS = 8 * CST_UPDATE_GROUP + 7,
    BLOCKS = ELEMS / CST_UPDATE_GROUP + 1,
    PADDED = BLOCKS * CST_UPDATE_GROUP, /* Kernels of Muon read whole groups. */
    SOURCES = 3,
    STEPS = 3,
    SIDE = 15, /* Rows, columns and depth of a product. */
};

/* The master weights have a row of their own, are split, or are the weights of fp32 tensors, whose
 * gradients are fp32, too. */
enum masters { MASTERS_FP32, MASTERS_SPLIT, MASTERS_ARE_WEIGHTS, MASTERS_KINDS };

struct rows {
    double squares[3]; /* Sums of squares of grad, sum and total. */
    uint16_t sources[SOURCES][ELEMS], grad[PADDED], weight[ELEMS];
    float sum[PADDED];  /* Of the sources, twice. */
    float total[ELEMS]; /* Of master and sum. */
    float master[ELEMS];
    int16_t remainder[ELEMS];
    float moments[CST_MAX_MOMENTS][ELEMS]; /* Smaller formats use the first bytes. */
    uint8_t exponents[CST_MAX_MOMENTS][BLOCKS];
    uint16_t direction[PADDED], product[SIDE * SIDE];
};

/* A fixed sequence of numbers (Knuth's MMIX generator). */
static uint32_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

/* A bf16 of any sign and fraction, from 2^-24 to 2^8: sums and quotients are rounded in all ways.
 */
static uint16_t draw_bf16(uint64_t *state)
{
    const uint32_t x = next(state);

    return (uint16_t)((x >> 31 << 15) | ((103 + (x >> 8) % 32) << 7) | (x & 0x7f));
}

static float draw_fp32(uint64_t *state)
{
    const uint32_t bits = (uint32_t)draw_bf16(state) << 16 | next(state) >> 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static void fill(struct rows *rows, uint64_t *state)
{
    memset(rows, 0, sizeof *rows);
    for (unsigned i = 0; i < ELEMS; i++) {
        rows->master[i] = draw_fp32(state);
        rows->weight[i] = draw_bf16(state);
        rows->remainder[i] = (int16_t)(next(state) >> 16);
        for (unsigned s = 0; s < SOURCES; s++) {
            rows->sources[s][i] = draw_bf16(state);
        }
    }
}

/* Sum gradients as ranks, micro-batches and rank blocks are summed. */
static void sum(const struct cst_kernels *kernels, struct rows *rows)
{
    const uint16_t *const sources[] = {rows->sources[0], rows->sources[1], rows->sources[2]};
    const float *const partials[] = {rows->master, rows->sum};

    rows->squares[0] = kernels->reduce(ELEMS, SOURCES, sources, rows->grad);
    (void)kernels->accumulate(ELEMS, SOURCES, sources, false, rows->sum);
    rows->squares[1] = kernels->accumulate(ELEMS, SOURCES, sources, true, rows->sum);
    rows->squares[2] = kernels->accumulate_fp32(ELEMS, 2, partials, false, rows->total);
}

/* Make the directions of Muon, with the sums as momentum, and a product of them. */
static void direct(const struct cst_kernels *kernels, const struct cst_update_scalars *scalars,
                   struct rows *rows, struct cst_product_space *space)
{
    const struct cst_product product = {.a = {rows->direction, SIDE, 1},
                                        .b = {rows->grad, 1, SIDE},
                                        .rows = SIDE,
                                        .columns = SIDE,
                                        .depth = SIDE,
                                        .alpha = 2.0315f,
                                        .beta = -4.775f,
                                        .add = rows->sources[0],
                                        .out = rows->product,
                                        .stride = SIDE};

    kernels->direction(ELEMS, scalars, rows->grad, NULL, rows->sum, rows->direction);
    kernels->product(&product, space);
}

/* Make some steps of @optimizer. */
static void train(const struct cst_kernels *kernels, struct rows *rows,
                  enum cst_optimizer optimizer, enum cst_moments moments,
                  enum cst_rounding rounding, enum masters masters, struct cst_product_space *space)
{
    const bool split = masters == MASTERS_SPLIT, fp32 = masters == MASTERS_ARE_WEIGHTS;
    struct cst_update_rows at = {.grad_bf16 = fp32 ? NULL : rows->grad,
                                 .grad_fp32 = fp32 ? rows->sum : NULL,
                                 .direction = rows->direction,
                                 .master_in = split ? NULL : rows->master,
                                 .weight_in = split ? rows->weight : NULL,
                                 .remainder_in = split ? rows->remainder : NULL,
                                 .master = split ? NULL : rows->master,
                                 .remainder = split ? rows->remainder : NULL,
                                 .weight = fp32 ? NULL : rows->weight};

    for (unsigned m = 0; m < cst_optimizer_n_moments(optimizer); m++) {
        at.moments[m] = at.moments_in[m] = (struct cst_update_moment){
            .values = rows->moments[m],
            .exponents = moments == CST_MOMENTS_MX8 ? rows->exponents[m] : NULL};
    }
    for (uint64_t t = 1; t <= STEPS; t++) {
        const struct cst_update_random random = {.seed = 7, .t = t};
        struct cst_update_scalars scalars;

        if (cst_optimizer_of_matrices(optimizer)) {
            cst_update_prepare_muon(&scalars, 1e-3, 0.1, 0.75f, 96, 64);
            direct(kernels, &scalars, rows, space);
        } else {
            cst_update_prepare(&scalars, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.75f, t);
        }
        kernels->update->v[optimizer][moments][rounding](&scalars, &random, ELEMS, &at, NULL);
    }
    cst_update_fence();
}

const char *cstd_kernel_digest(const char *isa, uint8_t out[CSTD_KERNEL_DIGEST_BYTES])
{
    enum { KINDS = CST_MOMENTS_COUNT * CST_ROUNDING_COUNT * MASTERS_KINDS };
    static struct cst_product_space space; /* Too large for a stack. */
    const struct cst_kernels *kernels = cst_kernels_get(isa);
    XXH128_canonical_t digests[CST_OPTIMIZER_COUNT * KINDS], digest;
    uint64_t state = 1;
    struct rows rows;

    if (kernels == NULL) {
        return NULL;
    }
    for (unsigned i = 0; i < CST_OPTIMIZER_COUNT * KINDS; i++) {
        fill(&rows, &state);
        sum(kernels, &rows);
        train(kernels, &rows, (enum cst_optimizer)(i / KINDS),
              (enum cst_moments)(i % CST_MOMENTS_COUNT),
              (enum cst_rounding)(i / CST_MOMENTS_COUNT % CST_ROUNDING_COUNT),
              (enum masters)(i / CST_MOMENTS_COUNT / CST_ROUNDING_COUNT % MASTERS_KINDS), &space);
        XXH128_canonicalFromHash(&digests[i], XXH3_128bits(&rows, sizeof rows));
    }
    XXH128_canonicalFromHash(&digest, XXH3_128bits(digests, sizeof digests));
    memcpy(out, digest.digest, CSTD_KERNEL_DIGEST_BYTES);
    return kernels->isa;
}

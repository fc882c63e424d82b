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
    SOURCES = 3,
    STEPS = 3
};

struct rows {
    double squares; /* Sum of squares of grad. */
    uint16_t sources[SOURCES][ELEMS], grad[ELEMS], weight[ELEMS];
    float master[ELEMS];
    float moments[CST_MAX_MOMENTS][ELEMS]; /* Smaller formats use the first bytes. */
    uint8_t exponents[CST_MAX_MOMENTS][BLOCKS];
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
        for (unsigned s = 0; s < SOURCES; s++) {
            rows->sources[s][i] = draw_bf16(state);
        }
    }
}

/* Sum, and make some steps of AdamW. */
static void train(const struct cst_kernels *kernels, struct rows *rows, enum cst_moments moments,
                  enum cst_rounding rounding)
{
    const uint16_t *const sources[] = {rows->sources[0], rows->sources[1], rows->sources[2]};
    struct cst_update_rows at = {.grad_bf16 = rows->grad,
                                 .master_in = rows->master,
                                 .master = rows->master,
                                 .weight = rows->weight};

    rows->squares = kernels->reduce(ELEMS, SOURCES, sources, rows->grad);
    for (unsigned m = 0; m < CST_MAX_MOMENTS; m++) {
        at.moments[m] = at.moments_in[m] = (struct cst_update_moment){
            .values = rows->moments[m],
            .exponents = moments == CST_MOMENTS_MX8 ? rows->exponents[m] : NULL};
    }
    for (uint64_t t = 1; t <= STEPS; t++) {
        const struct cst_update_random random = {.seed = 7, .t = t};
        struct cst_update_scalars scalars;

        cst_update_prepare(&scalars, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.75f, t);
        kernels->update->v[CST_OPTIMIZER_ADAMW][moments][rounding](&scalars, &random, ELEMS, &at,
                                                                   NULL);
    }
    cst_update_fence();
}

const char *cstd_kernel_digest(const char *isa, uint8_t out[CSTD_KERNEL_DIGEST_BYTES])
{
    const struct cst_kernels *kernels = cst_kernels_get(isa);
    XXH128_canonical_t digests[CST_MOMENTS_COUNT * CST_ROUNDING_COUNT], digest;
    uint64_t state = 1;
    struct rows rows;
    unsigned n = 0;

    if (kernels == NULL) {
        return NULL;
    }
    for (unsigned moments = 0; moments < CST_MOMENTS_COUNT; moments++) {
        for (unsigned rounding = 0; rounding < CST_ROUNDING_COUNT; rounding++) {
            fill(&rows, &state);
            train(kernels, &rows, (enum cst_moments)moments, (enum cst_rounding)rounding);
            XXH128_canonicalFromHash(&digests[n++], XXH3_128bits(&rows, sizeof rows));
        }
    }
    XXH128_canonicalFromHash(&digest, XXH3_128bits(digests, sizeof digests));
    memcpy(out, digest.digest, CSTD_KERNEL_DIGEST_BYTES);
    return kernels->isa;
}

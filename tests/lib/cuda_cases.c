/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/cuda_rows.h"

#include "kernels/math/accumulate.h"
#include "kernels/math/cast.h"
#include "kernels/math/norm.h"
#include "kernels/math/reduce.h"
#include "kernels/math/total.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t lengths[] = {1,  2,  3,  4,   5,    7,    8,    9,    15,   16,   31,
                                   33, 63, 64, 100, 1023, 1024, 4095, 4096, 4097, 9001, 20480};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

/* ---- reduce ---- */

/* Test one reduction. @in_place: the number of the source whose row is also the result's row; a
 * number beyond the sources means none. @shift: element offset, used in turn for the sources; its
 * lowest three bits are the offset of the result. */
static void reduce_case(struct cases *c, uint64_t n_tiles, uint32_t n_src, uint32_t in_place,
                        uint32_t shift, enum cases_fill fill)
{
    struct cst_cuda_tile tiles[CASES_MAX_TILES];
    uint64_t n_elems = cases_tiles(c, tiles, n_tiles, cases_next(c) % 4 != 0);
    struct cases_row src[CST_CUDA_MAX_SRC];
    struct cases_row own = cases_row(c, "dst", n_elems, 2, shift & 7u, HOSTILE);
    struct cases_row sums = cases_row(c, "sums", n_tiles, 8, 0, ORDINARY);
    struct cases_row *dst = in_place < n_src ? &src[in_place] : &own;
    struct cst_cuda_sources sources = {.n = n_src};

    for (uint32_t r = 0; r < n_src; r++) {
        src[r] = cases_row(c, "source", n_elems, 2, shift >> 3 * (r % 4) & 7u, fill);
        sources.v[r] = src[r].at;
    }
    snprintf(c->what, sizeof c->what, "%llu tiles, %u sources, into %u, shift %04o, fill %d",
             (unsigned long long)n_tiles, n_src, in_place, shift, (int)fill);
    c->device->reduce(c->device, n_tiles, cases_place(c, tiles, n_tiles * sizeof tiles[0]),
                      &sources, dst->at, sums.at);
    for (uint64_t t = 0; t < n_tiles; t++) {
        const uint16_t *in[CST_CUDA_MAX_SRC];

        for (uint32_t r = 0; r < n_src; r++) {
            in[r] = (const uint16_t *)(void *)src[r].want + tiles[t].start;
        }
        ((double *)(void *)sums.want)[t] = cst_reduce_ref(
            tiles[t].n_elems, n_src, in, (uint16_t *)(void *)dst->want + tiles[t].start);
    }
    for (uint32_t r = 0; r < n_src; r++) {
        cases_compare(c, &src[r]);
    }
    cases_compare(c, &own);
    cases_compare(c, &sums);
    cases_end(c);
}

static void reduce_cases(struct cases *c)
{
    static const uint32_t n_srcs[] = {0, 1, 2, 3, 4, 7, 8, 17, 64};

    for (unsigned s = 0; s < sizeof n_srcs / sizeof n_srcs[0]; s++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            uint32_t n = n_srcs[s];
            uint64_t n_tiles = 1 + cases_next(c) % (n < 10 ? 9 : 3);

            reduce_case(c, n_tiles, n, n, 0, (enum cases_fill)fill);
            reduce_case(c, n_tiles, n, n > 0 ? (uint32_t)(cases_next(c) % n) : 0, 0,
                        (enum cases_fill)fill);
            reduce_case(c, n_tiles, n, n > 0 ? (uint32_t)(cases_next(c) % (n + 1)) : 0,
                        (uint32_t)(cases_next(c) & 07777u), (enum cases_fill)fill);
        }
    }
    for (int fill = 0; fill < N_FILL; fill++) {
        reduce_case(c, CASES_MAX_TILES, 2, 2, 0, (enum cases_fill)fill);
        reduce_case(c, CASES_MAX_TILES - 1, 3, 1, 0, (enum cases_fill)fill);
    }
}

/* ---- sum ---- */

/* Test one sum. Its value as stored by accumulate.h must be the value that accumulate.h stores for
 * the sources. Only the bits of a NaN may differ. */
static void sum_case(struct cases *c, uint64_t n_tiles, uint32_t n_src, uint32_t shift,
                     enum cases_fill fill)
{
    struct cst_cuda_tile tiles[CASES_MAX_TILES];
    uint64_t n_elems = cases_tiles(c, tiles, n_tiles, cases_next(c) % 4 != 0);
    struct cases_row src[CST_CUDA_MAX_SRC];
    struct cases_row dst = cases_row(c, "dst", n_elems, 4, shift & 7u, WIDE);
    float *want = (float *)(void *)dst.want, *got = cases_need(malloc(dst.bytes));
    struct cst_cuda_sources sources = {.n = n_src};

    for (uint32_t r = 0; r < n_src; r++) {
        src[r] = cases_row(c, "source", n_elems, 2, shift >> 3 * (r % 4) & 7u, fill);
        sources.v[r] = src[r].at;
    }
    snprintf(c->what, sizeof c->what, "%llu tiles, %u sources, shift %04o, fill %d",
             (unsigned long long)n_tiles, n_src, shift, (int)fill);
    c->device->sum(c->device, n_tiles, cases_place(c, tiles, n_tiles * sizeof tiles[0]), &sources,
                   dst.at);
    c->device->get(c->device, got, dst.at, dst.bytes);
    for (uint64_t t = 0; t < n_tiles; t++) {
        const uint16_t *in[CST_CUDA_MAX_SRC];
        uint64_t at = tiles[t].start;

        for (uint32_t r = 0; r < n_src; r++) {
            in[r] = (const uint16_t *)(void *)src[r].want + at;
        }
        (void)cst_accumulate_ref(tiles[t].n_elems, n_src, in, false, want + at);
        (void)cst_accumulate_fp32_ref(tiles[t].n_elems, 1, &(const float *){got + at}, false,
                                      got + at);
    }
    c->device->put(c->device, dst.at, got, dst.bytes);
    for (uint32_t r = 0; r < n_src; r++) {
        cases_compare(c, &src[r]);
    }
    cases_compare(c, &dst);
    cases_end(c);
    free(got);
}

static void sum_cases(struct cases *c)
{
    static const uint32_t n_srcs[] = {0, 1, 2, 3, 5, 8, 64};

    for (unsigned s = 0; s < sizeof n_srcs / sizeof n_srcs[0]; s++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            uint64_t n_tiles = 1 + cases_next(c) % (n_srcs[s] < 10 ? 9 : 3);

            sum_case(c, n_tiles, n_srcs[s], 0, (enum cases_fill)fill);
            sum_case(c, n_tiles, n_srcs[s], (uint32_t)(cases_next(c) & 07777u),
                     (enum cases_fill)fill);
        }
    }
    sum_case(c, CASES_MAX_TILES, 3, 0, WIDE);
}

/* ---- total ---- */

/* Test one total. @in_place and @shift are as in reduce_case. */
static void total_case(struct cases *c, bool is_fp32, uint64_t n, uint32_t n_src, uint32_t in_place,
                       uint32_t shift, enum cases_fill fill)
{
    const size_t elem_bytes = is_fp32 ? 4 : 2;
    struct cases_row src[CST_CUDA_MAX_SRC];
    struct cases_row own = cases_row(c, "dst", n, elem_bytes, shift & 7u, HOSTILE);
    struct cases_row *dst = in_place < n_src ? &src[in_place] : &own;
    struct cst_cuda_total total = {.n = n, .n_src = n_src};
    const float *wide[CST_CUDA_MAX_SRC];
    const uint16_t *narrow[CST_CUDA_MAX_SRC];

    for (uint32_t r = 0; r < n_src; r++) {
        src[r] = cases_row(c, "source", n, elem_bytes, shift >> 3 * (r % 4) & 7u, fill);
        total.src[r] = src[r].at;
        wide[r] = (const float *)(void *)src[r].want;
        narrow[r] = (const uint16_t *)(void *)src[r].want;
    }
    total.dst = dst->at;
    snprintf(c->what, sizeof c->what, "%llu of fp%d, %u sources, into %u, shift %04o, fill %d",
             (unsigned long long)n, is_fp32 ? 32 : 16, n_src, in_place, shift, (int)fill);
    c->device->total(c->device, is_fp32, &total);
    if (is_fp32) {
        cst_total_fp32_ref(n, n_src, wide, (float *)(void *)dst->want);
    } else {
        cst_total_bf16_ref(n, n_src, narrow, (uint16_t *)(void *)dst->want);
    }
    for (uint32_t r = 0; r < n_src; r++) {
        cases_compare(c, &src[r]);
    }
    cases_compare(c, &own);
    cases_end(c);
}

static void total_cases(struct cases *c)
{
    static const uint32_t n_srcs[] = {1, 2, 3, 8, 64};

    for (unsigned s = 0; s < sizeof n_srcs / sizeof n_srcs[0]; s++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            for (int type = 0; type < 2; type++) {
                const uint32_t n_src = n_srcs[s];
                const uint64_t n = lengths[cases_next(c) % N_LENGTHS];

                total_case(c, type == 0, n, n_src, n_src, 0, (enum cases_fill)fill);
                total_case(c, type == 0, n, n_src, (uint32_t)(cases_next(c) % (n_src + 1)),
                           (uint32_t)(cases_next(c) & 07777u), (enum cases_fill)fill);
            }
        }
    }
    for (unsigned l = 0; l < N_LENGTHS; l++) {
        total_case(c, l % 2 == 0, lengths[l], 3, l % 5, 0, WIDE);
    }
}

/* ---- norm ---- */

static void norm_case(struct cases *c, uint64_t n, double put)
{
    struct cst_table_tile *tiles = cases_need(calloc(n + 1, sizeof *tiles));
    struct cases_row sums = cases_row(c, "sums", n, 8, 0, WIDE);
    struct cases_row out = cases_row(c, "norm", 1, 8, 0, ORDINARY);
    double want;

    snprintf(c->what, sizeof c->what, "%llu sums, one is %g", (unsigned long long)n, put);
    if (put >= 0.0 || isnan(put)) {
        uint64_t at = cases_next(c) % n;

        memcpy(sums.want + 8 * at, &put, sizeof put);
        c->device->put(c->device, sums.at, sums.want, sums.bytes);
    }
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&tiles[i].sum_squares, sums.want + 8 * i, sizeof(double));
    }
    c->device->norm(c->device, n, sums.at, out.at);
    want = cst_norm_sum(tiles, n);
    memcpy(out.want, &want, sizeof want);
    cases_compare(c, &sums);
    cases_compare(c, &out);
    cases_end(c);
    free(tiles);
}

static void norm_cases(struct cases *c)
{
    static const uint64_t counts[] = {0,    1,    2,    3,    31,   32,   33,    255,
                                      1023, 1024, 1025, 2047, 2048, 2049, 10007, 24415};
    const uint64_t bits = 0x7ff8000000000000u; /* the NaN that a reduction writes for any NaN */
    double nan;

    memcpy(&nan, &bits, sizeof nan);
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        norm_case(c, counts[i], -1.0);
        if (counts[i] > 0) {
            norm_case(c, counts[i], (double)INFINITY);
            norm_case(c, counts[i], nan);
        }
    }
}

/* ---- casts ---- */

static void cast_case(struct cases *c, uint64_t n, uint32_t shift, enum cases_fill fill, bool up)
{
    struct cases_row wide = cases_row(c, "fp32", n, 4, shift & 7u, fill);
    struct cases_row narrow = cases_row(c, "bf16", n, 2, shift >> 3 & 7u, fill);

    snprintf(c->what, sizeof c->what, "n %llu, shift %02o, fill %d", (unsigned long long)n, shift,
             (int)fill);
    if (up) {
        c->device->upcast(c->device, n, narrow.at, wide.at);
        cst_upcast_ref(n, (const uint16_t *)(void *)narrow.want, (float *)(void *)wide.want);
    } else {
        c->device->cast(c->device, n, wide.at, narrow.at);
        cst_cast_ref(n, (const float *)(void *)wide.want, (uint16_t *)(void *)narrow.want);
    }
    cases_compare(c, &wide);
    cases_compare(c, &narrow);
    cases_end(c);
}

static void casts(struct cases *c, bool up)
{
    for (unsigned l = 0; l < N_LENGTHS; l++) {
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t shift = i == 0 ? 0 : i < 3 ? i * 011u : (uint32_t)(cases_next(c) & 077u);

            cast_case(c, lengths[l], shift, i % 2 == 0 ? HOSTILE : WIDE, up);
        }
    }
    cast_case(c, 1 << 18, 0, HOSTILE, up);
}

static void cast_cases(struct cases *c)
{
    casts(c, false);
}

static void upcast_cases(struct cases *c)
{
    casts(c, true);
}

/* ---- */

static void run(const char *op, void (*cases)(struct cases *), struct cases_device *device,
                uint64_t seed, struct cases_result *result)
{
    struct cases c = {.device = device, .result = result, .state = seed, .op = op};

    *result = (struct cases_result){.ok = true};
    cases(&c);
}

#define CST_CASES_OP(op, cases)                                                                    \
    static void run_##op(struct cases_device *device, uint64_t seed, struct cases_result *result)  \
    {                                                                                              \
        run(#op, cases, device, seed, result);                                                     \
    }

CST_CASES_OP(update_fp32, cases_update_fp32)
CST_CASES_OP(update_bf16, cases_update_bf16)
CST_CASES_OP(update_mx8, cases_update_mx8)
CST_CASES_OP(directions, cases_muon_directions)
CST_CASES_OP(muon, cases_muon_phases)
CST_CASES_OP(reduce, reduce_cases)
CST_CASES_OP(sum, sum_cases)
CST_CASES_OP(total, total_cases)
CST_CASES_OP(norm, norm_cases)
CST_CASES_OP(cast, cast_cases)
CST_CASES_OP(upcast, upcast_cases)

const struct cases_op *cases_all(unsigned *n)
{
    static const struct cases_op all[] = {
        {"update_fp32", run_update_fp32},
        {"update_bf16", run_update_bf16},
        {"update_mx8", run_update_mx8},
        {"directions", run_directions},
        {"muon", run_muon},
        {"reduce", run_reduce},
        {"sum", run_sum},
        {"total", run_total},
        {"norm", run_norm},
        {"cast", run_cast},
        {"upcast", run_upcast},
    };

    *n = sizeof all / sizeof all[0];
    return all;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of updates: every optimizer, format, rounding and type of gradient, compared with
 * kernels/math/update_ref.c. */
#include "tests/lib/cuda_rows.h"

#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "kernels/math/product.h"
#include "proto/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MOMENTS = 2, MAX_CASE_TILES = 8 };
enum { N_OPTIMIZERS = CST_OPTIMIZER_COUNT };

/* A row of moments. */
struct moment {
    struct cases_row values, exponents; /* exponents exist in mx8 only */
};

/* The rows of a chunk, and the parameters of its update. */
struct update {
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool split; /* Masters are split, and the master rows have remainders. */
    bool fp32;  /* The master weights are the weights: there is no row of others. */
    uint64_t n_elems;
    uint64_t seed, t;
    unsigned n_moments;
    size_t grad_bytes; /* bytes of a gradient's element */
    struct cases_row grad, master_in, weight_in, master, weight;
    struct cases_row direction; /* MUON */
    struct moment in[N_MOMENTS], out[N_MOMENTS];
    uint64_t n_tiles;
    struct cst_cuda_tile tiles[MAX_CASE_TILES];
    struct cst_update_scalars spans[CASES_SPANS];
};

static struct cst_update_scalars random_scalars(struct cases *c, enum cases_fill fill)
{
    struct cst_update_scalars scalars;

    cst_update_prepare(&scalars, 1e-3 * (1.0 + (double)(cases_next(c) % 100)), 0.9,
                       0.95 + 1e-4 * (double)(cases_next(c) % 100), 1e-8, 0.1,
                       fill == HOSTILE ? 0x1p-12f : 0.7f, 1 + cases_next(c) % 1000);
    return scalars;
}

/* Make tiles at any place; tiles of mx8 begin at a block's start. All lengths near a group's occur,
 * and one tile in four keeps its states. */
static void make_tiles(struct cases *c, struct update *u)
{
    static const uint32_t lengths[] = {1,  2,  3,  15, 16,  17,   31,   32,   33,   47,  48,
                                       63, 64, 65, 96, 100, 1023, 1024, 1025, 4095, 4096};
    bool aligned = u->moments == CST_MOMENTS_MX8 || cases_next(c) % 2 == 0;
    uint64_t at = 0;

    u->n_tiles = 1 + cases_next(c) % MAX_CASE_TILES;
    for (uint64_t t = 0; t < u->n_tiles; t++) {
        at += cases_next(c) % 3 * 37;
        at = aligned ? (at + 63) / 64 * 64 : at;
        u->tiles[t] = (struct cst_cuda_tile){
            .start = at,
            .n_elems = lengths[cases_next(c) % (sizeof lengths / sizeof *lengths)],
            .span = (uint32_t)(cases_next(c) % CASES_SPANS),
            .number = cases_next(c) % (1u << 30),
            .keep = cases_next(c) % 4 == 0};
        at += u->tiles[t].n_elems;
    }
    u->n_elems = (at + 5 + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK * CST_MX8_BLOCK;
}

static size_t random_shift(struct cases *c, bool aligned)
{
    return aligned ? 0 : cases_next(c) % 8;
}

static void put_again(struct cases *c, struct cases_row *row)
{
    c->device->put(c->device, row->at, row->want, row->bytes);
}

/* Make moment number @k. A mean of squares is not negative, except in fills of any bits. */
static struct moment make_moment(struct cases *c, const struct update *u, unsigned k, bool aligned,
                                 enum cases_fill fill)
{
    static const char *const names[N_MOMENTS] = {"exp_avg", "exp_avg_sq"};
    size_t size = cst_moments_elem_bytes(u->moments);
    struct moment m = {
        .values = cases_row(c, names[k], u->n_elems, size, random_shift(c, aligned), fill)};

    if (u->moments == CST_MOMENTS_MX8) {
        m.exponents = cases_row(c, "exponents", u->n_elems / CST_MX8_BLOCK, 1,
                                random_shift(c, aligned), fill);
        for (size_t i = 0; i < m.exponents.bytes && fill != HOSTILE; i++) {
            m.exponents.want[i] = (uint8_t)(100 + m.exponents.want[i] % 40);
        }
        put_again(c, &m.exponents);
    } else if (k == 1 && fill != HOSTILE) {
        for (size_t i = 0; i < u->n_elems; i++) {
            m.values.want[size * i + size - 1] &= 0x7f;
        }
        put_again(c, &m.values);
    }
    return m;
}

static void make_rows(struct cases *c, struct update *u, enum cases_fill fill)
{
    bool aligned = cases_next(c) % 2 == 0;
    uint64_t n = u->n_elems;

    u->grad = cases_row(c, "grad", n, u->grad_bytes, random_shift(c, aligned), fill);
    u->master_in = cases_row(c, "master read", n, u->split ? 2 : 4, random_shift(c, aligned), fill);
    u->weight_in = cases_row(c, "weight read", n, 2, random_shift(c, aligned), fill);
    u->master = cases_row(c, "master", n, u->split ? 2 : 4, random_shift(c, aligned), HOSTILE);
    u->weight = cases_row(c, "weight", n, 2, random_shift(c, aligned), HOSTILE);
    for (unsigned k = 0; k < u->n_moments; k++) {
        u->in[k] = make_moment(c, u, k, aligned, fill);
        u->out[k] = make_moment(c, u, k, aligned, HOSTILE);
    }
    u->direction = cases_row(c, "direction", n + CST_UPDATE_GROUP, 2, 0, fill);
    for (uint64_t t = 0; t < u->n_tiles && u->optimizer == CST_OPTIMIZER_MUON; t++) {
        u->tiles[t].direction = (uint16_t *)u->direction.at + u->tiles[t].start;
    }
}

/* -- expected results ------------------------------------------------------------------------- */

static struct cst_update_moment pointers(const struct moment *m, bool on_device)
{
    return (struct cst_update_moment){.values = on_device ? m->values.at : m->values.want,
                                      .exponents = on_device ? m->exponents.at : m->exponents.want};
}

/* Pointers to the rows' first elements, on the device or on the host. */
static struct cst_update_rows rows_of(const struct update *u, bool on_device)
{
    const void *grad = on_device ? u->grad.at : u->grad.want;
    struct cst_update_rows rows = {.grad_bf16 = u->grad_bytes == 2 ? grad : NULL,
                                   .grad_fp32 = u->grad_bytes == 4 ? grad : NULL,
                                   .weight = on_device ? u->weight.at : (void *)u->weight.want};
    void *in = on_device ? u->master_in.at : (void *)u->master_in.want;
    void *out = on_device ? u->master.at : (void *)u->master.want;

    if (u->fp32) {
        rows.weight = NULL;
    }
    if (u->split) {
        rows.weight_in = on_device ? u->weight_in.at : (void *)u->weight_in.want;
        rows.remainder_in = in;
        rows.remainder = out;
    } else {
        rows.master_in = in;
        rows.master = out;
    }
    for (unsigned k = 0; k < u->n_moments; k++) {
        rows.moments_in[k] = pointers(&u->in[k], on_device);
        rows.moments[k] = pointers(&u->out[k], on_device);
    }
    return rows;
}

static struct cst_update_rows ahead(const struct update *u, struct cst_update_rows rows, uint64_t i)
{
    rows.grad_bf16 = rows.grad_bf16 != NULL ? rows.grad_bf16 + i : NULL;
    rows.grad_fp32 = rows.grad_fp32 != NULL ? rows.grad_fp32 + i : NULL;
    if (u->split) {
        rows.weight_in += i;
        rows.remainder_in += i;
        rows.remainder += i;
    } else {
        rows.master_in += i;
        rows.master += i;
    }
    rows.weight = rows.weight != NULL ? rows.weight + i : NULL;
    for (unsigned k = 0; k < u->n_moments; k++) {
        rows.moments_in[k] = cst_moments_at(u->moments, &rows.moments_in[k], i);
        rows.moments[k] = cst_moments_at(u->moments, &rows.moments[k], i);
    }
    return rows;
}

static void want_kept(const struct update *u, const struct cst_update_rows *rows, uint32_t n)
{
    if (u->split) {
        memcpy(rows->weight, rows->weight_in, n * sizeof *rows->weight);
        memcpy(rows->remainder, rows->remainder_in, n * sizeof *rows->remainder);
    } else {
        if (!u->fp32) {
            cst_cast_ref(n, rows->master_in, rows->weight);
        }
        memcpy(rows->master, rows->master_in, n * sizeof *rows->master);
    }
    for (unsigned k = 0; k < u->n_moments; k++) {
        memcpy(rows->moments[k].values, rows->moments_in[k].values,
               n * cst_moments_elem_bytes(u->moments));
        if (u->moments == CST_MOMENTS_MX8) {
            memcpy(rows->moments[k].exponents, rows->moments_in[k].exponents,
                   (n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK);
        }
    }
}

static void want_tile(const struct update *u, const struct cst_cuda_tile *tile)
{
    struct cst_update_rows rows = ahead(u, rows_of(u, false), tile->start);
    const struct cst_update_random random = {
        .seed = u->seed, .t = u->t, .element = tile->number * CST_CUDA_TILE_ELEMS};

    if (tile->keep) {
        want_kept(u, &rows, tile->n_elems);
        return;
    }
    if (u->optimizer == CST_OPTIMIZER_MUON) {
        rows.direction = (const uint16_t *)(void *)u->direction.want + tile->start;
    }
    cst_update_ref.v[u->optimizer][u->moments][u->rounding](&u->spans[tile->span], &random,
                                                            tile->n_elems, &rows, NULL);
}

static void compare(struct cases *c, struct update *u)
{
    cases_compare(c, &u->grad);
    cases_compare(c, &u->master_in);
    cases_compare(c, &u->weight_in);
    cases_compare(c, &u->master);
    cases_compare(c, &u->weight);
    cases_compare(c, &u->direction);
    for (unsigned k = 0; k < u->n_moments; k++) {
        struct moment *both[] = {&u->in[k], &u->out[k]};

        for (int i = 0; i < 2; i++) {
            cases_compare(c, &both[i]->values);
            if (u->moments == CST_MOMENTS_MX8) {
                cases_compare(c, &both[i]->exponents);
            }
        }
    }
    cases_end(c);
}

/* -- cases ------------------------------------------------------------------------------------ */

static void update_case(struct cases *c, struct update *u, enum cases_fill fill)
{
    struct cst_cuda_update args;

    u->seed = cases_next(c);
    u->t = 1 + cases_next(c) % 1000;
    u->n_moments = cst_optimizer_n_moments(u->optimizer);
    make_tiles(c, u);
    make_rows(c, u, fill);
    for (int s = 0; s < CASES_SPANS; s++) {
        u->spans[s] = random_scalars(c, fill);
    }
    snprintf(c->what, sizeof c->what, "optimizer %d, rounding %d, %zu bytes of gradient, fill %d%s",
             (int)u->optimizer, (int)u->rounding, u->grad_bytes, (int)fill,
             u->split  ? ", split masters"
             : u->fp32 ? ", fp32 tensors"
                       : "");
    args = (struct cst_cuda_update){
        .rows = rows_of(u, true), .seed = u->seed, .t = u->t, .optimizer = (uint32_t)u->optimizer};
    c->device->update(c->device, u->n_tiles,
                      cases_place(c, u->tiles, u->n_tiles * sizeof *u->tiles),
                      cases_place(c, u->spans, sizeof u->spans), u->moments, u->rounding, &args);
    for (uint64_t t = 0; t < u->n_tiles; t++) {
        want_tile(u, &u->tiles[t]);
    }
    compare(c, u);
}

static void update_cases(struct cases *c, enum cst_moments moments)
{
    for (int i = 0; i < N_OPTIMIZERS * CST_ROUNDING_COUNT * 2 * N_FILL * 3; i++) {
        struct update u = {.optimizer = (enum cst_optimizer)(i % N_OPTIMIZERS),
                           .moments = moments,
                           .rounding = (enum cst_rounding)(i / N_OPTIMIZERS % CST_ROUNDING_COUNT),
                           .grad_bytes = i / N_OPTIMIZERS / CST_ROUNDING_COUNT % 2 == 0 ? 2 : 4};
        int fill = i / N_OPTIMIZERS / CST_ROUNDING_COUNT / 2;

        u.split = fill / N_FILL == 1;
        u.fp32 = fill / N_FILL == 2;
        update_case(c, &u, (enum cases_fill)(fill % N_FILL));
    }
}

/* -- directions of Muon ------------------------------------------------------------------------ */

/* Make the expected directions of a tile. The reference takes fp32 momentum and whole groups. */
static void want_directions(struct update *u, const struct cst_cuda_tile *tile)
{
    const struct cst_update_rows rows = ahead(u, rows_of(u, false), tile->start);
    uint16_t *out = (uint16_t *)(void *)u->direction.want + tile->start;
    size_t n = tile->n_elems, bytes = CST_CUDA_TILE_ELEMS * sizeof(float);
    float *m = cases_need(calloc(1, bytes)), *wide = cases_need(calloc(1, bytes));
    uint16_t *grad = cases_need(calloc(1, bytes)), *result = cases_need(calloc(1, bytes));

    cst_moments_decode(u->moments, 0, 0, n, &rows.moments_in[0], m);
    if (rows.grad_bf16 != NULL) {
        memcpy(grad, rows.grad_bf16, n * sizeof *grad);
    } else {
        memcpy(wide, rows.grad_fp32, n * sizeof *wide);
    }
    if (!tile->keep) {
        cst_direction_ref(CST_CUDA_TILE_ELEMS, &u->spans[tile->span],
                          rows.grad_bf16 != NULL ? grad : NULL,
                          rows.grad_bf16 != NULL ? NULL : wide, m, result);
    }
    memcpy(out, result, n * sizeof *out);
    free(m);
    free(wide);
    free(grad);
    free(result);
}

static void directions_case(struct cases *c, enum cst_moments moments, size_t grad_bytes,
                            enum cases_fill fill)
{
    struct update u = {.optimizer = CST_OPTIMIZER_MUON,
                       .moments = moments,
                       .n_moments = 1,
                       .grad_bytes = grad_bytes};
    struct cst_cuda_update args = {.optimizer = CST_OPTIMIZER_MUON};

    make_tiles(c, &u);
    make_rows(c, &u, fill);
    for (int s = 0; s < CASES_SPANS; s++) {
        u.spans[s] = random_scalars(c, fill);
    }
    snprintf(c->what, sizeof c->what, "moments %d, %zu bytes of gradient, fill %d", (int)moments,
             grad_bytes, (int)fill);
    args.rows = rows_of(&u, true);
    c->device->direct(c->device, u.n_tiles, cases_place(c, u.tiles, u.n_tiles * sizeof *u.tiles),
                      cases_place(c, u.spans, sizeof u.spans), moments, &args);
    for (uint64_t t = 0; t < u.n_tiles; t++) {
        want_directions(&u, &u.tiles[t]);
    }
    compare(c, &u);
}

void cases_muon_directions(struct cases *c)
{
    for (int i = 0; i < CST_MOMENTS_COUNT * 2 * N_FILL * 2; i++) {
        directions_case(c, (enum cst_moments)(i % CST_MOMENTS_COUNT),
                        i / CST_MOMENTS_COUNT % 2 == 0 ? 2 : 4,
                        (enum cases_fill)(i / CST_MOMENTS_COUNT / 2 % N_FILL));
    }
}

void cases_update_fp32(struct cases *c)
{
    update_cases(c, CST_MOMENTS_FP32);
}

void cases_update_bf16(struct cases *c)
{
    update_cases(c, CST_MOMENTS_BF16);
}

void cases_update_mx8(struct cases *c)
{
    update_cases(c, CST_MOMENTS_MX8);
}

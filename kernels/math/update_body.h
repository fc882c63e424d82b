/* SPDX-License-Identifier: Apache-2.0 */
/* The update of rows over vectors, for one instruction set and one form of master weights. The
 * files that include it, and no others, first include their vectors (kernels/math/vec_*.h) and
 * define ISA as the suffix of names:
 *
 *   file                  macro           master weights                    table
 *   update_avx2.c                         fp32, beside bf16 weights         cst_update_avx2
 *   update_split_avx2.c   UPDATE_SPLIT    split                             cst_update_split_avx2
 *   update_alone_avx2.c   UPDATE_ALONE    fp32, which are the weights       cst_update_alone_avx2
 *
 * and so on for avx512, neon and ref. They are three files because the compiler takes long. The
 * functions of the first table are those of the instruction set: they pass rows with other master
 * weights on to the other two tables.
 *
 * This file has no state. Any thread may call the functions of the table. The rows and the undo
 * belong to the caller (struct cst_update_rows, cst_update_fn).
 *
 * A group is CST_UPDATE_GROUP elements; it is not a group of ranks. A piece is the elements that
 * are processed together: a group, or half a group. A piece is loaded, computed and stored before
 * the next one is begun, because the weights may overwrite the gradient. The weights are only
 * written, never read; if they are aligned, their stores bypass the cache. The elements after the
 * last whole group are copied to a piece on the stack, which is padded with zeros, updated there
 * and copied back. */
#include "kernels/math/update_piece.h"

/* Memory for a piece that is padded with zeros. */
struct padded {
    alignas(64) uint16_t grad_bf16[CST_UPDATE_GROUP];
    alignas(64) uint16_t direction[CST_UPDATE_GROUP];
    alignas(64) float grad_fp32[CST_UPDATE_GROUP];
    alignas(64) float master[CST_UPDATE_GROUP];
    alignas(64) uint8_t moments[CST_MAX_MOMENTS][CST_UPDATE_GROUP * sizeof(float)];
    alignas(64) uint16_t weight[CST_UPDATE_GROUP];
    alignas(64) int16_t remainder[CST_UPDATE_GROUP];
    uint8_t exponents[CST_MAX_MOMENTS];
};

/* Copy the @n elements at the start of @rows into @padded, and set @out to the rows of @padded. */
ALWAYS_INLINE void pad(struct way way, struct padded *padded, const struct cst_update_rows *rows,
                       size_t n, struct cst_update_rows *out)
{
    const size_t bytes = cst_format_bytes(way.moments) / CST_UPDATE_GROUP;

    memset(padded, 0, sizeof *padded);
    *out = (struct cst_update_rows){.weight = way.alone ? NULL : padded->weight};
    if (way.split) {
        memcpy(padded->weight, rows->weight_in, n * sizeof *rows->weight_in);
        memcpy(padded->remainder, rows->remainder_in, n * sizeof *rows->remainder_in);
        out->weight_in = padded->weight;
        out->remainder_in = out->remainder = padded->remainder;
    } else {
        memcpy(padded->master, rows->master_in, n * sizeof *rows->master_in);
        out->master_in = out->master = padded->master;
    }
    if (rows->grad_bf16 != NULL) {
        memcpy(padded->grad_bf16, rows->grad_bf16, n * sizeof *rows->grad_bf16);
        out->grad_bf16 = padded->grad_bf16;
    } else {
        memcpy(padded->grad_fp32, rows->grad_fp32, n * sizeof *rows->grad_fp32);
        out->grad_fp32 = padded->grad_fp32;
    }
    if (takes_directions(way)) {
        memcpy(padded->direction, rows->direction, n * sizeof *rows->direction);
        out->direction = padded->direction;
    }
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        memcpy(padded->moments[k], rows->moments_in[k].values, n * bytes);
        if (way.moments == CST_MOMENTS_MX8) {
            padded->exponents[k] = *rows->moments_in[k].exponents;
        }
        out->moments_in[k] = out->moments[k] = (struct cst_update_moment){
            .values = padded->moments[k], .exponents = &padded->exponents[k]};
    }
}

/* Copy the @n updated elements from @padded back to the start of @rows. */
ALWAYS_INLINE void unpad(struct way way, const struct padded *padded,
                         const struct cst_update_rows *rows, size_t n)
{
    const size_t bytes = cst_format_bytes(way.moments) / CST_UPDATE_GROUP;

    if (way.split) {
        memcpy(rows->remainder, padded->remainder, n * sizeof *rows->remainder);
    } else {
        memcpy(rows->master, padded->master, n * sizeof *rows->master);
    }
    if (!way.alone) {
        memcpy(rows->weight, padded->weight, n * sizeof *rows->weight);
    }
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        memcpy(rows->moments[k].values, padded->moments[k], n * bytes);
        if (way.moments == CST_MOMENTS_MX8) {
            *rows->moments[k].exponents = padded->exponents[k];
        }
    }
}

/* Update @n elements of the call, from element @i on, in a padded piece. The padded weights do not
 * bypass the cache, because they are copied at once. */
ALWAYS_INLINE void do_padded(struct way way, const struct call *call,
                             const struct cst_update_rows *rows, size_t i, size_t n,
                             struct cst_update_undo *undo, uint32_t buffer)
{
    struct cst_update_rows at = rows_at(way, rows, i), inside;
    struct call cached = *call;
    struct cst_vec_bits words[CST_VEC_GROUP / 2];
    struct piece piece;
    struct padded padded;

    cached.stream = false;
    pad(way, &padded, &at, n, &inside);
    draw(way, &cached, i / CST_UPDATE_GROUP, words);
    load_and_save(way, undo, buffer, &inside, &piece, i, n, call->over);
    do_piece(way, &cached, &inside, &piece, words);
    unpad(way, &padded, &at, n);
}

/* Update @n elements of @given, as cst_update_fn says. */
ALWAYS_INLINE void update(struct way way, const struct cst_update_scalars *scalars,
                          const struct cst_update_random *random, size_t n,
                          const struct cst_update_rows *given, struct cst_update_undo *undo)
{
    const struct cst_update_rows rows = *given;
    const size_t size = piece_elems(way);
    /* Weights that were read are in the cache. */
    struct call call = {.stream = cst_vec_can_stream(rows.weight) && rows.weight != rows.weight_in,
                        .over = !way.alone && rows.weight == rows.grad_bf16};
    struct cst_vec_bits words[CST_VEC_GROUP / 2];
    uint32_t buffer = 0;
    size_t i = 0;

    cst_formula_broadcast(&call.scalars, scalars);
    if (takes_random(way)) {
        call.random = *random;
    }
    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        if (undo != NULL) {
            const struct cst_update_rows at = rows_at(way, &rows, i);

            rows_ahead(way, &at);
        }
        next_ahead(&rows, i);
        draw(way, &call, i / CST_UPDATE_GROUP, words);
        CST_VEC_UNROLL
        for (size_t k = 0; k < CST_UPDATE_GROUP; k += size, buffer ^= 1) {
            const struct cst_update_rows at = rows_at(way, &rows, i + k);
            struct piece piece;

            load_and_save(way, undo, buffer, &at, &piece, i + k, size, call.over);
            do_piece(way, &call, &at, &piece, words);
        }
    }
    for (; i < n; i += size, buffer ^= 1) {
        do_padded(way, &call, &rows, i, n - i < size ? n - i : size, undo, buffer);
    }
}

#define TABLE_OF(name, isa) cst_##name##_##isa
#define TABLE_FOR(name, isa) TABLE_OF(name, isa)

#if defined(UPDATE_SPLIT)
#define TABLE TABLE_FOR(update_split, ISA)
#define IS_SPLIT true
#define IS_ALONE false
#elif defined(UPDATE_ALONE)
#define TABLE TABLE_FOR(update_alone, ISA)
#define IS_SPLIT false
#define IS_ALONE true
#else
#define TABLE TABLE_FOR(update, ISA)
#define IS_SPLIT false
#define IS_ALONE false
#endif

extern const struct cst_update_table TABLE_FOR(update_split, ISA), TABLE_FOR(update_alone, ISA);

/* Returns the table for the master weights of @rows, if this file is not for them; otherwise
 * NULL. */
ALWAYS_INLINE const struct cst_update_table *other_table(const struct cst_update_rows *rows)
{
    if (IS_SPLIT || IS_ALONE) {
        return NULL;
    }
    return rows->remainder_in != NULL ? &TABLE_FOR(update_split, ISA)
           : rows->weight == NULL     ? &TABLE_FOR(update_alone, ISA)
                                      : NULL;
}

/* Define one function of the table. @name is the optimizer, @format that of the moments, and @how
 * the rounding. */
#define ENTRY(function, name, format, how, suffix)                                                 \
    static void function##suffix(const struct cst_update_scalars *scalars,                         \
                                 const struct cst_update_random *random, size_t n,                 \
                                 const struct cst_update_rows *rows, struct cst_update_undo *undo) \
    {                                                                                              \
        const struct way way = {CST_OPTIMIZER_##name, CST_MOMENTS_##format, CST_ROUNDING_##how,    \
                                IS_SPLIT, IS_ALONE};                                               \
        const struct cst_update_table *other = other_table(rows);                                  \
                                                                                                   \
        if (other != NULL) {                                                                       \
            other->v[way.optimizer][way.moments][way.rounding](scalars, random, n, rows, undo);    \
        } else {                                                                                   \
            update(way, scalars, random, n, rows, undo);                                           \
        }                                                                                          \
    }

#define ENTRIES(name, function, ...)                                                               \
    ENTRY(function, name, FP32, NEAREST, _fp32)                                                    \
    ENTRY(function, name, BF16, STOCHASTIC, _bf16_stochastic)                                      \
    ENTRY(function, name, BF16, NEAREST, _bf16_nearest)                                            \
    ENTRY(function, name, MX8, STOCHASTIC, _mx8_stochastic)                                        \
    ENTRY(function, name, MX8, NEAREST, _mx8_nearest)
CST_OPTIMIZERS(ENTRIES)

/* The functions of one optimizer in the table, by format of the moments and by rounding. */
#define ROWS(name, function, ...)                                                                  \
    [CST_OPTIMIZER_##                                                                              \
        name] = {[CST_MOMENTS_FP32] = {[CST_ROUNDING_STOCHASTIC] = function##_fp32,                \
                                       [CST_ROUNDING_NEAREST] = function##_fp32},                  \
                 [CST_MOMENTS_BF16] = {[CST_ROUNDING_STOCHASTIC] = function##_bf16_stochastic,     \
                                       [CST_ROUNDING_NEAREST] = function##_bf16_nearest},          \
                 [CST_MOMENTS_MX8] = {[CST_ROUNDING_STOCHASTIC] = function##_mx8_stochastic,       \
                                      [CST_ROUNDING_NEAREST] = function##_mx8_nearest}},

const struct cst_update_table TABLE = {.v = {CST_OPTIMIZERS(ROWS)}};

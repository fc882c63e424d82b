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
 * A group is CST_UPDATE_GROUP elements that are processed together; it is not a group of ranks. A
 * group is loaded, computed and stored before the next group is begun, because the weights may
 * overwrite the gradient. The weights are only written, never read; if they are aligned, their
 * stores bypass the cache. The elements after the last whole group are copied to a group on the
 * stack, which is padded with zeros, updated there and copied back. */
#include "kernels/math/formats.h"
#include "kernels/math/random.h"
#include "kernels/math/update_undo.h"

#include <string.h>

/* Distance in groups by which rows are prefetched. Where memory is fast, a longer one costs more
 * than it hides: tests/bench/RESULTS.md. */
#define AHEAD_GROUPS 6

/* Whether the states and gradients of a group fit into the registers beside the scalars. If so, all
 * are loaded before anything is stored, and only once. Otherwise they are loaded again after they
 * have been saved, and the masters once more when the moments have been stored. */
#define HOLDS_GROUP (CST_VEC_GROUP <= 2)

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Compile-time parameters of one specialised update loop. */
struct way {
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool split; /* Masters are split. */
    bool alone; /* There are no bf16 weights: the masters are the weights. */
};

ALWAYS_INLINE unsigned n_moments(struct way way)
{
    return way.optimizer == CST_OPTIMIZER_ADAMW || way.optimizer == CST_OPTIMIZER_ADAM ? 2 : 1;
}

/* Returns whether the rounding takes random words. */
ALWAYS_INLINE bool takes_random(struct way way)
{
    return way.moments != CST_MOMENTS_FP32 && way.rounding == CST_ROUNDING_STOCHASTIC;
}

/* Data that all groups of a call share. */
struct call {
    struct cst_formula_scalars scalars;
    /* Identification of the random words, of which element is the number of the call's first. */
    struct cst_update_random random;
    struct cst_random_key key; /* The key of the span that is being updated. */
    bool stream;               /* The weights bypass the cache. */
    bool over;                 /* The weights overwrite the gradient. */
};

/* Return the rows of @r from element @i on, without r->next. */
ALWAYS_INLINE struct cst_update_rows rows_at(struct way way, const struct cst_update_rows *r,
                                             size_t i)
{
    struct cst_update_rows at = {.grad_bf16 = r->grad_bf16 == NULL ? NULL : r->grad_bf16 + i,
                                 .grad_fp32 = r->grad_bf16 == NULL ? r->grad_fp32 + i : NULL,
                                 .weight = way.alone ? NULL : r->weight + i};

    if (way.optimizer == CST_OPTIMIZER_MUON) {
        at.direction = r->direction + i;
    }
    if (way.split) {
        at.weight_in = r->weight_in + i;
        at.remainder_in = r->remainder_in + i;
        at.remainder = r->remainder + i;
    } else {
        at.master_in = r->master_in + i;
        at.master = r->master + i;
    }
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        at.moments_in[k] = cst_format_at(way.moments, &r->moments_in[k], i);
        at.moments[k] = cst_format_at(way.moments, &r->moments[k], i);
    }
    return at;
}

/* Set @words to the random words of the call's group number @index. Groups are drawn for one after
 * the other. */
ALWAYS_INLINE void draw(struct way way, struct call *call, size_t index,
                        struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    uint64_t group = call->random.element / CST_UPDATE_GROUP + index;

    if (!takes_random(way)) {
        return;
    }
    if (index == 0 || group % CST_RANDOM_SPAN_GROUPS == 0) {
        call->key =
            cst_random_key_of(call->random.seed, group / CST_RANDOM_SPAN_GROUPS, call->random.t);
    }
    cst_random_words(call->key, (uint32_t)(group % CST_RANDOM_SPAN_GROUPS), words);
}

/* Returns the gradient's vector at element @at of a group. */
ALWAYS_INLINE struct cst_vec load_grad(const struct cst_update_rows *rows, int at)
{
    return rows->grad_bf16 != NULL ? cst_vec_load_bf16(rows->grad_bf16 + at)
                                   : cst_vec_load(rows->grad_fp32 + at);
}

/* Load the master weights of a group. */
ALWAYS_INLINE void load_masters(struct way way, const struct cst_update_rows *rows,
                                struct cst_vec p[CST_VEC_GROUP])
{
    if (way.split) {
        cst_format_join(rows->weight_in, rows->remainder_in, p);
        return;
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        p[j] = cst_vec_load(rows->master_in + j * CST_VEC_LANES);
    }
}

/* Store the master weights of a group, and the weights if they are others. A NaN must be
 * CST_UPDATE_NAN. */
ALWAYS_INLINE void store_masters(struct way way, const struct call *call,
                                 const struct cst_update_rows *rows,
                                 const struct cst_vec p[CST_VEC_GROUP])
{
    struct cst_vec_bits upper[CST_VEC_GROUP];

    if (way.split) {
        cst_format_cut(p, rows->weight, rows->remainder, call->stream);
        return;
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        cst_vec_store(rows->master + j * CST_VEC_LANES, p[j]);
        upper[j] = cst_round_bf16(p[j]);
    }
    if (!way.alone) {
        cst_vec_store_upper(rows->weight, upper, call->stream);
    }
}

/* The states and gradients of a group, as fp32. */
struct group {
    struct cst_vec p[CST_VEC_GROUP];
    struct cst_vec moments[2][CST_VEC_GROUP];
    struct cst_vec grad[CST_VEC_GROUP];
};

/* Load the states and gradients of a group. */
ALWAYS_INLINE void load_group(struct way way, const struct cst_update_rows *rows,
                              struct group *group)
{
    load_masters(way, rows, group->p);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        cst_format_load(way.moments, k, &rows->moments_in[k], group->moments[k]);
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        group->grad[j] = load_grad(rows, j * CST_VEC_LANES);
    }
}

/* Compute the new moments of a group, and for each vector what cst_formula_weight needs, @u. */
ALWAYS_INLINE void do_moments(struct way way, const struct call *call,
                              const struct cst_update_rows *rows, struct group *group,
                              struct cst_vec u[CST_VEC_GROUP])
{
    struct cst_vec(*moments)[CST_VEC_GROUP] = group->moments;
    struct cst_vec_flags nans = cst_vec_no_flags();

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        int at = j * CST_VEC_LANES;
        struct cst_formula_states x = {
            .p = group->p[j], .m = moments[0][j], .v = moments[n_moments(way) - 1][j]};

        if (way.optimizer == CST_OPTIMIZER_MUON) {
            x.o = cst_vec_load_bf16(rows->direction + at);
        }
        cst_formula_moments(way.optimizer, &call->scalars, group->grad[j], &x);
        u[j] = x.u;
        moments[0][j] = x.m;
        moments[1][j] = x.v;
        nans = cst_vec_flag_nan(nans, x.m, x.v);
    }
    /* NaNs are rare. In mx8, a block is a NaN as a whole. */
    if (way.moments != CST_MOMENTS_MX8 && cst_vec_flagged(nans)) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            moments[0][j] = cst_formula_canonical(moments[0][j]);
            moments[1][j] = cst_formula_canonical(moments[1][j]);
        }
    }
}

/* Store the master weights of a group and the weights. @group has the old master weights, which are
 * loaded again unless HOLDS_GROUP, and the new moments. */
ALWAYS_INLINE void do_weights(struct way way, const struct call *call,
                              const struct cst_update_rows *rows, struct group *group,
                              const struct cst_vec u[CST_VEC_GROUP])
{
    struct cst_vec_flags nans = cst_vec_no_flags();
    struct cst_vec *p = group->p;

    if (!HOLDS_GROUP) {
        load_masters(way, rows, p);
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_formula_states x = {.p = p[j], .m = group->moments[0][j], .u = u[j]};

        cst_formula_weight(way.optimizer, way.moments, &call->scalars, &x);
        p[j] = x.p;
        nans = cst_vec_flag_nan(nans, x.p, j % 2 == 0 ? x.p : p[j - 1]);
    }
    if (cst_vec_flagged(nans)) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            p[j] = cst_formula_canonical(p[j]);
        }
    }
    store_masters(way, call, rows, p);
}

/* Update one group, at the start of @rows, whose old values are in @group. @words are the group's
 * random words, which are not read if the rounding takes none. */
ALWAYS_INLINE void do_group(struct way way, const struct call *call,
                            const struct cst_update_rows *rows, struct group *group,
                            const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec u[CST_VEC_GROUP];
    struct cst_vec_bits drawn[CST_VEC_GROUP / 2];

    do_moments(way, call, rows, group, u);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP / 2; j++) {
            drawn[j] = !takes_random(way) ? cst_vec_set_bits(0)
                       : k == 0           ? words[j]
                                          : cst_random_other(words[j]);
        }
        cst_format_store(way.moments, way.rounding, k, &rows->moments[k], group->moments[k], drawn);
    }
    do_weights(way, call, rows, group, u);
}

/* Prefetch what the group that comes AHEAD_GROUPS groups later needs of one row. @at is the current
 * group's place in the row. A prefetch beyond the end of a row has no effect. Only updates with an
 * undo call this: the stores that save the old values keep the processor's own prefetcher from
 * looking far enough ahead. */
ALWAYS_INLINE void ahead(const void *at, size_t group_bytes)
{
    const char *far = (const char *)((uintptr_t)at + AHEAD_GROUPS * group_bytes);

    cst_vec_ahead(far);
    if (group_bytes > 64) {
        cst_vec_ahead(far + 64);
    }
}

/* Apply ahead to each row that the update reads. */
ALWAYS_INLINE void rows_ahead(struct way way, const struct cst_update_rows *rows)
{
    if (way.split) {
        ahead(rows->weight_in, CST_UPDATE_GROUP * sizeof(uint16_t));
        ahead(rows->remainder_in, CST_UPDATE_GROUP * sizeof(int16_t));
    } else {
        ahead(rows->master_in, CST_UPDATE_GROUP * sizeof(float));
    }
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        ahead(rows->moments_in[k].values, cst_format_bytes(way.moments));
    }
    if (rows->grad_bf16 != NULL) {
        ahead(rows->grad_bf16, CST_UPDATE_GROUP * sizeof(uint16_t));
    } else {
        ahead(rows->grad_fp32, CST_UPDATE_GROUP * sizeof(float));
    }
    if (way.optimizer == CST_OPTIMIZER_MUON) {
        ahead(rows->direction, CST_UPDATE_GROUP * sizeof(uint16_t));
    }
}

/* Prefetch the group at element @i of each row in rows->next. These rows are summed after the
 * update. */
ALWAYS_INLINE void next_ahead(const struct cst_update_rows *rows, size_t i)
{
    for (uint32_t r = 0; r < rows->n_next; r++) {
        cst_vec_ahead((const void *)((uintptr_t)rows->next[r] + i * sizeof *rows->next[r]));
    }
}

/* Copy @bytes of a group, a multiple of 32, with vectors. If a vector has one element (vec_ref.h),
 * memcpy copies all. */
ALWAYS_INLINE void copy(void *to, const void *from, size_t bytes)
{
    const size_t step = CST_VEC_LANES * sizeof(float);
    size_t i = 0;

    for (; step > sizeof(float) && i + step <= bytes; i += step) {
        cst_vec_store((float *)((char *)to + i),
                      cst_vec_load((const float *)((const char *)from + i)));
    }
    memcpy((char *)to + i, (const char *)from + i, bytes - i);
}

/* Save a group of fp32 values in @to. */
ALWAYS_INLINE void save_fp32(float *to, const struct cst_vec from[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        cst_vec_store(to + j * CST_VEC_LANES, from[j]);
    }
}

/* Save the masters of the group at the start of @rows in @old. @group has them if HOLDS_GROUP. */
ALWAYS_INLINE void save_masters(struct way way, struct cst_update_old *old,
                                const struct cst_update_rows *rows, const struct group *group)
{
    if (way.split) {
        copy(old->split.remainder, rows->remainder_in, sizeof old->split.remainder);
        copy(old->split.weight, rows->weight_in, sizeof old->split.weight);
    } else if (HOLDS_GROUP) {
        save_fp32(old->master, group->p);
    } else {
        copy(old->master, rows->master_in, sizeof old->master);
    }
}

/* Save the old values of the group at the start of @rows in @buffer of @undo, and store in
 * undo->held that they are there. The group has @n elements, the first of which is number @first of
 * the call. The memory of a whole group is readable even if @n is smaller. @over: the weights
 * overwrite the gradient, which is therefore saved, too. @group has been loaded if HOLDS_GROUP;
 * otherwise it is not read. */
ALWAYS_INLINE void save(struct way way, struct cst_update_undo *undo, uint32_t buffer,
                        const struct cst_update_rows *rows, const struct group *group, size_t first,
                        size_t n, bool over)
{
    struct cst_update_old *old = &undo->old[buffer];

    if (over) {
        copy(old->grad, rows->grad_bf16, sizeof old->grad);
    }
    save_masters(way, old, rows, group);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        if (HOLDS_GROUP && way.moments == CST_MOMENTS_FP32) {
            save_fp32((float *)old->moments[k], group->moments[k]);
        } else {
            copy(old->moments[k], rows->moments_in[k].values, cst_format_bytes(way.moments));
        }
        if (way.moments == CST_MOMENTS_MX8) {
            old->exponents[k] = *rows->moments_in[k].exponents;
        }
    }
    cst_update_undo_hold(undo,
                         cst_update_undo_word(undo->base + (uint32_t)first, (uint32_t)n, buffer));
}

/* Load the group at the start of @rows, and save it unless @undo is NULL. The other arguments are
 * those of save. */
ALWAYS_INLINE void load_and_save(struct way way, struct cst_update_undo *undo, uint32_t buffer,
                                 const struct cst_update_rows *rows, struct group *group,
                                 size_t first, size_t n, bool over)
{
    if (HOLDS_GROUP) {
        load_group(way, rows, group);
    }
    if (undo != NULL) {
        save(way, undo, buffer, rows, group, first, n, over);
    }
    if (!HOLDS_GROUP) {
        load_group(way, rows, group);
    }
}

/* Memory for a group that is padded with zeros. */
struct padded {
    alignas(64) uint16_t grad_bf16[CST_UPDATE_GROUP];
    alignas(64) uint16_t direction[CST_UPDATE_GROUP];
    alignas(64) float grad_fp32[CST_UPDATE_GROUP];
    alignas(64) float master[CST_UPDATE_GROUP];
    alignas(64) uint8_t moments[2][CST_UPDATE_GROUP * sizeof(float)];
    alignas(64) uint16_t weight[CST_UPDATE_GROUP];
    alignas(64) int16_t remainder[CST_UPDATE_GROUP];
    uint8_t exponents[2];
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
    if (way.optimizer == CST_OPTIMIZER_MUON) {
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

/* Update the last @n elements of the call, from element @i on, in a padded group. @n is smaller
 * than a group. The padded weights do not bypass the cache, because they are copied at once. */
ALWAYS_INLINE void do_tail(struct way way, const struct call *call,
                           const struct cst_update_rows *rows, size_t i, size_t n,
                           struct cst_update_undo *undo, uint32_t buffer)
{
    struct cst_update_rows at = rows_at(way, rows, i), inside;
    struct call cached = *call;
    struct cst_vec_bits words[CST_VEC_GROUP / 2];
    struct group group;
    struct padded padded;

    cached.stream = false;
    pad(way, &padded, &at, n, &inside);
    draw(way, &cached, i / CST_UPDATE_GROUP, words);
    load_and_save(way, undo, buffer, &inside, &group, i, n, call->over);
    do_group(way, &cached, &inside, &group, words);
    unpad(way, &padded, &at, n);
}

/* Update @n elements of @given, as cst_update_fn says. */
ALWAYS_INLINE void update(struct way way, const struct cst_update_scalars *scalars,
                          const struct cst_update_random *random, size_t n,
                          const struct cst_update_rows *given, struct cst_update_undo *undo)
{
    const struct cst_update_rows rows = *given;
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
    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP, buffer ^= 1) {
        const struct cst_update_rows at = rows_at(way, &rows, i);
        struct group group;

        if (undo != NULL) {
            rows_ahead(way, &at);
        }
        next_ahead(&rows, i);
        draw(way, &call, i / CST_UPDATE_GROUP, words);
        load_and_save(way, undo, buffer, &at, &group, i, CST_UPDATE_GROUP, call.over);
        do_group(way, &call, &at, &group, words);
    }
    if (i < n) {
        do_tail(way, &call, &rows, i, n - i, undo, buffer);
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

#define ENTRIES(name, function)                                                                    \
    ENTRY(function, name, FP32, NEAREST, _fp32)                                                    \
    ENTRY(function, name, BF16, STOCHASTIC, _bf16_stochastic)                                      \
    ENTRY(function, name, BF16, NEAREST, _bf16_nearest)                                            \
    ENTRY(function, name, MX8, STOCHASTIC, _mx8_stochastic)                                        \
    ENTRY(function, name, MX8, NEAREST, _mx8_nearest)
CST_FORMULAS(ENTRIES)
CST_FORMULA_MUON(ENTRIES)

/* The functions of one optimizer in the table, by format of the moments and by rounding. */
#define ROWS(name, function)                                                                       \
    [CST_OPTIMIZER_##                                                                              \
        name] = {[CST_MOMENTS_FP32] = {[CST_ROUNDING_STOCHASTIC] = function##_fp32,                \
                                       [CST_ROUNDING_NEAREST] = function##_fp32},                  \
                 [CST_MOMENTS_BF16] = {[CST_ROUNDING_STOCHASTIC] = function##_bf16_stochastic,     \
                                       [CST_ROUNDING_NEAREST] = function##_bf16_nearest},          \
                 [CST_MOMENTS_MX8] = {[CST_ROUNDING_STOCHASTIC] = function##_mx8_stochastic,       \
                                      [CST_ROUNDING_NEAREST] = function##_mx8_nearest}},

const struct cst_update_table TABLE = {.v = {CST_FORMULAS(ROWS) CST_FORMULA_MUON(ROWS)}};

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of kernels/math/update_body.h that process one piece: its rows, random words and
 * prefetches; loading it, saving its old values for kernels/math/update_undo.h, computing and
 * storing it. Included once, by kernels/math/update_body.h, after one of kernels/math/vec_*.h. This
 * file has no state. */
#include "kernels/math/formats.h"
#include "kernels/math/random.h"
#include "kernels/math/update_undo.h"

#include <string.h>

/* Distance in groups by which rows are prefetched. Where memory is fast, a longer one costs more
 * than it hides: tests/bench/RESULTS.md. */
#define AHEAD_GROUPS 6

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
    return cst_optimizer_n_moments(way.optimizer);
}

/* Returns whether the update reads directions of whole matrices. */
ALWAYS_INLINE bool takes_directions(struct way way)
{
    return cst_optimizer_of_matrices(way.optimizer);
}

/* Returns the number of vectors in a piece. If a group has many vectors, half of them fit into the
 * registers. Moments in other formats than fp32 are processed in whole groups: the elements of a
 * group share an exponent or random words. */
ALWAYS_INLINE int n_vectors(struct way way)
{
    return CST_VEC_GROUP > 2 && way.moments == CST_MOMENTS_FP32 ? CST_VEC_GROUP / 2 : CST_VEC_GROUP;
}

/* Returns the number of elements in a piece. */
ALWAYS_INLINE size_t piece_elems(struct way way)
{
    return (size_t)n_vectors(way) * CST_VEC_LANES;
}

/* Returns whether the states and gradients of a piece fit into the registers beside the scalars. If
 * so, all are loaded before anything is stored, and only once. Otherwise they are loaded again
 * after they have been saved, and the masters once more when the moments have been stored. */
ALWAYS_INLINE bool holds_piece(struct way way)
{
    return CST_VEC_GROUP <= 2 || way.moments == CST_MOMENTS_FP32;
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

    if (takes_directions(way)) {
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

/* Load a piece of an fp32 row. */
ALWAYS_INLINE void load_fp32(struct way way, const float *from, struct cst_vec *to)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n_vectors(way); j++) {
        to[j] = cst_vec_load(from + j * CST_VEC_LANES);
    }
}

/* Store a piece of an fp32 row. */
ALWAYS_INLINE void store_fp32(struct way way, float *to, const struct cst_vec *from)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n_vectors(way); j++) {
        cst_vec_store(to + j * CST_VEC_LANES, from[j]);
    }
}

/* Load the gradients of a piece. */
ALWAYS_INLINE void load_grad(struct way way, const struct cst_update_rows *rows,
                             struct cst_vec grad[CST_VEC_GROUP])
{
    if (rows->grad_bf16 != NULL) {
        cst_vec_load_all_bf16(rows->grad_bf16, n_vectors(way), grad);
    } else {
        load_fp32(way, rows->grad_fp32, grad);
    }
}

/* Load the master weights of a piece. */
ALWAYS_INLINE void load_masters(struct way way, const struct cst_update_rows *rows,
                                struct cst_vec p[CST_VEC_GROUP])
{
    if (way.split) {
        cst_format_join(rows->weight_in, rows->remainder_in, n_vectors(way), p);
    } else {
        load_fp32(way, rows->master_in, p);
    }
}

/* Store the master weights of a piece, and the weights if they are others. A NaN must be
 * CST_UPDATE_NAN. */
ALWAYS_INLINE void store_masters(struct way way, const struct call *call,
                                 const struct cst_update_rows *rows,
                                 const struct cst_vec p[CST_VEC_GROUP])
{
    if (way.split) {
        cst_format_cut(n_vectors(way), p, rows->weight, rows->remainder, call->stream);
        return;
    }
    store_fp32(way, rows->master, p);
    if (!way.alone) {
        cst_vec_store_bf16(rows->weight, n_vectors(way), p, call->stream);
    }
}

/* The states and gradients of a piece, as fp32. */
struct piece {
    struct cst_vec p[CST_VEC_GROUP];
    struct cst_vec moments[CST_MAX_MOMENTS][CST_VEC_GROUP];
    struct cst_vec grad[CST_VEC_GROUP];
};

/* Load the states and gradients of a piece. */
ALWAYS_INLINE void load_piece(struct way way, const struct cst_update_rows *rows,
                              struct piece *piece)
{
    load_masters(way, rows, piece->p);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        if (way.moments == CST_MOMENTS_FP32) {
            load_fp32(way, rows->moments_in[k].values, piece->moments[k]);
        } else {
            cst_format_load(way.moments, cst_format_code(k), &rows->moments_in[k],
                            piece->moments[k]);
        }
    }
    load_grad(way, rows, piece->grad);
}

/* Returns whether each NaN in the new moments makes the new master weight a NaN, too. Moments of
 * fp32 are then stored before the one test for NaNs, and again if there is one. */
ALWAYS_INLINE bool nans_spread(struct way way)
{
    return way.moments == CST_MOMENTS_FP32 && cst_optimizer_rows[way.optimizer].nans_spread;
}

/* Replace every NaN of @n vectors by CST_UPDATE_NAN. */
ALWAYS_INLINE void replace_nans(int n, struct cst_vec *v)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        v[j] = cst_formula_canonical(v[j]);
    }
}

/* Replace every NaN in the moments of a piece by CST_UPDATE_NAN. */
ALWAYS_INLINE void replace_moment_nans(struct way way, struct piece *piece)
{
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        replace_nans(n_vectors(way), piece->moments[k]);
    }
}

/* Add to @flags whether a vector of @next, the new moments of vector number @j, has a NaN. Two
 * vectors are tested at a time. If the number of moments is odd, the last one of every other vector
 * is tested with that of the vector before, which is in @moments. */
ALWAYS_INLINE struct cst_vec_flags flag_nans(struct way way, struct cst_vec_flags flags, int j,
                                             const struct cst_vec next[CST_MAX_MOMENTS],
                                             const struct cst_vec moments[][CST_VEC_GROUP])
{
    const unsigned n = n_moments(way);

    CST_VEC_UNROLL
    for (unsigned k = 0; k + 1 < n; k += 2) {
        flags = cst_vec_flag_nan(flags, next[k], next[k + 1]);
    }
    if (n % 2 == 1 && j % 2 == 1) {
        flags = cst_vec_flag_nan(flags, moments[n - 1][j - 1], next[n - 1]);
    }
    return flags;
}

/* Compute the new moments of a piece, and for each vector what cst_formula_weight needs, @u. If
 * nans_spread, their NaNs can be any NaNs. */
ALWAYS_INLINE void do_moments(struct way way, const struct call *call,
                              const struct cst_update_rows *rows, struct piece *piece,
                              struct cst_vec u[CST_VEC_GROUP])
{
    struct cst_vec(*moments)[CST_VEC_GROUP] = piece->moments;
    struct cst_vec_flags nans = cst_vec_no_flags();

    CST_VEC_UNROLL
    for (int j = 0; j < n_vectors(way); j++) {
        int at = j * CST_VEC_LANES;
        struct cst_formula_states x = {.p = piece->p[j]};

        CST_VEC_UNROLL
        for (unsigned k = 0; k < n_moments(way); k++) {
            x.m[k] = moments[k][j];
        }
        if (takes_directions(way)) {
            x.o = cst_vec_load_bf16(rows->direction + at);
        }
        cst_formula_moments(way.optimizer, &call->scalars, piece->grad[j], &x);
        u[j] = x.u;
        nans = flag_nans(way, nans, j, x.m, moments);
        CST_VEC_UNROLL
        for (unsigned k = 0; k < n_moments(way); k++) {
            moments[k][j] = x.m[k];
        }
    }
    /* NaNs are rare. In mx8, a block is a NaN as a whole. */
    if (way.moments != CST_MOMENTS_MX8 && !nans_spread(way) &&
        __builtin_expect(cst_vec_flagged(nans), false)) {
        replace_moment_nans(way, piece);
    }
}

/* Store the new moments of a piece. @words are those of do_piece. */
ALWAYS_INLINE void store_moments(struct way way, const struct cst_update_rows *rows,
                                 const struct piece *piece,
                                 const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_bits drawn[CST_MAX_MOMENTS][CST_VEC_GROUP / 2];

    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        if (way.moments == CST_MOMENTS_FP32) {
            store_fp32(way, rows->moments[k].values, piece->moments[k]);
            continue;
        }
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP / 2; j++) {
            drawn[k][j] = !takes_random(way) ? cst_vec_set_bits(0)
                          : k == 0           ? words[j]
                                             : cst_random_other(drawn[k - 1][j]);
        }
    }
    if (way.moments != CST_MOMENTS_FP32) {
        cst_format_store(way.moments, way.rounding, CST_MOMENTS_UNSIGNED, n_moments(way),
                         rows->moments, piece->moments, drawn);
    }
}

/* Store the master weights of a piece and the weights. @piece has the old master weights, which are
 * loaded again unless holds_piece, and the new moments, which are stored already. @words are those
 * of do_piece. */
ALWAYS_INLINE void do_weights(struct way way, const struct call *call,
                              const struct cst_update_rows *rows, struct piece *piece,
                              const struct cst_vec u[CST_VEC_GROUP],
                              const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_flags nans = cst_vec_no_flags();
    struct cst_vec *p = piece->p;

    if (!holds_piece(way)) {
        load_masters(way, rows, p);
    }
    CST_VEC_UNROLL
    for (int j = 0; j < n_vectors(way); j++) {
        struct cst_formula_states x = {.p = p[j], .u = u[j]};

        CST_VEC_UNROLL
        for (unsigned k = 0; k < n_moments(way); k++) {
            x.m[k] = piece->moments[k][j];
        }
        cst_formula_weight(way.optimizer, way.moments, &call->scalars, &x);
        p[j] = x.p;
        nans = j % 2 == 0 ? nans : cst_vec_flag_nan(nans, p[j - 1], p[j]);
    }
    if (__builtin_expect(cst_vec_flagged(nans), false)) {
        replace_nans(n_vectors(way), p);
        if (nans_spread(way)) {
            replace_moment_nans(way, piece);
            store_moments(way, rows, piece, words);
        }
    }
    store_masters(way, call, rows, p);
}

/* Update one piece, at the start of @rows, whose old values are in @piece. @words are the group's
 * random words, which are not read if the rounding takes none. */
ALWAYS_INLINE void do_piece(struct way way, const struct call *call,
                            const struct cst_update_rows *rows, struct piece *piece,
                            const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec u[CST_VEC_GROUP];

    do_moments(way, call, rows, piece, u);
    store_moments(way, rows, piece, words);
    do_weights(way, call, rows, piece, u, words);
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
    if (takes_directions(way)) {
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

/* Copy @bytes of a piece, a multiple of 32, with vectors. If a vector has one element (vec_ref.h),
 * memcpy copies all. */
ALWAYS_INLINE void copy(void *to, const void *from, size_t bytes)
{
    const size_t step = CST_VEC_LANES * sizeof(float);
    size_t i = 0;

    CST_VEC_UNROLL
    for (; step > sizeof(float) && i + step <= bytes; i += step) {
        cst_vec_store((float *)((char *)to + i),
                      cst_vec_load((const float *)((const char *)from + i)));
    }
    memcpy((char *)to + i, (const char *)from + i, bytes - i);
}

/* Save the masters of the piece at the start of @rows in @old. @piece has them if holds_piece. */
ALWAYS_INLINE void save_masters(struct way way, struct cst_update_old *old,
                                const struct cst_update_rows *rows, const struct piece *piece)
{
    if (way.split) {
        copy(old->split.remainder, rows->remainder_in, piece_elems(way) * sizeof(int16_t));
        copy(old->split.weight, rows->weight_in, piece_elems(way) * sizeof(uint16_t));
    } else if (holds_piece(way)) {
        store_fp32(way, old->master, piece->p);
    } else {
        copy(old->master, rows->master_in, piece_elems(way) * sizeof(float));
    }
}

/* Save the old values of the piece at the start of @rows in @buffer of @undo, and store in
 * undo->held that they are there. The piece has @n elements, the first of which is number @first of
 * the call. The memory of a whole piece is readable even if @n is smaller. @over: the weights
 * overwrite the gradient, which is therefore saved, too. @piece has been loaded if holds_piece;
 * otherwise it is not read. */
ALWAYS_INLINE void save(struct way way, struct cst_update_undo *undo, uint32_t buffer,
                        const struct cst_update_rows *rows, const struct piece *piece, size_t first,
                        size_t n, bool over)
{
    struct cst_update_old *old = &undo->old[buffer];

    if (over) {
        copy(old->grad, rows->grad_bf16, piece_elems(way) * sizeof(uint16_t));
    }
    save_masters(way, old, rows, piece);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n_moments(way); k++) {
        if (way.moments == CST_MOMENTS_FP32) {
            store_fp32(way, (float *)old->moments[k], piece->moments[k]);
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

/* Load the piece at the start of @rows, and save it unless @undo is NULL. The other arguments are
 * those of save. */
ALWAYS_INLINE void load_and_save(struct way way, struct cst_update_undo *undo, uint32_t buffer,
                                 const struct cst_update_rows *rows, struct piece *piece,
                                 size_t first, size_t n, bool over)
{
    if (holds_piece(way)) {
        load_piece(way, rows, piece);
    }
    if (undo != NULL) {
        save(way, undo, buffer, rows, piece, first, n, over);
    }
    if (!holds_piece(way)) {
        load_piece(way, rows, piece);
    }
}

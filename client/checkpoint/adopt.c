/* SPDX-License-Identifier: Apache-2.0 */
/* cst_adopt: the files of a durable job (proto/durable.h) become a checkpoint. Weights that are not
 * in the files are made of the master weights, as the last update has made them.
 *
 *   heads, description -> seals, the newest first -> all rows compared with the seal -> written */
#include "cistern/checkpoint.h"

#include "client/checkpoint/adopt_files.h"
#include "client/checkpoint/writing.h"
#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "kernels/math/split.h"
#include "proto/clock.h"
#include "proto/row_sum.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct adopt {
    struct cstc_adopt_files files;
    struct cst_durable_seal *seals[2]; /* NULL: there is no such step. */
    uint32_t place;                    /* Of the step that is adopted. */
    uint32_t n_unchecked, n_rows;
    char warning[256]; /* As in the result. */
    char *piece;       /* 2 x CST_ROW_SUM_PIECE bytes. */
    struct cstc_writing writing;
};

/* -- seals ------------------------------------------------------------------------------------ */

/* The checksum of @row, of chunk @c, in the step of @seal. */
static uint64_t sum_of(const struct cst_durable_seal *seal, size_t c,
                       const Cistern__DurableRow *row)
{
    return row->has_sum ? row->sum : seal->sums[c * CST_DURABLE_ROWS + (row->row - CST_ROW_MASTER)];
}

static int check_sum(struct adopt *a, const struct cst_durable_seal *seal, size_t c,
                     const Cistern__DurableRow *row, struct cst_err *err)
{
    const uint64_t at = row->offset + seal->place * row->twin, want = sum_of(seal, c, row);
    uint64_t sum = 0;
    int rc = CST_OK;

    for (uint64_t done = 0; done < row->bytes && rc == CST_OK; done += CST_ROW_SUM_PIECE) {
        uint64_t left = row->bytes - done, n = left < CST_ROW_SUM_PIECE ? left : CST_ROW_SUM_PIECE;

        rc = cstc_adopt_read(&a->files, row->file, a->piece, n, at + done, err);
        sum += rc == CST_OK ? cst_row_sum_piece(a->piece, n, done) : 0;
    }
    if (rc == CST_OK && want == 0) {
        a->n_unchecked++;
    } else if (rc == CST_OK && cst_row_sum_end(sum) != want) {
        rc = cst_err_set(err, CST_EINVAL,
                         "'%.200s': %" PRIu64 " bytes at %" PRIu64 ", states of step %" PRIu64
                         ", are damaged (checksum %" PRIx64 ", not %" PRIx64 ")",
                         a->files.names[row->file], row->bytes, at, seal->step,
                         cst_row_sum_end(sum), want);
    }
    return rc;
}

static int check_sums(struct adopt *a, const struct cst_durable_seal *seal, struct cst_err *err)
{
    int rc = CST_OK;

    a->n_unchecked = a->n_rows = 0;
    for (size_t c = 0; c < a->files.layout->n_chunks && rc == CST_OK; c++) {
        const Cistern__DurableChunk *chunk = a->files.layout->chunks[c];

        for (size_t r = 0; r < chunk->n_rows && rc == CST_OK; r++) {
            rc = check_sum(a, seal, c, chunk->rows[r], err);
            a->n_rows++;
        }
    }
    return rc;
}

/* Choose the step: the last one, or else the one before, if it is known to be whole. */
static int choose_step(struct adopt *a, const struct cst_durable_seal **out, struct cst_err *err)
{
    uint32_t newest;
    struct cst_err why;
    int rc = cstc_adopt_seal(&a->files, 0, &a->seals[0], err);

    rc = rc == CST_OK ? cstc_adopt_seal(&a->files, 1, &a->seals[1], err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    if (a->seals[0] == NULL && a->seals[1] == NULL) {
        return cst_err_set(err, CST_EINVAL, "'%.200s' has no record of a step", a->files.names[0]);
    }
    newest = a->seals[0] == NULL || (a->seals[1] != NULL && a->seals[1]->step > a->seals[0]->step);
    *out = a->seals[newest];
    rc = check_sums(a, *out, err);
    if ((rc == CST_EINVAL || rc == CST_EIO) && a->seals[1 - newest] != NULL &&
        check_sums(a, a->seals[1 - newest], &why) == CST_OK && a->n_unchecked == 0) {
        *out = a->seals[1 - newest];
        rc = CST_OK;
        (void)snprintf(a->warning, sizeof a->warning, "%.200s: step %" PRIu64 " is taken",
                       err->text, (*out)->step);
    }
    return rc;
}

/* Say in the description what the job had done at the step. */
static int set_progress(struct adopt *a, const struct cst_durable_seal *seal, struct cst_err *err)
{
    Cistern__JobDescription *job = a->files.job;

    /* The description is as old as the first record since the daemon's start. */
    if (seal->has_hyper == 0 && job->hyper != NULL) {
        cistern__hyper__free_unpacked(job->hyper, NULL);
        job->hyper = NULL;
    } else if (seal->has_hyper != 0 && job->hyper == NULL) {
        job->hyper = malloc(sizeof *job->hyper); /* As protobuf-c allocates it. */
        if (job->hyper == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory to adopt a job");
        }
        cistern__hyper__init(job->hyper);
    }

    job->step = seal->step;
    job->adam_step = seal->adam_step;
    job->n_skipped = seal->n_skipped;
    job->n_overflows = seal->n_overflows;
    job->last_loss = seal->last_loss;
    job->last_grad_norm = seal->last_grad_norm;
    if (job->hyper != NULL) {
        job->hyper->lr = seal->lr;
        job->hyper->beta1 = seal->beta1;
        job->hyper->beta2 = seal->beta2;
        job->hyper->eps = seal->eps;
        job->hyper->weight_decay = seal->weight_decay;
        job->hyper->clip_norm = seal->clip_norm;
        job->hyper->grad_scale = seal->grad_scale;
    }
    a->place = seal->place;
    return CST_OK;
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* Elements of a row in a file. */
struct place {
    const Cistern__DurableChunk *chunk;
    const Cistern__DurableRow *row;
    uint64_t at;   /* Where the row is in its file. */
    uint64_t elem; /* The first element. */
};

/* Read [@elem, @elem + @n) of @row, moments, to @to as fp32. @to also has room for the row's own
 * format behind them. */
static int read_moments(struct adopt *a, const struct place *from, uint64_t n, float *to,
                        struct cst_err *err)
{
    const enum cst_moments format = (enum cst_moments)a->files.job->moments;
    const bool mx8 = format == CST_MOMENTS_MX8;
    const uint64_t size = cst_moments_elem_bytes(format),
                   skew = mx8 ? from->elem % CST_MX8_BLOCK : 0;
    const uint64_t first = from->elem - skew,
                   n_blocks = (skew + n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK;
    const uint64_t n_read = mx8 ? n_blocks * CST_MX8_BLOCK : n;
    struct cst_update_moment row = {.values = to + n};
    int rc = cstc_adopt_read(&a->files, from->row->file, row.values, n_read * size,
                             from->at + first * size, err);

    if (rc == CST_OK && mx8) {
        row.exponents = (uint8_t *)row.values + n_read;
        rc = cstc_adopt_read(&a->files, from->row->file, row.exponents, n_blocks,
                             from->at + from->chunk->n_elems + first / CST_MX8_BLOCK, err);
    }
    if (rc == CST_OK) {
        cst_moments_decode(format, from->row->row - CST_ROW_MOMENT, skew, n, &row, to);
    }
    return rc;
}

/* Read [@from->elem, @from->elem + @n) of a row of values to @to. MX8: codes alone. */
static int read_values(const struct adopt *a, const struct place *from, uint64_t n, void *to,
                       struct cst_err *err)
{
    const uint64_t size = from->row->bytes / from->chunk->n_elems;

    return cstc_adopt_read(&a->files, from->row->file, to, n * size, from->at + from->elem * size,
                           err);
}

/* Round the @n master weights @data to weights, in place. */
static void round_weights(void *data, uint64_t n)
{
    const float *from = data;
    uint16_t *to = data;

    for (uint64_t i = 0; i < n; i++) {
        to[i] = cst_fp32_to_bf16(from[i]);
    }
}

/* Make master weights in @to of the @n remainders at @from and the weights at @weights. @to also
 * has room for both behind them. */
static int join_masters(const struct adopt *a, const struct place *from,
                        const struct place *weights, uint64_t n, float *to, struct cst_err *err)
{
    uint16_t *w = (uint16_t *)(to + n);
    int16_t *remainders = (int16_t *)(w + n);
    int rc = read_values(a, weights, n, w, err);

    rc = rc == CST_OK ? read_values(a, from, n, remainders, err) : rc;
    for (uint64_t i = 0; rc == CST_OK && i < n; i++) {
        to[i] = cst_split_join(w[i], remainders[i]);
    }
    return rc;
}

/* Find the elements of @piece in row @row of a file. False: they are in no file. */
static bool find_place(const struct adopt *a, const struct cstc_state_piece *piece, uint32_t row,
                       struct place *out)
{
    *out = (struct place){.chunk = a->files.layout->chunks[a->files.job->chunk[piece->tensor]],
                          .elem = a->files.layout->offset[piece->tensor] + piece->first};
    out->row = cstc_adopt_row(out->chunk, row);
    if (out->row == NULL || out->elem > out->chunk->n_elems ||
        piece->n_elems > out->chunk->n_elems - out->elem) {
        return false;
    }
    out->at = out->row->offset + a->place * out->row->twin;
    return true;
}

static int lacks_row(const struct adopt *a, const struct cstc_state_piece *piece,
                     struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL,
                       "'%.200s': the description lacks row %" PRIu32 " of tensor '%.100s'",
                       a->files.names[0], piece->row, a->files.job->tensors[piece->tensor]->name);
}

/* Read weights, or master weights. Those of fp32 tensors are the same. */
static int read_weights(struct adopt *a, const struct cstc_state_piece *piece, void *to,
                        struct cst_err *err)
{
    const bool wide = a->files.job->tensors[piece->tensor]->dtype == CST_FP32;
    struct place weights, masters;
    const bool has_weights = find_place(a, piece, CST_ROW_WEIGHT_OTHER, &weights);
    int rc;

    if (has_weights && (wide || piece->row == CST_ROW_WEIGHT)) {
        return read_values(a, &weights, piece->n_elems, to, err);
    }
    if (wide || !find_place(a, piece, CST_ROW_MASTER, &masters) ||
        (a->files.job->masters == CST_MASTERS_SPLIT && !has_weights)) {
        return lacks_row(a, piece, err);
    }
    if (a->files.job->masters == CST_MASTERS_SPLIT) {
        return join_masters(a, &masters, &weights, piece->n_elems, to, err);
    }
    rc = read_values(a, &masters, piece->n_elems, to, err);
    if (rc == CST_OK && piece->row == CST_ROW_WEIGHT) {
        round_weights(to, piece->n_elems);
    }
    return rc;
}

/* Read the elements of @piece, which are adjacent in the file, to @to. */
static int read_piece(struct adopt *a, const struct cstc_state_piece *piece, void *to,
                      struct cst_err *err)
{
    struct place from;

    if (!cst_table_is_moment((int)piece->row)) {
        return read_weights(a, piece, to, err);
    }
    if (!find_place(a, piece, piece->row, &from)) {
        return lacks_row(a, piece, err);
    }
    if (piece->exponents) {
        return cstc_adopt_read(&a->files, from.row->file, to,
                               (piece->n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK,
                               from.at + from.chunk->n_elems + from.elem / CST_MX8_BLOCK, err);
    }
    return piece->raw ? read_values(a, &from, piece->n_elems, to, err)
                      : read_moments(a, &from, piece->n_elems, to, err);
}

static int write_pieces(struct adopt *a, struct cst_err *err)
{
    struct cstc_state_piece piece;
    int rc = CST_OK;

    a->writing.joining.most = CST_ROW_SUM_PIECE / 2;
    while (rc == CST_OK && cstc_joining_next(&a->writing.joining, &piece)) {
        rc = read_piece(a, &piece, a->piece, err);
        rc = rc == CST_OK ? cstc_writing_take(&a->writing, &piece, a->piece, err) : rc;
    }
    return rc;
}

/* -- the call --------------------------------------------------------------------------------- */

static int adopt(struct adopt *a, const char *const *files, uint32_t n, const char *dir,
                 struct cst_err *err)
{
    const struct cst_durable_seal *seal = NULL;
    int rc = cstc_adopt_files_open(&a->files, files, n, err);

    rc = rc == CST_OK ? choose_step(a, &seal, err) : rc;
    rc = rc == CST_OK ? set_progress(a, seal, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    a->writing.dir = dir;
    a->writing.description = a->files.job;
    rc = cstc_writing_open(&a->writing, err);
    rc = rc == CST_OK ? write_pieces(a, err) : rc;
    return rc == CST_OK ? cstc_writing_end(&a->writing, err) : rc;
}

static void close_adopt(struct adopt *a)
{
    cstc_writing_close(&a->writing);
    cstc_adopt_files_close(&a->files);
    free(a->seals[0]);
    free(a->seals[1]);
    free(a->piece);
    free(a);
}

int cst_adopt(const char *const *files, uint32_t n, const char *dir,
              struct cst_adopt_result *result, struct cst_err *err)
{
    const double began = cst_clock_s();
    struct adopt *a;
    int rc;

    if (files == NULL || n == 0 || dir == NULL || *dir == '\0') {
        return cst_err_set(err, CST_EINVAL, "cst_adopt needs the files of a job and a directory");
    }
    a = calloc(1, sizeof *a);
    if (a != NULL) {
        cstc_adopt_files_init(&a->files);
        a->piece = malloc((size_t)2 * CST_ROW_SUM_PIECE);
    }
    if (a == NULL || a->piece == NULL) {
        free(a);
        return cst_err_set(err, CST_ENOMEM, "no memory to adopt a job");
    }
    rc = adopt(a, files, n, dir, err);
    if (rc == CST_OK && result != NULL) {
        *result = (struct cst_adopt_result){.step = a->files.job->step,
                                            .bytes = a->writing.bytes,
                                            .seconds = cst_clock_s() - began,
                                            .n_unchecked = a->n_unchecked,
                                            .n_rows = a->n_rows};
        (void)snprintf(result->job, sizeof result->job, "%s", a->files.job->name);
        (void)snprintf(result->warning, sizeof result->warning, "%s", a->warning);
    }
    close_adopt(a);
    return rc;
}

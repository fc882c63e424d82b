/* SPDX-License-Identifier: Apache-2.0 */
/* cst_adopt: the files of a durable job (proto/durable.h) become a checkpoint. Weights are made of
 * the master weights, as the last update has made them.
 *
 *   heads, description -> seals, the newest first -> all rows compared with the seal -> written */
#include "cistern/checkpoint.h"

#include "client/checkpoint/writing.h"
#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "proto/clock.h"
#include "proto/durable.h"
#include "proto/row_sum.h"
#include "proto/table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Of a job, at most. */
enum { MAX_FILES = 64 };
#define MAX_DESCRIPTION (UINT64_C(256) << 20)

struct adopt {
    const char *names[MAX_FILES]; /* Of the files by number; borrowed. */
    int fds[MAX_FILES];           /* By number. */
    uint64_t bytes[MAX_FILES];    /* Of the files. */
    struct cst_durable_head head; /* Of file 0. */
    Cistern__JobDescription *job; /* Owned, like the others. */
    Cistern__DurableLayout *layout;
    struct cst_durable_seal *seals[2]; /* NULL: there is no such step. */
    uint32_t place;                    /* Of the step that is adopted. */
    uint32_t n_unchecked, n_rows;
    char warning[256]; /* As in the result. */
    char *piece;       /* 2 x CST_ROW_SUM_PIECE bytes. */
    struct cstc_writing writing;
};

static int read_all(const struct adopt *a, uint32_t file, void *to, uint64_t bytes, uint64_t at,
                    struct cst_err *err)
{
    char *next = to;

    while (bytes > 0) {
        ssize_t n = pread(a->fds[file], next, bytes, (off_t)at);

        if (n <= 0 && (n == 0 || errno != EINTR)) {
            return n == 0 ? cst_err_set(err, CST_EINVAL,
                                        "'%.200s' ends at %" PRIu64 ": it was cut off",
                                        a->names[file], at)
                          : cst_err_errno(err, CST_EIO, errno,
                                          "'%.200s': reading %" PRIu64 " bytes at %" PRIu64,
                                          a->names[file], bytes, at);
        }
        n = n > 0 ? n : 0;
        next += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return CST_OK;
}

/* -- heads ------------------------------------------------------------------------------------ */

static int check_head(const struct cst_durable_head *head, const char *name, struct cst_err *err)
{
    if (head->magic != CST_DURABLE_MAGIC) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s' has no record of a durable job: no step was committed, or it "
                           "is another file",
                           name);
    }
    if (head->order != CST_DURABLE_ORDER || head->format != CST_DURABLE_FORMAT) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s' is of format %" PRIu32 ", or of a machine of another byte "
                           "order; this version reads format %d",
                           name, head->format, CST_DURABLE_FORMAT);
    }
    if (head->sum != XXH3_64bits(head, offsetof(struct cst_durable_head, sum)) ||
        head->n_files == 0 || head->n_files > MAX_FILES || head->file >= head->n_files ||
        head->n_rows != CST_ROW_COUNT - CST_ROW_MASTER ||
        head->seal_bytes != cst_durable_seal_bytes(head->n_chunks, head->n_rows)) {
        return cst_err_set(err, CST_EINVAL, "'%.200s': its first block is damaged", name);
    }
    return CST_OK;
}

/* Read the first head that is right. */
static int read_head(int fd, const char *name, struct cst_durable_head *out, struct cst_err *err)
{
    int rc = CST_EINVAL;

    for (int k = CST_DURABLE_HEADS; k-- > 0 && rc != CST_OK;) {
        *out = (struct cst_durable_head){0};
        rc = pread(fd, out, sizeof *out, (off_t)k * CST_DURABLE_BLOCK) < 0
                 ? cst_err_errno(err, CST_EIO, errno, "'%.200s'", name)
                 : check_head(out, name, err);
    }
    return rc;
}

/* A daemon that goes on with the job has a lock. */
static int check_unused(int fd, const char *name, struct cst_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK
               ? cst_err_set(err, CST_EBUSY,
                             "'%.200s' is used by a daemon, which goes on with the job: save the "
                             "job instead",
                             name)
               : CST_OK;
}

/* Open the file @name and take it by its number. */
static int open_file(struct adopt *a, const char *name, struct cst_err *err)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct cst_durable_head head = {0};
    struct stat st;
    int rc;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "'%.200s'", name);
    } else if (!S_ISREG(st.st_mode)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.200s' is no regular file", name);
    } else {
        rc = check_unused(fd, name, err);
        rc = rc == CST_OK ? read_head(fd, name, &head, err) : rc;
    }
    if (rc == CST_OK && a->head.magic != 0 && memcmp(head.id, a->head.id, sizeof head.id) != 0) {
        rc = cst_err_set(err, CST_EINVAL, "'%.200s' is of another job than the files before it",
                         name);
    }
    if (rc == CST_OK && a->fds[head.file] >= 0) {
        rc = cst_err_set(err, CST_EINVAL, "'%.150s' and '%.150s' are the same file of the job",
                         a->names[head.file], name);
    }
    if (rc != CST_OK) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return rc;
    }
    a->fds[head.file] = fd;
    a->names[head.file] = name;
    a->bytes[head.file] = (uint64_t)st.st_size;
    if (a->head.magic == 0 || head.file == 0) {
        a->head = head;
    }
    return CST_OK;
}

static int open_files(struct adopt *a, const char *const *files, uint32_t n, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = open_file(a, files[i], err);
    }
    for (uint32_t i = 0; i < a->head.n_files && rc == CST_OK; i++) {
        if (a->fds[i] < 0) {
            rc = cst_err_set(err, CST_EINVAL,
                             "the job has %" PRIu32 " files, and file %" PRIu32 " is missing; its "
                             "name ends in .%" PRIu32 ".cistern",
                             a->head.n_files, i, i);
        }
    }
    return rc;
}

/* -- description ------------------------------------------------------------------------------ */

static int check_row(const struct adopt *a, const Cistern__DurableRow *row, uint64_t n_elems,
                     struct cst_err *err)
{
    const struct cst_table_header formats = {.moments = a->job->moments,
                                             .masters = CST_MASTERS_FP32};

    return row->row < CST_ROW_MASTER || row->row >= CST_ROW_COUNT || row->file >= a->head.n_files ||
                   row->bytes != cst_table_row_bytes(&formats, CST_BF16, (int)row->row, n_elems) ||
                   row->offset > a->bytes[row->file] ||
                   row->twin > a->bytes[row->file] - row->offset ||
                   row->bytes > a->bytes[row->file] - row->offset - row->twin
               ? cst_err_set(err, CST_EINVAL,
                             "'%.200s': the description has a row of %" PRIu64 " bytes at %" PRIu64
                             " of a file of %" PRIu64 ", which cannot be",
                             a->names[0], row->bytes, row->offset,
                             row->file < a->head.n_files ? a->bytes[row->file] : 0)
               : CST_OK;
}

static int check_layout(const struct adopt *a, struct cst_err *err)
{
    const Cistern__DurableLayout *layout = a->layout;
    int rc = cstc_content_check(a->job, err);

    if (rc == CST_OK &&
        (layout->n_chunks != a->head.n_chunks || layout->n_chunks != a->job->n_chunks ||
         layout->n_offset != a->job->n_tensors)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.200s': the description contradicts itself",
                         a->names[0]);
    }
    for (size_t t = 0; t < a->job->n_chunk && rc == CST_OK; t++) {
        if (a->job->chunk[t] >= layout->n_chunks) {
            rc = cst_err_set(err, CST_EINVAL, "'%.200s': tensor %zu is in chunk %" PRIu32,
                             a->names[0], t, a->job->chunk[t]);
        }
    }
    for (size_t c = 0; c < layout->n_chunks && rc == CST_OK; c++) {
        const Cistern__DurableChunk *chunk = layout->chunks[c];

        if (chunk->n_elems > UINT32_MAX || chunk->n_rows > CST_ROW_COUNT - CST_ROW_MASTER) {
            rc = cst_err_set(err, CST_EINVAL, "'%.200s': chunk %zu of %" PRIu64 " elements",
                             a->names[0], c, chunk->n_elems);
        }
        for (size_t r = 0; r < chunk->n_rows && rc == CST_OK; r++) {
            rc = check_row(a, chunk->rows[r], chunk->n_elems, err);
        }
    }
    return rc;
}

static int read_description(struct adopt *a, struct cst_err *err)
{
    const struct cst_durable_head *head = &a->head;
    uint8_t *data = NULL;
    int rc = CST_OK;

    if (head->job_bytes > MAX_DESCRIPTION || head->layout_bytes > MAX_DESCRIPTION ||
        head->description > a->bytes[0] ||
        head->job_bytes + head->layout_bytes > a->bytes[0] - head->description) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s' has %" PRIu64 " bytes, and its description of %" PRIu64
                           " bytes at %" PRIu64 " does not fit: it was cut off, or is damaged",
                           a->names[0], a->bytes[0], head->job_bytes + head->layout_bytes,
                           head->description);
    }
    data = malloc(head->job_bytes + head->layout_bytes + 1);
    if (data == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a description of %" PRIu64 " bytes",
                           head->job_bytes);
    }
    rc = read_all(a, 0, data, head->job_bytes + head->layout_bytes, head->description, err);
    if (rc == CST_OK &&
        XXH3_64bits(data, head->job_bytes + head->layout_bytes) == head->description_sum) {
        a->job = cistern__job_description__unpack(NULL, head->job_bytes, data);
        a->layout =
            cistern__durable_layout__unpack(NULL, head->layout_bytes, data + head->job_bytes);
    }
    free(data);
    if (rc == CST_OK && (a->job == NULL || a->layout == NULL)) {
        rc = cst_err_set(err, CST_EINVAL, "'%.200s': its description is damaged", a->names[0]);
    }
    return rc == CST_OK ? check_layout(a, err) : rc;
}

/* -- seals ------------------------------------------------------------------------------------ */

/* Read the seal at place @i. There is none if it cannot be read or has a wrong checksum: that may
 * be the one that was being written. CST_ENOMEM. */
static int read_seal(struct adopt *a, uint32_t i, struct cst_err *err)
{
    const uint64_t bytes =
        sizeof *a->seals[i] + (uint64_t)a->head.n_chunks * a->head.n_rows * sizeof(uint64_t);
    struct cst_durable_seal *seal = malloc(bytes);
    struct cst_err why;
    uint64_t sum;
    int rc;

    if (seal == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu64 " bytes", bytes);
    }
    rc = read_all(a, 0, seal, bytes, CST_DURABLE_SEALS + i * a->head.seal_bytes, &why);
    sum = rc == CST_OK ? seal->sum : 0;
    if (rc == CST_OK) {
        seal->sum = 0;
    }
    if (rc == CST_OK && seal->magic == CST_DURABLE_SEAL_MAGIC &&
        memcmp(seal->id, a->head.id, sizeof seal->id) == 0 && sum == XXH3_64bits(seal, bytes) &&
        seal->place < 2) {
        a->seals[i] = seal;
    } else {
        free(seal);
    }
    return CST_OK;
}

/* The checksum of @row in the seal @seal; chunk @c. */
static uint64_t sum_of(const struct adopt *a, const struct cst_durable_seal *seal, size_t c,
                       const Cistern__DurableRow *row)
{
    return seal->sums[c * a->head.n_rows + (row->row - CST_ROW_MASTER)];
}

static int check_sum(struct adopt *a, const struct cst_durable_seal *seal, size_t c,
                     const Cistern__DurableRow *row, struct cst_err *err)
{
    const uint64_t at = row->offset + seal->place * row->twin, want = sum_of(a, seal, c, row);
    uint64_t sum = 0;
    int rc = CST_OK;

    for (uint64_t done = 0; done < row->bytes && rc == CST_OK; done += CST_ROW_SUM_PIECE) {
        uint64_t left = row->bytes - done, n = left < CST_ROW_SUM_PIECE ? left : CST_ROW_SUM_PIECE;

        rc = read_all(a, row->file, a->piece, n, at + done, err);
        sum += rc == CST_OK ? cst_row_sum_piece(a->piece, n, done) : 0;
    }
    if (rc == CST_OK && want == 0) {
        a->n_unchecked++;
    } else if (rc == CST_OK && cst_row_sum_end(sum) != want) {
        rc = cst_err_set(err, CST_EINVAL,
                         "'%.200s': %" PRIu64 " bytes at %" PRIu64 ", states of step %" PRIu64
                         ", are damaged (checksum %" PRIx64 ", not %" PRIx64 ")",
                         a->names[row->file], row->bytes, at, seal->step, cst_row_sum_end(sum),
                         want);
    }
    return rc;
}

static int check_sums(struct adopt *a, const struct cst_durable_seal *seal, struct cst_err *err)
{
    int rc = CST_OK;

    a->n_unchecked = a->n_rows = 0;
    for (size_t c = 0; c < a->layout->n_chunks && rc == CST_OK; c++) {
        const Cistern__DurableChunk *chunk = a->layout->chunks[c];

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
    int rc = read_seal(a, 0, err);

    rc = rc == CST_OK ? read_seal(a, 1, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    if (a->seals[0] == NULL && a->seals[1] == NULL) {
        return cst_err_set(err, CST_EINVAL, "'%.200s' has no record of a step", a->names[0]);
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
    Cistern__JobDescription *job = a->job;

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

static const Cistern__DurableRow *find_row(const Cistern__DurableChunk *chunk, uint32_t row)
{
    for (size_t r = 0; r < chunk->n_rows; r++) {
        if (chunk->rows[r]->row == row) {
            return chunk->rows[r];
        }
    }
    return NULL;
}

/* Read [@elem, @elem + @n) of @row, moments, to @to as fp32. @to also has room for the row's own
 * format behind them. */
static int read_moments(struct adopt *a, const struct place *from, uint64_t n, float *to,
                        struct cst_err *err)
{
    const enum cst_moments format = (enum cst_moments)a->job->moments;
    const bool mx8 = format == CST_MOMENTS_MX8;
    const uint64_t size = cst_moments_elem_bytes(format),
                   skew = mx8 ? from->elem % CST_MX8_BLOCK : 0;
    const uint64_t first = from->elem - skew,
                   n_blocks = (skew + n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK;
    const uint64_t n_read = mx8 ? n_blocks * CST_MX8_BLOCK : n;
    struct cst_update_moment row = {.values = to + n};
    int rc = read_all(a, from->row->file, row.values, n_read * size, from->at + first * size, err);

    if (rc == CST_OK && mx8) {
        row.exponents = (uint8_t *)row.values + n_read;
        rc = read_all(a, from->row->file, row.exponents, n_blocks,
                      from->at + from->chunk->n_elems + first / CST_MX8_BLOCK, err);
    }
    if (rc == CST_OK) {
        cst_moments_decode(format, from->row->row - CST_ROW_MOMENT, skew, n, &row, to);
    }
    return rc;
}

/* Read the elements of @piece, which are adjacent in the file, to @to. */
static int read_piece(struct adopt *a, const struct cstc_state_piece *piece, void *to,
                      struct cst_err *err)
{
    const bool weights = piece->row == CST_ROW_WEIGHT;
    const Cistern__DurableChunk *chunk = a->layout->chunks[a->job->chunk[piece->tensor]];
    struct place from = {.chunk = chunk,
                         .row = find_row(chunk, weights ? CST_ROW_MASTER : piece->row),
                         .elem = a->layout->offset[piece->tensor] + piece->first};
    uint64_t size;

    if (from.row == NULL || from.elem > chunk->n_elems ||
        piece->n_elems > chunk->n_elems - from.elem) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s': the description lacks row %" PRIu32 " of tensor '%.100s'",
                           a->names[0], piece->row, a->job->tensors[piece->tensor]->name);
    }
    from.at = from.row->offset + a->place * from.row->twin;
    if (piece->exponents) {
        return read_all(a, from.row->file, to, (piece->n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK,
                        from.at + chunk->n_elems + from.elem / CST_MX8_BLOCK, err);
    }
    if (cst_table_is_moment((int)piece->row) && !piece->raw) {
        return read_moments(a, &from, piece->n_elems, to, err);
    }
    size = from.row->bytes / chunk->n_elems; /* MX8: without the exponents. */
    return read_all(a, from.row->file, to, piece->n_elems * size, from.at + from.elem * size, err);
}

/* Round master weights to weights, in place. */
static void round_weights(void *data, uint64_t n)
{
    const float *from = data;
    uint16_t *to = data;

    for (uint64_t i = 0; i < n; i++) {
        to[i] = cst_fp32_to_bf16(from[i]);
    }
}

static int write_pieces(struct adopt *a, struct cst_err *err)
{
    struct cstc_state_piece piece;
    int rc = CST_OK;

    a->writing.joining.most = CST_ROW_SUM_PIECE / 2;
    while (rc == CST_OK && cstc_joining_next(&a->writing.joining, &piece)) {
        rc = read_piece(a, &piece, a->piece, err);
        if (rc == CST_OK && piece.row == CST_ROW_WEIGHT) {
            round_weights(a->piece, piece.n_elems);
        }
        rc = rc == CST_OK ? cstc_writing_take(&a->writing, &piece, a->piece, err) : rc;
    }
    return rc;
}

/* -- the call --------------------------------------------------------------------------------- */

static int adopt(struct adopt *a, const char *const *files, uint32_t n, const char *dir,
                 struct cst_err *err)
{
    const struct cst_durable_seal *seal = NULL;
    int rc = open_files(a, files, n, err);

    rc = rc == CST_OK ? read_description(a, err) : rc;
    rc = rc == CST_OK ? choose_step(a, &seal, err) : rc;
    rc = rc == CST_OK ? set_progress(a, seal, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    a->writing.dir = dir;
    a->writing.description = a->job;
    rc = cstc_writing_open(&a->writing, err);
    rc = rc == CST_OK ? write_pieces(a, err) : rc;
    return rc == CST_OK ? cstc_writing_end(&a->writing, err) : rc;
}

static void close_adopt(struct adopt *a)
{
    cstc_writing_close(&a->writing);
    for (int i = 0; i < MAX_FILES; i++) {
        if (a->fds[i] >= 0) {
            (void)close(a->fds[i]);
        }
    }
    if (a->job != NULL) {
        cistern__job_description__free_unpacked(a->job, NULL);
    }
    if (a->layout != NULL) {
        cistern__durable_layout__free_unpacked(a->layout, NULL);
    }
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
        memset(a->fds, 0xff, sizeof a->fds);
        a->piece = malloc((size_t)2 * CST_ROW_SUM_PIECE);
    }
    if (a == NULL || a->piece == NULL) {
        free(a);
        return cst_err_set(err, CST_ENOMEM, "no memory to adopt a job");
    }
    rc = adopt(a, files, n, dir, err);
    if (rc == CST_OK && result != NULL) {
        *result = (struct cst_adopt_result){.step = a->job->step,
                                            .bytes = a->writing.bytes,
                                            .seconds = cst_clock_s() - began,
                                            .n_unchecked = a->n_unchecked,
                                            .n_rows = a->n_rows};
        (void)snprintf(result->job, sizeof result->job, "%s", a->job->name);
        (void)snprintf(result->warning, sizeof result->warning, "%s", a->warning);
    }
    close_adopt(a);
    return rc;
}

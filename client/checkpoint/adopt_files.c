/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/adopt_files.h"

#include "client/checkpoint/content.h"
#include "proto/table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAX_FILES CSTC_ADOPT_MAX_FILES
#define MAX_DESCRIPTION (UINT64_C(256) << 20)

int cstc_adopt_read(const struct cstc_adopt_files *a, uint32_t file, void *to, uint64_t bytes,
                    uint64_t at, struct cst_err *err)
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
        head->n_rows != CST_DURABLE_ROWS ||
        head->seal_bytes != cst_durable_seal_bytes(head->n_chunks)) {
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

/* Take the file @fd, which is @name for messages, by its number. */
static int take_file(struct cstc_adopt_files *a, int fd, const char *name, struct cst_err *err)
{
    struct cst_durable_head head = {0};
    struct stat st;
    int rc;

    if (fstat(fd, &st) != 0) {
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

static int open_file(struct cstc_adopt_files *a, const char *name, struct cst_err *err)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;
    struct stat st;

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "'%.200s'", name);
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0) {
        (void)close(fd); /* The job has no states on this drive. */
        return CST_OK;
    }
    rc = take_file(a, fd, name, err);
    if (rc != CST_OK) {
        (void)close(fd);
    }
    return rc;
}

static int check_all_there(const struct cstc_adopt_files *a, struct cst_err *err)
{
    int rc = a->head.magic != 0
                 ? CST_OK
                 : cst_err_set(err, CST_EINVAL,
                               "all files are empty: they have no states of a durable job");

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

/* True if @row has as many bytes as @n_elems elements of its format. Those of weights are the
 * type's (check_weights). */
static bool has_size(const struct cstc_adopt_files *a, const Cistern__DurableRow *row,
                     uint64_t n_elems)
{
    const struct cst_table_header formats = {.moments = a->job->moments,
                                             .masters = a->job->masters};

    return row->row == CST_ROW_WEIGHT_OTHER
               ? row->bytes == 2 * n_elems || row->bytes == 4 * n_elems
               : row->bytes == cst_table_row_bytes(&formats, CST_BF16, (int)row->row, n_elems);
}

static int check_row(const struct cstc_adopt_files *a, const Cistern__DurableRow *row,
                     uint64_t n_elems, struct cst_err *err)
{
    return row->row < CST_ROW_MASTER || row->row > CST_ROW_WEIGHT_OTHER ||
                   row->file >= a->head.n_files || !has_size(a, row, n_elems) ||
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

const Cistern__DurableRow *cstc_adopt_row(const Cistern__DurableChunk *chunk, uint32_t row)
{
    for (size_t r = 0; r < chunk->n_rows; r++) {
        if (chunk->rows[r]->row == row) {
            return chunk->rows[r];
        }
    }
    return NULL;
}

/* Check that tensor @t is in a chunk whose weights, if they are in a file, have its type. */
static int check_weights(const struct cstc_adopt_files *a, size_t t, struct cst_err *err)
{
    const Cistern__DurableLayout *layout = a->layout;
    const uint32_t c = a->job->chunk[t];
    const Cistern__DurableRow *weights =
        c < layout->n_chunks ? cstc_adopt_row(layout->chunks[c], CST_ROW_WEIGHT_OTHER) : NULL;
    const uint64_t size = cst_dtype_bytes((enum cst_dtype)a->job->tensors[t]->dtype);

    if (c >= layout->n_chunks) {
        return cst_err_set(err, CST_EINVAL, "'%.200s': tensor %zu is in chunk %" PRIu32,
                           a->names[0], t, c);
    }
    return weights == NULL || weights->bytes == size * layout->chunks[c]->n_elems
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "'%.200s': tensor %zu has weights of %" PRIu64
                             " bytes each, and chunk %" PRIu32 " has %" PRIu64
                             " bytes for %" PRIu64,
                             a->names[0], t, size, c, weights->bytes, layout->chunks[c]->n_elems);
}

static int check_layout(const struct cstc_adopt_files *a, struct cst_err *err)
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
        rc = check_weights(a, t, err);
    }
    for (size_t c = 0; c < layout->n_chunks && rc == CST_OK; c++) {
        const Cistern__DurableChunk *chunk = layout->chunks[c];

        if (chunk->n_elems > UINT32_MAX || chunk->n_rows > CST_DURABLE_ROWS) {
            rc = cst_err_set(err, CST_EINVAL, "'%.200s': chunk %zu of %" PRIu64 " elements",
                             a->names[0], c, chunk->n_elems);
        }
        for (size_t r = 0; r < chunk->n_rows && rc == CST_OK; r++) {
            rc = check_row(a, chunk->rows[r], chunk->n_elems, err);
        }
    }
    return rc;
}

static int read_description(struct cstc_adopt_files *a, struct cst_err *err)
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
    rc = cstc_adopt_read(a, 0, data, head->job_bytes + head->layout_bytes, head->description, err);
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

int cstc_adopt_seal(const struct cstc_adopt_files *a, uint32_t i, struct cst_durable_seal **out,
                    struct cst_err *err)
{
    const uint64_t bytes = cst_durable_sealed_bytes(a->head.n_chunks);
    struct cst_durable_seal *seal = malloc(bytes);
    struct cst_err why;
    uint64_t sum;
    int rc;

    *out = NULL;
    if (seal == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu64 " bytes", bytes);
    }
    rc = cstc_adopt_read(a, 0, seal, bytes, CST_DURABLE_SEALS + i * a->head.seal_bytes, &why);
    sum = rc == CST_OK ? seal->sum : 0;
    if (rc == CST_OK) {
        seal->sum = 0;
    }
    if (rc == CST_OK && seal->magic == CST_DURABLE_SEAL_MAGIC &&
        memcmp(seal->id, a->head.id, sizeof seal->id) == 0 && sum == XXH3_64bits(seal, bytes) &&
        seal->place < 2) {
        *out = seal;
    } else {
        free(seal);
    }
    return CST_OK;
}

/* -- life ------------------------------------------------------------------------------------- */

void cstc_adopt_files_init(struct cstc_adopt_files *a)
{
    *a = (struct cstc_adopt_files){.job = NULL};
    memset(a->fds, 0xff, sizeof a->fds);
}

int cstc_adopt_files_open(struct cstc_adopt_files *a, const char *const *files, uint32_t n,
                          struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = open_file(a, files[i], err);
    }
    rc = rc == CST_OK ? check_all_there(a, err) : rc;
    return rc == CST_OK ? read_description(a, err) : rc;
}

int cstc_adopt_files_take(struct cstc_adopt_files *a, int *fds, const char *const *names,
                          uint32_t n, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = take_file(a, fds[i], names[i], err);
        fds[i] = rc == CST_OK ? -1 : fds[i];
    }
    rc = rc == CST_OK ? check_all_there(a, err) : rc;
    return rc == CST_OK ? read_description(a, err) : rc;
}

void cstc_adopt_files_close(struct cstc_adopt_files *a)
{
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
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/weights.h"

#include "kernels/math/cast.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFER_ELEMS = 8192 };

/* -- names and shapes ----------------------------------------------------------------------- */

uint32_t cstc_weights_count(const struct cst_tensor_words *words)
{
    return words->n_external > 0 ? words->n_external : 1;
}

void cstc_weights_part(const struct cst_tensor_words *words, uint32_t i,
                       struct cstc_weights_part *out)
{
    *out = (struct cstc_weights_part){.name = words->name, .n_dims = words->n_dims};
    memcpy(out->shape, words->shape, words->n_dims * sizeof *words->shape);
    if (words->n_external == 0) {
        return;
    }
    out->name = words->external_names[i];
    if (words->transposed) {
        out->shape[1] = words->shape[0];
    }
    out->shape[0] = words->external_rows[i];
    for (uint32_t k = 0; k < i; k++) {
        out->first_row += (uint64_t)words->external_rows[k];
    }
}

/* -- search --------------------------------------------------------------------------------- */

static void shape_text(const int64_t *shape, uint32_t n_dims, char out[128])
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t d = 0; d < n_dims && used < 100; d++) {
        used += (size_t)snprintf(out + used, 128 - used, "%s%" PRId64, d == 0 ? "" : "x", shape[d]);
    }
}

static int check_place(const struct cstc_weights_part *part, struct cst_err *err)
{
    char has[128], wants[128];

    if (part->place.n_dims != part->n_dims ||
        memcmp(part->place.shape, part->shape, part->n_dims * sizeof *part->shape) != 0) {
        shape_text(part->place.shape, part->place.n_dims, has);
        shape_text(part->shape, part->n_dims, wants);
        return cst_err_set(err, CST_EINVAL, "%s: tensor '%s' has the shape %s, %s is expected",
                           part->file->name, part->name, has, wants);
    }
    if (part->place.dtype != CSTC_DTYPE_F32 && part->place.dtype != CSTC_DTYPE_BF16 &&
        part->place.dtype != CSTC_DTYPE_F16) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: tensor '%s' has another type than F32, BF16 or F16",
                           part->file->name, part->name);
    }
    return CST_OK;
}

/* Find @part in one of the files, under the name @name. */
static int find_name(struct cstc_weights_part *part, const char *name,
                     const struct cstc_tensor_file *files, uint32_t n_files, struct cst_err *err)
{
    int rc = CST_ENOTFOUND;

    for (uint32_t f = 0; rc == CST_ENOTFOUND && f < n_files; f++) {
        part->file = &files[f];
        rc = cstc_tensor_file_find(&files[f], name, &part->place, err);
    }
    return rc == CST_OK ? check_place(part, err) : rc;
}

static int find_part(struct cstc_weights_part *part, const struct cstc_tensor_file *files,
                     uint32_t n_files, const char *prefix, struct cst_err *err)
{
    size_t n = prefix != NULL ? strlen(prefix) : 0;
    int rc = find_name(part, part->name, files, n_files, err);

    if (rc == CST_ENOTFOUND && n > 0 && strncmp(part->name, prefix, n) == 0) {
        rc = find_name(part, part->name + n, files, n_files, err);
    }
    return rc == CST_ENOTFOUND
               ? cst_err_set(err, CST_EINVAL, "no file has the tensor '%s'", part->name)
               : rc;
}

int cstc_weights_find(struct cstc_weights *weights, const struct cst_tensor_words *words,
                      const struct cstc_tensor_file *files, uint32_t n_files, const char *prefix,
                      struct cst_err *err)
{
    int rc = CST_OK;

    *weights = (struct cstc_weights){.columns = 1, .transposed = words->transposed};
    for (uint32_t d = 1; d < words->n_dims; d++) {
        weights->columns *= (uint64_t)words->shape[d];
    }
    weights->n_parts = cstc_weights_count(words);
    weights->parts = calloc(weights->n_parts, sizeof *weights->parts);
    if (weights->parts == NULL) {
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory for its parts", words->name);
    }
    for (uint32_t i = 0; rc == CST_OK && i < weights->n_parts; i++) {
        cstc_weights_part(words, i, &weights->parts[i]);
        rc = find_part(&weights->parts[i], files, n_files, prefix, err);
    }
    if (rc != CST_OK) {
        cstc_weights_close(weights);
    }
    return rc;
}

void cstc_weights_close(struct cstc_weights *weights)
{
    free(weights->parts);
    *weights = (struct cstc_weights){0};
}

bool cstc_weights_are_bf16(const struct cstc_weights *weights)
{
    for (uint32_t p = 0; p < weights->n_parts; p++) {
        if (weights->parts[p].place.dtype != CSTC_DTYPE_BF16) {
            return false;
        }
    }
    return true;
}

/* -- conversion ----------------------------------------------------------------------------- */

static float bits_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31,
             fraction = half & 1023;
    float value;

    if (exponent == 31) {
        return bits_to_float(sign | 0x7f800000 | fraction << 13);
    }
    if (exponent > 0) {
        return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
    }
    value = (float)fraction * 0x1p-24f; /* Zero, or a number below the normal ones. */
    return sign != 0 ? -value : value;
}

/* Element @i of the array @from. */
static float element(const void *from, enum cstc_dtype dtype, size_t i)
{
    const unsigned char *at = (const unsigned char *)from + i * cstc_dtype_bytes(dtype);
    uint16_t half;
    float value;

    if (dtype == CSTC_DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return dtype == CSTC_DTYPE_BF16 ? cst_bf16_to_fp32(half) : half_to_float(half);
}

/* Copy @n elements of @bytes each, which are @stride elements apart. */
static void gather(const char *from, size_t stride, size_t n, unsigned bytes, char *out)
{
    for (size_t k = 0; k < n; k++) {
        memcpy(out + k * bytes, from + k * stride * bytes, bytes);
    }
}

/* Store @n elements of @from, which are @stride elements apart, from element @i of @out on. */
static void convert(const void *from, enum cstc_dtype from_dtype, size_t stride, size_t n,
                    enum cstc_dtype dtype, void *out, size_t i)
{
    if (from_dtype == dtype) {
        gather(from, stride, n, cstc_dtype_bytes(dtype), (char *)out + i * cstc_dtype_bytes(dtype));
        return;
    }
    for (size_t k = 0; k < n; k++) {
        float value = element(from, from_dtype, k * stride);

        if (dtype == CSTC_DTYPE_F32) {
            ((float *)out)[i + k] = value;
        } else {
            ((uint16_t *)out)[i + k] = cst_fp32_to_bf16(value);
        }
    }
}

/* -- reading -------------------------------------------------------------------------------- */

/* Read the elements [first, first + n) of @part, which are consecutive. */
static int read_part(const struct cstc_weights_part *part, uint64_t first, uint64_t n,
                     enum cstc_dtype dtype, void *out, uint64_t i, struct cst_err *err)
{
    const unsigned bytes = cstc_dtype_bytes(part->place.dtype);
    float buffer[BUFFER_ELEMS]; /* Elements of at most 4 bytes. */
    int rc = CST_OK;

    if (part->place.dtype == dtype) {
        return cstc_tensor_file_read(part->file, part->place.begin + first * bytes,
                                     (char *)out + i * bytes, n * bytes, err);
    }
    for (uint64_t done = 0; rc == CST_OK && done < n;) {
        uint64_t now = n - done < BUFFER_ELEMS ? n - done : BUFFER_ELEMS;

        rc = cstc_tensor_file_read(part->file, part->place.begin + (first + done) * bytes, buffer,
                                   now * bytes, err);
        if (rc == CST_OK) {
            convert(buffer, part->place.dtype, 1, now, dtype, out, i + done);
        }
        done += now;
    }
    return rc;
}

/* The tensor has the rows of the parts, one after the other. */
static int read_rows(const struct cstc_weights *weights, uint64_t first, uint64_t n,
                     enum cstc_dtype dtype, void *out, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t p = 0; rc == CST_OK && p < weights->n_parts; p++) {
        const struct cstc_weights_part *part = &weights->parts[p];
        uint64_t begin = part->first_row * weights->columns,
                 end = begin + (uint64_t)part->shape[0] * weights->columns,
                 from = first > begin ? first : begin, to = first + n < end ? first + n : end;

        if (from < to) {
            rc = read_part(part, from - begin, to - from, dtype, out, from - first, err);
        }
    }
    return rc;
}

/* The columns of the tensor are the rows of @part. The file is mapped, because neighbours in the
 * tensor are far apart in it. */
static int read_columns(const struct cstc_weights *weights, const struct cstc_weights_part *part,
                        uint64_t first, uint64_t n, enum cstc_dtype dtype, void *out,
                        struct cst_err *err)
{
    const unsigned bytes = cstc_dtype_bytes(part->place.dtype);
    const uint64_t columns = weights->columns, height = (uint64_t)part->shape[1],
                   shift = part->place.begin % (uint64_t)sysconf(_SC_PAGESIZE),
                   length = part->place.bytes + shift;
    const char *map = mmap(NULL, length, PROT_READ, MAP_PRIVATE, part->file->fd,
                           (off_t)(part->place.begin - shift));

    if (map == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "%s: mapping %" PRIu64 " bytes",
                             part->file->name, length);
    }
    for (uint64_t row = first / columns; row * columns < first + n; row++) {
        uint64_t begin = row * columns + part->first_row, end = begin + (uint64_t)part->shape[0],
                 from = first > begin ? first : begin, to = first + n < end ? first + n : end;

        if (from < to) {
            convert(map + shift + ((from - begin) * height + row) * bytes, part->place.dtype,
                    height, to - from, dtype, out, from - first);
        }
    }
    (void)munmap((void *)(uintptr_t)map, length);
    return CST_OK;
}

int cstc_weights_read(const struct cstc_weights *weights, uint64_t first, uint64_t n,
                      enum cstc_dtype dtype, void *out, struct cst_err *err)
{
    int rc = CST_OK;

    if (!weights->transposed) {
        return read_rows(weights, first, n, dtype, out, err);
    }
    for (uint32_t p = 0; rc == CST_OK && p < weights->n_parts; p++) {
        rc = read_columns(weights, &weights->parts[p], first, n, dtype, out, err);
    }
    return rc;
}

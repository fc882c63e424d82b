/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/weights.h"

#include "kernels/math/cast.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_ELEMS = 8192,
    /* Rows of a transposed tensor that are read together. Each column of the band takes a pread,
     * which is the better the more rows the band has. */
    BAND_ROWS = 1024,
    BAND_BYTES = 32 << 20,
    TILE_ELEMS = 65536, /* Elements of columns that are read together: they stay in the cache. */
    TILE_PAD = 16, /* Elements between columns, which do not compete for places in the cache. */
};

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

/* Copy @n elements of 2 or 4 @bytes, which are @stride elements apart. */
static void gather(const char *from, size_t stride, size_t n, unsigned bytes, char *out)
{
    if (bytes == 2) {
        for (size_t k = 0; k < n; k++) {
            memcpy(out + k * 2, from + k * stride * 2, 2);
        }
    } else {
        for (size_t k = 0; k < n; k++) {
            memcpy(out + k * 4, from + k * stride * 4, 4);
        }
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
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

/* Columns of a transposed tensor that are read together. They are rows of the file. */
struct tile {
    const struct cstc_weights_part *part;
    uint64_t column, n_columns; /* Of the part. */
    char *elems;                /* As the file has them. */
    uint64_t stride;            /* Elements from one column to the next. */
};

/* Read what the rows [row, row + n_rows) of the tensor have in @tile. */
static int read_tile(struct tile *tile, uint64_t row, uint64_t n_rows, struct cst_err *err)
{
    const struct cstc_weights_part *part = tile->part;
    const unsigned bytes = cstc_dtype_bytes(part->place.dtype);
    const uint64_t height = (uint64_t)part->shape[1];
    uint64_t at = part->place.begin + (tile->column * height + row) * bytes;
    int rc = CST_OK;

    if (n_rows == height) {
        tile->stride = n_rows;
        return cstc_tensor_file_read(part->file, at, tile->elems, tile->n_columns * n_rows * bytes,
                                     err);
    }
    tile->stride = n_rows + TILE_PAD;
    for (uint64_t c = 0; rc == CST_OK && c < tile->n_columns; c++, at += height * bytes) {
        rc = cstc_tensor_file_read(part->file, at, tile->elems + c * tile->stride * bytes,
                                   n_rows * bytes, err);
    }
    return rc;
}

/* Read the columns of the band that are in @part. @elems has space for a tile. */
static int read_columns(struct cstc_weights *weights, const struct cstc_weights_part *part,
                        char *elems, struct cst_err *err)
{
    const unsigned bytes = cstc_dtype_bytes(part->place.dtype);
    const struct cstc_weights_band *band = &weights->band;
    const uint64_t width = (uint64_t)part->shape[0];
    struct tile tile = {.part = part, .elems = elems};
    int rc = CST_OK;

    for (; rc == CST_OK && tile.column < width; tile.column += tile.n_columns) {
        tile.n_columns = least(width - tile.column, TILE_ELEMS / (band->n_rows + TILE_PAD));
        rc = read_tile(&tile, band->row, band->n_rows, err);
        for (uint64_t r = 0; rc == CST_OK && r < band->n_rows; r++) {
            convert(elems + r * bytes, part->place.dtype, tile.stride, tile.n_columns, band->dtype,
                    band->elems, r * weights->columns + part->first_row + tile.column);
        }
    }
    return rc;
}

/* Read the band of rows that begins with @row. */
static int read_band(struct cstc_weights *weights, uint64_t row, enum cstc_dtype dtype,
                     struct cst_err *err)
{
    struct cstc_weights_band *band = &weights->band;
    const uint64_t height = (uint64_t)weights->parts[0].shape[1];
    const uint64_t row_bytes = weights->columns * cstc_dtype_bytes(dtype);
    uint64_t n_rows = least(least(height, BAND_ROWS), BAND_BYTES / row_bytes);
    char *elems = malloc(TILE_ELEMS * sizeof(float)); /* Elements of at most 4 bytes. */
    int rc = CST_OK;

    n_rows = n_rows > 0 ? n_rows : 1;
    if (band->elems == NULL || band->dtype != dtype) {
        free(band->elems);
        *band = (struct cstc_weights_band){.elems = malloc(n_rows * row_bytes), .dtype = dtype};
    }
    if (elems == NULL || band->elems == NULL) {
        free(elems);
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory for %" PRIu64 " rows of it",
                           weights->parts[0].name, n_rows);
    }
    band->row = row;
    band->n_rows = least(height - row, n_rows);
    for (uint32_t p = 0; rc == CST_OK && p < weights->n_parts; p++) {
        rc = read_columns(weights, &weights->parts[p], elems, err);
    }
    band->n_rows = rc == CST_OK ? band->n_rows : 0;
    free(elems);
    return rc;
}

void cstc_weights_rest(struct cstc_weights *weights)
{
    free(weights->band.elems);
    weights->band = (struct cstc_weights_band){0};
}

/* The columns of the tensor are the rows of the parts. Neighbours in the tensor are far apart in
 * the file. Therefore a band of rows is read ahead. */
static int read_transposed(struct cstc_weights *weights, uint64_t first, uint64_t n,
                           enum cstc_dtype dtype, char *out, struct cst_err *err)
{
    const unsigned bytes = cstc_dtype_bytes(dtype);
    const struct cstc_weights_band *band = &weights->band;

    for (uint64_t at = first; at < first + n;) {
        const uint64_t row = at / weights->columns;
        uint64_t in_band, now;

        if (band->dtype != dtype || row < band->row || row - band->row >= band->n_rows) {
            const int rc = read_band(weights, row, dtype, err);

            if (rc != CST_OK) {
                return rc;
            }
        }
        in_band = at - band->row * weights->columns;
        now = least(first + n - at, band->n_rows * weights->columns - in_band);
        memcpy(out + (at - first) * bytes, band->elems + in_band * bytes, now * bytes);
        at += now;
    }
    if (first + n == weights->columns * (uint64_t)weights->parts[0].shape[1]) {
        cstc_weights_rest(weights);
    }
    return CST_OK;
}

int cstc_weights_read(struct cstc_weights *weights, uint64_t first, uint64_t n,
                      enum cstc_dtype dtype, void *out, struct cst_err *err)
{
    return weights->transposed ? read_transposed(weights, first, n, dtype, out, err)
                               : read_rows(weights, first, n, dtype, out, err);
}

void cstc_weights_close(struct cstc_weights *weights)
{
    cstc_weights_rest(weights);
    free(weights->parts);
    *weights = (struct cstc_weights){0};
}

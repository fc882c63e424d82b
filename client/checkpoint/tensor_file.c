/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/tensor_file.h"

#include "proto/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, ALIGN = 4096 };

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {[CSTC_DTYPE_BF16] = {"BF16", 2},
              [CSTC_DTYPE_F32] = {"F32", 4},
              [CSTC_DTYPE_U8] = {"U8", 1},
              [CSTC_DTYPE_F16] = {"F16", 2}};

unsigned cstc_dtype_bytes(enum cstc_dtype dtype)
{
    return dtype < CSTC_DTYPE_OTHER ? dtypes[dtype].bytes : 0;
}

/* -- writing -------------------------------------------------------------------------------- */

int cstc_tensor_header_open(struct cstc_tensor_header *header, struct cst_err *err)
{
    header->bytes = 0;
    /* Other libraries look for the format; "pt" is what PyTorch's tensors have. */
    header->json = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    return header->json != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory for a header");
}

void cstc_tensor_header_close(struct cstc_tensor_header *header)
{
    json_decref(header->json);
    header->json = NULL;
}

/* Return @shape as a list; NULL: no memory. */
static json_t *shape_to_json(const int64_t *shape, uint32_t n_dims)
{
    json_t *dims = json_array();

    for (uint32_t d = 0; d < n_dims; d++) {
        if (json_array_append_new(dims, json_integer(shape[d])) != 0) {
            json_decref(dims);
            return NULL;
        }
    }
    return dims;
}

int cstc_tensor_header_add(struct cstc_tensor_header *header, const char *name,
                           enum cstc_dtype dtype, const int64_t *shape, uint32_t n_dims,
                           struct cst_err *err)
{
    uint64_t bytes = cstc_dtype_bytes(dtype);
    json_t *dims, *entry = NULL;

    if (json_object_get(header->json, name) != NULL) {
        return cst_err_set(err, CST_EEXIST, "two tensors of the file have the name '%s'", name);
    }
    dims = shape_to_json(shape, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) {
        bytes *= (uint64_t)shape[d];
    }
    if (dims != NULL) {
        entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[dtype].name, "shape", dims,
                          "data_offsets", (json_int_t)header->bytes,
                          (json_int_t)(header->bytes + bytes));
    }
    if (entry == NULL || json_object_set_new(header->json, name, entry) != 0) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the header of '%s'", name);
    }
    header->bytes += bytes;
    return CST_OK;
}

int cstc_tensor_header_bytes(const struct cstc_tensor_header *header, void **out, size_t *bytes,
                             struct cst_err *err)
{
    char *text = json_dumps(header->json, JSON_COMPACT | JSON_PRESERVE_ORDER);
    size_t length = text != NULL ? strlen(text) : 0;
    size_t total = (LENGTH_BYTES + length + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t *all = text != NULL ? malloc(total) : NULL;

    if (all == NULL) {
        free(text);
        return cst_err_set(err, CST_ENOMEM, "no memory for a header of %zu bytes", length);
    }
    for (int i = 0; i < LENGTH_BYTES; i++) {
        all[i] = (uint8_t)((total - LENGTH_BYTES) >> (8 * i));
    }
    memcpy(all + LENGTH_BYTES, text, length);
    memset(all + LENGTH_BYTES + length, ' ', total - LENGTH_BYTES - length);
    free(text);
    *out = all;
    *bytes = total;
    return CST_OK;
}

/* -- reading -------------------------------------------------------------------------------- */

int cstc_tensor_file_read(const struct cstc_tensor_file *file, uint64_t offset, void *data,
                          size_t bytes, struct cst_err *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(file->fd, (char *)data + done, bytes - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return cst_err_errno(err, CST_EIO, errno, "%s: read at byte %" PRIu64, file->name,
                                 offset + done);
        }
        if (n == 0) {
            return cst_err_set(err, CST_EIO, "%s: ends at byte %" PRIu64 ", %" PRIu64 " are needed",
                               file->name, offset + done, offset + bytes);
        }
        done += (size_t)n;
    }
    return CST_OK;
}

static enum cstc_dtype dtype_of(const char *name)
{
    for (int i = 0; i < CSTC_DTYPE_OTHER; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            return (enum cstc_dtype)i;
        }
    }
    return CSTC_DTYPE_OTHER;
}

static int bad(const struct cstc_tensor_file *file, const char *tensor, const char *what,
               struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "%s: tensor '%.128s': %s", file->name, tensor, what);
}

/* Read the shape of @entry. CST_EINVAL: it is not an array of sizes. */
static int parse_shape(const struct cstc_tensor_file *file, const char *name, const json_t *dims,
                       struct cstc_tensor_entry *out, uint64_t *n_elems, struct cst_err *err)
{
    *n_elems = 1;
    if (!json_is_array(dims) || json_array_size(dims) > CSTC_TENSOR_MAX_DIMS) {
        return bad(file, name, "its shape is not a list of at most 8 sizes", err);
    }
    out->n_dims = (uint32_t)json_array_size(dims);
    for (uint32_t d = 0; d < out->n_dims; d++) {
        const json_t *size = json_array_get(dims, d);

        out->shape[d] = json_integer_value(size);
        if (!json_is_integer(size) || out->shape[d] < 0 ||
            __builtin_mul_overflow(*n_elems, (uint64_t)out->shape[d], n_elems)) {
            return bad(file, name, "its shape is not a list of sizes", err);
        }
    }
    return CST_OK;
}

static int parse_entry(const struct cstc_tensor_file *file, const char *name, const json_t *value,
                       struct cstc_tensor_entry *out, struct cst_err *err)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *offsets = json_object_get(value, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0)),
               end = json_integer_value(json_array_get(offsets, 1));
    uint64_t n_elems;
    int rc;

    if (dtype == NULL || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1))) {
        return bad(file, name, "its entry has no dtype or no data_offsets", err);
    }
    rc = parse_shape(file, name, json_object_get(value, "shape"), out, &n_elems, err);
    if (rc != CST_OK) {
        return rc;
    }
    if (begin < 0 || end < begin || (uint64_t)end > file->bytes - file->data) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: tensor '%.128s' has the bytes %lld to %lld of the data, the file "
                           "has %" PRIu64,
                           file->name, name, (long long)begin, (long long)end,
                           file->bytes - file->data);
    }
    out->dtype = dtype_of(dtype);
    out->begin = file->data + (uint64_t)begin;
    out->bytes = (uint64_t)(end - begin);
    if (out->dtype != CSTC_DTYPE_OTHER &&
        (n_elems > UINT64_MAX / 4 || n_elems * cstc_dtype_bytes(out->dtype) != out->bytes)) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: tensor '%.128s' has %" PRIu64 " elements of type %.8s and %" PRIu64
                           " bytes",
                           file->name, name, n_elems, dtype, out->bytes);
    }
    return CST_OK;
}

static bool is_metadata(const char *key)
{
    return strcmp(key, "__metadata__") == 0;
}

struct range {
    uint64_t begin, end;
};

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Check every entry, and that the data of the tensors neither overlap nor have gaps. */
static int check_entries(struct cstc_tensor_file *file, struct cst_err *err)
{
    size_t n = json_object_size(file->header), i = 0;
    struct range *ranges = calloc(n + 1, sizeof *ranges);
    uint64_t at = file->data;
    const char *name;
    json_t *value;
    int rc = ranges != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory for a header");

    json_object_foreach(file->header, name, value)
    {
        struct cstc_tensor_entry entry;

        if (rc != CST_OK || is_metadata(name)) {
            continue;
        }
        rc = parse_entry(file, name, value, &entry, err);
        if (rc == CST_OK && entry.bytes > 0) {
            ranges[i++] = (struct range){entry.begin, entry.begin + entry.bytes};
        }
    }
    if (rc == CST_OK) {
        qsort(ranges, i, sizeof *ranges, compare_ranges);
    }
    for (size_t k = 0; rc == CST_OK && k < i; at = ranges[k++].end) {
        if (ranges[k].begin != at) {
            rc = cst_err_set(err, CST_EINVAL,
                             "%s: the data of its tensors overlap or have gaps at byte %" PRIu64,
                             file->name, at);
        }
    }
    if (rc == CST_OK && at != file->bytes) {
        rc = cst_err_set(err, CST_EINVAL, "%s: has %" PRIu64 " bytes, its tensors end at %" PRIu64,
                         file->name, file->bytes, at);
    }
    free(ranges);
    return rc;
}

static int read_header(struct cstc_tensor_file *file, struct cst_err *err)
{
    uint8_t length[LENGTH_BYTES];
    uint64_t bytes = 0;
    char name[sizeof file->name + sizeof ": header"];
    char *text;
    int rc = cstc_tensor_file_read(file, 0, length, sizeof length, err);

    for (int i = 0; rc == CST_OK && i < LENGTH_BYTES; i++) {
        bytes |= (uint64_t)length[i] << (8 * i);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (bytes > CSTC_TENSOR_MAX_HEADER || bytes > file->bytes - LENGTH_BYTES) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: not a safetensors file: a header of %" PRIu64
                           " bytes in a file of %" PRIu64,
                           file->name, bytes, file->bytes);
    }
    text = malloc(bytes + 1);
    if (text == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory for a header of %" PRIu64 " bytes",
                           file->name, bytes);
    }
    rc = cstc_tensor_file_read(file, LENGTH_BYTES, text, bytes, err);
    if (rc == CST_OK) {
        (void)snprintf(name, sizeof name, "%s: header", file->name);
        rc = cst_json_parse(&file->header, text, bytes, name, err);
    }
    if (rc == CST_OK && !json_is_object(file->header)) {
        rc = cst_err_set(err, CST_EINVAL, "%s is not a JSON object", name);
    }
    free(text);
    file->data = LENGTH_BYTES + bytes;
    return rc;
}

int cstc_tensor_file_open(struct cstc_tensor_file *file, int dirfd, const char *name,
                          struct cst_err *err)
{
    struct stat st;
    int rc = CST_OK;

    *file = (struct cstc_tensor_file){.fd = openat(dirfd, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    if (file->fd < 0) {
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s", name);
    }
    if (fstat(file->fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", name);
    } else if (!S_ISREG(st.st_mode) || st.st_size < LENGTH_BYTES) {
        rc = cst_err_set(err, CST_EINVAL, "%s: not a safetensors file", name);
    }
    if (rc == CST_OK) {
        file->bytes = (uint64_t)st.st_size;
        rc = read_header(file, err);
    }
    if (rc == CST_OK) {
        rc = check_entries(file, err);
    }
    if (rc != CST_OK) {
        cstc_tensor_file_close(file);
    }
    return rc;
}

void cstc_tensor_file_close(struct cstc_tensor_file *file)
{
    json_decref(file->header);
    file->header = NULL;
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    file->fd = -1;
}

int cstc_tensor_file_find(const struct cstc_tensor_file *file, const char *name,
                          struct cstc_tensor_entry *out, struct cst_err *err)
{
    const json_t *value = is_metadata(name) ? NULL : json_object_get(file->header, name);

    if (value == NULL) {
        return cst_err_set(err, CST_ENOTFOUND, "%s: has no tensor '%.128s'", file->name, name);
    }
    return parse_entry(file, name, value, out, err);
}

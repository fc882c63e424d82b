/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/content.h"

#include "cistern/optimizer.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Rows and exponents of a tensor. */
enum { MAX_ROWS = 2 + 2 * CST_MAX_MOMENTS };

#define MAX_ELEMS (UINT64_C(1) << 40) /* Elements of a tensor. */

uint64_t cstc_content_bytes(const struct cstc_content_entry *entry, uint64_t n_elems)
{
    return entry->exponents ? (n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK
                            : n_elems * cstc_dtype_bytes(entry->dtype);
}

struct cstc_state_piece cstc_content_piece(const struct cstc_content_entry *entry, uint64_t first,
                                           uint64_t most)
{
    uint64_t n = entry->n_elems - first;

    /* A piece has whole blocks of moments. Exponents have one byte for each block. */
    most = entry->exponents ? most * CST_MX8_BLOCK : most / cstc_dtype_bytes(entry->dtype);
    n = n < most ? n : most - most % CST_MX8_BLOCK;
    return (struct cstc_state_piece){.tensor = entry->tensor,
                                     .row = entry->row,
                                     .raw = entry->raw,
                                     .exponents = entry->exponents,
                                     .first = first,
                                     .n_elems = n,
                                     .bytes = cstc_content_bytes(entry, n)};
}

/* True if the external tensors have all rows of a tensor of the valid shape @shape. */
static bool has_all_rows(const Cistern__TensorDecl *tensor, const int64_t *shape)
{
    uint64_t rows = 0;

    if (tensor->n_external_name != tensor->n_external_rows ||
        (tensor->transposed && tensor->n_shape != 2)) {
        return false;
    }
    for (size_t i = 0; i < tensor->n_external_rows; i++) {
        if (tensor->external_rows[i] < 1 || (uint64_t)tensor->external_rows[i] > MAX_ELEMS ||
            strlen(tensor->external_name[i]) >= CST_LAYOUT_NAME_BYTES ||
            i >= CST_LAYOUT_MAX_EXTERNAL) {
            return false;
        }
        rows += (uint64_t)tensor->external_rows[i];
    }
    return tensor->n_external_rows == 0 ? !tensor->transposed
                                        : rows == (uint64_t)shape[tensor->transposed];
}

/* The same of a tensor as it was declared: the external tensors of a part are those of its whole
 * or, in checkpoints of earlier versions, of the part. */
static bool has_rows(const Cistern__TensorDecl *tensor)
{
    return has_all_rows(tensor, tensor->shape) ||
           (tensor->whole_name != NULL && tensor->n_whole_shape > 0 &&
            has_all_rows(tensor, tensor->whole_shape));
}

static bool is_valid(const Cistern__TensorDecl *tensor)
{
    uint64_t n_elems = 1;

    for (size_t d = 0; d < tensor->n_shape; d++) {
        if (tensor->shape[d] < 1 ||
            __builtin_mul_overflow(n_elems, (uint64_t)tensor->shape[d], &n_elems) ||
            n_elems > MAX_ELEMS) {
            return false;
        }
    }
    return tensor->n_shape > 0 && tensor->n_shape <= CSTC_TENSOR_MAX_DIMS &&
           (tensor->n_whole_shape == 0 || tensor->n_whole_shape == tensor->n_shape) &&
           tensor->n_box_first == tensor->n_whole_shape &&
           (tensor->n_box_packed == 0 || tensor->n_box_packed == tensor->n_whole_shape) &&
           tensor->pattern < CST_PATTERN_COUNT && strlen(tensor->name) < CST_LAYOUT_NAME_BYTES &&
           has_rows(tensor);
}

int cstc_content_check(const Cistern__JobDescription *d, struct cst_err *err)
{
    if (d->format != 1) {
        return cst_err_set(err, CST_EINVAL,
                           "a description of format %" PRIu32 ", this version knows format 1",
                           d->format);
    }
    if (d->n_chunk != d->n_tensors || d->n_tensors == 0 || d->n_chunks > d->n_tensors ||
        d->moments >= CST_MOMENTS_COUNT || d->optimizer >= CST_OPTIMIZER_COUNT) {
        return cst_err_set(err, CST_EINVAL,
                           "a description of %zu tensors in %" PRIu32 " chunks, optimizer %" PRIu32
                           ", moments %" PRIu32,
                           d->n_tensors, d->n_chunks, d->optimizer, d->moments);
    }
    for (size_t i = 0; i < d->n_tensors; i++) {
        if (d->chunk[i] >= d->n_chunks || !is_valid(d->tensors[i])) {
            return cst_err_set(err, CST_EINVAL, "the description of tensor %zu is invalid", i);
        }
    }
    return CST_OK;
}

/* Compare the names of two tensors of the description @arg, of which there may be two of one name.
 */
static int compare_names(const void *a, const void *b, void *arg)
{
    const Cistern__JobDescription *d = arg;
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const int order = strcmp(d->tensors[i]->name, d->tensors[k]->name);

    return order != 0 ? order : (i > k) - (i < k);
}

/* Numbers of all tensors in the order of their names. NULL: out of memory. */
static uint32_t *order_of(const Cistern__JobDescription *d)
{
    uint32_t *order = calloc(d->n_tensors, sizeof *order);

    for (uint32_t i = 0; order != NULL && i < d->n_tensors; i++) {
        order[i] = i;
    }
    if (order != NULL) {
        qsort_r(order, d->n_tensors, sizeof *order, compare_names, (void *)(uintptr_t)d);
    }
    return order;
}

struct cst_tensor_words cstc_content_words(const Cistern__TensorDecl *decl)
{
    return (struct cst_tensor_words){.name = decl->name,
                                     .shape = decl->shape,
                                     .n_dims = (uint32_t)decl->n_shape,
                                     .external_names = (const char *const *)decl->external_name,
                                     .external_rows = decl->external_rows,
                                     .n_external = (uint32_t)decl->n_external_name,
                                     .transposed = decl->transposed};
}

/* A file under way, to which entries are added. */
struct filling {
    uint64_t bytes; /* Data so far. */
    uint32_t file;  /* Index; UINT32_MAX: none was begun. */
    uint32_t n;     /* Files of this kind. */
};

/* Append an entry for row @row of tensor @t. */
static struct cstc_content_entry *add(struct cstc_content *content,
                                      const Cistern__JobDescription *d, uint32_t t, uint32_t row,
                                      enum cstc_dtype dtype, const char *suffix)
{
    const Cistern__TensorDecl *tensor = d->tensors[t];
    struct cstc_content_entry *entry = &content->entries[content->n_entries++];

    *entry = (struct cstc_content_entry){
        .tensor = t, .row = row, .dtype = dtype, .n_dims = (uint32_t)tensor->n_shape, .n_elems = 1};
    for (size_t i = 0; i < tensor->n_shape; i++) {
        entry->shape[i] = tensor->shape[i];
        entry->n_elems *= (uint64_t)tensor->shape[i];
    }
    (void)snprintf(entry->name, sizeof entry->name, "%s%s", tensor->name, suffix);
    entry->bytes = cstc_content_bytes(entry, entry->n_elems);
    return entry;
}

/* Append the entries of moment number @i. */
static void add_moment(struct cstc_content *content, const Cistern__JobDescription *d, uint32_t t,
                       unsigned i)
{
    static const enum cstc_dtype dtypes[] = {[CST_MOMENTS_FP32] = CSTC_DTYPE_F32,
                                             [CST_MOMENTS_BF16] = CSTC_DTYPE_BF16,
                                             [CST_MOMENTS_MX8] = CSTC_DTYPE_U8};
    const uint32_t row = CST_ROW_MOMENT + i;
    char name[40];
    struct cstc_content_entry *entry;

    (void)snprintf(name, sizeof name, ".%s", cst_moment_names[i]);
    entry = add(content, d, t, row, dtypes[d->moments], name);
    entry->raw = d->moments != CST_MOMENTS_FP32;
    if (d->moments != CST_MOMENTS_MX8) {
        return;
    }
    (void)snprintf(name, sizeof name, ".%s.exponents", cst_moment_names[i]);
    entry = add(content, d, t, row, CSTC_DTYPE_U8, name);
    entry->raw = entry->exponents = true;
    entry->bytes = cstc_content_bytes(entry, entry->n_elems);
    entry->n_dims = 1;
    entry->shape[0] = (int64_t)entry->bytes;
}

static unsigned n_moments(const Cistern__JobDescription *d, uint32_t t)
{
    return cst_optimizer_n_moments(
        cst_optimizer_of((enum cst_optimizer)d->optimizer, d->tensors[t]->muon));
}

static void add_tensor(struct cstc_content *content, const Cistern__JobDescription *d, uint32_t t,
                       bool fp32)
{
    struct cstc_content_entry *weights;
    bool has_states = cst_pattern((enum cst_pattern_kind)d->tensors[t]->pattern)->has_states;
    bool wide = d->tensors[t]->dtype == CST_FP32;

    /* The base job has the frozen tensors. */
    if (!has_states && d->base_job != NULL) {
        return;
    }
    if (has_states && !wide) {
        (void)add(content, d, t, CST_ROW_MASTER, CSTC_DTYPE_F32, ".master");
    }
    weights = has_states && (fp32 || wide)
                  ? add(content, d, t, CST_ROW_MASTER, CSTC_DTYPE_F32, "")
                  : add(content, d, t, CST_ROW_WEIGHT, wide ? CSTC_DTYPE_F32 : CSTC_DTYPE_BF16, "");
    weights->weights = d->tensors[t];
    for (unsigned i = 0; has_states && i < n_moments(d, t); i++) {
        add_moment(content, d, t, i);
    }
}

static enum cstc_content_kind kind_of(const Cistern__JobDescription *d,
                                      const struct cstc_content_entry *entry)
{
    if (entry->weights == NULL) {
        return CSTC_CONTENT_STATES;
    }
    return d->adapter_config != NULL && cst_pattern(entry->weights->pattern)->has_states
               ? CSTC_CONTENT_ADAPTER
               : CSTC_CONTENT_MODEL;
}

/* Divide the entries into files. */
static void divide(struct cstc_content *content, const Cistern__JobDescription *d,
                   uint64_t file_bytes, struct filling kinds[CSTC_CONTENT_KINDS])
{
    for (uint32_t i = 0; i < content->n_entries; i++) {
        struct cstc_content_entry *entry = &content->entries[i];
        enum cstc_content_kind number = kind_of(d, entry);
        struct filling *kind = &kinds[number];

        if (kind->file == UINT32_MAX ||
            (kind->bytes > 0 && entry->bytes > file_bytes - kind->bytes)) {
            *kind = (struct filling){.file = content->n_files++, .n = kind->n + 1};
            content->files[kind->file].kind = number;
        }
        kind->bytes += entry->bytes < file_bytes ? entry->bytes : file_bytes;
        entry->file = kind->file;
    }
}

/* The names are those that other libraries expect. */
static void name_files(struct cstc_content *content, const struct filling kinds[CSTC_CONTENT_KINDS])
{
    static const char *const names[] = {[CSTC_CONTENT_STATES] = "states",
                                        [CSTC_CONTENT_MODEL] = "model",
                                        [CSTC_CONTENT_ADAPTER] = "adapter_model"};
    uint32_t number[CSTC_CONTENT_KINDS] = {0};

    for (uint32_t i = 0; i < content->n_files; i++) {
        struct cstc_content_file *file = &content->files[i];

        number[file->kind]++;
        if (file->kind != CSTC_CONTENT_STATES && kinds[file->kind].n == 1) {
            (void)snprintf(file->name, sizeof file->name, "%s.safetensors", names[file->kind]);
        } else {
            (void)snprintf(file->name, sizeof file->name, "%s-%05u-of-%05u.safetensors",
                           names[file->kind], number[file->kind], kinds[file->kind].n);
        }
    }
}

/* Check that files can have the tensors of @d, which is valid, under the names that it says. */
static int check_rows(const Cistern__JobDescription *d, struct cst_err *err)
{
    for (size_t i = 0; i < d->n_tensors; i++) {
        if (!has_all_rows(d->tensors[i], d->tensors[i]->shape)) {
            return cst_err_set(err, CST_EINVAL,
                               "the external names of tensor %zu are not those of its rows", i);
        }
    }
    return CST_OK;
}

int cstc_content_make(struct cstc_content *content, const Cistern__JobDescription *description,
                      uint64_t file_bytes, bool fp32, struct cst_err *err)
{
    struct filling kinds[CSTC_CONTENT_KINDS] = {
        {.file = UINT32_MAX}, {.file = UINT32_MAX}, {.file = UINT32_MAX}};
    uint32_t *order;
    int rc = cstc_content_check(description, err);

    rc = rc == CST_OK ? check_rows(description, err) : rc;
    *content = (struct cstc_content){0};
    if (rc != CST_OK) {
        return rc;
    }
    order = order_of(description);
    content->entries = calloc(description->n_tensors * MAX_ROWS, sizeof *content->entries);
    if (order != NULL && content->entries != NULL) {
        for (size_t i = 0; i < description->n_tensors; i++) {
            add_tensor(content, description, order[i], fp32);
        }
        content->files = calloc((size_t)content->n_entries + 1, sizeof *content->files);
    }
    free(order);
    if (content->files == NULL) {
        cstc_content_close(content);
        return cst_err_set(err, CST_ENOMEM, "no memory for the list of a checkpoint's tensors");
    }
    divide(content, description, file_bytes, kinds);
    name_files(content, kinds);
    return CST_OK;
}

bool cstc_content_ends_file(const struct cstc_content *content, uint32_t entry)
{
    const struct cstc_content_entry *this = &content->entries[entry];

    /* Files of one kind follow each other, and entries of all kinds alternate. */
    for (uint32_t i = entry + 1; i < content->n_entries; i++) {
        const struct cstc_content_entry *next = &content->entries[i];

        if (content->files[next->file].kind == content->files[this->file].kind) {
            return next->file != this->file;
        }
    }
    return true;
}

void cstc_content_close(struct cstc_content *content)
{
    free(content->entries);
    free(content->files);
    *content = (struct cstc_content){0};
}

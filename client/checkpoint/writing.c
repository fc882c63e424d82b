/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/writing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most bytes of data in a file. */
#define FILE_BYTES (UINT64_C(4) << 30)

#define INDEX_NAME "model.safetensors.index.json"

enum { MAX_LISTS = 4 }; /* The index, the configurations and the buffers. */

/* -- files ---------------------------------------------------------------------------------- */

/* Add @entry to the header of its file, as its external tensors. */
static int add_to_header(struct cstc_tensor_header *header, const struct cstc_content_entry *entry,
                         struct cst_err *err)
{
    struct cst_tensor_words words;
    struct cstc_weights_part part;
    int rc = CST_OK;

    if (entry->weights == NULL) {
        return cstc_tensor_header_add(header, entry->name, entry->dtype, entry->shape,
                                      entry->n_dims, err);
    }
    words = cstc_content_words(entry->weights);
    for (uint32_t i = 0; rc == CST_OK && i < cstc_weights_count(&words); i++) {
        cstc_weights_part(&words, i, &part);
        rc = cstc_tensor_header_add(header, part.name, entry->dtype, part.shape, part.n_dims, err);
    }
    return rc;
}

/* Make the header of file @f. */
static int write_header(struct cstc_writing *w, uint32_t f, struct cst_err *err)
{
    struct cstc_tensor_header header;
    void *data;
    size_t bytes;
    int rc = cstc_tensor_header_open(&header, err);

    for (uint32_t i = 0; rc == CST_OK && i < w->content.n_entries; i++) {
        const struct cstc_content_entry *entry = &w->content.entries[i];

        if (entry->file == f) {
            rc = add_to_header(&header, entry, err);
        }
    }
    if (rc == CST_OK) {
        rc = cstc_tensor_header_bytes(&header, &data, &bytes, err);
    }
    if (rc == CST_OK) {
        rc = cstc_file_writer_append(w->writers[f], data, bytes, err);
        free(data);
    }
    cstc_tensor_header_close(&header);
    return rc;
}

static struct cstc_manifest_file *new_file(struct cstc_writing *w, const char *name)
{
    struct cstc_manifest_file *file = &w->files[w->n_files++];

    (void)snprintf(file->name, sizeof file->name, "%s", name);
    return file;
}

static int finish_file(struct cstc_writing *w, uint32_t f, struct cst_err *err)
{
    struct cstc_manifest_file *file = new_file(w, w->content.files[f].name);
    struct cstc_file_writer *writer = w->writers[f];
    int rc;

    w->writers[f] = NULL;
    rc = cstc_file_writer_finish(writer, &file->bytes, &file->hash, err);
    w->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

/* List the external tensors of @entry in the index's map, and sum their bytes. False: no memory. */
static bool add_to_index(const struct cstc_writing *w, const struct cstc_content_entry *entry,
                         json_t *map, json_int_t *total)
{
    struct cst_tensor_words words = cstc_content_words(entry->weights);
    struct cstc_weights_part part;

    *total += (json_int_t)entry->bytes;
    for (uint32_t i = 0; i < cstc_weights_count(&words); i++) {
        cstc_weights_part(&words, i, &part);
        if (json_object_set_new(map, part.name, json_string(w->content.files[entry->file].name)) !=
            0) {
            return false;
        }
    }
    return true;
}

/* Write the index of the files with weights, if there are several. */
static int write_index(struct cstc_writing *w, struct cst_err *err)
{
    json_t *map, *all = NULL;
    json_int_t total = 0;
    struct cstc_manifest_file *file;
    uint32_t n_models = 0;
    bool good;
    int rc;

    for (uint32_t f = 0; f < w->content.n_files; f++) {
        n_models += w->content.files[f].kind == CSTC_CONTENT_MODEL;
    }
    if (n_models < 2) {
        return CST_OK;
    }
    map = json_object();
    good = map != NULL;
    for (uint32_t i = 0; good && i < w->content.n_entries; i++) {
        const struct cstc_content_entry *entry = &w->content.entries[i];

        if (w->content.files[entry->file].kind == CSTC_CONTENT_MODEL) {
            good = add_to_index(w, entry, map, &total);
        }
    }
    if (good) {
        all = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", total, "weight_map", map);
    }
    json_decref(map);
    if (all == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory", INDEX_NAME);
    }
    file = new_file(w, INDEX_NAME);
    rc = cstc_json_write(all, w->directory.fd, INDEX_NAME, &file->bytes, &file->hash, err);
    json_decref(all);
    w->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

/* Write the file @name with @bytes of @data. */
static int write_file(struct cstc_writing *w, const char *name, const void *data, size_t bytes,
                      struct cst_err *err)
{
    struct cstc_manifest_file *file = new_file(w, name);
    struct cstc_file_writer *writer;
    int rc = cstc_file_writer_open(&writer, w->directory.fd, name, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cstc_file_writer_append(writer, data, bytes, err);
    if (rc != CST_OK) {
        cstc_file_writer_abandon(writer);
        return rc;
    }
    rc = cstc_file_writer_finish(writer, &file->bytes, &file->hash, err);
    w->bytes += rc == CST_OK ? file->bytes : 0;
    return rc;
}

static int write_text(struct cstc_writing *w, const char *name, const char *text,
                      struct cst_err *err)
{
    return write_file(w, name, text, strlen(text), err);
}

/* Open the file @f and write its header. */
static int begin_file(struct cstc_writing *w, uint32_t f, struct cst_err *err)
{
    int rc = cstc_file_writer_open(&w->writers[f], w->directory.fd, w->content.files[f].name, err);

    return rc == CST_OK ? write_header(w, f, err) : rc;
}

/* Collect weights that are transposed in the file, and append all after the last ones. */
static int append_transposed(struct cstc_writing *w, const struct cstc_content_entry *entry,
                             const struct cstc_joining_data *data, struct cst_err *err)
{
    int rc = CST_OK;

    if (data->first == 0) {
        rc = cstc_transpose_open(&w->transpose, w->directory.fd, (uint64_t)entry->shape[0],
                                 (uint64_t)entry->shape[1], cstc_dtype_bytes(entry->dtype), err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstc_transpose_put(&w->transpose, data->first, data->n_elems, data->data);
    if (data->first + data->n_elems == entry->n_elems) {
        rc = cstc_file_writer_append(w->writers[entry->file], w->transpose.data, w->transpose.bytes,
                                     err);
        cstc_transpose_close(&w->transpose);
    }
    return rc;
}

/* A file is finished with its last entry, so that few are open at a time. */
static int write_data(struct cstc_writing *w, const struct cstc_joining_data *data,
                      struct cst_err *err)
{
    const struct cstc_content_entry *entry = &w->content.entries[data->entry];
    int rc = w->writers[entry->file] == NULL ? begin_file(w, entry->file, err) : CST_OK;

    if (rc == CST_OK && entry->weights != NULL && entry->weights->transposed) {
        rc = append_transposed(w, entry, data, err);
    } else if (rc == CST_OK) {
        rc = cstc_file_writer_append(w->writers[entry->file], data->data, data->bytes, err);
    }
    if (rc == CST_OK && data->first + data->n_elems == entry->n_elems &&
        cstc_content_ends_file(&w->content, data->entry)) {
        rc = finish_file(w, entry->file, err);
    }
    return rc;
}

/* Write what is about all files. */
static int write_lists(struct cstc_writing *w, struct cst_err *err)
{
    const Cistern__JobDescription *d = w->description;
    uint64_t bytes;
    int rc = write_index(w, err);

    if (rc == CST_OK && d->model_config != NULL) {
        rc = write_text(w, CSTC_MODEL_CONFIG_NAME, d->model_config, err);
    }
    if (rc == CST_OK && d->adapter_config != NULL) {
        rc = write_text(w, CSTC_ADAPTER_CONFIG_NAME, d->adapter_config, err);
    }
    if (rc == CST_OK && w->buffers != NULL) {
        rc = write_file(w, CSTC_BUFFERS_NAME, w->buffers, (size_t)w->buffers_bytes, err);
    }
    if (rc == CST_OK) {
        w->manifest = (struct cstc_manifest){.description = w->description,
                                             .files = w->files,
                                             .n_files = w->n_files,
                                             .joined = cstc_wholes_has_parts(w->description)};
        rc = cstc_manifest_write(&w->manifest, w->directory.fd, &bytes, err);
        w->bytes += rc == CST_OK ? bytes : 0;
    }
    return rc;
}

int cstc_writing_open(struct cstc_writing *w, struct cst_err *err)
{
    int rc = cstc_content_check(w->description, err);

    rc = rc == CST_OK ? cstc_wholes_open(&w->wholes, w->description, true, err) : rc;
    if (rc == CST_OK) {
        rc = cstc_content_make(&w->content, &w->wholes.description, FILE_BYTES, w->fp32, err);
    }
    if (rc == CST_OK) {
        rc = cstc_joining_open(&w->joining, &w->content, &w->wholes, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    w->writers = calloc(w->content.n_files, sizeof *w->writers);
    w->files = calloc((size_t)w->content.n_files + MAX_LISTS, sizeof *w->files);
    if (w->writers == NULL || w->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u files", w->content.n_files);
    }
    rc = cstc_directory_begin(&w->directory, w->dir, w->description->name, w->description->step,
                              err);
    w->has_directory = rc == CST_OK;
    return rc;
}

/* -- the end ---------------------------------------------------------------------------------- */

int cstc_writing_take(struct cstc_writing *w, const struct cstc_state_piece *piece,
                      const void *data, struct cst_err *err)
{
    struct cstc_joining_data joined;

    cstc_joining_take(&w->joining, piece, data, &joined);
    return joined.n_elems > 0 ? write_data(w, &joined, err) : CST_OK;
}

int cstc_writing_end(struct cstc_writing *w, struct cst_err *err)
{
    int rc = write_lists(w, err);

    if (rc != CST_OK) {
        return rc;
    }
    w->has_directory = false;
    rc = cstc_directory_commit(&w->directory, err);
    w->whole = rc == CST_OK;
    if (rc == CST_OK && w->keep > 0) {
        rc = cstc_directory_keep(w->dir, w->description->name, w->keep, w->description->step, err);
    }
    return rc;
}

void cstc_writing_close(struct cstc_writing *w)
{
    for (uint32_t f = 0; w->writers != NULL && f < w->content.n_files; f++) {
        cstc_file_writer_abandon(w->writers[f]);
    }
    cstc_transpose_close(&w->transpose);
    if (w->has_directory) {
        cstc_directory_abandon(&w->directory);
    }
    free(w->writers);
    free(w->files);
    cstc_joining_close(&w->joining);
    cstc_content_close(&w->content);
    cstc_wholes_close(&w->wholes);
}

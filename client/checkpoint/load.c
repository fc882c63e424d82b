/* SPDX-License-Identifier: Apache-2.0 */
/* cst_load: all files of a checkpoint are checked, then the states are written in the order of the
 * contents, then the counters are set. */
#include "cistern/checkpoint.h"

#include "client/checkpoint/directory.h"
#include "client/checkpoint/manifest.h"
#include "client/lib/job.h"
#include "client/lib/state_io.h"
#include "proto/optimizers.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct load {
    struct cst_job *job;
    int dirfd;
    struct cstc_manifest manifest;
    struct cstc_content content;
    struct cstc_tensor_file *files; /* The files with tensors. Entries of the content name these. */
    struct cstc_tensor_entry *places; /* Of each entry of states, in its file. */
    struct cstc_weights *weights;     /* Of each entry of weights. */
    uint32_t *tensors;                /* Number in the job of each tensor of the description. */
    uint32_t n_open;                  /* Files that are open. */
    uint32_t entry;                   /* The stream: entry and element of the next piece. */
    uint64_t first;
    uint32_t given; /* Entry of the next piece to fill in. */
};

/* -- checks --------------------------------------------------------------------------------- */

static int check_options(const struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;

    if (d->optimizer != (uint32_t)load->job->optimizer ||
        d->moments != (uint32_t)load->job->moments) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the checkpoint is of optimizer %s with %s moments, the job of %s with "
                           "%s moments",
                           cst_optimizer_names[d->optimizer], cst_moments_names[d->moments],
                           cst_optimizer_names[load->job->optimizer],
                           cst_moments_names[load->job->moments]);
    }
    return CST_OK;
}

static bool same_shape(const Cistern__TensorDecl *a, const struct cst_layout_tensor *b)
{
    return a->n_shape == b->n_dims &&
           memcmp(a->shape, b->shape, b->n_dims * sizeof *b->shape) == 0 &&
           cst_pattern(a->pattern)->has_states == cst_pattern(b->pattern)->has_states;
}

/* Find the tensors of the checkpoint in the job. */
static int match_tensors(struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;
    const struct cst_model *model = &load->job->model;

    load->tensors = calloc(d->n_tensors, sizeof *load->tensors);
    if (load->tensors == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    for (size_t i = 0; i < d->n_tensors; i++) {
        uint32_t t = cst_model_find(model, d->tensors[i]->name);

        if (t == UINT32_MAX || !same_shape(d->tensors[i], &model->tensors[t])) {
            return cst_err_set(
                err, CST_EMISMATCH, "tensor '%s' of the checkpoint %s", d->tensors[i]->name,
                t == UINT32_MAX ? "is not in the job" : "has another shape or pattern in the job");
        }
        load->tensors[i] = t;
    }
    if (d->n_tensors != model->n_tensors) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the checkpoint has %zu tensors, the job has %" PRIu32, d->n_tensors,
                           model->n_tensors);
    }
    return CST_OK;
}

/* Find @entry in one of the files. */
static int find_entry(const struct load *load, struct cstc_content_entry *entry,
                      struct cstc_tensor_entry *out, struct cst_err *err)
{
    int rc = CST_ENOTFOUND;

    for (uint32_t f = 0; rc == CST_ENOTFOUND && f < load->n_open; f++) {
        entry->file = f;
        rc = cstc_tensor_file_find(&load->files[f], entry->name, out, err);
    }
    if (rc == CST_ENOTFOUND) {
        rc = cst_err_set(err, CST_EINVAL, "no file of the checkpoint has the tensor '%s'",
                         entry->name);
    } else if (rc == CST_OK && (out->dtype != entry->dtype || out->bytes != entry->bytes)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s: tensor '%s' has %" PRIu64 " bytes, %" PRIu64 " are expected",
                         load->files[entry->file].name, entry->name, out->bytes, entry->bytes);
    }
    return rc;
}

static int find_weights(const struct load *load, const struct cstc_content_entry *entry,
                        struct cstc_weights *out, struct cst_err *err)
{
    struct cst_tensor_words words = cstc_content_words(entry->weights);

    return cstc_weights_find(out, &words, load->files, load->n_open, NULL, err);
}

static int find_entries(struct load *load, struct cst_err *err)
{
    int rc = CST_OK;

    load->places = calloc((size_t)load->content.n_entries + 1, sizeof *load->places);
    load->weights = calloc((size_t)load->content.n_entries + 1, sizeof *load->weights);
    if (load->places == NULL || load->weights == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of tensors");
    }
    for (uint32_t i = 0; rc == CST_OK && i < load->content.n_entries; i++) {
        struct cstc_content_entry *entry = &load->content.entries[i];

        rc = entry->weights != NULL ? find_weights(load, entry, &load->weights[i], err)
                                    : find_entry(load, entry, &load->places[i], err);
    }
    return rc;
}

static bool has_tensors(const char *name)
{
    const char *suffix = strrchr(name, '.');

    return suffix != NULL && strcmp(suffix, ".safetensors") == 0;
}

/* Open all files with tensors, and check their headers. */
static int open_files(struct load *load, struct cst_err *err)
{
    const struct cstc_manifest *manifest = &load->manifest;
    int rc = CST_OK;

    load->files = calloc((size_t)manifest->n_files + 1, sizeof *load->files);
    if (load->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of files");
    }
    for (uint32_t i = 0; rc == CST_OK && i < manifest->n_files; i++) {
        if (has_tensors(manifest->files[i].name)) {
            rc = cstc_tensor_file_open(&load->files[load->n_open], load->dirfd,
                                       manifest->files[i].name, err);
            load->n_open += rc == CST_OK;
        }
    }
    return rc == CST_ENOTFOUND ? CST_EINVAL : rc;
}

/* Everything that can be wrong with the checkpoint is found here. */
static int check_all(struct load *load, struct cst_err *err)
{
    int rc = cstc_manifest_read(&load->manifest, load->dirfd, err);

    if (rc == CST_OK) {
        rc = cstc_manifest_check(&load->manifest, load->dirfd, true, err);
    }
    if (rc == CST_OK) {
        rc = cstc_content_make(&load->content, load->manifest.description, UINT64_MAX, false, err);
    }
    if (rc == CST_OK) {
        rc = check_options(load, err);
    }
    if (rc == CST_OK) {
        rc = match_tensors(load, err);
    }
    if (rc == CST_OK) {
        rc = open_files(load, err);
    }
    return rc == CST_OK ? find_entries(load, err) : rc;
}

/* -- the stream of states ------------------------------------------------------------------- */

/* With gradients in weight rows, or if the model files have fp32, the weights are made from the
 * master weights alone. */
static bool is_written(const struct load *load, uint32_t i)
{
    const struct cstc_content_entry *entry = &load->content.entries[i];
    uint32_t t = load->tensors[entry->tensor];

    return entry->weights == NULL ||
           !cst_pattern(load->job->model.tensors[t].pattern)->has_states ||
           (!load->job->grad_over_weight &&
            load->weights[i].parts[0].place.dtype == CSTC_DTYPE_BF16);
}

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct load *load = arg;
    const struct cstc_content_entry *entry;

    while (load->entry < load->content.n_entries && !is_written(load, load->entry)) {
        load->entry++;
    }
    if (load->entry == load->content.n_entries) {
        return false;
    }
    entry = &load->content.entries[load->entry];
    *out = cstc_content_piece(entry, load->first, cstc_state_most(load->job->client));
    out->tensor = load->tensors[entry->tensor];
    load->given = load->entry;
    load->first += out->n_elems;
    if (load->first == entry->n_elems) {
        load->first = 0;
        load->entry++;
    }
    return true;
}

/* Called right after next_piece. */
static int read_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                      struct cst_err *err)
{
    struct load *load = arg;
    const struct cstc_content_entry *entry = &load->content.entries[load->given];

    if (entry->weights != NULL) {
        return cstc_weights_read(&load->weights[load->given], piece->first, piece->n_elems,
                                 CSTC_DTYPE_BF16, data, err);
    }
    return cstc_tensor_file_read(&load->files[entry->file],
                                 load->places[load->given].begin +
                                     cstc_content_bytes(entry, piece->first),
                                 data, piece->bytes, err);
}

static int restore(const struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;
    Cistern__Restore msg = CISTERN__RESTORE__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.step = d->step;
    msg.adam_step = d->adam_step;
    msg.n_skipped = d->n_skipped;
    msg.n_overflows = d->n_overflows;
    rc = cstc_call_sync(load->job->client, &call, CISTERN__MSG_TYPE__MSG_RESTORE, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    if (rc == CST_OK) {
        cstc_call_reset(&call);
        load->job->steps = d->step;
        load->job->initialised = true;
    }
    return rc;
}

static int write_states(struct load *load, struct cst_err *err)
{
    struct cstc_state_stream stream = {.next = next_piece, .data = read_piece, .arg = load};
    int rc = cstc_state_open(load->job->client, err);

    if (rc == CST_OK) {
        rc = cstc_states_write(load->job->client, &stream, err);
    }
    return rc == CST_OK ? restore(load, err) : rc;
}

static void close_load(struct load *load)
{
    for (uint32_t f = 0; f < load->n_open; f++) {
        cstc_tensor_file_close(&load->files[f]);
    }
    free(load->files);
    for (uint32_t i = 0; load->weights != NULL && i < load->content.n_entries; i++) {
        cstc_weights_close(&load->weights[i]);
    }
    free(load->weights);
    free(load->places);
    free(load->tensors);
    cstc_content_close(&load->content);
    cstc_manifest_close(&load->manifest);
    (void)close(load->dirfd);
}

int cst_load(struct cst_job *job, const char *path, uint64_t *step, struct cst_err *err)
{
    struct load load = {.job = job};
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && path == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "cst_load needs a path");
    }
    if (rc == CST_OK) {
        rc = cstc_directory_open(path, &load.dirfd, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = check_all(&load, err);
    if (rc == CST_OK) {
        rc = write_states(&load, err);
    }
    if (rc == CST_OK && step != NULL) {
        *step = job->steps;
    }
    close_load(&load);
    return rc;
}

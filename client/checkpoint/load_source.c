/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/load_source.h"

#include "proto/optimizers.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int check_options(const struct cstc_load_source *source, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;

    return d->optimizer == (uint32_t)source->job->optimizer
               ? CST_OK
               : cst_err_set(err, CST_EMISMATCH, "the checkpoint is of optimizer %s, the job of %s",
                             cst_optimizer_names[d->optimizer],
                             cst_optimizer_names[source->job->optimizer]);
}

static bool same_shape(const Cistern__TensorDecl *a, const struct cst_layout_tensor *b)
{
    return a->n_shape == b->n_dims &&
           memcmp(a->shape, b->shape, b->n_dims * sizeof *b->shape) == 0 &&
           cst_pattern(a->pattern)->has_states == cst_pattern(b->pattern)->has_states;
}

/* Find tensor @i of the checkpoint in the job. *@seen: whether it was found before. */
static int match_tensor(struct cstc_load_source *source, size_t i, bool *seen, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;
    const struct cst_model *model = &source->job->model;
    const char *name = d->tensors[i]->name;
    uint32_t t = cst_model_find(model, name);

    if (t == UINT32_MAX || !same_shape(d->tensors[i], &model->tensors[t])) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s' of the checkpoint %s", name,
                           t == UINT32_MAX ? "is not in the job"
                                           : "has another shape or pattern in the job");
    }
    if (seen[t]) {
        return cst_err_set(err, CST_EINVAL, "the checkpoint describes tensor '%s' twice", name);
    }
    /* A job with a base has no frozen tensors of its own. */
    if ((d->base_job != NULL) != source->job->has_base &&
        !cst_pattern(model->tensors[t].pattern)->has_states) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' is frozen: the %s has it, the %s leaves it to a base job",
                           name, source->job->has_base ? "checkpoint" : "job",
                           source->job->has_base ? "job" : "checkpoint");
    }
    seen[t] = true;
    source->tensors[i] = t;
    return CST_OK;
}

/* Find the tensors of the checkpoint in the job. */
static int match_tensors(struct cstc_load_source *source, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;
    const struct cst_model *model = &source->job->model;
    bool *seen = calloc((size_t)model->n_tensors + 1, sizeof *seen);
    int rc = CST_OK;

    source->tensors = calloc(d->n_tensors, sizeof *source->tensors);
    if (source->tensors == NULL || seen == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    for (size_t i = 0; rc == CST_OK && i < d->n_tensors; i++) {
        rc = match_tensor(source, i, seen, err);
    }
    free(seen);
    if (rc == CST_OK && d->n_tensors != model->n_tensors) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the checkpoint has %zu tensors, the job has %" PRIu32, d->n_tensors,
                           model->n_tensors);
    }
    return rc;
}

/* Order the steps that tensors have missed as the job's tensors are, which were found. */
static int match_missed(struct cstc_load_source *source, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;

    if (!source->job->unused.skips || d->n_missed == 0) {
        return CST_OK;
    }
    source->missed = calloc(d->n_tensors, sizeof *source->missed);
    if (source->missed == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    source->n_missed = d->n_tensors;
    for (size_t i = 0; i < d->n_tensors && i < d->n_missed; i++) {
        source->missed[source->tensors[i]] = d->missed[i];
    }
    return CST_OK;
}

/* Find @entry in one of the files with states. */
static int find_entry(const struct cstc_load_source *source, struct cstc_content_entry *entry,
                      struct cstc_tensor_entry *out, struct cst_err *err)
{
    int rc = CST_ENOTFOUND;

    for (uint32_t f = source->n_models; rc == CST_ENOTFOUND && f < source->n_open; f++) {
        entry->file = f;
        rc = cstc_tensor_file_find(&source->files[f], entry->name, out, err);
    }
    if (rc == CST_ENOTFOUND) {
        rc = cst_err_set(err, CST_EINVAL, "no file of the checkpoint has the tensor '%s'",
                         entry->name);
    } else if (rc == CST_OK && (out->dtype != entry->dtype || out->bytes != entry->bytes)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s: tensor '%s' has %" PRIu64 " bytes, %" PRIu64 " are expected",
                         source->files[entry->file].name, entry->name, out->bytes, entry->bytes);
    }
    return rc;
}

static int find_weights(const struct cstc_load_source *source,
                        const struct cstc_content_entry *entry, struct cstc_weights *out,
                        struct cst_err *err)
{
    struct cst_tensor_words words = cstc_content_words(entry->weights);

    return cstc_weights_find(out, &words, source->files, source->n_models, NULL, err);
}

static int find_entries(struct cstc_load_source *source, struct cst_err *err)
{
    int rc = CST_OK;

    source->places = calloc((size_t)source->content.n_entries + 1, sizeof *source->places);
    source->weights = calloc((size_t)source->content.n_entries + 1, sizeof *source->weights);
    if (source->places == NULL || source->weights == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of tensors");
    }
    for (uint32_t i = 0; rc == CST_OK && i < source->content.n_entries; i++) {
        struct cstc_content_entry *entry = &source->content.entries[i];

        rc = entry->weights != NULL ? find_weights(source, entry, &source->weights[i], err)
                                    : find_entry(source, entry, &source->places[i], err);
    }
    return rc;
}

/* Returns whether the file @name has tensors of the job: buffers are none. */
static bool has_tensors(const char *name)
{
    const char *suffix = strrchr(name, '.');

    return suffix != NULL && strcmp(suffix, ".safetensors") == 0 &&
           strcmp(name, CSTC_BUFFERS_NAME) != 0;
}

static bool has_states(const char *name)
{
    return strncmp(name, "states-", 7) == 0;
}

/* Open the files with tensors that have @states, or those that have weights, and check their
 * headers. */
static int open_kind(struct cstc_load_source *source, bool states, struct cst_err *err)
{
    const struct cstc_manifest *manifest = &source->manifest;
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < manifest->n_files; i++) {
        if (has_tensors(manifest->files[i].name) && has_states(manifest->files[i].name) == states) {
            rc = cstc_tensor_file_open(&source->files[source->n_open], source->dirfd,
                                       manifest->files[i].name, err);
            source->n_open += rc == CST_OK;
        }
    }
    return rc == CST_ENOTFOUND ? CST_EINVAL : rc;
}

/* Open all files with tensors. Those with states are apart from those with weights, because a state
 * of one tensor can have the name of another tensor. */
static int open_files(struct cstc_load_source *source, struct cst_err *err)
{
    int rc;

    source->files = calloc((size_t)source->manifest.n_files + 1, sizeof *source->files);
    if (source->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of files");
    }
    rc = open_kind(source, false, err);
    source->n_models = source->n_open;
    return rc == CST_OK ? open_kind(source, true, err) : rc;
}

/* Read the manifest and check all files. Errors name the file, so @path is added. */
static int check_files(struct cstc_load_source *source, const char *path, struct cst_err *err)
{
    struct cst_err why = {0};
    int rc = cstc_manifest_read(&source->manifest, source->dirfd, &why);

    if (rc == CST_OK) {
        rc = cstc_manifest_check(&source->manifest, source->dirfd, true, &why);
    }
    return rc == CST_OK ? CST_OK : cst_err_set(err, rc, "%.128s: %s", path, why.text);
}

/* Everything that can be wrong with the checkpoint is found here. */
static int check_all(struct cstc_load_source *source, const char *path, struct cst_err *err)
{
    int rc = check_files(source, path, err);

    if (rc == CST_OK) {
        rc = cstc_content_make(&source->content, source->manifest.description, UINT64_MAX, false,
                               err);
    }
    if (rc == CST_OK) {
        rc = check_options(source, err);
    }
    if (rc == CST_OK) {
        rc = match_tensors(source, err);
    }
    if (rc == CST_OK) {
        rc = match_missed(source, err);
    }
    if (rc == CST_OK) {
        rc = open_files(source, err);
    }
    if (rc == CST_OK) {
        rc = find_entries(source, err);
    }
    source->converts =
        rc == CST_OK && source->manifest.description->moments != (uint32_t)source->job->moments;
    return rc;
}

int cstc_load_source_open(struct cstc_load_source *source, struct cst_job *job, const char *path,
                          struct cst_err *err)
{
    int rc;

    *source = (struct cstc_load_source){.job = job, .dirfd = -1};
    rc = cstc_listing_open(path, &source->dirfd, source->warning, err);
    if (rc == CST_OK) {
        rc = check_all(source, path, err);
    }
    if (rc != CST_OK) {
        cstc_load_source_close(source);
    }
    return rc;
}

void cstc_load_source_close(struct cstc_load_source *source)
{
    for (uint32_t f = 0; f < source->n_open; f++) {
        cstc_tensor_file_close(&source->files[f]);
    }
    free(source->files);
    for (uint32_t i = 0; source->weights != NULL && i < source->content.n_entries; i++) {
        cstc_weights_close(&source->weights[i]);
    }
    free(source->weights);
    free(source->places);
    free(source->tensors);
    free(source->missed);
    cstc_content_close(&source->content);
    cstc_manifest_close(&source->manifest);
    if (source->dirfd >= 0) {
        (void)close(source->dirfd);
    }
    *source = (struct cstc_load_source){.dirfd = -1};
}

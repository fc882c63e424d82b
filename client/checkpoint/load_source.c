/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/load_source.h"

#include "offload/layout/box.h"
#include "offload/layout/wholes.h"
#include "proto/optimizers.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int check_options(struct cstc_load_source *source, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;

    return d->optimizer == (uint32_t)source->job->optimizer
               ? CST_OK
               : cst_err_set(err, CST_EMISMATCH,
                             "the checkpoint is of optimizer %s, the job of %s: give the job %s",
                             cst_optimizer_names[d->optimizer],
                             cst_optimizer_names[source->job->optimizer],
                             cst_optimizer_names[d->optimizer]);
}

/* -- places in the job ------------------------------------------------------------------------ */

static bool has_states(uint32_t pattern)
{
    return cst_pattern(pattern)->has_states;
}

/* True if tensor @whole of @mine, the wholes of the job, is the whole of @words. */
static bool is_whole_of(const struct cst_model *mine, uint32_t whole,
                        const struct cst_tensor_words *words)
{
    const struct cst_layout_tensor *t = &mine->tensors[whole];
    bool same = t->n_dims == words->n_dims;

    for (uint32_t d = 0; same && d < words->n_dims; d++) {
        same = cst_box_whole_dim(t, d) == (words->whole != NULL ? words->whole : words->shape)[d];
    }
    return same;
}

/* True if tensor @t of the job can be @words: a checkpoint of an earlier version has parts under
 * their own names, and perhaps does not say what they are parts of. */
static bool is_same(const struct cst_layout_tensor *t, const struct cst_tensor_words *words)
{
    return t->n_dims == words->n_dims &&
           memcmp(t->shape, words->shape, t->n_dims * sizeof *t->shape) == 0 &&
           has_states(t->pattern) == has_states(words->pattern);
}

/* Describe tensor @i of the files at its place in the job: in the whole of its name or, if the job
 * has no such whole, where the job's tensor of its own name is. @mine: the wholes of the job. */
static struct cst_tensor_words words_in_job(const struct cstc_load_source *source,
                                            const struct cst_model *mine, uint32_t i)
{
    const struct cst_model *model = &source->job->model;
    const Cistern__TensorDecl *decl = source->wholes.list[i];
    struct cst_tensor_words words = cst_model_words(&source->wholes.files, i);
    uint32_t whole, t = cst_model_find(model, words.name);

    words.n_external = 0;
    words.transposed = false;
    words.update = CST_TENSOR_UPDATE_AUTO;
    words.whole_name = words.whole != NULL ? decl->whole_name : NULL;
    whole = cst_model_find(mine, words.whole_name != NULL ? words.whole_name : words.name);
    if ((whole == UINT32_MAX || !is_whole_of(mine, whole, &words)) && t != UINT32_MAX &&
        is_same(&model->tensors[t], &words)) {
        const struct cst_tensor_words there = cst_model_words(model, t);

        words.pattern = there.pattern;
        words.whole_name = there.whole_name;
        words.whole = there.whole;
        words.first = there.first;
        words.packed = there.packed;
        whole = cst_model_find(mine, cst_box_whole_name(&model->tensors[t]));
    }
    /* Weights and master weights are converted. */
    words.dtype = whole != UINT32_MAX ? mine->tensors[whole].dtype : words.dtype;
    return words;
}

/* Make source->from. */
static int place_tensors(struct cstc_load_source *source, const struct cst_model *mine,
                         struct cst_err *err)
{
    int rc = CST_OK;

    cst_model_init(&source->from);
    for (uint32_t i = 0; rc == CST_OK && i < source->wholes.files.n_tensors; i++) {
        const struct cst_tensor_words words = words_in_job(source, mine, i);

        rc = cst_model_tensor(&source->from, &words, err);
    }
    return rc;
}

enum { SHAPE_TEXT = 96 };

/* Write the shape of the tensor as "256x64". Returns @out. */
static const char *shape_text(const struct cst_layout_tensor *t, char out[SHAPE_TEXT])
{
    size_t n = 0;

    out[0] = '\0';
    for (uint32_t d = 0; d < t->n_dims && n < SHAPE_TEXT; d++) {
        n += (size_t)snprintf(out + n, SHAPE_TEXT - n, "%s%" PRId64, d > 0 ? "x" : "", t->shape[d]);
    }
    return out;
}

static bool same_shape(const struct cst_layout_tensor *a, const struct cst_layout_tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, a->n_dims * sizeof *a->shape) == 0;
}

/* Set the error for the tensor @theirs of the checkpoint, which is @mine in the job. */
static int tensors_differ(const struct cst_layout_tensor *theirs,
                          const struct cst_layout_tensor *mine, struct cst_err *err)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];

    return same_shape(theirs, mine)
               ? cst_err_set(err, CST_EMISMATCH,
                             "tensor '%s' is %s in the checkpoint and %s in the job, or another "
                             "part of a larger tensor",
                             theirs->name, cst_pattern(theirs->pattern)->name,
                             cst_pattern(mine->pattern)->name)
               : cst_err_set(
                     err, CST_EMISMATCH,
                     "tensor '%s' has the shape %s in the checkpoint and %s in the job: give "
                     "the job the sizes of the model that was saved",
                     theirs->name, shape_text(theirs, a), shape_text(mine, b));
}

/* Compare the whole @theirs of the checkpoint with that of the job. */
static int compare_whole(const struct cstc_load_source *source, const struct cst_model *mine,
                         const struct cst_layout_tensor *theirs, struct cst_err *err)
{
    const bool has_base = source->manifest.description->base_job != NULL;
    uint32_t whole = cst_model_find(mine, theirs->name);
    const struct cst_layout_tensor *t = whole != UINT32_MAX ? &mine->tensors[whole] : NULL;

    if (t == NULL) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s' of the checkpoint is not in the job",
                           theirs->name);
    }
    if (!cst_box_same_whole(t, theirs) || !cst_box_same(t, theirs) ||
        has_states(t->pattern) != has_states(theirs->pattern)) {
        return tensors_differ(theirs, t, err);
    }
    /* A job with a base has no frozen tensors of its own. */
    if (has_base != source->job->has_base && !has_states(t->pattern)) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' is frozen: the %s has it, the %s leaves it to a base job",
                           t->name, source->job->has_base ? "checkpoint" : "job",
                           source->job->has_base ? "job" : "checkpoint");
    }
    return CST_OK;
}

/* Check that all parts of a whole have the same rows in the files. of[i] is the number of the whole
 * of tensor i of the files, of which there are @n_wholes. */
static int compare_rows(const struct cstc_load_source *source, const uint32_t *of,
                        uint32_t n_wholes, struct cst_err *err)
{
    const Cistern__TensorDecl **first = calloc((size_t)n_wholes + 1, sizeof(void *));
    int rc = first != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory to join tensors");

    for (uint32_t i = 0; rc == CST_OK && i < source->from.n_tensors; i++) {
        const Cistern__TensorDecl *decl = source->wholes.list[i], *other = first[of[i]];

        if (other == NULL) {
            first[of[i]] = decl;
        } else if ((decl->dtype == CST_FP32) != (other->dtype == CST_FP32)) {
            rc = cst_err_set(err, CST_EMISMATCH,
                             "'%s' and '%s' of the checkpoint are parts of one tensor, and only "
                             "one of them is fp32",
                             other->name, decl->name);
        } else if (decl->muon != other->muon) {
            rc = cst_err_set(err, CST_EMISMATCH,
                             "'%s' and '%s' of the checkpoint are parts of one tensor, and Muon "
                             "updates only one of them",
                             other->name, decl->name);
        }
    }
    free(first);
    return rc;
}

/* Check that the wholes of the checkpoint are those of the job, @mine. */
static int compare_wholes(const struct cstc_load_source *source, const struct cst_model *mine,
                          struct cst_err *err)
{
    uint32_t *of = calloc((size_t)source->from.n_tensors + 1, sizeof *of);
    struct cst_model theirs;
    struct cst_err why = {0};
    int rc;

    if (of == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to join tensors");
    }
    rc = cst_wholes_open(&theirs, &source->from, of, &why);
    if (rc != CST_OK) {
        free(of);
        return cst_err_set(err, rc, "the checkpoint does not fit the job: %.500s", why.text);
    }
    rc = compare_rows(source, of, theirs.n_tensors, err);
    free(of);
    for (uint32_t i = 0; rc == CST_OK && i < theirs.n_tensors; i++) {
        rc = compare_whole(source, mine, &theirs.tensors[i], err);
    }
    if (rc == CST_OK && theirs.n_tensors != mine->n_tensors) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "the checkpoint has %" PRIu32 " tensors, the job has %" PRIu32,
                         theirs.n_tensors, mine->n_tensors);
    }
    cst_model_close(&theirs);
    return rc;
}

/* Find the tensors of the files in the job. */
static int match_tensors(struct cstc_load_source *source, struct cst_err *err)
{
    struct cst_model mine;
    int rc = cst_wholes_open(&mine, &source->job->model, NULL, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = place_tensors(source, &mine, err);
    if (rc == CST_OK) {
        rc = compare_wholes(source, &mine, err);
    }
    if (rc == CST_OK) {
        rc = cst_reshard_open(&source->way, &source->from, &source->job->model, err);
    }
    cst_model_close(&mine);
    return rc;
}

/* Find the steps that the job's tensors have missed: as many as the tensor of the saved job that
 * has their first elements. */
static int match_missed(struct cstc_load_source *source, struct cst_err *err)
{
    const Cistern__JobDescription *d = source->manifest.description;
    const uint32_t n = source->job->model.n_tensors;

    if (!source->job->unused.skips || d->n_missed == 0) {
        return CST_OK;
    }
    source->missed = calloc((size_t)n + 1, sizeof *source->missed);
    if (source->missed == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " tensors", n);
    }
    source->n_missed = n;
    for (uint32_t t = 0; t < n; t++) {
        const struct cst_reshard_run run = cst_reshard_run(&source->way, t, 0, 1);
        const uint32_t saved =
            cst_reshard_run(&source->wholes.way, run.tensor, run.first, 1).tensor;

        source->missed[t] = saved < d->n_missed ? d->missed[saved] : 0;
    }
    return CST_OK;
}

/* True if a tensor that @way leads to has blocks of moments that are not those of its origin. */
static bool divides(const struct cst_reshard *way)
{
    bool any = false;

    for (uint32_t t = 0; !any && t < way->to->n_tensors; t++) {
        any = has_states(way->to->tensors[t].pattern) &&
              !cst_reshard_keeps_blocks(way, t, CST_MX8_BLOCK);
    }
    return any;
}

/* Say whether moments keep their bits. */
static void compare_moments(struct cstc_load_source *source)
{
    const uint32_t moments = source->manifest.description->moments;

    source->converts = moments != (uint32_t)source->job->moments;
    source->divides =
        moments == CST_MOMENTS_MX8 && (divides(&source->way) || divides(&source->wholes.way));
}

/* -- places in the files ---------------------------------------------------------------------- */

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
    source->entries = malloc(source->wholes.files.n_tensors * sizeof *source->entries);
    if (source->places == NULL || source->weights == NULL || source->entries == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of tensors");
    }
    memset(source->entries, 0xff, source->wholes.files.n_tensors * sizeof *source->entries);
    for (uint32_t i = 0; rc == CST_OK && i < source->content.n_entries; i++) {
        struct cstc_content_entry *entry = &source->content.entries[i];

        if (source->entries[entry->tensor] == UINT32_MAX) {
            source->entries[entry->tensor] = i;
        }
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

static bool is_of_states(const char *name)
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
        if (has_tensors(manifest->files[i].name) &&
            is_of_states(manifest->files[i].name) == states) {
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

/* Find out which tensors the files have. What contradicts itself was altered. */
static int make_content(struct cstc_load_source *source, struct cst_err *err)
{
    const struct cstc_manifest *manifest = &source->manifest;
    struct cst_err why = {0};
    int rc = cstc_content_check(manifest->description, &why);

    if (rc == CST_OK) {
        rc = cstc_wholes_open(&source->wholes, manifest->description, manifest->joined, &why);
    }
    if (rc == CST_OK) {
        rc = cstc_content_make(&source->content, &source->wholes.description, UINT64_MAX, false,
                               &why);
    }
    rc = rc == CST_OK || rc == CST_ENOMEM ? rc : CST_EINVAL;
    return rc == CST_OK ? rc : cst_err_set(err, rc, "%s: %.500s", CSTC_MANIFEST_NAME, why.text);
}

/* Everything that can be wrong with the checkpoint is found here. */
static int check_all(struct cstc_load_source *source, const char *path, struct cst_err *err)
{
    static int (*const checks[])(struct cstc_load_source *, struct cst_err *) = {
        make_content, check_options, match_tensors, match_missed, open_files, find_entries};
    int rc = check_files(source, path, err);

    for (size_t i = 0; rc == CST_OK && i < sizeof checks / sizeof checks[0]; i++) {
        rc = checks[i](source, err);
    }
    if (rc == CST_OK) {
        compare_moments(source);
    }
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
    free(source->entries);
    free(source->missed);
    cst_reshard_close(&source->way);
    cst_model_close(&source->from);
    cstc_content_close(&source->content);
    cstc_wholes_close(&source->wholes);
    cstc_manifest_close(&source->manifest);
    if (source->dirfd >= 0) {
        (void)close(source->dirfd);
    }
    *source = (struct cstc_load_source){.dirfd = -1};
}

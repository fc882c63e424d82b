/* SPDX-License-Identifier: Apache-2.0 */
/* cst_load: all files of a checkpoint are checked, then the states are written in the order of the
 * contents, then the counters are set. */
#include "cistern/checkpoint.h"

#include "client/checkpoint/differences.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/manifest.h"
#include "client/lib/job.h"
#include "client/lib/state_io.h"
#include "client/lib/task.h"
#include "kernels/math/moments.h"
#include "proto/optimizers.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the load waits for. */
enum phase { MAPPED, WRITTEN, MISSED, RESTORED };

struct load {
    struct cstc_task task;
    struct cst_job *job;
    enum phase phase;
    struct cstc_call call; /* Of this phase. */
    struct cstc_state_run run;
    int dirfd;
    char warning[CSTC_LISTING_WARNING_BYTES]; /* About the directory. */
    struct cstc_manifest manifest;
    struct cstc_content content;
    struct cstc_tensor_file *files; /* The files with tensors. Entries of the content name these. */
    struct cstc_tensor_entry *places; /* Of each entry of states, in its file. */
    struct cstc_weights *weights;     /* Of each entry of weights. */
    uint32_t *tensors;                /* Number in the job of each tensor of the description. */
    /* If the job and the checkpoint count the steps of each tensor: those that it has missed, by
     * its number in the job; otherwise NULL. */
    uint64_t *missed;
    size_t n_missed, n_told; /* Numbers in `missed`, and of those that the daemon was told. */
    bool tells;              /* There are messages about them to send. */
    uint32_t n_open;         /* Files that are open. */
    uint32_t n_models;       /* The first ones of these, which have weights. */
    bool converts;           /* The job has another format of moments. */
    uint32_t entry;          /* The stream: entry and element of the next piece. */
    uint64_t first;
    uint32_t given; /* Entry of the next piece to fill in. */
};

/* -- checks --------------------------------------------------------------------------------- */

static int check_options(const struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;

    return d->optimizer == (uint32_t)load->job->optimizer
               ? CST_OK
               : cst_err_set(err, CST_EMISMATCH, "the checkpoint is of optimizer %s, the job of %s",
                             cst_optimizer_names[d->optimizer],
                             cst_optimizer_names[load->job->optimizer]);
}

static bool same_shape(const Cistern__TensorDecl *a, const struct cst_layout_tensor *b)
{
    return a->n_shape == b->n_dims &&
           memcmp(a->shape, b->shape, b->n_dims * sizeof *b->shape) == 0 &&
           cst_pattern(a->pattern)->has_states == cst_pattern(b->pattern)->has_states;
}

/* Find tensor @i of the checkpoint in the job. *@seen: whether it was found before. */
static int match_tensor(struct load *load, size_t i, bool *seen, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;
    const struct cst_model *model = &load->job->model;
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
    if ((d->base_job != NULL) != load->job->has_base &&
        !cst_pattern(model->tensors[t].pattern)->has_states) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' is frozen: the %s has it, the %s leaves it to a base job",
                           name, load->job->has_base ? "checkpoint" : "job",
                           load->job->has_base ? "job" : "checkpoint");
    }
    seen[t] = true;
    load->tensors[i] = t;
    return CST_OK;
}

/* Find the tensors of the checkpoint in the job. */
static int match_tensors(struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;
    const struct cst_model *model = &load->job->model;
    bool *seen = calloc((size_t)model->n_tensors + 1, sizeof *seen);
    int rc = CST_OK;

    load->tensors = calloc(d->n_tensors, sizeof *load->tensors);
    if (load->tensors == NULL || seen == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    for (size_t i = 0; rc == CST_OK && i < d->n_tensors; i++) {
        rc = match_tensor(load, i, seen, err);
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
static int match_missed(struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;

    load->tells = load->job->unused.skips;
    if (!load->tells || d->n_missed == 0) {
        return CST_OK;
    }
    load->missed = calloc(d->n_tensors, sizeof *load->missed);
    if (load->missed == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %zu tensors", d->n_tensors);
    }
    load->n_missed = d->n_tensors;
    for (size_t i = 0; i < d->n_tensors && i < d->n_missed; i++) {
        load->missed[load->tensors[i]] = d->missed[i];
    }
    return CST_OK;
}

/* Find @entry in one of the files with states. */
static int find_entry(const struct load *load, struct cstc_content_entry *entry,
                      struct cstc_tensor_entry *out, struct cst_err *err)
{
    int rc = CST_ENOTFOUND;

    for (uint32_t f = load->n_models; rc == CST_ENOTFOUND && f < load->n_open; f++) {
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

    return cstc_weights_find(out, &words, load->files, load->n_models, NULL, err);
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
static int open_kind(struct load *load, bool states, struct cst_err *err)
{
    const struct cstc_manifest *manifest = &load->manifest;
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < manifest->n_files; i++) {
        if (has_tensors(manifest->files[i].name) && has_states(manifest->files[i].name) == states) {
            rc = cstc_tensor_file_open(&load->files[load->n_open], load->dirfd,
                                       manifest->files[i].name, err);
            load->n_open += rc == CST_OK;
        }
    }
    return rc == CST_ENOTFOUND ? CST_EINVAL : rc;
}

/* Open all files with tensors. Those with states are apart from those with weights, because a state
 * of one tensor can have the name of another tensor. */
static int open_files(struct load *load, struct cst_err *err)
{
    int rc;

    load->files = calloc((size_t)load->manifest.n_files + 1, sizeof *load->files);
    if (load->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of files");
    }
    rc = open_kind(load, false, err);
    load->n_models = load->n_open;
    return rc == CST_OK ? open_kind(load, true, err) : rc;
}

/* Read the manifest and check all files. Errors name the file, so @path is added. */
static int check_files(struct load *load, const char *path, struct cst_err *err)
{
    struct cst_err why = {0};
    int rc = cstc_manifest_read(&load->manifest, load->dirfd, &why);

    if (rc == CST_OK) {
        rc = cstc_manifest_check(&load->manifest, load->dirfd, true, &why);
    }
    return rc == CST_OK ? CST_OK : cst_err_set(err, rc, "%.128s: %s", path, why.text);
}

/* Everything that can be wrong with the checkpoint is found here. */
static int check_all(struct load *load, const char *path, struct cst_err *err)
{
    int rc = check_files(load, path, err);

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
        rc = match_missed(load, err);
    }
    if (rc == CST_OK) {
        rc = open_files(load, err);
    }
    if (rc == CST_OK) {
        rc = find_entries(load, err);
    }
    load->converts =
        rc == CST_OK && load->manifest.description->moments != (uint32_t)load->job->moments;
    return rc;
}

/* -- the stream of states ------------------------------------------------------------------- */

/* True if @entry is decoded here. The daemon encodes it in the format of the job. */
static bool is_converted(const struct load *load, const struct cstc_content_entry *entry)
{
    return entry->raw && load->converts;
}

/* The job's tensor of @entry. */
static const struct cst_layout_tensor *tensor_of(const struct load *load,
                                                 const struct cstc_content_entry *entry)
{
    return &load->job->model.tensors[load->tensors[entry->tensor]];
}

/* True if @entry is written. With gradients in weight rows or split masters, or if the model files
 * have fp32, the weights are made from the master weights alone; fp32 tensors have no others. If
 * moments are converted, their exponents are read with their codes. */
static bool is_written(const struct load *load, uint32_t i)
{
    const struct cstc_content_entry *entry = &load->content.entries[i];
    const struct cst_layout_tensor *tensor = tensor_of(load, entry);

    if (entry->exponents && load->converts) {
        return false;
    }
    return entry->weights == NULL || entry->row == CST_ROW_MASTER ||
           !cst_pattern(tensor->pattern)->has_states ||
           (!load->job->weights_follow && tensor->dtype == CST_BF16 &&
            load->weights[i].parts[0].place.dtype == CSTC_DTYPE_BF16);
}

/* The type in which the elements of @entry are sent: weights have that of the job's tensor, which
 * can be another one than that of the checkpoint's. */
static enum cstc_dtype sent_dtype(const struct load *load, const struct cstc_content_entry *entry)
{
    if (entry->row == CST_ROW_WEIGHT) {
        return tensor_of(load, entry)->dtype == CST_FP32 ? CSTC_DTYPE_F32 : CSTC_DTYPE_BF16;
    }
    return is_converted(load, entry) ? CSTC_DTYPE_F32 : entry->dtype;
}

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct load *load = arg;
    struct cstc_content_entry sent;

    while (load->entry < load->content.n_entries && !is_written(load, load->entry)) {
        load->entry++;
    }
    if (load->entry == load->content.n_entries) {
        return false;
    }
    sent = load->content.entries[load->entry];
    sent.dtype = sent_dtype(load, &load->content.entries[load->entry]);
    sent.raw = sent.raw && !load->converts;
    *out = cstc_content_piece(&sent, load->first, cstc_state_most(load->job->client));
    out->tensor = load->tensors[sent.tensor];
    load->given = load->entry;
    load->first += out->n_elems;
    if (load->first == sent.n_elems) {
        load->first = 0;
        load->entry++;
    }
    return true;
}

/* Read the elements of @piece of entry number @e. */
static int read_entry(const struct load *load, uint32_t e, const struct cstc_state_piece *piece,
                      void *data, struct cst_err *err)
{
    const struct cstc_content_entry *entry = &load->content.entries[e];
    uint64_t begin = cstc_content_bytes(entry, piece->first),
             end = cstc_content_bytes(entry, piece->first + piece->n_elems);

    return cstc_tensor_file_read(&load->files[entry->file], load->places[e].begin + begin, data,
                                 end - begin, err);
}

/* Read moments and decode them to fp32. Only whole blocks of 32 elements can be decoded. */
static int read_converted(const struct load *load, uint32_t e, const struct cstc_state_piece *piece,
                          float *out, struct cst_err *err)
{
    enum cst_moments moments = (enum cst_moments)load->manifest.description->moments;
    uint64_t n = (piece->n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK * CST_MX8_BLOCK;
    uint8_t *codes = calloc(n, 3); /* At most two bytes, and an exponent for every 32. */
    struct cst_update_moment row = {.values = codes};
    int rc = CST_OK;

    if (codes == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to convert moments");
    }
    row.exponents = codes + 2 * n;
    rc = read_entry(load, e, piece, codes, err);
    if (rc == CST_OK && moments == CST_MOMENTS_MX8) {
        rc = read_entry(load, e + 1, piece, row.exponents, err);
    }
    if (rc == CST_OK) {
        cst_moments_decode(moments, piece->row == CST_ROW_EXP_AVG_SQ, 0, piece->n_elems, &row, out);
    }
    free(codes);
    return rc;
}

/* Called right after next_piece. */
static int read_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                      struct cst_err *err)
{
    struct load *load = arg;
    const struct cstc_content_entry *entry = &load->content.entries[load->given];

    if (entry->weights != NULL) {
        return cstc_weights_read(&load->weights[load->given], piece->first, piece->n_elems,
                                 sent_dtype(load, entry), data, err);
    }
    return is_converted(load, entry) ? read_converted(load, load->given, piece, data, err)
                                     : read_entry(load, load->given, piece, data, err);
}

/* -- phases --------------------------------------------------------------------------------- */

/* The staging segment is mapped: write the states. */
static void begin_writing(struct load *load)
{
    load->run = (struct cstc_state_run){
        .client = load->job->client,
        .stream = {.next = next_piece, .data = read_piece, .arg = load},
        .writes = true,
    };
    load->phase = WRITTEN;
}

/* Take the staging segment, unless the client has one already. */
static int take_segment(struct load *load, struct cst_err *err)
{
    int rc = CST_OK;

    if (load->call.state != CSTC_CALL_IDLE) {
        rc = cstc_call_result(&load->call, err);
        rc = rc == CST_OK ? cstc_state_take(load->job->client, &load->call, err) : rc;
    }
    if (rc == CST_OK) {
        begin_writing(load);
    }
    return rc;
}

/* The states are written: set the counters. */
static int begin_restoring(struct load *load, struct cst_err *err)
{
    const Cistern__JobDescription *d = load->manifest.description;
    Cistern__Restore msg = CISTERN__RESTORE__INIT;

    msg.step = d->step;
    msg.adam_step = d->adam_step;
    msg.n_skipped = d->n_skipped;
    msg.n_overflows = d->n_overflows;
    load->phase = RESTORED;
    return cstc_call_start(load->job->client, &load->call, CISTERN__MSG_TYPE__MSG_RESTORE,
                           &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

/* Tell the daemon which steps the next tensors have missed. */
static int tell_missed(struct load *load, struct cst_err *err)
{
    Cistern__Restore msg = CISTERN__RESTORE__INIT;

    cstc_unused_fill_missed(&msg, load->missed, load->n_missed, &load->n_told);
    load->tells = load->n_told < load->n_missed;
    return cstc_call_start(load->job->client, &load->call, CISTERN__MSG_TYPE__MSG_RESTORE,
                           &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

static int tell_all_missed(struct load *load, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && (load->call.state != CSTC_CALL_IDLE || load->tells)) {
        if (load->call.state == CSTC_CALL_IDLE) {
            rc = tell_missed(load, err);
        }
        rc = rc == CST_OK ? cstc_call_result(&load->call, err) : rc;
        if (rc == CST_OK) {
            cstc_call_reset(&load->call);
        }
    }
    return rc;
}

static int advance(struct cstc_task *task, struct cst_err *err)
{
    struct load *load = (struct load *)task;
    int rc = CST_OK;

    if (load->phase == MAPPED) {
        rc = take_segment(load, err);
    }
    if (rc == CST_OK && load->phase == WRITTEN) {
        rc = cstc_states_advance(&load->run, err);
        load->phase = rc == CST_OK ? MISSED : WRITTEN;
    }
    if (rc == CST_OK && load->phase == MISSED) {
        rc = tell_all_missed(load, err);
        rc = rc == CST_OK ? begin_restoring(load, err) : rc;
    }
    if (rc == CST_OK) {
        rc = cstc_call_result(&load->call, err);
    }
    if (rc == CST_OK) {
        load->job->steps = load->manifest.description->step;
        load->job->initialised = true;
    }
    return rc;
}

static void close_load(struct cstc_task *task)
{
    struct load *load = (struct load *)task;

    for (uint32_t f = 0; f < load->n_open; f++) {
        cstc_tensor_file_close(&load->files[f]);
    }
    free(load->files);
    for (uint32_t i = 0; load->weights != NULL && i < load->content.n_entries; i++) {
        cstc_weights_close(&load->weights[i]);
    }
    for (int i = 0; i < CSTC_STATE_SLOTS; i++) {
        cstc_call_reset(&load->run.slots[i].call);
    }
    cstc_call_reset(&load->call);
    free(load->weights);
    free(load->places);
    free(load->tensors);
    free(load->missed);
    cstc_content_close(&load->content);
    cstc_manifest_close(&load->manifest);
    if (load->dirfd >= 0) {
        (void)close(load->dirfd);
    }
    free(load);
}

/* Make the task, check the checkpoint and ask for a staging segment, if there is none. */
static int open_load(struct cst_job *job, const char *path, struct cst_err *err)
{
    struct load *load = calloc(1, sizeof *load);
    int rc;

    if (load == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to load job '%s'", job->name);
    }
    load->task = (struct cstc_task){.advance = advance, .close = close_load};
    load->job = job;
    load->dirfd = -1;
    rc = cstc_listing_open(path, &load->dirfd, load->warning, err);
    if (rc == CST_OK) {
        rc = check_all(load, path, err);
    }
    if (rc == CST_OK && job->client->staging.base == NULL) {
        rc = cstc_state_ask(job->client, &load->call, err);
    }
    if (rc != CST_OK) {
        close_load(&load->task);
        return rc;
    }
    job->client->task = &load->task;
    return CST_OK;
}

static struct cst_hyper_params get_params(const Cistern__Hyper *hyper)
{
    return hyper == NULL ? (struct cst_hyper_params){0}
                         : (struct cst_hyper_params){.lr = hyper->lr,
                                                     .beta1 = hyper->beta1,
                                                     .beta2 = hyper->beta2,
                                                     .eps = hyper->eps,
                                                     .weight_decay = hyper->weight_decay,
                                                     .clip_norm = hyper->clip_norm,
                                                     .grad_scale = hyper->grad_scale};
}

/* Tell the caller what was loaded. */
static void report(const struct load *load, struct cst_load_result *out)
{
    const struct cst_job *job = load->job;
    const Cistern__JobDescription *d = load->manifest.description;
    Cistern__JobOpen *open = cistern__job_open__unpack(NULL, job->opening_bytes, job->opening);

    *out = (struct cst_load_result){
        .step = job->steps, .converted = load->converts, .params = get_params(d->hyper)};
    (void)snprintf(out->warning, sizeof out->warning, "%s", load->warning);
    if (open != NULL) {
        cstc_differences(d, open, out->warning, sizeof out->warning);
        cistern__job_open__free_unpacked(open, NULL);
    }
}

static int load_job(struct cst_job *job, const char *path, struct cst_load_result *result,
                    bool block, struct cst_err *err)
{
    struct cstc_task *task = NULL;
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && path == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "cst_load needs a path");
    }
    if (rc == CST_OK) {
        rc = cstc_task_find(job->client, advance, &task, err);
    }
    if (rc == CST_OK && task == NULL) {
        rc = open_load(job, path, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cstc_task_drive(job->client, block, err);
    if (rc == CST_OK && result != NULL) {
        report((const struct load *)job->client->task, result);
    }
    if (rc != CST_EAGAIN) {
        cstc_task_close(job->client);
    }
    return rc;
}

int cst_load(struct cst_job *job, const char *path, struct cst_load_result *result,
             struct cst_err *err)
{
    return load_job(job, path, result, true, err);
}

int cst_try_load(struct cst_job *job, const char *path, struct cst_load_result *result,
                 struct cst_err *err)
{
    return load_job(job, path, result, false, err);
}

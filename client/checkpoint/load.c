/* SPDX-License-Identifier: Apache-2.0 */
/* cst_load: all files of a checkpoint are checked, then the states of each tensor of the job are
 * written, run by run from the tensors of the files, then the counters are set. */
#include "cistern/checkpoint.h"

#include "client/checkpoint/differences.h"
#include "client/checkpoint/load_source.h"
#include "client/lib/job.h"
#include "client/lib/state_io.h"
#include "client/lib/task.h"
#include "kernels/math/moments.h"
#include "proto/patterns.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the load waits for. */
enum phase { MAPPED, WRITTEN, MISSED, RESTORED };

struct load {
    struct cstc_task task;
    struct cst_job *job;
    enum phase phase;
    struct cstc_call call; /* Of this phase. */
    struct cstc_state_run run;
    struct cstc_load_source from;
    size_t n_told; /* Numbers of missed steps that the daemon was told. */
    bool tells;    /* There are messages about them to send. */
    /* The stream: tensor of the job, its row, and element of the next piece. A row is the number of
     * an entry, counted from the first one of the tensors of the files. */
    uint32_t tensor, row;
    uint64_t first;
    uint32_t given;   /* Row of the next piece to fill in. */
    uint8_t *scratch; /* Moments to convert: `n_scratch` elements of 2 bytes, and exponents. */
    uint64_t n_scratch;
};

/* -- the stream of states ------------------------------------------------------------------- */

static const struct cst_layout_tensor *tensor_of(const struct load *load, uint32_t t)
{
    return &load->job->model.tensors[t];
}

/* The entry of row @row of tensor @t of the job, of the first tensor of the files that has elements
 * of it. NULL: there are no more rows. */
static const struct cstc_content_entry *entry_of(const struct load *load, uint32_t t, uint32_t row)
{
    const struct cstc_content *content = &load->from.content;
    const uint32_t file_tensor = cst_reshard_run(&load->from.way, t, 0, 1).tensor;
    const uint32_t first = load->from.entries[file_tensor];

    return first != UINT32_MAX && row < content->n_entries - first &&
                   content->entries[first + row].tensor == file_tensor
               ? &content->entries[first + row]
               : NULL;
}

/* True if @entry of tensor @t is decoded here. The daemon encodes it in the format, and in the
 * blocks, of the job. */
static bool is_converted(const struct load *load, uint32_t t,
                         const struct cstc_content_entry *entry)
{
    return entry->raw && (load->from.converts || !cst_reshard_is_whole(&load->from.way, t));
}

/* True if @entry of tensor @t is written. With gradients in weight rows or split masters, or if the
 * model files have fp32, the weights are made from the master weights alone; fp32 tensors have no
 * others. If moments are converted, their exponents are read with their codes. */
static bool is_written(const struct load *load, uint32_t t, const struct cstc_content_entry *entry)
{
    const struct cst_layout_tensor *tensor = tensor_of(load, t);
    const size_t i = (size_t)(entry - load->from.content.entries);

    if (entry->exponents && is_converted(load, t, entry)) {
        return false;
    }
    return entry->weights == NULL || entry->row == CST_ROW_MASTER ||
           !cst_pattern(tensor->pattern)->has_states ||
           (!load->job->weights_follow && tensor->dtype == CST_BF16 &&
            load->from.weights[i].parts[0].place.dtype == CSTC_DTYPE_BF16);
}

/* The type in which the elements of @entry are sent: weights have that of the job's tensor @t,
 * which can be another one than that of the checkpoint's. */
static enum cstc_dtype sent_dtype(const struct load *load, uint32_t t,
                                  const struct cstc_content_entry *entry)
{
    if (entry->row == CST_ROW_WEIGHT) {
        return tensor_of(load, t)->dtype == CST_FP32 ? CSTC_DTYPE_F32 : CSTC_DTYPE_BF16;
    }
    return is_converted(load, t, entry) ? CSTC_DTYPE_F32 : entry->dtype;
}

/* Find the next row to write. NULL: there are no more. */
static const struct cstc_content_entry *next_entry(struct load *load)
{
    while (load->tensor < load->job->model.n_tensors) {
        const struct cstc_content_entry *entry = entry_of(load, load->tensor, load->row);

        if (entry != NULL && is_written(load, load->tensor, entry)) {
            return entry;
        }
        load->row = entry != NULL ? load->row + 1 : 0;
        load->tensor += entry == NULL;
    }
    return NULL;
}

static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct load *load = arg;
    const struct cstc_content_entry *entry = next_entry(load);
    struct cstc_content_entry sent;

    if (entry == NULL) {
        return false;
    }
    sent = *entry;
    sent.n_elems = tensor_of(load, load->tensor)->n_elems;
    sent.dtype = sent_dtype(load, load->tensor, entry);
    sent.raw = sent.raw && !is_converted(load, load->tensor, entry);
    *out = cstc_content_piece(&sent, load->first, cstc_state_most(load->job->client));
    out->tensor = load->tensor;
    load->given = load->row;
    load->first += out->n_elems;
    if (load->first == sent.n_elems) {
        load->first = 0;
        load->row++;
    }
    return true;
}

/* Read the elements [first, first + n) of entry number @e. Those of exponents begin and end with
 * blocks. */
static int read_entry(const struct load *load, uint32_t e, uint64_t first, uint64_t n, void *data,
                      struct cst_err *err)
{
    const struct cstc_content_entry *entry = &load->from.content.entries[e];
    uint64_t begin = cstc_content_bytes(entry, first), end = cstc_content_bytes(entry, first + n);

    return cstc_tensor_file_read(&load->from.files[entry->file], load->from.places[e].begin + begin,
                                 data, end - begin, err);
}

static int reserve_scratch(struct load *load, uint64_t n, struct cst_err *err)
{
    if (n > load->n_scratch) {
        free(load->scratch);
        load->scratch = malloc(3 * n); /* At most two bytes, and an exponent for every 32. */
        load->n_scratch = load->scratch != NULL ? n : 0;
    }
    return load->n_scratch >= n ? CST_OK
                                : cst_err_set(err, CST_ENOMEM, "no memory to convert moments");
}

/* Read moments of entry number @e and decode them to fp32. */
static int read_converted(struct load *load, uint32_t e, uint64_t first, uint64_t n, float *out,
                          struct cst_err *err)
{
    const enum cst_moments moments = (enum cst_moments)load->from.manifest.description->moments;
    const unsigned number = load->from.content.entries[e].row - CST_ROW_MOMENT;
    const uint64_t before = first % CST_MX8_BLOCK; /* Elements of the same block. */
    const uint64_t whole = (before + n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK * CST_MX8_BLOCK;
    int rc = reserve_scratch(load, whole, err);
    struct cst_update_moment row = {.values = load->scratch};

    if (rc != CST_OK) {
        return rc;
    }
    memset(load->scratch, 0, 3 * whole);
    row.exponents = load->scratch + 2 * whole;
    rc = read_entry(load, e, first - before, before + n, load->scratch, err);
    if (rc == CST_OK && moments == CST_MOMENTS_MX8) {
        rc = read_entry(load, e + 1, first - before, before + n, row.exponents, err);
    }
    if (rc == CST_OK) {
        cst_moments_decode(moments, number, before, n, &row, out);
    }
    return rc;
}

/* Read the elements of @run of row @row as @dtype. */
static int read_run(struct load *load, uint32_t t, uint32_t row, const struct cst_reshard_run *run,
                    enum cstc_dtype dtype, void *data, struct cst_err *err)
{
    const uint32_t e = load->from.entries[run->tensor] + row;
    const struct cstc_content_entry *entry = &load->from.content.entries[e];

    if (entry->weights != NULL) {
        return cstc_weights_read(&load->from.weights[e], run->first, run->n_elems, dtype, data,
                                 err);
    }
    return is_converted(load, t, entry)
               ? read_converted(load, e, run->first, run->n_elems, data, err)
               : read_entry(load, e, run->first, run->n_elems, data, err);
}

/* Called right after next_piece. */
static int read_piece(void *arg, const struct cstc_state_piece *piece, void *data,
                      struct cst_err *err)
{
    struct load *load = arg;
    const struct cstc_content_entry *entry = entry_of(load, piece->tensor, load->given);
    const enum cstc_dtype dtype = sent_dtype(load, piece->tensor, entry);
    struct cst_reshard_run run = {0};
    uint64_t n = 0;
    int rc = CST_OK;

    while (rc == CST_OK && n < piece->n_elems) {
        run = cst_reshard_run(&load->from.way, piece->tensor, piece->first + n, piece->n_elems - n);
        rc = read_run(load, piece->tensor, load->given, &run, dtype,
                      (char *)data + n * cstc_dtype_bytes(dtype), err);
        n += run.n_elems;
    }
    if (entry->weights != NULL && load->first == 0) {
        /* A part may end before its whole, of which more was read ahead. */
        cstc_weights_rest(&load->from.weights[load->from.entries[run.tensor] + load->given]);
    }
    return rc;
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
    const Cistern__JobDescription *d = load->from.manifest.description;
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

    cstc_unused_fill_missed(&msg, load->from.missed, load->from.n_missed, &load->n_told);
    load->tells = load->n_told < load->from.n_missed;
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
        load->job->steps = load->from.manifest.description->step;
        load->job->initialised = true;
    }
    return rc;
}

static void close_load(struct cstc_task *task)
{
    struct load *load = (struct load *)task;

    for (int i = 0; i < CSTC_STATE_SLOTS; i++) {
        cstc_call_reset(&load->run.slots[i].call);
    }
    cstc_call_reset(&load->call);
    cstc_load_source_close(&load->from);
    free(load->scratch);
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
    load->tells = job->unused.skips;
    rc = cstc_load_source_open(&load->from, job, path, err);
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
    const Cistern__JobDescription *d = load->from.manifest.description;
    Cistern__JobOpen *open = cistern__job_open__unpack(NULL, job->opening_bytes, job->opening);

    *out = (struct cst_load_result){.step = job->steps,
                                    .converted = load->from.converts || load->from.divides,
                                    .params = get_params(d->hyper)};
    (void)snprintf(out->warning, sizeof out->warning, "%s", load->from.warning);
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
        rc = cst_err_set(err, CST_EINVAL, "load needs a path");
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
    int rc;

    do {
        rc = load_job(job, path, result, true, err);
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

int cst_try_load(struct cst_job *job, const char *path, struct cst_load_result *result,
                 struct cst_err *err)
{
    return load_job(job, path, result, false, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/durable.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/durable_description.h"
#include "daemon/job/job.h"
#include "daemon/job/saver.h"
#include "daemon/ledger/describe.h"
#include "daemon/memory/files.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* -- what is possible ------------------------------------------------------------------------- */

/* The tier of the weights of @chunk that last; that of host memory: they do not. */
static uint32_t weights_tier(const struct cstd_job *job, const struct cst_layout_chunk *chunk)
{
    const uint32_t segment = chunk->other_weight.segment;

    return segment != CST_LAYOUT_NO_ROW ? job->layout.segments[segment].tier : CST_TIER_HOST;
}

static int check_tensor(const struct cstd_job *job, const struct cst_layout_tensor *tensor,
                        struct cst_err *err)
{
    const struct cst_layout_chunk *chunk = &job->layout.chunks[tensor->chunk];
    const uint32_t tier = cst_layout_has_states(chunk) ? chunk->tier : weights_tier(job, chunk);
    bool is_there = false;

    for (uint32_t i = 0; i < job->files.n; i++) {
        is_there = is_there || job->files.v[i].tier->number == tier;
    }
    return is_there
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "job '%s' is to be durable, and the states of tensor '%s' would "
                             "not be in its files; set device_states to 0, or leave 'durable' out "
                             "and save",
                             job->name, tensor->name);
}

int cstd_durable_check(const struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    if (!job->spec.states.durable) {
        return CST_OK;
    }
    if (job->files.n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' is to be durable, and rank 0 has given no files: set 'disk' "
                           "to a directory on a drive",
                           job->name);
    }
    for (uint32_t t = 0; t < job->model.n_tensors && rc == CST_OK; t++) {
        rc = check_tensor(job, &job->model.tensors[t], err);
    }
    return rc;
}

/* -- commands --------------------------------------------------------------------------------- */

/* Tickets of seals have this bit, which those of cores do not reach. */
static const uint64_t ticket_bit = UINT64_C(1) << (CSTD_JOB_TICKET_SHIFT - 1);

bool cstd_durable_is_ticket(uint64_t ticket)
{
    return (ticket & ticket_bit) != 0;
}

/* Give @command to the engine of file @file. The phase under way waits for it. */
static int submit(struct cstd_job *job, uint32_t file, struct cst_command *command,
                  struct cst_err *err)
{
    struct cstd_durable *durable = &job->durable;
    int rc;

    command->node = job->memory.records.engines[file];
    command->ticket = (job->serial << CSTD_JOB_TICKET_SHIFT) | ticket_bit | ++durable->n_tickets;
    rc = cstd_engines_submit(job->daemon->engines, command, err);
    durable->n_pending += rc == CST_OK;
    return rc;
}

static int flush(struct cstd_job *job, uint32_t file, struct cst_err *err)
{
    struct cst_command command = {.kind = CST_COMMAND_FLUSH,
                                  .dst[0].segment = job->memory.records.starts[file]->id,
                                  .n_dst = 1};

    return submit(job, file, &command, err);
}

/* Write @bytes at @from of the buffer to file @file, at @to of @segment. */
static int write_part(struct cstd_job *job, uint32_t file, uint64_t from,
                      const struct cstd_segment *segment, uint64_t to, uint64_t bytes,
                      struct cst_err *err)
{
    struct cst_command command = {
        .kind = CST_COMMAND_COPY,
        .src[0] = {.segment = job->memory.records.buffer->id, .offset = from},
        .n_src = 1,
        .dst[0] = {.segment = segment->id, .offset = to},
        .n_dst = 1,
        .bytes = bytes};

    return submit(job, file, &command, err);
}

/* Write both heads of file @file. */
static int write_heads(struct cstd_job *job, uint32_t file, struct cst_err *err)
{
    const struct cstd_records *records = &job->memory.records;
    int rc = CST_OK;

    for (uint64_t k = 0; k < CST_DURABLE_HEADS && rc == CST_OK; k++) {
        rc = write_part(job, file, cstd_records_head(records, file), records->starts[file],
                        k * CST_DURABLE_BLOCK, CST_DURABLE_BLOCK, err);
    }
    return rc;
}

/* -- the description -------------------------------------------------------------------------- */

struct cstd_durable_describing {
    uv_work_t work;
    struct cstd_job *job;
    struct cstd_progress progress;
    struct cst_err err; /* The result. */
};

static void on_thread(uv_work_t *work)
{
    struct cstd_durable_describing *describing = work->data;

    (void)cstd_durable_describe(describing->job, &describing->progress, &describing->err);
}

/* If the job is removed meanwhile, the removal goes on from here. */
static void on_described(uv_work_t *work, int status)
{
    struct cstd_durable_describing *describing = work->data;
    const struct cst_err err = describing->err;
    struct cstd_job *job = describing->job;

    (void)status; /* libuv's cancellation is not used. */
    cstd_describe_progress_close(&describing->progress);
    free(describing);
    job->durable.describing = NULL;
    if (job->state == CSTD_JOB_CLOSING) {
        cstd_deferred_add(&job->daemon->later, &job->close);
    } else {
        cstd_durable_done(job, 0, err.status, 0, err.text);
    }
}

static int describe(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable_describing *describing = calloc(1, sizeof *describing);

    if (describing == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", job->name);
    }
    if (cstd_describe_progress(job, &describing->progress, err) != CST_OK) {
        free(describing);
        return err->status;
    }
    describing->job = job;
    describing->work.data = describing;
    if (uv_queue_work(&job->daemon->loop, &describing->work, on_thread, on_described) != 0) {
        cstd_describe_progress_close(&describing->progress);
        free(describing);
        return cst_err_set(err, CST_ENOMEM, "no thread to describe job '%s'", job->name);
    }
    job->durable.describing = describing;
    job->durable.n_pending++;
    return CST_OK;
}

/* -- the record ------------------------------------------------------------------------------- */

/* Write what the core says of the last step. */
static void fill_seal(const struct cstd_job *job, struct cst_durable_seal *out)
{
    struct cst_core_stats stats;
    struct cst_core_seal of;

    cst_core_stats(job->core, &stats);
    cst_core_seal_of(job->core, &of);
    out->magic = CST_DURABLE_SEAL_MAGIC;
    out->step = stats.step;
    out->adam_step = stats.adam_step;
    out->n_skipped = stats.n_skipped;
    out->n_overflows = stats.n_overflows;
    out->last_loss = stats.last_loss;
    out->last_grad_norm = stats.last_grad_norm;
    out->has_hyper = stats.has_hyper;
    out->lr = stats.hyper.lr;
    out->beta1 = stats.hyper.beta1;
    out->beta2 = stats.hyper.beta2;
    out->eps = stats.hyper.eps;
    out->weight_decay = stats.hyper.weight_decay;
    out->clip_norm = stats.hyper.clip_norm;
    out->grad_scale = stats.hyper.grad_scale;
    out->place = of.place;
    memcpy(out->sums, of.sums, (size_t)job->layout.n_chunks * CST_DURABLE_ROWS * sizeof *out->sums);
}

static struct cst_durable_seal *seal_in(const struct cstd_records *records)
{
    return (void *)(records->at + cstd_records_seal(records));
}

/* Where the record of the last step belongs in the first file. */
static uint64_t place_of_seal(const struct cstd_records *records)
{
    return CST_DURABLE_SEALS + seal_in(records)->step % 2 * records->seal_bytes;
}

/* True if the file, whose beginning was read, has the record of this step already: a daemon that
 * goes on with a job does not know. It must not be written again with other checksums, since a
 * record that is torn then was whole before. */
static bool is_sealed(const struct cstd_job *job)
{
    const struct cstd_records *records = &job->memory.records;
    const struct cst_durable_seal *seal = seal_in(records);
    struct cst_durable_seal *there = (void *)(records->at + place_of_seal(records));
    const uint64_t sum = there->sum;

    there->sum = 0;
    return there->magic == CST_DURABLE_SEAL_MAGIC && there->step == seal->step &&
           there->place == seal->place &&
           memcmp(there->id, job->durable.id, sizeof there->id) == 0 &&
           sum == XXH3_64bits(there, cst_durable_sealed_bytes(job->layout.n_chunks));
}

/* -- phases ----------------------------------------------------------------------------------- */

/* What the file has. */
static int read_start(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_records *records = &job->memory.records;
    struct cst_command command = {.kind = CST_COMMAND_COPY,
                                  .src[0].segment = records->starts[0]->id,
                                  .n_src = 1,
                                  .dst[0].segment = records->buffer->id,
                                  .n_dst = 1,
                                  .bytes = records->start_bytes};

    return submit(job, 0, &command, err);
}

/* An earlier daemon may have described the files. */
static int look_at_start(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable *durable = &job->durable;
    const struct cst_durable_head *head = cstd_durable_head_in(job->memory.records.at);

    (void)err;
    if (head != NULL) {
        memcpy(durable->id, head->id, sizeof durable->id);
        durable->described = true;
        durable->sealed = is_sealed(job);
    }
    return CST_OK;
}

/* Write the weights of chunk @c, which no update has written, from host memory to their file. */
static int copy_weights(struct cstd_job *job, uint32_t c, struct cst_err *err)
{
    const struct cst_layout *layout = &job->layout;
    const struct cst_layout_chunk *chunk = &layout->chunks[c];
    const struct cst_layout_row *from = &chunk->rows[CST_ROW_WEIGHT], *to = &chunk->other_weight;
    const uint32_t tier = layout->segments[to->segment].tier;
    struct cst_command command = {
        .kind = CST_COMMAND_COPY,
        .src[0] = {.segment = job->memory.segments[from->segment]->id, .offset = from->offset},
        .n_src = 1,
        .dst[0] = {.segment = job->memory.segments[to->segment]->id, .offset = to->offset},
        .n_dst = 1,
        .bytes = cst_layout_weight_bytes(chunk),
        .sums = true};

    return submit(job, cstd_records_file(&job->memory.records, tier), &command, err);
}

/* Frozen weights; and those of the first places if no update has been made, as after a step that
 * was skipped. */
static int write_weights(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable *durable = &job->durable;
    const bool first = seal_in(&job->memory.records)->place == 0;
    int rc = CST_OK;

    durable->first_weights = durable->n_tickets + 1;
    for (uint32_t c = 0; c < job->layout.n_chunks && rc == CST_OK; c++) {
        const struct cst_layout_chunk *chunk = &job->layout.chunks[c];

        durable->n_tickets = durable->first_weights + c - 1;
        if (chunk->other_weight.segment != CST_LAYOUT_NO_ROW &&
            (first || !cst_layout_has_states(chunk))) {
            rc = copy_weights(job, c, err);
        }
    }
    durable->n_tickets = durable->first_weights + job->layout.n_chunks;
    return rc;
}

static int describe_files(struct cstd_job *job, struct cst_err *err)
{
    job->durable.first_weights = 0;
    return describe(job, err);
}

static int write_description(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_records *records = &job->memory.records;
    const struct cst_durable_head *head = (void *)(records->at + cstd_records_head(records, 0));

    memcpy(job->durable.id, head->id, sizeof head->id);
    return write_part(job, 0, cstd_records_text(records), records->description, 0,
                      cst_round_up(head->job_bytes + head->layout_bytes, CST_DURABLE_BLOCK), err);
}

static int write_other_heads(struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 1; i < job->memory.records.n_files && rc == CST_OK; i++) {
        rc = write_heads(job, i, err);
    }
    return rc;
}

static int write_first_heads(struct cstd_job *job, struct cst_err *err)
{
    return write_heads(job, 0, err);
}

static int flush_first(struct cstd_job *job, struct cst_err *err)
{
    return flush(job, 0, err);
}

static int flush_all(struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < job->memory.records.n_files && rc == CST_OK; i++) {
        rc = flush(job, i, err);
    }
    return rc;
}

/* If the engine dies meanwhile, the next one writes the same bytes again. So a record that was
 * whole stays whole if the power is lost then. */
static int write_record(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_records *records = &job->memory.records;
    struct cst_durable_seal *seal = seal_in(records);

    if (job->durable.sealed) {
        return CST_OK; /* It was flushed with the states. */
    }
    memcpy(seal->id, job->durable.id, sizeof seal->id);
    seal->sum = XXH3_64bits(seal, cst_durable_sealed_bytes(job->layout.n_chunks));
    return write_part(job, 0, cstd_records_seal(records), records->starts[0],
                      place_of_seal(records), records->seal_bytes, err);
}

static int flush_record(struct cstd_job *job, struct cst_err *err)
{
    return job->durable.sealed ? CST_OK : flush_first(job, err);
}

/* Each phase submits commands, or none if it has nothing to do. */
static const struct {
    bool once; /* It is left out if the files are described. */
    int (*begin)(struct cstd_job *job, struct cst_err *err);
} phases[] = {
    {true, read_start},
    {true, look_at_start},
    {true, write_weights},
    {true, describe_files},
    /* The description and the other heads last before the heads of the first file, which an
     * adoption begins with. */
    {true, write_description},
    {true, write_other_heads},
    {true, flush_all},
    {true, write_first_heads},
    {true, flush_first},
    /* The states of the step last before its record. */
    {false, flush_all},
    {false, write_record},
    {false, flush_record},
};

enum { N_PHASES = sizeof phases / sizeof phases[0] };

/* -- seals ------------------------------------------------------------------------------------ */

/* Warn once if a file has no name any more, so that it ends with the job. */
static void look_for_names(struct cstd_job *job)
{
    const struct cstd_records *records = &job->memory.records;
    bool unnamed = false;

    for (uint32_t i = 0; i < records->n_files; i++) {
        struct stat st;

        unnamed = unnamed || (fstat(records->starts[i]->fd, &st) == 0 && st.st_nlink == 0);
    }
    if (unnamed && !job->durable.unnamed) {
        job->durable.unnamed = true;
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job),
                       "a file of its states was removed: nothing of the job will be left if the "
                       "machine stops; save it");
    }
}

/* Begin the next phases, up to one whose commands are under way. Returns the error of a phase that
 * could not begin, or of an earlier one. */
static int go_on(struct cstd_job *job)
{
    struct cstd_durable *durable = &job->durable;
    struct cst_err err;

    while (durable->n_pending == 0 && durable->err.status == CST_OK && durable->phase < N_PHASES) {
        const unsigned phase = durable->phase++;

        if (!(phases[phase].once && durable->described) &&
            phases[phase].begin(job, &err) != CST_OK) {
            durable->err = err;
        }
    }
    return durable->err.status;
}

/* Tell the core of @job that the seal has ended. */
static void tell(struct cstd_job *job)
{
    const struct cst_err err = job->durable.err;
    struct cst_event event = {.kind = CST_EV_SEALED, .status = err.status, .text = err.text};

    job->durable.described = job->durable.described || err.status == CST_OK;
    look_for_names(job);
    cstd_job_feed(job, &event);
}

/* Keep the checksum of the weights that the command @ticket has written, if it has. */
static void note_sum(struct cstd_job *job, uint64_t ticket, double value)
{
    const struct cstd_durable *durable = &job->durable;
    const uint64_t number = ticket & (ticket_bit - 1);
    const size_t row = CST_ROW_WEIGHT_OTHER - CST_ROW_MASTER;

    if (durable->first_weights > 0 && number >= durable->first_weights &&
        number - durable->first_weights < job->layout.n_chunks) {
        seal_in(&job->memory.records)
            ->sums[(number - durable->first_weights) * CST_DURABLE_ROWS + row] = (uint64_t)value;
    }
}

void cstd_durable_done(struct cstd_job *job, uint64_t ticket, int status, double value,
                       const char *text)
{
    struct cstd_durable *durable = &job->durable;

    if (status == CST_OK) {
        note_sum(job, ticket, value);
    }
    if (status != CST_OK && durable->err.status == CST_OK) {
        (void)cst_err_set(&durable->err, status, "%s",
                          text != NULL ? text : cst_status_words(status));
    }
    durable->n_pending--;
    (void)go_on(job);
    if (durable->n_pending == 0) {
        tell(job);
    }
}

int cstd_durable_seal(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable *durable = &job->durable;

    durable->phase = 0;
    durable->first_weights = 0;
    durable->sealed = false;
    durable->err = (struct cst_err){0};
    memset(seal_in(&job->memory.records), 0, job->memory.records.seal_bytes);
    fill_seal(job, seal_in(&job->memory.records));
    if (go_on(job) != CST_OK && durable->n_pending == 0) {
        *err = durable->err; /* Otherwise CST_EV_SEALED has it, after the commands under way. */
        return err->status;
    }
    return CST_OK;
}

/* -- requests that wait ----------------------------------------------------------------------- */

/* A request of @job that waits for a seal; NULL: there is none. */
static struct cstd_pending *next_request(const struct cstd_job *job)
{
    struct cstd_pending *request;

    TAILQ_FOREACH(request, &job->requests, job_link)
    {
        if (request->waits_seal) {
            return request;
        }
    }
    return NULL;
}

void cstd_durable_look(struct cstd_job *job)
{
    struct cstd_pending *request;

    while (job->spec.states.durable && job->core != NULL && job->state == CSTD_JOB_READY &&
           !cst_core_seals(job->core) && (request = next_request(job)) != NULL) {
        struct cst_event event = {.kind = CST_EV_LEAVE, .tag = cstd_pending_tag(request, 0)};
        struct cst_core_stats stats;
        struct cst_err why = {0};

        request->waits_seal = false;
        cst_core_stats(job->core, &stats);
        if (stats.phase == CST_PHASE_FAILED || request->session == NULL) {
            /* Nobody is told that all is well: a worker ends, and its rank with it. */
            (void)cst_core_check_attempt(job->core, stats.attempt, &why);
            cstd_session_fail(job->daemon, request, &why);
            continue;
        }
        if (request->recorded) {
            cstd_saver_begun(request);
            continue;
        }
        event.rank = request->session->rank;
        cstd_job_feed(job, &event);
    }
}

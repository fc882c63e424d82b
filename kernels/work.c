/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/work.h"

#include "kernels/work_kinds.h"

#include <inttypes.h>
#include <stdlib.h>

static struct cst_work *work_of(struct cst_job *job)
{
    return (struct cst_work *)(void *)((char *)job - offsetof(struct cst_work, job));
}

const struct cst_work_kind *cst_work_kind(const struct cst_work *work)
{
    static const struct cst_work_kind none;
    static const struct cst_work_kind *const kinds[] = {
        [0] = &none,
        [ENGINE__COMMAND_KIND__COPY] = &cst_work_copy,
        [ENGINE__COMMAND_KIND__REDUCE] = &cst_work_reduce,
        [ENGINE__COMMAND_KIND__NORM] = &cst_work_norm,
        [ENGINE__COMMAND_KIND__UPDATE] = &cst_work_update,
        [ENGINE__COMMAND_KIND__FILL] = &cst_work_fill,
        [ENGINE__COMMAND_KIND__CONVERT] = &cst_work_convert,
    };
    unsigned kind = (unsigned)work->kind;

    return kinds[kind < sizeof kinds / sizeof kinds[0] ? kind : 0];
}

int cst_work_open(struct cst_work **out, struct cst_work_context *context,
                  const Engine__Command *command, struct cst_err *err)
{
    struct cst_work *work = calloc(1, sizeof *work);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for command %" PRIu64, command->ticket);
    }
    work->context = context;
    work->status = cst_work_read(work, command);
    *out = work;
    return CST_OK;
}

void cst_work_close(struct cst_work *work)
{
    for (uint32_t i = 0; i < work->n_uses; i++) {
        work->uses[i]->n_uses--;
    }
    free(work);
}

/* -- running: crew threads ------------------------------------------------------------------ */

/* Record the failure of a piece. The first one becomes the result of the command. */
static void fail(struct cst_work *work, int status, const struct cst_err *err)
{
    if (!atomic_exchange(&work->failed, true)) {
        work->status = status;
        work->err = *err;
    }
}

static void do_piece(struct cst_work *work, uint64_t piece, unsigned thread)
{
    struct cst_err err;
    int rc = cst_work_kind(work)->piece(work, piece, thread, &err);

    if (rc != CST_OK) {
        fail(work, rc, &err);
    }
}

/* Returns whether data of @work goes between host memory and the device. */
static bool uses_link(const struct cst_work *work)
{
    const struct cst_device_convert *c = &work->convert;

    if (work->kind == ENGINE__COMMAND_KIND__COPY) {
        return (work->dst.mem->device != 0) != (work->src.mem->device != 0);
    }
    if (work->kind == ENGINE__COMMAND_KIND__CONVERT) {
        return (c->dst[0].mem->device != 0) != (c->src.mem->device != 0);
    }
    /* The grad row of a REDUCE is host memory. */
    return work->kind == ENGINE__COMMAND_KIND__REDUCE;
}

/* Enter @work in the table of traffic: @n is 1 when it is queued and -1 when it is over. */
static void tell_traffic(const struct cst_work *work, int32_t n)
{
    if (work->context->traffic != NULL && uses_link(work)) {
        cst_traffic_add(work->context->traffic, n);
    }
}

/* Returns the processor time of this thread. */
static uint64_t thread_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Run one piece. A thread of the team pauses for copies before the piece and records its time. */
static void run_piece(struct cst_job *job, uint64_t piece, unsigned thread)
{
    struct cst_work *work = work_of(job);
    struct cst_budget *budget = &work->context->budget;

    if (atomic_load(&work->failed)) {
        return;
    }
    if (cst_work_kind(work)->compute) {
        uint64_t began, busy;

        cst_budget_hold(budget, thread);
        began = cst_crew_now();
        busy = thread_ns();
        do_piece(work, piece, thread);
        busy = thread_ns() - busy;
        cst_budget_spend(budget, thread, began, cst_crew_now(), busy);
    } else {
        do_piece(work, piece, thread);
    }
    (void)atomic_fetch_add(&work->context->progress, 1);
}

static void job_done(struct cst_job *job)
{
    struct cst_work *work = work_of(job);
    const struct cst_work_kind *kind = cst_work_kind(work);

    /* The chunk is marked only if all its tiles are done. */
    if (kind->done != NULL && !atomic_load(&work->failed)) {
        kind->done(work);
    }
    if (!kind->compute) {
        cst_budget_end(&work->context->budget);
    }
    tell_traffic(work, -1);
    work->ended_ns = cst_crew_now();
    cst_mailbox_post(work->context->box, &work->mail);
}

/* -- preparing: loop thread ----------------------------------------------------------------- */

void cst_work_hold(struct cst_work *work, struct cst_segment *segment)
{
    segment->n_uses++;
    work->uses[work->n_uses++] = segment;
}

int cst_work_find(struct cst_work *work, struct cst_place place, uint64_t bytes, uint64_t align,
                  const char *what, struct cst_addr *out)
{
    struct cst_segment *segment;
    int rc =
        cst_segments_find(work->context->segments, place, bytes, align, what, &segment, &work->err);

    if (rc == CST_OK) {
        cst_work_hold(work, segment);
        *out = (struct cst_addr){.mem = &segment->mem, .offset = place.offset};
    }
    return rc;
}

bool cst_work_overlap(struct cst_addr a, uint64_t a_bytes, struct cst_addr b, uint64_t b_bytes)
{
    return a.mem == b.mem && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
}

uint64_t cst_work_cut(struct cst_work *work, uint64_t total, uint64_t grain)
{
    work->grain = grain;
    return total / grain + (total % grain != 0);
}

uint64_t cst_work_share(const struct cst_work *work, uint64_t piece, uint64_t total,
                        uint64_t *first)
{
    *first = piece * work->grain;
    return total - *first < work->grain ? total - *first : work->grain;
}

int cst_work_prepare(struct cst_work *work)
{
    uint64_t pieces = 0;

    if (work->status == CST_OK) {
        work->status = cst_work_kind(work)->find(work, &pieces);
    }
    if (work->status == CST_OK) {
        work->job = (struct cst_job){.piece = run_piece,
                                     .done = job_done,
                                     .n_pieces = pieces,
                                     .class = work->class,
                                     .newest_first = work->newest_first};
    }
    return work->status;
}

void cst_work_submit(struct cst_work *work, struct cst_crew *crew)
{
    if (!cst_work_kind(work)->compute) {
        cst_budget_begin(&work->context->budget, cst_crew_now());
    }
    tell_traffic(work, 1);
    cst_crew_submit(crew, &work->job);
}

bool cst_work_is_compute(const struct cst_work *work)
{
    return cst_work_kind(work)->compute;
}

enum cst_device_lane cst_work_lane(const struct cst_work *work)
{
    return work->kind == ENGINE__COMMAND_KIND__COPY ? cst_device_lane(work->dst.mem, work->src.mem)
                                                    : CST_LANE_UP;
}

void cst_work_count(const struct cst_work *work)
{
    work->context->commands++;
    if (work->status == CST_OK && work->job.n_pieces > 0 && cst_work_kind(work)->count != NULL) {
        cst_work_kind(work)->count(work);
    }
}

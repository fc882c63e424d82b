/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/work.h"

#include "kernels/engine/work_kinds.h"
#include "proto/clock.h"

#include <inttypes.h>
#include <stdlib.h>

static struct cste_work *work_of(struct cste_task *task)
{
    return (struct cste_work *)(void *)((char *)task - offsetof(struct cste_work, task));
}

const struct cste_work_kind *cste_work_kind(const struct cste_work *work)
{
    static const struct cste_work_kind none;
    static const struct cste_work_kind *const kinds[] = {
        [ENGINE__COMMAND_KIND__COPY] = &cste_work_copy,
        [ENGINE__COMMAND_KIND__REDUCE] = &cste_work_reduce,
        [ENGINE__COMMAND_KIND__NORM] = &cste_work_norm,
        [ENGINE__COMMAND_KIND__UPDATE] = &cste_work_update,
        [ENGINE__COMMAND_KIND__FILL] = &cste_work_fill,
        [ENGINE__COMMAND_KIND__SET_MASTER] = &cste_work_set_master,
        [ENGINE__COMMAND_KIND__ROUND] = &cste_work_round,
        [ENGINE__COMMAND_KIND__ENCODE] = &cste_work_encode,
        [ENGINE__COMMAND_KIND__DECODE] = &cste_work_decode,
        [ENGINE__COMMAND_KIND__JOIN] = &cste_work_join,
        [ENGINE__COMMAND_KIND__FLUSH] = &cste_work_flush,
    };
    unsigned kind = (unsigned)work->kind;

    return kind < sizeof kinds / sizeof kinds[0] && kinds[kind] != NULL ? kinds[kind] : &none;
}

int cste_work_open(struct cste_work **out, struct cste_work_context *context,
                   const Engine__Command *command, struct cst_err *err)
{
    struct cste_work *work = calloc(1, sizeof *work + command->n_after * sizeof work->edges[0]);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for command %" PRIu64, command->ticket);
    }
    work->ticket = (struct cst_ticket){.number = command->ticket, .edges = work->edges};
    work->context = context;
    work->status = cste_work_read(work, command);
    *out = work;
    return CST_OK;
}

void cste_work_close(struct cste_work *work)
{
    for (uint32_t i = 0; i < work->n_uses; i++) {
        work->uses[i]->n_uses--;
    }
    free(work);
}

/* -- running: pool threads ------------------------------------------------------------------ */

/* Record the failure of a piece. The first one becomes the result of the command. */
static void fail(struct cste_work *work, int status, const struct cst_err *err)
{
    if (!atomic_exchange(&work->failed, true)) {
        work->status = status;
        work->err = *err;
    }
}

/* Begin a piece. Returns whether the device has it under way. */
static bool begin_on_device(struct cste_work *work, uint64_t piece, unsigned thread)
{
    const struct cste_work_kind *kind = cste_work_kind(work);
    struct cst_err err;
    int rc = kind->piece(work, piece, thread, &err);

    if (rc != CST_OK) {
        fail(work, rc, &err);
    }
    return rc == CST_OK && kind->may_be_under_way && work->context->device->ops->window > 0;
}

/* Wait for the device to end a piece that it has under way. */
static bool finish_on_device(struct cste_work *work, uint64_t piece, unsigned thread)
{
    struct cst_tile_done done;
    struct cst_err err;
    int rc = cste_device_finish(work->context->device, thread, &done, &err);

    (void)piece;
    cste_work_add_done(work, &done);
    if (rc != CST_OK) {
        fail(work, rc, &err);
    }
    return false;
}

/* Returns whether data of @work goes between host memory and the device. */
static bool uses_link(const struct cste_work *work)
{
    const struct cste_device_convert *c = &work->convert;

    if (work->kind == ENGINE__COMMAND_KIND__COPY) {
        return (work->dst.mem->device != 0) != (work->src.mem->device != 0);
    }
    if (cste_work_kind(work)->converts) {
        return (c->dst[0].mem->device != 0) != (c->src.mem->device != 0);
    }
    /* The grad row of a REDUCE is host memory. */
    return work->kind == ENGINE__COMMAND_KIND__REDUCE;
}

/* Enter @work in the table of traffic: @n is 1 when it is queued and -1 when it is over. */
static void tell_traffic(const struct cste_work *work, int32_t n)
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

/* Do @part of a piece. A thread of the team records its time. Returns what @part returns. */
static bool do_part(struct cste_work *work,
                    bool (*part)(struct cste_work *work, uint64_t piece, unsigned thread),
                    uint64_t piece, unsigned thread)
{
    uint64_t began, busy;
    bool under_way;

    if (!cste_work_kind(work)->compute) {
        return part(work, piece, thread);
    }
    began = cst_clock_ns();
    busy = thread_ns();
    under_way = part(work, piece, thread);
    busy = thread_ns() - busy;
    cste_bandwidth_share_spend(&work->context->budget, thread, began, cst_clock_ns(), busy);
    return under_way;
}

/* Note that @thread does a piece of the command @ticket; 0: of none. */
static void note_doing(const struct cste_work *work, unsigned thread, uint64_t ticket)
{
    const struct cste_work_context *context = work->context;

    if (context->doing != NULL && thread < context->n_doing) {
        atomic_store(&context->doing[thread], ticket);
    }
}

/* Begin one piece. A thread of the team pauses for copies before the piece. */
static bool begin_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_work *work = work_of(task);
    bool under_way;

    if (atomic_load(&work->failed)) {
        return false;
    }
    if (cste_work_kind(work)->compute) {
        cste_bandwidth_share_hold(&work->context->budget, thread);
    }
    note_doing(work, thread, work->ticket.number);
    under_way = do_part(work, begin_on_device, piece, thread);
    note_doing(work, thread, 0);
    if (!under_way) {
        (void)atomic_fetch_add(&work->context->progress, 1);
    }
    return under_way;
}

static void finish_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_work *work = work_of(task);

    (void)do_part(work, finish_on_device, piece, thread);
    (void)atomic_fetch_add(&work->context->progress, 1);
}

static void task_done(struct cste_task *task)
{
    struct cste_work *work = work_of(task);
    const struct cste_work_kind *kind = cste_work_kind(work);
    uint64_t pieces = 0;

    if (kind->next != NULL && !atomic_load(&work->failed)) {
        pieces = kind->next(work);
    }
    if (pieces > 0) {
        work->began_ns = work->began_ns == 0 ? task->began_ns : work->began_ns;
        task->n_pieces = pieces;
        cste_thread_pool_submit(work->pool, task);
        return;
    }
    /* The time of the task is that of its last turn. */
    task->began_ns = work->began_ns == 0 ? task->began_ns : work->began_ns;
    /* The chunk is marked only if all its tiles are done. */
    if (kind->done != NULL && !atomic_load(&work->failed)) {
        kind->done(work);
    }
    if (!kind->compute) {
        cste_bandwidth_share_end(&work->context->budget);
    }
    tell_traffic(work, -1);
    work->ended_ns = cst_clock_ns();
    cste_mailbox_post(work->context->box, &work->mail);
}

/* -- preparing: loop thread ----------------------------------------------------------------- */

int cste_work_prepare(struct cste_work *work)
{
    uint64_t pieces = 0;

    if (work->status == CST_OK && cste_work_kind(work)->compute) {
        work->status = cste_device_check_computes(work->context->device, &work->err);
    }
    if (work->status == CST_OK) {
        work->status = cste_work_kind(work)->find(work, &pieces);
    }
    if (work->status == CST_OK) {
        work->task = (struct cste_task){.begin = begin_piece,
                                        .finish = finish_piece,
                                        .done = task_done,
                                        .n_pieces = pieces,
                                        .class = work->class,
                                        .newest_first = work->newest_first};
    }
    return work->status;
}

void cste_work_submit(struct cste_work *work, struct cste_thread_pool *pool)
{
    if (!cste_work_kind(work)->compute) {
        cste_bandwidth_share_begin(&work->context->budget, cst_clock_ns());
    }
    tell_traffic(work, 1);
    work->pool = pool;
    cste_thread_pool_submit(pool, &work->task);
}

bool cste_work_is_compute(const struct cste_work *work)
{
    return cste_work_kind(work)->compute;
}

enum cste_device_lane cste_work_lane(const struct cste_work *work)
{
    return work->kind == ENGINE__COMMAND_KIND__COPY ? cste_device_lane(work->dst.mem, work->src.mem)
                                                    : CSTE_LANE_UP;
}

void cste_work_count(const struct cste_work *work)
{
    work->context->commands++;
    if (work->status == CST_OK && work->task.n_pieces > 0 && cste_work_kind(work)->count != NULL) {
        cste_work_kind(work)->count(work);
    }
}

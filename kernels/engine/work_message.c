/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/work_kinds.h"

#include <inttypes.h>

static struct cst_place place_of(const Engine__Place *place)
{
    return (struct cst_place){.segment = place->segment, .offset = place->offset};
}

static int read_places(struct cste_work *work, const Engine__Command *command)
{
    if (command->n_src > CST_TILE_MAX_SRC || command->n_dst > CSTE_WORK_MAX_DST) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "%zu sources and %zu destinations, at most %d and %d", command->n_src,
                           command->n_dst, CST_TILE_MAX_SRC, CSTE_WORK_MAX_DST);
    }
    for (size_t i = 0; i < command->n_src; i++) {
        work->src_places[i] = place_of(command->src[i]);
    }
    for (size_t i = 0; i < command->n_dst; i++) {
        work->dst_places[i] = place_of(command->dst[i]);
    }
    work->n_src = (uint32_t)command->n_src;
    work->n_dst = (uint32_t)command->n_dst;
    return CST_OK;
}

static uint32_t read_rows(struct cste_work_row *rows, Engine__RowPlace *const *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        rows[i] = (struct cste_work_row){.row = from[i]->row, .place = place_of(from[i]->place)};
    }
    return (uint32_t)n;
}

static void read_hyper(struct cste_work *work, const Engine__Hyper *hyper)
{
    work->hyper = (struct cst_tile_hyper){.lr = hyper->lr,
                                          .beta1 = hyper->beta1,
                                          .beta2 = hyper->beta2,
                                          .eps = hyper->eps,
                                          .weight_decay = hyper->weight_decay,
                                          .grad_scale = hyper->grad_scale};
}

static int read_update(struct cste_work *work, const Engine__Command *command)
{
    if (command->hyper == NULL) {
        return cst_err_set(&work->err, CST_EINVAL, "UPDATE without hyper-parameters");
    }
    if (command->n_in > CSTE_WORK_MAX_ROWS || command->n_out > CSTE_WORK_MAX_ROWS) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE that reads %zu rows and writes %zu elsewhere, at most %d",
                           command->n_in, command->n_out, CSTE_WORK_MAX_ROWS);
    }
    read_hyper(work, command->hyper);
    work->n_in = read_rows(work->in, command->in, command->n_in);
    work->n_out = read_rows(work->out, command->out, command->n_out);
    work->update.guard = command->guard;
    return CST_OK;
}

/* Read a conversion. Without a field on moments, the message is about fp32 rows that are converted
 * whole. */
static int read_conversion(struct cste_work *work, const Engine__Command *command)
{
    bool rows = command->has_moments, states = work->kind == ENGINE__COMMAND_KIND__SET_MASTER;
    bool weights = work->kind == ENGINE__COMMAND_KIND__ROUND && command->split;

    work->convert =
        (struct cste_device_convert){.what = cste_work_kind(work)->conversion,
                                     .from_bf16 = command->from_bf16,
                                     .split = command->split,
                                     .fp32 = command->fp32,
                                     .n_dst = work->n_dst,
                                     .n_elems = command->n_elems,
                                     .moments = (enum cst_moments)command->moments,
                                     .row = (enum cst_row)command->row,
                                     .first = rows ? command->first : 0,
                                     .row_elems = rows ? command->row_elems : command->n_elems};
    if (command->moments >= CST_MOMENTS_COUNT) {
        return cst_err_set(&work->err, CST_EINVAL, "%s with moments in format %u",
                           cste_work_kind(work)->name, command->moments);
    }
    if ((command->fp32 && (command->split || !states)) ||
        ((command->split || command->from_bf16) && !states && !weights)) {
        return cst_err_set(&work->err, CST_EINVAL, "%s%s%s%s", cste_work_kind(work)->name,
                           command->fp32 ? " of fp32 tensors" : "",
                           command->split ? " with split masters" : "",
                           command->from_bf16 ? " of bf16" : "");
    }
    return CST_OK;
}

static int check(struct cste_work *work)
{
    const struct cste_work_kind *kind = cste_work_kind(work);

    if (kind->name == NULL) {
        return cst_err_set(&work->err, CST_EUNSUPPORTED, "command kind %d", (int)work->kind);
    }
    if (work->n_src < kind->min_src || work->n_src > kind->max_src || work->n_dst < kind->min_dst ||
        work->n_dst > kind->max_dst) {
        return cst_err_set(&work->err, CST_EINVAL, "%s with %u sources and %u destinations",
                           kind->name, work->n_src, work->n_dst);
    }
    if (kind->marks && !cst_table_is_mark(work->mark)) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "%s with mark %" PRIu64 ": the low half of a mark is not 0", kind->name,
                           work->mark);
    }
    return CST_OK;
}

int cste_work_read(struct cste_work *work, const Engine__Command *command)
{
    int rc = read_places(work, command);

    work->kind = command->kind;
    work->class = command->has_priority ? (unsigned)command->priority : 0;
    /* An unknown priority counts as the lowest one. */
    work->class =
        work->class < CSTE_THREAD_POOL_CLASSES ? work->class : CSTE_THREAD_POOL_CLASSES - 1;
    work->newest_first = command->has_newest_first && command->newest_first;
    work->bytes = command->bytes;
    work->sums = work->kind == ENGINE__COMMAND_KIND__COPY && command->sums;
    work->table = command->table;
    work->chunk_index = command->chunk;
    work->mark = command->mark;
    work->accumulate = command->has_accumulate && command->accumulate;
    work->partials = command->has_partials && command->partials;
    if (rc == CST_OK) {
        rc = check(work);
    }
    if (rc == CST_OK && work->kind == ENGINE__COMMAND_KIND__UPDATE) {
        rc = read_update(work, command);
    }
    if (rc == CST_OK && cste_work_kind(work)->converts) {
        rc = read_conversion(work, command);
    }
    return rc;
}

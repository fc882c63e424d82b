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

/* Read a CONVERT. Without a field on moments, the message is about fp32 rows that are converted
 * whole. */
static int read_convert(struct cste_work *work, const Engine__Command *command)
{
    struct cste_device_convert *c = &work->convert;
    bool states = work->n_dst > 1 || command->fp32, rows = command->has_moments;
    uint32_t format = states ? command->moments : command->encode;

    *c = (struct cste_device_convert){.what = states ? CSTE_CONVERT_STATES : CSTE_CONVERT_WEIGHT,
                                      .n_dst = work->n_dst,
                                      .n_elems = command->n_elems};
    if (!states && command->split) {
        c->what = CSTE_CONVERT_JOIN;
    } else if (!states && (command->has_encode || command->has_decode)) {
        rows = true;
        c->what = command->has_encode ? CSTE_CONVERT_ENCODE : CSTE_CONVERT_DECODE;
        c->row = (enum cst_row)command->row;
        format = command->has_encode ? command->encode : command->decode;
    }
    if ((command->has_encode && command->has_decode) || format >= CST_MOMENTS_COUNT) {
        return cst_err_set(&work->err, CST_EINVAL, "CONVERT to format %u from %u", command->encode,
                           command->decode);
    }
    if (command->fp32 && command->split) {
        return cst_err_set(&work->err, CST_EINVAL, "CONVERT of fp32 tensors with split masters");
    }
    if (command->from_bf16 && !states) {
        return cst_err_set(&work->err, CST_EINVAL, "CONVERT of bf16 to another row than a master");
    }
    c->from_bf16 = command->from_bf16;
    c->split = states && command->split;
    c->fp32 = command->fp32;
    c->moments = (enum cst_moments)format;
    c->first = rows ? command->first : 0;
    c->row_elems = rows ? command->row_elems : command->n_elems;
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
    work->table = command->table;
    work->chunk_index = command->chunk;
    work->mark = command->mark;
    work->accumulate = command->has_accumulate && command->accumulate;
    if (rc == CST_OK) {
        rc = check(work);
    }
    if (rc == CST_OK && work->kind == ENGINE__COMMAND_KIND__UPDATE) {
        rc = read_update(work, command);
    }
    if (rc == CST_OK && work->kind == ENGINE__COMMAND_KIND__CONVERT) {
        rc = read_convert(work, command);
    }
    return rc;
}

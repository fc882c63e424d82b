/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/work_kinds.h"

#include "proto/row_sum.h"

#include <inttypes.h>
#include <string.h>

/* Elements in a piece of a conversion. Up to 14 bytes per element are written. The number is a
 * multiple of CST_MX8_BLOCK. */
#define PIECE_ELEMS (256u << 10)

/* -- COPY, FILL, FLUSH ---------------------------------------------------------------------- */

static uint64_t byte_pieces(struct cste_work *work)
{
    return cste_work_cut(work, work->bytes,
                         work->sums ? CST_ROW_SUM_PIECE
                                    : work->context->device->ops->memory->piece_bytes);
}

static int find_copy(struct cste_work *work, uint64_t *pieces)
{
    int rc = cste_work_find(work, work->src_places[0], work->bytes, 1, "source", &work->src);

    if (rc == CST_OK) {
        rc = cste_work_find(work, work->dst_places[0], work->bytes, 1, "destination", &work->dst);
    }
    if (rc == CST_OK && cste_work_overlap(work->src, work->bytes, work->dst, work->bytes)) {
        rc = cst_err_set(&work->err, CST_EINVAL, "source and destination of a COPY overlap");
    }
    if (rc == CST_OK && work->sums && work->src.mem->base == NULL) {
        rc = cst_err_set(&work->err, CST_EINVAL,
                         "the checksum of a COPY whose source is no host memory");
    }
    *pieces = byte_pieces(work);
    return rc;
}

static int copy_piece(struct cste_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t at, bytes = cste_work_share(work, piece, work->bytes, &at);

    /* Nobody changes the source meanwhile. */
    if (work->sums) {
        const char *from = cste_addr_host(work->src);

        (void)atomic_fetch_add(&work->sum, cst_row_sum_piece(from + at, bytes, at));
    }
    return cste_device_copy(work->context->device, thread, cste_addr_ahead(work->dst, at),
                            cste_addr_ahead(work->src, at), bytes, err);
}

static void end_copy(struct cste_work *work)
{
    if (work->sums) {
        work->value = (double)cst_row_sum_end(atomic_load(&work->sum));
    }
}

static void count_copy(const struct cste_work *work)
{
    struct cste_work_context *context = work->context;
    bool to = work->dst.mem->device != 0, from = work->src.mem->device != 0;

    context->copy_bytes += work->bytes;
    cste_work_was_busy(&context->copying, work);
    if (to && !from) {
        context->up_bytes += work->bytes;
        cste_work_was_busy(&context->copying_up, work);
    } else if (from && !to) {
        context->down_bytes += work->bytes;
        cste_work_was_busy(&context->copying_down, work);
    }
}

static int find_fill(struct cste_work *work, uint64_t *pieces)
{
    *pieces = byte_pieces(work);
    return cste_work_find(work, work->dst_places[0], work->bytes, 1, "destination", &work->dst);
}

static int fill_piece(struct cste_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t at, bytes = cste_work_share(work, piece, work->bytes, &at);

    return cste_device_fill(work->context->device, thread, cste_addr_ahead(work->dst, at), bytes,
                            err);
}

static int find_flush(struct cste_work *work, uint64_t *pieces)
{
    *pieces = 1;
    return cste_work_find(work, work->dst_places[0], 0, 1, "destination", &work->dst);
}

static int flush_piece(struct cste_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    (void)piece;
    return cste_device_flush(work->context->device, thread, work->dst.mem, err);
}

/* -- conversions ---------------------------------------------------------------------------- */

/* A source or destination of a conversion. */
struct place {
    const char *name; /* Name for messages. */
    uint64_t bytes;   /* Size in bytes. */
    uint64_t align;   /* Required alignment in bytes. */
};

static struct place values_place(const struct cste_device_convert *c, const char *name,
                                 uint64_t size)
{
    return (struct place){.name = name, .bytes = c->n_elems * size, .align = size};
}

static struct place moments_place(const struct cste_device_convert *c, const char *name)
{
    uint64_t align = c->moments == CST_MOMENTS_MX8 ? 1 : cst_table_moment_bytes(c->moments, 1);

    return (struct place){
        .name = name, .bytes = cst_table_moment_bytes(c->moments, c->row_elems), .align = align};
}

static struct place src_place(const struct cste_device_convert *c)
{
    return c->what == CSTE_CONVERT_DECODE ? moments_place(c, "source")
                                          : values_place(c, "source", cste_convert_src_bytes(c));
}

static struct place dst_place(const struct cste_device_convert *c, uint32_t i)
{
    static const char *const names[CSTE_CONVERT_MAX_DST] = {"master", "weight", "exp_avg",
                                                            "exp_avg_sq"};

    switch (c->what) {
    case CSTE_CONVERT_WEIGHT:
        return values_place(c, "destination", sizeof(uint16_t));
    case CSTE_CONVERT_ENCODE:
        return moments_place(c, "destination");
    case CSTE_CONVERT_DECODE:
    case CSTE_CONVERT_JOIN:
        return values_place(c, "destination", sizeof(float));
    case CSTE_CONVERT_STATES:
    default:
        if (i == 0) {
            return values_place(c, names[0], cste_convert_master_bytes(c));
        }
        return i < cste_convert_first_moment(c)
                   ? values_place(c, names[1], sizeof(uint16_t))
                   : moments_place(c, names[2 + i - cste_convert_first_moment(c)]);
    }
}

static int check_convert(struct cste_work *work)
{
    const struct cste_device_convert *c = &work->convert;
    bool row = c->what == CSTE_CONVERT_ENCODE || c->what == CSTE_CONVERT_DECODE;

    if (c->n_elems > CSTE_CHUNK_MAX_ELEMS || c->row_elems > CSTE_CHUNK_MAX_ELEMS ||
        c->first > c->row_elems || c->n_elems > c->row_elems - c->first ||
        (c->moments == CST_MOMENTS_MX8 && c->row_elems % CST_MX8_BLOCK != 0)) {
        return cst_err_set(
            &work->err, CST_EINVAL,
            "%s of %" PRIu64 " elements from %" PRIu64 " on, of a row of %" PRIu64 ", format %u",
            cste_work_kind(work)->name, c->n_elems, c->first, c->row_elems, (unsigned)c->moments);
    }
    if (c->what == CSTE_CONVERT_STATES &&
        c->n_dst > cste_convert_first_moment(c) + CST_MAX_MOMENTS) {
        return cst_err_set(&work->err, CST_EINVAL, "SET_MASTER of fp32 tensors to %u rows",
                           c->n_dst);
    }
    if (row && !cst_table_is_moment((int)c->row)) {
        return cst_err_set(&work->err, CST_EINVAL, "%s of row %u: it holds no moments",
                           cste_work_kind(work)->name, (unsigned)c->row);
    }
    return CST_OK;
}

static struct place remainder_place(const struct cste_device_convert *c)
{
    return values_place(c, "remainders", sizeof(int16_t));
}

/* Check destination @i: memory that is written may not be read, nor be written twice. */
static int check_overlap(struct cste_work *work, uint32_t i)
{
    const struct cste_device_convert *c = &work->convert;
    struct place src = src_place(c), dst = dst_place(c, i);

    if (cste_work_overlap(c->src, src.bytes, c->dst[i], dst.bytes)) {
        return cst_err_set(&work->err, CST_EINVAL, "%s and %s of a conversion overlap", src.name,
                           dst.name);
    }
    if (c->what == CSTE_CONVERT_JOIN) {
        struct place other = remainder_place(c);

        if (cste_work_overlap(c->remainder, other.bytes, c->dst[i], dst.bytes)) {
            return cst_err_set(&work->err, CST_EINVAL, "%s and %s of a conversion overlap",
                               other.name, dst.name);
        }
    }
    for (uint32_t k = 0; k < i; k++) {
        struct place other = dst_place(c, k);

        if (cste_work_overlap(c->dst[k], other.bytes, c->dst[i], dst.bytes)) {
            return cst_err_set(&work->err, CST_EINVAL, "%s and %s of a conversion overlap",
                               other.name, dst.name);
        }
    }
    return CST_OK;
}

/* Returns the number of elements before the range in its first block. With this number, pieces
 * begin at blocks, and no two threads write one exponent. */
static uint64_t lead(const struct cste_device_convert *c)
{
    return c->first % CST_MX8_BLOCK;
}

static int find_remainder(struct cste_work *work)
{
    struct place place = remainder_place(&work->convert);

    return cste_work_find(work, work->src_places[1], place.bytes, place.align, place.name,
                          &work->convert.remainder);
}

static int find_convert(struct cste_work *work, uint64_t *pieces)
{
    struct cste_device_convert *c = &work->convert;
    struct place src = src_place(c);
    int rc = check_convert(work);

    if (rc == CST_OK) {
        rc = cste_work_find(work, work->src_places[0], src.bytes, src.align, src.name, &c->src);
    }
    if (rc == CST_OK && c->what == CSTE_CONVERT_JOIN) {
        rc = find_remainder(work);
    }
    for (uint32_t i = 0; i < c->n_dst && rc == CST_OK; i++) {
        struct place dst = dst_place(c, i);

        rc = cste_work_find(work, work->dst_places[i], dst.bytes, dst.align, dst.name, &c->dst[i]);
        if (rc == CST_OK) {
            rc = check_overlap(work, i);
        }
    }
    *pieces = c->n_elems > 0 ? cste_work_cut(work, lead(c) + c->n_elems, PIECE_ELEMS) : 0;
    return rc;
}

/* Save in @out the block of row @dst, a destination of @part, in which element @elem lies, and
 * which begins and ends outside of what is written. */
static void save_block(const struct cst_place *places, const struct cste_device_convert *part,
                       uint32_t dst, uint64_t elem, struct cst_undo_block *out)
{
    const uint64_t block = elem / CST_MX8_BLOCK, at = part->dst[dst].offset;
    const uint8_t *base = part->dst[dst].mem->base;

    *out = (struct cst_undo_block){.segment = places[dst].segment,
                                   .codes = at + block * CST_MX8_BLOCK,
                                   .exponent = at + part->row_elems + block};
    memcpy(out->old_codes, base + out->codes, sizeof out->old_codes);
    out->old_exponent = base[out->exponent];
}

void cste_work_save_blocks(const struct cst_place *places, const struct cste_device_convert *part,
                           struct cst_undo_slot *slot)
{
    const uint32_t first_row =
        part->what == CSTE_CONVERT_STATES ? cste_convert_first_moment(part) : 0;
    const uint64_t end = part->first + part->n_elems;
    const bool head = part->first % CST_MX8_BLOCK != 0;
    const bool tail =
        end % CST_MX8_BLOCK != 0 && !(head && end / CST_MX8_BLOCK == part->first / CST_MX8_BLOCK);
    struct cst_undo_block blocks[CST_UNDO_MAX_BLOCKS];
    uint32_t n = 0;

    if (part->moments != CST_MOMENTS_MX8) {
        return;
    }
    for (uint32_t i = first_row; i < part->n_dst && (head || tail); i++) {
        if (head) {
            save_block(places, part, i, part->first, &blocks[n++]);
        }
        if (tail) {
            save_block(places, part, i, end, &blocks[n++]);
        }
    }
    if (n > 0) {
        cst_undo_begin_blocks(slot, blocks, n);
    }
}

/* Convert @part. Of a block that is written in part the rest is read, so that a process which is
 * killed in between must not leave it torn: whoever repeats the command finds it as it was. */
static int convert_safely(struct cste_work *work, const struct cste_device_convert *part,
                          unsigned thread, struct cst_err *err)
{
    struct cst_undo_slot *slot = &work->context->slots[thread];
    int rc;

    cste_work_save_blocks(work->dst_places, part, slot);
    rc = cste_device_convert(work->context->device, thread, part, err);
    cst_undo_drop(slot);
    return rc;
}

static int convert_piece(struct cste_work *work, uint64_t piece, unsigned thread,
                         struct cst_err *err)
{
    struct cste_device_convert part = work->convert;
    uint64_t at, n = cste_work_share(work, piece, lead(&part) + part.n_elems, &at);

    /* Pieces are cut at blocks. The first piece does not have the elements before the range. */
    if (piece == 0) {
        n -= lead(&part);
    } else {
        at -= lead(&part);
    }
    part.n_elems = n;
    part.first += at;
    /* The address of a moments row stays; a piece is a range of the row. */
    if (part.what != CSTE_CONVERT_DECODE) {
        part.src.offset += at * cste_convert_src_bytes(&part);
    }
    part.remainder.offset += at * sizeof(int16_t);
    if (part.what != CSTE_CONVERT_ENCODE) {
        part.dst[0].offset +=
            at * (part.what == CSTE_CONVERT_WEIGHT ? sizeof(uint16_t)
                                                   : cste_convert_master_bytes(&part));
    }
    if (part.what == CSTE_CONVERT_STATES && !part.fp32) {
        part.dst[1].offset += at * sizeof(uint16_t);
    }
    return cste_work_kind(work)->compute
               ? convert_safely(work, &part, thread, err)
               : cste_device_convert(work->context->device, thread, &part, err);
}

/* -- the kinds ------------------------------------------------------------------------------ */

const struct cste_work_kind cste_work_copy = {.name = "COPY",
                                              .min_src = 1,
                                              .max_src = 1,
                                              .min_dst = 1,
                                              .max_dst = 1,
                                              .may_be_under_way = true,
                                              .find = find_copy,
                                              .piece = copy_piece,
                                              .done = end_copy,
                                              .count = count_copy};

const struct cste_work_kind cste_work_fill = {.name = "FILL",
                                              .min_dst = 1,
                                              .max_dst = 1,
                                              .may_be_under_way = true,
                                              .find = find_fill,
                                              .piece = fill_piece};

const struct cste_work_kind cste_work_flush = {
    .name = "FLUSH", .min_dst = 1, .max_dst = 1, .find = find_flush, .piece = flush_piece};

const struct cste_work_kind cste_work_set_master = {.name = "SET_MASTER",
                                                    .min_src = 1,
                                                    .max_src = 1,
                                                    .min_dst = 1,
                                                    .max_dst = CSTE_WORK_MAX_DST,
                                                    .compute = true,
                                                    .converts = true,
                                                    .conversion = CSTE_CONVERT_STATES,
                                                    .may_be_under_way = true,
                                                    .find = find_convert,
                                                    .piece = convert_piece};

const struct cste_work_kind cste_work_round = {.name = "ROUND",
                                               .min_src = 1,
                                               .max_src = 1,
                                               .min_dst = 1,
                                               .max_dst = 1,
                                               .converts = true,
                                               .conversion = CSTE_CONVERT_WEIGHT,
                                               .may_be_under_way = true,
                                               .find = find_convert,
                                               .piece = convert_piece};

const struct cste_work_kind cste_work_encode = {.name = "ENCODE",
                                                .min_src = 1,
                                                .max_src = 1,
                                                .min_dst = 1,
                                                .max_dst = 1,
                                                .compute = true,
                                                .converts = true,
                                                .conversion = CSTE_CONVERT_ENCODE,
                                                .may_be_under_way = true,
                                                .find = find_convert,
                                                .piece = convert_piece};

const struct cste_work_kind cste_work_decode = {.name = "DECODE",
                                                .min_src = 1,
                                                .max_src = 1,
                                                .min_dst = 1,
                                                .max_dst = 1,
                                                .converts = true,
                                                .conversion = CSTE_CONVERT_DECODE,
                                                .may_be_under_way = true,
                                                .find = find_convert,
                                                .piece = convert_piece};

const struct cste_work_kind cste_work_join = {.name = "JOIN",
                                              .min_src = 2,
                                              .max_src = 2,
                                              .min_dst = 1,
                                              .max_dst = 1,
                                              .converts = true,
                                              .conversion = CSTE_CONVERT_JOIN,
                                              .may_be_under_way = true,
                                              .find = find_convert,
                                              .piece = convert_piece};

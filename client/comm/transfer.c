/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    LINE_BYTES = 64,
    /* Contributions of all ranks to an all-reduce up to which each rank sums everything. */
    SMALL_BYTES = 65536,
    BLOCK_BYTES = 16384, /* A sum is copied to the slot while it is in the cache. */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t ceiling(size_t n, size_t unit)
{
    return n / unit + (n % unit > 0);
}

static size_t whole_lines(size_t bytes)
{
    return ceiling(bytes, LINE_BYTES) * LINE_BYTES;
}

/* -- beginning -------------------------------------------------------------------------------- */

static const struct {
    const char *words;
    size_t bytes;
} types[] = {
    [CST_COMM_BYTE] = {"bytes", 1},
    [CST_COMM_BF16] = {"bf16", 2},
    [CST_COMM_FP32] = {"fp32", 4},
};

#define N_TYPES (sizeof types / sizeof types[0])

static const char *const ops[] = {
    [CST_COMM_BARRIER] = "barrier",       [CST_COMM_BROADCAST] = "broadcast",
    [CST_COMM_ALL_GATHER] = "all_gather", [CST_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [CST_COMM_ALL_REDUCE] = "all_reduce", [CST_COMM_ALL_TO_ALL] = "all_to_all",
};

#define N_OPS (sizeof ops / sizeof ops[0])

void cstc_transfer_words(const struct cst_comm_header *header, char *out, size_t size)
{
    const char *op = header->op < N_OPS ? ops[header->op] : NULL;
    const char *type = header->type < N_TYPES ? types[header->type].words : NULL;

    if (op == NULL) {
        (void)snprintf(out, size, "an unknown call");
    } else if (header->op == CST_COMM_BARRIER) {
        (void)snprintf(out, size, "%s", op);
    } else if (header->op == CST_COMM_ALL_TO_ALL) {
        (void)snprintf(out, size, "%s of %s", op, type != NULL ? type : "?");
    } else if (header->op == CST_COMM_BROADCAST) {
        (void)snprintf(out, size, "%s of %" PRIu64 " %s from rank %" PRIu64, op, header->n_elems,
                       type != NULL ? type : "?", header->root);
    } else {
        (void)snprintf(out, size, "%s of %" PRIu64 " %s", op, header->n_elems,
                       type != NULL ? type : "?");
    }
}

static int check_call(const struct cst_comm_call *call, const struct cstc_transfer_shape *shape,
                      struct cst_err *err)
{
    const bool sums = call->op == CST_COMM_ALL_REDUCE || call->op == CST_COMM_REDUCE_SCATTER;

    if ((unsigned)call->op >= N_OPS || ops[call->op] == NULL) {
        return cst_err_set(err, CST_EINVAL, "collective %d does not exist", (int)call->op);
    }
    if (call->op == CST_COMM_BARRIER) {
        return CST_OK;
    }
    if ((unsigned)call->type >= N_TYPES || types[call->type].words == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: type %d does not exist", ops[call->op],
                           (int)call->type);
    }
    if (sums && call->type == CST_COMM_BYTE) {
        return cst_err_set(err, CST_EINVAL, "%s: bytes have no sum; the type must be bf16 or fp32",
                           ops[call->op]);
    }
    if (call->op == CST_COMM_BROADCAST && call->root >= shape->size) {
        return cst_err_set(err, CST_EINVAL, "broadcast from rank %" PRIu32 " of %" PRIu32,
                           call->root, shape->size);
    }
    return CST_OK;
}

/* Add up @counts into *elems. CST_EINVAL: they are missing, or too large. */
static int add_up(const struct cst_comm_call *call, const char *what, const size_t *counts,
                  uint32_t size, size_t *elems, struct cst_err *err)
{
    const size_t most = SIZE_MAX / 2 / types[call->type].bytes;

    *elems = 0;
    if (counts == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: %s is missing", ops[call->op], what);
    }
    for (uint32_t i = 0; i < size; i++) {
        if (counts[i] > most - *elems) {
            return cst_err_set(err, CST_EINVAL,
                               "%s: %s add up to more than the %zu elements of a call",
                               ops[call->op], what, most);
        }
        *elems += counts[i];
    }
    return CST_OK;
}

static int check_array(const struct cst_comm_call *call, const char *what, const void *array,
                       size_t n_elems, struct cst_err *err)
{
    if (n_elems > 0 && array == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: %s is NULL", ops[call->op], what);
    }
    if ((uintptr_t)array % types[call->type].bytes != 0) {
        return cst_err_set(err, CST_EINVAL, "%s: %s is not aligned to an element of %s",
                           ops[call->op], what, types[call->type].words);
    }
    return CST_OK;
}

/* FNV-1a. The digest is not 0. */
static uint64_t digest(const size_t *counts, uint32_t size)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (uint32_t i = 0; i < size; i++) {
        h = (h ^ counts[i]) * 0x100000001b3u;
    }
    return h | 1;
}

static void to_bytes(size_t out[CST_COMM_MAX_RANKS], const size_t *counts, uint32_t size,
                     size_t elem_bytes)
{
    for (uint32_t i = 0; i < size; i++) {
        out[i] = counts[i] * elem_bytes;
    }
}

static size_t largest(const size_t v[CST_COMM_MAX_RANKS], uint32_t size)
{
    size_t most = 0;

    for (uint32_t i = 0; i < size; i++) {
        most = v[i] > most ? v[i] : most;
    }
    return most;
}

/* At least one round, in which the ranks compare the call. */
static void set_rounds(struct cstc_transfer *t, uint64_t bytes)
{
    t->n_rounds = bytes == 0 ? 1 : bytes / t->field_bytes + (bytes % t->field_bytes > 0);
}

static void begin_all_reduce(struct cstc_transfer *t, const struct cstc_transfer_shape *shape)
{
    const size_t most = t->field_bytes * shape->size;

    if (shape->size == 1 || t->in_bytes <= least(SMALL_BYTES / shape->size, shape->slot_bytes)) {
        t->n_rounds = 1;
        return;
    }
    t->piece_bytes = whole_lines(ceiling(t->in_bytes, ceiling(t->in_bytes, most)));
    t->n_pieces = ceiling(t->in_bytes, t->piece_bytes);
    t->n_rounds = 2 * t->n_pieces;
}

/* Calls with one number of elements. */
static int begin_whole(struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                       const struct cst_comm_call *call, struct cst_err *err)
{
    const bool reads = call->op == CST_COMM_ALL_REDUCE || shape->rank == call->root;
    const bool writes = call->op == CST_COMM_ALL_REDUCE || !reads;
    int rc = CST_OK;

    if (call->n_elems > SIZE_MAX / 2 / t->elem_bytes) {
        return cst_err_set(err, CST_EINVAL, "%s of %zu elements is more than the %zu of a call",
                           ops[call->op], call->n_elems, SIZE_MAX / 2 / t->elem_bytes);
    }
    if (reads) {
        rc = check_array(call, "the input", call->in, call->n_elems, err);
    }
    if (rc == CST_OK && writes) {
        rc = check_array(call, "the output", call->out, call->n_elems, err);
    }
    t->in_bytes = call->n_elems * t->elem_bytes;
    t->header.n_elems = call->n_elems;
    if (call->op == CST_COMM_BROADCAST) {
        t->header.root = call->root;
        if (reads) {
            /* The root needs no output: the copy to the input itself is left out. */
            t->out = call->out != NULL ? call->out : (char *)(uintptr_t)t->in;
        }
        t->field_bytes = shape->slot_bytes;
        set_rounds(t, t->in_bytes);
    } else {
        begin_all_reduce(t, shape);
    }
    return rc;
}

/* Calls with a number of elements for each rank, which is the same in all ranks. */
static int begin_parts(struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                       const struct cst_comm_call *call, struct cst_err *err)
{
    const bool gathers = call->op == CST_COMM_ALL_GATHER;
    size_t all, own;
    int rc = add_up(call, "counts", call->counts, shape->size, &all, err);

    if (rc != CST_OK) {
        return rc;
    }
    own = call->counts[shape->rank];
    rc = check_array(call, "the input", call->in, gathers ? own : all, err);
    rc = rc == CST_OK ? check_array(call, "the output", call->out, gathers ? all : own, err) : rc;
    t->header.n_elems = all;
    t->header.counts = digest(call->counts, shape->size);
    to_bytes(t->send, call->counts, shape->size, t->elem_bytes);
    t->field_bytes = gathers ? shape->slot_bytes : t->field_bytes;
    set_rounds(t, largest(t->send, shape->size));
    return rc;
}

static int begin_all_to_all(struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                            const struct cst_comm_call *call, struct cst_err *err)
{
    size_t sent, received;
    int rc = add_up(call, "counts", call->counts, shape->size, &sent, err);

    if (rc == CST_OK) {
        rc = add_up(call, "recv_counts", call->recv_counts, shape->size, &received, err);
    }
    if (rc == CST_OK && call->counts[shape->rank] != call->recv_counts[shape->rank]) {
        rc = cst_err_set(err, CST_EINVAL,
                         "all_to_all: this rank sends %zu elements to itself, but "
                         "receives %zu from itself",
                         call->counts[shape->rank], call->recv_counts[shape->rank]);
    }
    rc = rc == CST_OK ? check_array(call, "the input", call->in, sent, err) : rc;
    rc = rc == CST_OK ? check_array(call, "the output", call->out, received, err) : rc;
    if (rc == CST_OK) {
        to_bytes(t->send, call->counts, shape->size, t->elem_bytes);
        to_bytes(t->receive, call->recv_counts, shape->size, t->elem_bytes);
    }
    return rc;
}

static char nothing[1]; /* An array without elements. */

int cstc_transfer_begin(struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                        const struct cst_comm_call *call, struct cst_err *err)
{
    int rc = check_call(call, shape, err);

    if (rc != CST_OK) {
        return rc;
    }
    memset(t, 0, offsetof(struct cstc_transfer, send));
    t->header.op = call->op;
    t->in = call->in != NULL ? call->in : nothing;
    t->out = call->out != NULL ? call->out : nothing;
    t->field_bytes = shape->slot_bytes / shape->size / LINE_BYTES * LINE_BYTES;
    if (call->op == CST_COMM_BARRIER) {
        t->n_rounds = 1;
        return CST_OK;
    }
    t->header.type = call->type;
    t->elem_bytes = types[call->type].bytes;
    switch (call->op) {
    case CST_COMM_ALL_GATHER:
    case CST_COMM_REDUCE_SCATTER:
        return begin_parts(t, shape, call, err);
    case CST_COMM_ALL_TO_ALL:
        return begin_all_to_all(t, shape, call, err);
    case CST_COMM_BROADCAST:
    case CST_COMM_ALL_REDUCE:
    case CST_COMM_BARRIER:
        break;
    }
    return begin_whole(t, shape, call, err);
}

void cstc_transfer_set_most(struct cstc_transfer *t, uint64_t most)
{
    set_rounds(t, most);
}

/* -- the rounds of a large all-reduce --------------------------------------------------------- */

static uint64_t spread_round(uint64_t piece)
{
    return piece == 0 ? 0 : 2 * piece - 1;
}

static uint64_t sums_round(const struct cstc_transfer *t, uint64_t piece)
{
    return piece == t->n_pieces - 1 ? 2 * piece + 1 : 2 * piece + 2;
}

/* Return the piece of @round, and whether its sums are written in it. */
static uint64_t piece_of(const struct cstc_transfer *t, uint64_t round, bool *sums)
{
    *sums = round == t->n_rounds - 1 || (round > 0 && round % 2 == 0);
    if (!*sums) {
        return (round + 1) / 2;
    }
    return round == t->n_rounds - 1 ? t->n_pieces - 1 : round / 2 - 1;
}

bool cstc_transfer_needs(const struct cstc_transfer *t, uint64_t round, uint64_t *from)
{
    bool sums = false;
    uint64_t piece;

    if (t->n_pieces > 0) {
        piece = piece_of(t, round, &sums);
        *from = spread_round(piece);
    }
    return sums;
}

bool cstc_transfer_keeps(const struct cstc_transfer *t, uint64_t round, uint64_t *until)
{
    bool sums = true;
    uint64_t piece;

    if (t->n_pieces > 0) {
        piece = piece_of(t, round, &sums);
        *until = sums_round(t, piece);
    }
    return !sums;
}

/* A range of the array, in bytes. */
struct span {
    size_t at, bytes;
};

/* Return the share of @rank in @piece. */
static struct span share_of(const struct cstc_transfer *t, uint32_t size, uint64_t piece,
                            uint32_t rank)
{
    const size_t first = piece * t->piece_bytes;
    const size_t bytes = least(t->piece_bytes, t->in_bytes - first);
    const size_t width = whole_lines(ceiling(bytes, size));
    const size_t from = least(rank * width, bytes), to = least(from + width, bytes);

    return (struct span){first + from, to - from};
}

/* -- data ------------------------------------------------------------------------------------- */

static void copy(const struct cstc_transfer_shape *shape, char *to, const char *from, size_t bytes)
{
    if (bytes == 0 || to == from) {
        return;
    }
    if (shape->device != NULL) {
        shape->device->copy(shape->device_arg, to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Sum @bytes of all ranks: this rank's are at @own, those of the others at @offset of their
 * slots. */
static void add_slots(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                      size_t bytes, const char *own, const char *const *slots, size_t offset,
                      char *dst)
{
    const void *src[CST_COMM_MAX_RANKS];
    const float *fp32[CST_COMM_MAX_RANKS];
    const uint16_t *bf16[CST_COMM_MAX_RANKS];

    if (bytes == 0) {
        return;
    }
    for (uint32_t rank = 0; rank < shape->size; rank++) {
        src[rank] = rank == shape->rank ? own : slots[rank] + offset;
        fp32[rank] = src[rank];
        bf16[rank] = src[rank];
    }
    if (shape->device != NULL) {
        shape->device->total(shape->device_arg, (enum cst_comm_type)t->header.type,
                             bytes / t->elem_bytes, shape->size, src, dst);
    } else if (t->header.type == CST_COMM_FP32) {
        shape->totals.fp32(bytes / sizeof **fp32, shape->size, fp32, (float *)(void *)dst);
    } else {
        shape->totals.bf16(bytes / sizeof **bf16, shape->size, bf16, (uint16_t *)(void *)dst);
    }
}

/* Return the part of the bytes [0, @bytes) that is in the fields of round @round. */
static struct span piece_at(const struct cstc_transfer *t, uint64_t round, size_t bytes)
{
    const size_t at =
        round < t->n_rounds || t->n_rounds == 0 ? least(round * t->field_bytes, bytes) : bytes;

    return (struct span){at, least(t->field_bytes, bytes - at)};
}

/* Write a piece of what each other rank gets into its field. */
static void write_fields(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                         uint64_t round, char *slot)
{
    size_t first = 0;

    for (uint32_t rank = 0; rank < shape->size; rank++) {
        const struct span s = piece_at(t, round, t->send[rank]);

        if (rank != shape->rank) {
            copy(shape, slot + rank * t->field_bytes, t->in + first + s.at, s.bytes);
        }
        first += t->send[rank];
    }
}

static void write_spread(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                         uint64_t piece, char *slot)
{
    for (uint32_t rank = 0; rank < shape->size; rank++) {
        const struct span s = share_of(t, shape->size, piece, rank);

        if (rank != shape->rank) {
            copy(shape, slot + rank * t->field_bytes, t->in + s.at, s.bytes);
        }
    }
}

/* Sum the own share of @piece into the output and the slot. */
static void write_sums(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                       uint64_t piece, char *slot, const char *const *slots)
{
    const struct span s = share_of(t, shape->size, piece, shape->rank);
    const size_t block = shape->device != NULL ? s.bytes : BLOCK_BYTES;

    for (size_t i = 0; i < s.bytes; i += block) {
        const size_t n = least(block, s.bytes - i);

        add_slots(t, shape, n, t->in + s.at + i, slots, shape->rank * t->field_bytes + i,
                  t->out + s.at + i);
        copy(shape, slot + i, t->out + s.at + i, n);
    }
}

void cstc_transfer_write(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                         uint64_t round, char *slot, const char *const *slots)
{
    struct span s;
    bool sums;
    uint64_t piece;

    switch ((enum cst_comm_op)t->header.op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        s = piece_at(t, round, shape->rank == t->header.root ? t->in_bytes : 0);
        copy(shape, slot, t->in + s.at, s.bytes);
        break;
    case CST_COMM_ALL_GATHER:
        s = piece_at(t, round, t->send[shape->rank]);
        copy(shape, slot, t->in + s.at, shape->size > 1 ? s.bytes : 0);
        break;
    case CST_COMM_REDUCE_SCATTER:
    case CST_COMM_ALL_TO_ALL:
        write_fields(t, shape, round, slot);
        break;
    case CST_COMM_ALL_REDUCE:
        if (t->n_pieces == 0) {
            copy(shape, slot, t->in, shape->size > 1 ? t->in_bytes : 0);
            break;
        }
        piece = piece_of(t, round, &sums);
        if (sums) {
            write_sums(t, shape, piece, slot, slots);
        } else {
            write_spread(t, shape, piece, slot);
        }
        break;
    }
}

static void read_gathered(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                          uint64_t round, const char *const *slots)
{
    size_t first = 0;

    for (uint32_t rank = 0; rank < shape->size; rank++) {
        const struct span s = piece_at(t, round, t->send[rank]);
        const char *from = rank == shape->rank ? t->in + s.at : slots[rank];

        copy(shape, t->out + first + s.at, from, s.bytes);
        first += t->send[rank];
    }
}

static void read_received(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                          uint64_t round, const char *const *slots)
{
    size_t first = 0, sent = 0;

    for (uint32_t rank = 0; rank < shape->rank; rank++) {
        sent += t->send[rank];
    }
    for (uint32_t rank = 0; rank < shape->size; rank++) {
        const struct span s = piece_at(t, round, t->receive[rank]);
        const char *from =
            rank == shape->rank ? t->in + sent + s.at : slots[rank] + shape->rank * t->field_bytes;

        copy(shape, t->out + first + s.at, from, s.bytes);
        first += t->receive[rank];
    }
}

static void read_reduced(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                         uint64_t round, const char *const *slots)
{
    const struct span s = piece_at(t, round, t->send[shape->rank]);
    size_t first = 0;

    for (uint32_t rank = 0; rank < shape->rank; rank++) {
        first += t->send[rank];
    }
    add_slots(t, shape, s.bytes, t->in + first + s.at, slots, shape->rank * t->field_bytes,
              t->out + s.at);
}

static void read_sums(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                      uint64_t piece, const char *const *slots)
{
    for (uint32_t rank = 0; rank < shape->size; rank++) {
        const struct span s = share_of(t, shape->size, piece, rank);

        if (rank != shape->rank) {
            copy(shape, t->out + s.at, slots[rank], s.bytes);
        }
    }
}

void cstc_transfer_read(const struct cstc_transfer *t, const struct cstc_transfer_shape *shape,
                        uint64_t round, const char *const *slots)
{
    struct span s;
    bool sums;
    uint64_t piece;

    switch ((enum cst_comm_op)t->header.op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        s = piece_at(t, round, t->in_bytes);
        copy(shape, t->out + s.at,
             shape->rank == t->header.root ? t->in + s.at : slots[t->header.root], s.bytes);
        break;
    case CST_COMM_ALL_GATHER:
        read_gathered(t, shape, round, slots);
        break;
    case CST_COMM_REDUCE_SCATTER:
        read_reduced(t, shape, round, slots);
        break;
    case CST_COMM_ALL_TO_ALL:
        read_received(t, shape, round, slots);
        break;
    case CST_COMM_ALL_REDUCE:
        if (t->n_pieces == 0) {
            add_slots(t, shape, t->in_bytes, t->in, slots, 0, t->out);
            break;
        }
        piece = piece_of(t, round, &sums);
        if (sums) {
            read_sums(t, shape, piece, slots);
        }
        break;
    }
}

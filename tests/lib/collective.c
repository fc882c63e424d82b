/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/collective.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A number that all ranks know: @what of call @number. */
static uint64_t draw(const struct collective *c, uint64_t what)
{
    return mix(mix(c->seed ^ c->number * 0x10001) + what);
}

static size_t bytes_of(enum cst_comm_type type)
{
    return type == CST_COMM_BYTE ? 1 : type == CST_COMM_BF16 ? 2 : 4;
}

/* -- elements --------------------------------------------------------------------------------- */

/* The bits of element @i that @rank has in its input. A few floats are infinite, NaN or subnormal.
 */
static uint32_t element(const struct collective *c, uint32_t rank, size_t i)
{
    const uint64_t x = mix(draw(c, 1000 + rank) + i);
    const uint32_t rare[] = {0x7f800000, 0xff800000, 0x7fc12345, 0x00000012, 0x80000000};
    /* Between 2^-32 and 2^32, so that sums round. */
    const uint32_t bits = (uint32_t)(x & 0x807fffff) | (uint32_t)(95 + (x >> 32) % 64) << 23;
    const uint32_t value = (x >> 40) % 500 == 0 ? rare[(x >> 52) % 5] : bits;

    return c->call.type == CST_COMM_BYTE   ? value & 0xff
           : c->call.type == CST_COMM_BF16 ? value >> 16
                                           : value;
}

static void put(const struct collective *c, void *array, size_t at, uint32_t bits)
{
    const size_t n = bytes_of(c->call.type);

    memcpy((char *)array + at * n, &bits, n);
}

static float as_float(const struct collective *c, uint32_t bits)
{
    float x;

    bits = c->call.type == CST_COMM_BF16 ? bits << 16 : bits;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Element @i of the sum of all ranks' inputs. */
static uint32_t sum(const struct collective *c, size_t i)
{
    float total = as_float(c, element(c, 0, i));
    uint32_t bits;

    for (uint32_t rank = 1; rank < c->size; rank++) {
        total += as_float(c, element(c, rank, i));
    }
    memcpy(&bits, &total, sizeof bits);
    bits = isnan(total) ? 0x7fc00000 : bits;
    if (c->call.type == CST_COMM_BF16 && !isnan(total)) {
        bits += 0x7fff + (bits >> 16 & 1);
    }
    return c->call.type == CST_COMM_BF16 ? bits >> 16 : bits;
}

/* -- calls ------------------------------------------------------------------------------------ */

/* Most arrays are small, some have no elements, and few are large. */
static size_t some_elems(const struct collective *c, uint64_t what, size_t most)
{
    const uint64_t x = draw(c, what);
    const uint64_t limits[] = {1, 4, 40, 400, most / 4, most};

    return (x >> 8) % (limits[x % 6] + 1);
}

static void set_counts(struct collective *c, size_t most)
{
    const bool same = c->call.op != CST_COMM_ALL_TO_ALL;

    for (uint32_t from = 0; from < c->size; from++) {
        for (uint32_t to = 0; to < c->size; to++) {
            c->counts[from][to] = some_elems(c, 100 + (same ? 0 : from * 64) + to, most / c->size);
        }
    }
    for (uint32_t from = 0; from < c->size; from++) {
        c->recv_counts[from] = c->counts[from][c->rank];
    }
}

static size_t total(const size_t counts[COLLECTIVE_MAX_RANKS], uint32_t n)
{
    size_t all = 0;

    for (uint32_t i = 0; i < n; i++) {
        all += counts[i];
    }
    return all;
}

static void set_lengths(struct collective *c)
{
    const size_t all = total(c->counts[c->rank], c->size);

    switch (c->call.op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        c->in_elems = c->rank == c->call.root ? c->call.n_elems : 0;
        c->out_elems = c->call.n_elems;
        break;
    case CST_COMM_ALL_REDUCE:
        c->in_elems = c->out_elems = c->call.n_elems;
        break;
    case CST_COMM_ALL_GATHER:
        c->in_elems = c->counts[0][c->rank];
        c->out_elems = all;
        break;
    case CST_COMM_REDUCE_SCATTER:
        c->in_elems = all;
        c->out_elems = c->counts[0][c->rank];
        break;
    case CST_COMM_ALL_TO_ALL:
        c->in_elems = all;
        c->out_elems = total(c->recv_counts, c->size);
        break;
    }
}

void collective_make(struct collective *c, uint64_t seed, uint64_t number, uint32_t rank,
                     uint32_t size, size_t most, enum cst_comm_op op)
{
    *c = (struct collective){.seed = seed, .number = number, .rank = rank, .size = size};
    c->call.op = op != 0 ? op : (enum cst_comm_op)(1 + draw(c, 1) % 6);
    c->call.type = draw(c, 2) % 2 == 0 ? CST_COMM_FP32 : CST_COMM_BF16;
    if (c->call.op != CST_COMM_ALL_REDUCE && c->call.op != CST_COMM_REDUCE_SCATTER &&
        draw(c, 3) % 3 == 0) {
        c->call.type = CST_COMM_BYTE;
    }
    c->call.n_elems = some_elems(c, 4, most);
    c->call.root = (uint32_t)(draw(c, 5) % size);
    set_counts(c, most);
    set_lengths(c);
    c->in = malloc(c->in_elems * 4 + 1);
    c->out = malloc(c->out_elems * 4 + 1);
    for (size_t i = 0; i < c->in_elems; i++) {
        put(c, c->in, i, element(c, rank, i));
    }
    memset(c->out, 0xa5, c->out_elems * 4);
    c->call.in = c->in;
    c->call.out = c->out;
    /* In place, sometimes. */
    if (c->call.op == CST_COMM_ALL_REDUCE && draw(c, 6) % 3 == 0) {
        memcpy(c->out, c->in, c->in_elems * bytes_of(c->call.type));
        c->call.in = c->out;
    }
    c->call.counts = c->counts[c->call.op == CST_COMM_ALL_TO_ALL ? rank : 0];
    c->call.recv_counts = c->recv_counts;
}

/* Element @i of what @rank must get. */
static uint32_t expected(const struct collective *c, size_t i)
{
    size_t first = 0;

    switch (c->call.op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        return element(c, c->call.root, i);
    case CST_COMM_ALL_REDUCE:
        return sum(c, i);
    case CST_COMM_REDUCE_SCATTER:
        return sum(c, total(c->counts[0], c->rank) + i);
    case CST_COMM_ALL_GATHER:
        for (uint32_t rank = 0; rank < c->size; first += c->counts[0][rank++]) {
            if (i < first + c->counts[0][rank]) {
                return element(c, rank, i - first);
            }
        }
        break;
    case CST_COMM_ALL_TO_ALL:
        for (uint32_t rank = 0; rank < c->size; first += c->recv_counts[rank++]) {
            if (i < first + c->recv_counts[rank]) {
                return element(c, rank, total(c->counts[rank], c->rank) + i - first);
            }
        }
        break;
    }
    abort();
}

bool collective_is_right(const struct collective *c)
{
    const size_t n = bytes_of(c->call.type != 0 ? c->call.type : CST_COMM_BYTE);

    for (size_t i = 0; i < c->out_elems; i++) {
        const uint32_t want = expected(c, i);

        if (memcmp((const char *)c->out + i * n, &want, n) != 0) {
            return false;
        }
    }
    return true;
}

void collective_free(struct collective *c)
{
    free(c->in);
    free(c->out);
}

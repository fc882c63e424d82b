/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/cuda_rows.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 */
uint64_t cases_next(struct cases *c)
{
    uint64_t z = c->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static float from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

float cases_float(struct cases *c, enum cases_fill fill)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffbfffff,
        0x7fffffff, 0x3f800000, 0xbf800000, 0x3f80ffff, 0x3f808000, 0x3f818000,
    };
    uint64_t r = cases_next(c);
    uint32_t high = (uint32_t)(r >> 32);

    if (fill == ORDINARY) {
        return (float)((double)(r >> 11) * 0x1p-52 - 1.0);
    }
    if (fill == INFINITE && r % 61 == 0) {
        return from_bits(0x7f800000u);
    }
    if (fill == WIDE || fill == INFINITE) {
        return from_bits((high & 0x807fffffu) | (uint32_t)(127 - 20 + r % 40) << 23);
    }
    switch (r % 4) {
    case 0:
        return from_bits(high);
    case 1:
        return from_bits(special[high % (sizeof special / sizeof special[0])]);
    case 2:
        return from_bits(high & 0x807fffffu);
    default:
        return (float)((double)high * 0x1p-31 - 1.0);
    }
}

static uint16_t random_bf16(struct cases *c, enum cases_fill fill)
{
    float f = cases_float(c, fill);
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void *cases_need(void *p)
{
    if (p == NULL) {
        perror("memory of a test");
        exit(EXIT_FAILURE);
    }
    return p;
}

void cases_failed(struct cases *c, const char *fmt, ...)
{
    char words[96];
    va_list args;

    if (!c->result->ok) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    c->result->ok = false;
    snprintf(c->result->why, sizeof c->result->why, "%s: %.90s: %.90s", c->op, c->what, words);
}

struct cases_row cases_row(struct cases *c, const char *name, uint64_t n, size_t elem_bytes,
                           size_t shift, enum cases_fill fill)
{
    struct cases_row row = {.bytes = n * elem_bytes, .elem_bytes = elem_bytes, .name = name};

    row.want = cases_need(malloc(row.bytes + 8));
    for (uint64_t i = 0; i < n; i++) {
        float f = cases_float(c, fill);
        uint16_t h = random_bf16(c, fill);
        double d = fabs((double)cases_float(c, fill == HOSTILE ? WIDE : fill));
        uint8_t b = (uint8_t)cases_next(c);

        memcpy(row.want + i * elem_bytes,
               elem_bytes == 1   ? (void *)&b
               : elem_bytes == 2 ? (void *)&h
               : elem_bytes == 4 ? (void *)&f
                                 : (void *)&d,
               elem_bytes);
    }
    row.at = c->device->place(c->device, row.bytes, shift * elem_bytes);
    c->device->put(c->device, row.at, row.want, row.bytes);
    return row;
}

void cases_compare(struct cases *c, struct cases_row *row)
{
    unsigned char *got = cases_need(malloc(row->bytes + 1));

    c->device->get(c->device, got, row->at, row->bytes);
    c->result->n_elems += row->bytes / row->elem_bytes;
    for (size_t i = 0; i < row->bytes; i += row->elem_bytes) {
        if (memcmp(got + i, row->want + i, row->elem_bytes) != 0) {
            uint64_t a = 0;
            uint64_t b = 0;

            memcpy(&a, got + i, row->elem_bytes);
            memcpy(&b, row->want + i, row->elem_bytes);
            cases_failed(c, "%s[%zu] is %#llx, not %#llx", row->name, i / row->elem_bytes,
                         (unsigned long long)a, (unsigned long long)b);
            break;
        }
    }
    free(got);
    free(row->want);
}

void cases_end(struct cases *c)
{
    if (!c->device->clear(c->device)) {
        cases_failed(c, "memory around the rows was written");
    }
}

uint64_t cases_tiles(struct cases *c, struct cst_cuda_tile *tiles, uint64_t n, bool aligned)
{
    uint64_t at = 0;

    for (uint64_t t = 0; t < n; t++) {
        uint64_t r = cases_next(c);
        uint32_t n_elems = r % 3 == 0
                               ? CST_CUDA_TILE_ELEMS
                               : 1 + (uint32_t)(r >> 32) % (r % 3 == 1 ? 300 : CST_CUDA_TILE_ELEMS);

        at += cases_next(c) % 3 * 37;
        if (aligned) {
            at = (at + 63) / 64 * 64;
        }
        tiles[t] = (struct cst_cuda_tile){.start = at, .n_elems = n_elems};
        at += n_elems;
    }
    return at + 5;
}

void *cases_place(struct cases *c, const void *from, size_t bytes)
{
    void *at = c->device->place(c->device, bytes, 0);

    c->device->put(c->device, at, from, bytes);
    return at;
}

#include "tests/lib/cuda_cases.h"
#include "tests/lib/adamw.h"

#include "kernels/accumulate.h"
#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum fill {
    ORDINARY, /* numbers around 1 */
    WIDE,     /* finite, 2^-20 to 2^20: every sum is rounded, so its order shows */
    INFINITE, /* as WIDE, with an infinity here and there, no NaN */
    HOSTILE,  /* any bits, special values, subnormals */
    N_FILL,
};

/* One run of cases. */
struct cases {
    struct cases_device *device;
    struct cases_result *result;
    uint64_t state; /* of the generator */
    const char *op; /* for words */
    char what[96];  /* the case in hand */
};

/* A row on the device and what it must become. */
struct row {
    unsigned char *want; /* on the host; at first what it is */
    void *at;            /* on the device */
    size_t bytes;
    size_t elem_bytes;
    const char *name;
};

/* splitmix64 */
static uint64_t next(struct cases *c)
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

static float random_float(struct cases *c, enum fill fill)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffbfffff,
        0x7fffffff, 0x3f800000, 0xbf800000, 0x3f80ffff, 0x3f808000, 0x3f818000,
    };
    uint64_t r = next(c);
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

static uint16_t random_bf16(struct cases *c, enum fill fill)
{
    float f = random_float(c, fill);
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void *need(void *p)
{
    if (p == NULL) {
        perror("memory of a test");
        exit(EXIT_FAILURE);
    }
    return p;
}

static void failed(struct cases *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void failed(struct cases *c, const char *fmt, ...)
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

/* @n elements of 2, 4 or 8 bytes, @shift elements above an aligned address, filled. */
static struct row make_row(struct cases *c, const char *name, uint64_t n, size_t elem_bytes,
                           size_t shift, enum fill fill)
{
    struct row row = {.bytes = n * elem_bytes, .elem_bytes = elem_bytes, .name = name};

    row.want = need(malloc(row.bytes + 8));
    for (uint64_t i = 0; i < n; i++) {
        float f = random_float(c, fill);
        uint16_t h = random_bf16(c, fill);
        double d = fabs((double)random_float(c, fill == HOSTILE ? WIDE : fill));

        memcpy(row.want + i * elem_bytes,
               elem_bytes == 2   ? (void *)&h
               : elem_bytes == 4 ? (void *)&f
                                 : (void *)&d,
               elem_bytes);
    }
    row.at = c->device->place(c->device, row.bytes, shift * elem_bytes);
    c->device->put(c->device, row.at, row.want, row.bytes);
    return row;
}

/* The row on the device has the bits that it should have. */
static void compare_row(struct cases *c, struct row *row)
{
    unsigned char *got = need(malloc(row->bytes + 1));

    c->device->get(c->device, got, row->at, row->bytes);
    c->result->n_elems += row->bytes / row->elem_bytes;
    for (size_t i = 0; i < row->bytes; i += row->elem_bytes) {
        if (memcmp(got + i, row->want + i, row->elem_bytes) != 0) {
            uint64_t a = 0;
            uint64_t b = 0;

            memcpy(&a, got + i, row->elem_bytes);
            memcpy(&b, row->want + i, row->elem_bytes);
            failed(c, "%s[%zu] is %#llx, not %#llx", row->name, i / row->elem_bytes,
                   (unsigned long long)a, (unsigned long long)b);
            break;
        }
    }
    free(got);
    free(row->want);
}

static void end_case(struct cases *c)
{
    if (!c->device->clear(c->device)) {
        failed(c, "memory around the rows was written");
    }
}

static const uint64_t lengths[] = {1,  2,  3,  4,   5,    7,    8,    9,    15,   16,   31,
                                   33, 63, 64, 100, 1023, 1024, 4095, 4096, 4097, 9001, 20480};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

/* ---- adamw ---- */

static struct cst_update_scalars random_hyper(struct cases *c, enum fill fill)
{
    struct cst_update_scalars hyper;

    cst_update_prepare(&hyper, 1e-3 * (1.0 + (double)(next(c) % 100)), 0.9,
                       0.95 + 1e-4 * (double)(next(c) % 100), 1e-8, 0.1,
                       fill == HOSTILE ? 0x1p-12f : 0.7f, 1 + next(c) % 1000);
    return hyper;
}

struct states {
    struct row grad, master, exp_avg, exp_avg_sq, weight;
};

/* @shift: of each row, three bits a row; 0: all aligned. */
static struct states make_states(struct cases *c, uint64_t n, uint32_t shift, enum fill fill)
{
    struct states s = {
        .grad = make_row(c, "grad", n, 2, shift & 7u, fill),
        .master = make_row(c, "master", n, 4, shift >> 3 & 7u, fill),
        .exp_avg = make_row(c, "exp_avg", n, 4, shift >> 6 & 7u, fill),
        .exp_avg_sq = make_row(c, "exp_avg_sq", n, 4, shift >> 9 & 7u, fill),
        .weight = make_row(c, "weight", n, 2, shift >> 12 & 7u, fill),
    };

    if (fill != HOSTILE) { /* a mean of squares */
        for (uint64_t i = 0; i < n; i++) {
            s.exp_avg_sq.want[4 * i + 3] &= 0x7f;
        }
        c->device->put(c->device, s.exp_avg_sq.at, s.exp_avg_sq.want, 4 * n);
    }
    return s;
}

/* What the update of elements [start, start + n) makes of them. */
static void want_update(struct states *s, const struct cst_update_scalars *hyper, uint64_t start,
                        uint64_t n)
{
    adamw_update(&cst_update_ref, hyper, n, (const uint16_t *)(void *)s->grad.want + start, NULL,
                 (float *)(void *)s->master.want + start, (float *)(void *)s->exp_avg.want + start,
                 (float *)(void *)s->exp_avg_sq.want + start,
                 (uint16_t *)(void *)s->weight.want + start);
}

static void compare_states(struct cases *c, struct states *s)
{
    compare_row(c, &s->grad);
    compare_row(c, &s->master);
    compare_row(c, &s->exp_avg);
    compare_row(c, &s->exp_avg_sq);
    compare_row(c, &s->weight);
    end_case(c);
}

/* Aligned rows; all off by the same number of elements; each off by another. */
static uint32_t pick_shift(struct cases *c, unsigned i)
{
    uint32_t same = (uint32_t)(next(c) % 8);

    switch (i % 3) {
    case 0:
        return 0;
    case 1:
        return same * 011111u;
    default:
        return (uint32_t)(next(c) & 077777u);
    }
}

static void adamw_cases(struct cases *c)
{
    for (unsigned i = 0; i < N_LENGTHS * 3 * N_FILL; i++) {
        enum fill fill = (enum fill)(i / 3 % N_FILL);
        uint64_t n = lengths[i / 3 / N_FILL];
        uint32_t shift = pick_shift(c, i);
        struct cst_update_scalars hyper = random_hyper(c, fill);
        struct states s = make_states(c, n, shift, fill);

        snprintf(c->what, sizeof c->what, "n %llu, shift %05o, fill %d", (unsigned long long)n,
                 shift, (int)fill);
        c->device->adamw(c->device, &hyper, n, s.grad.at, s.master.at, s.exp_avg.at,
                         s.exp_avg_sq.at, s.weight.at);
        want_update(&s, &hyper, 0, n);
        compare_states(c, &s);
    }
}

/* ---- tiles ---- */

enum { MAX_TILES = 48, N_SPANS = 5 };

/* Tiles that do not overlap, with gaps between them that nobody may write, at any element or,
 * @aligned, at multiples of 64. Returns the elements of the rows. */
static uint64_t make_tiles(struct cases *c, struct cst_cuda_tile *tiles, uint64_t n, bool aligned)
{
    uint64_t at = 0;

    for (uint64_t t = 0; t < n; t++) {
        uint64_t r = next(c);
        uint32_t n_elems = r % 3 == 0
                               ? CST_CUDA_TILE_ELEMS
                               : 1 + (uint32_t)(r >> 32) % (r % 3 == 1 ? 300 : CST_CUDA_TILE_ELEMS);

        at += next(c) % 3 * 37;
        if (aligned) {
            at = (at + 63) / 64 * 64;
        }
        tiles[t] = (struct cst_cuda_tile){
            .start = at, .n_elems = n_elems, .span = (uint32_t)(next(c) % N_SPANS)};
        at += n_elems;
    }
    return at + 5;
}

static void *place_copy(struct cases *c, const void *from, size_t bytes)
{
    void *at = c->device->place(c->device, bytes, 0);

    c->device->put(c->device, at, from, bytes);
    return at;
}

static void adamw_tiles_cases(struct cases *c)
{
    struct cst_cuda_tile tiles[MAX_TILES];
    struct cst_update_scalars hypers[N_SPANS];

    for (unsigned i = 0; i < 4 * N_FILL; i++) {
        enum fill fill = (enum fill)(i % N_FILL);
        uint64_t n = i < N_FILL ? 1 : 1 + next(c) % MAX_TILES;
        uint64_t n_elems = make_tiles(c, tiles, n, i % 2 == 0);
        struct states s = make_states(c, n_elems, 0, fill);

        for (int h = 0; h < N_SPANS; h++) {
            hypers[h] = random_hyper(c, fill);
        }
        snprintf(c->what, sizeof c->what, "%llu tiles, fill %d", (unsigned long long)n, (int)fill);
        c->device->adamw_tiles(c->device, n, place_copy(c, tiles, n * sizeof tiles[0]),
                               place_copy(c, hypers, sizeof hypers), s.grad.at, s.master.at,
                               s.exp_avg.at, s.exp_avg_sq.at, s.weight.at);
        for (uint64_t t = 0; t < n; t++) {
            want_update(&s, &hypers[tiles[t].span], tiles[t].start, tiles[t].n_elems);
        }
        compare_states(c, &s);
    }
}

/* ---- reduce ---- */

/* One reduction. @in_place: the source that is the result's row too, or none if there is no such
 * source. @shift: of the sources by turns and, its lowest three bits, of the result. */
static void reduce_case(struct cases *c, uint64_t n_tiles, uint32_t n_src, uint32_t in_place,
                        uint32_t shift, enum fill fill)
{
    struct cst_cuda_tile tiles[MAX_TILES];
    uint64_t n_elems = make_tiles(c, tiles, n_tiles, next(c) % 4 != 0);
    struct row src[CST_CUDA_MAX_SRC];
    struct row own = make_row(c, "dst", n_elems, 2, shift & 7u, HOSTILE);
    struct row sums = make_row(c, "sums", n_tiles, 8, 0, ORDINARY);
    struct row *dst = in_place < n_src ? &src[in_place] : &own;
    struct cst_cuda_sources sources = {.n = n_src};

    for (uint32_t r = 0; r < n_src; r++) {
        src[r] = make_row(c, "source", n_elems, 2, shift >> 3 * (r % 4) & 7u, fill);
        sources.v[r] = src[r].at;
    }
    snprintf(c->what, sizeof c->what, "%llu tiles, %u sources, into %u, shift %04o, fill %d",
             (unsigned long long)n_tiles, n_src, in_place, shift, (int)fill);
    c->device->reduce(c->device, n_tiles, place_copy(c, tiles, n_tiles * sizeof tiles[0]), &sources,
                      dst->at, sums.at);
    for (uint64_t t = 0; t < n_tiles; t++) {
        const uint16_t *in[CST_CUDA_MAX_SRC];

        for (uint32_t r = 0; r < n_src; r++) {
            in[r] = (const uint16_t *)(void *)src[r].want + tiles[t].start;
        }
        ((double *)(void *)sums.want)[t] = cst_reduce_ref(
            tiles[t].n_elems, n_src, in, (uint16_t *)(void *)dst->want + tiles[t].start);
    }
    for (uint32_t r = 0; r < n_src; r++) {
        compare_row(c, &src[r]);
    }
    compare_row(c, &own);
    compare_row(c, &sums);
    end_case(c);
}

static void reduce_cases(struct cases *c)
{
    static const uint32_t n_srcs[] = {0, 1, 2, 3, 4, 7, 8, 17, 64};

    for (unsigned s = 0; s < sizeof n_srcs / sizeof n_srcs[0]; s++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            uint32_t n = n_srcs[s];
            uint64_t n_tiles = 1 + next(c) % (n < 10 ? 9 : 3);

            reduce_case(c, n_tiles, n, n, 0, (enum fill)fill);
            reduce_case(c, n_tiles, n, n > 0 ? (uint32_t)(next(c) % n) : 0, 0, (enum fill)fill);
            reduce_case(c, n_tiles, n, n > 0 ? (uint32_t)(next(c) % (n + 1)) : 0,
                        (uint32_t)(next(c) & 07777u), (enum fill)fill);
        }
    }
    for (int fill = 0; fill < N_FILL; fill++) {
        reduce_case(c, MAX_TILES, 2, 2, 0, (enum fill)fill);
        reduce_case(c, MAX_TILES - 1, 3, 1, 0, (enum fill)fill);
    }
}

/* ---- sum ---- */

/* One sum: what accumulate.h stores of it must be what it stores of the sources. Other bits may
 * differ in a NaN alone. */
static void sum_case(struct cases *c, uint64_t n_tiles, uint32_t n_src, uint32_t shift,
                     enum fill fill)
{
    struct cst_cuda_tile tiles[MAX_TILES];
    uint64_t n_elems = make_tiles(c, tiles, n_tiles, next(c) % 4 != 0);
    struct row src[CST_CUDA_MAX_SRC];
    struct row dst = make_row(c, "dst", n_elems, 4, shift & 7u, WIDE);
    float *want = (float *)(void *)dst.want, *got = need(malloc(dst.bytes));
    struct cst_cuda_sources sources = {.n = n_src};

    for (uint32_t r = 0; r < n_src; r++) {
        src[r] = make_row(c, "source", n_elems, 2, shift >> 3 * (r % 4) & 7u, fill);
        sources.v[r] = src[r].at;
    }
    snprintf(c->what, sizeof c->what, "%llu tiles, %u sources, shift %04o, fill %d",
             (unsigned long long)n_tiles, n_src, shift, (int)fill);
    c->device->sum(c->device, n_tiles, place_copy(c, tiles, n_tiles * sizeof tiles[0]), &sources,
                   dst.at);
    c->device->get(c->device, got, dst.at, dst.bytes);
    for (uint64_t t = 0; t < n_tiles; t++) {
        const uint16_t *in[CST_CUDA_MAX_SRC];
        uint64_t at = tiles[t].start;

        for (uint32_t r = 0; r < n_src; r++) {
            in[r] = (const uint16_t *)(void *)src[r].want + at;
        }
        (void)cst_accumulate_ref(tiles[t].n_elems, n_src, in, false, want + at);
        (void)cst_accumulate_sum_ref(tiles[t].n_elems, got + at, got + at);
    }
    c->device->put(c->device, dst.at, got, dst.bytes);
    for (uint32_t r = 0; r < n_src; r++) {
        compare_row(c, &src[r]);
    }
    compare_row(c, &dst);
    end_case(c);
    free(got);
}

static void sum_cases(struct cases *c)
{
    static const uint32_t n_srcs[] = {0, 1, 2, 3, 5, 8, 64};

    for (unsigned s = 0; s < sizeof n_srcs / sizeof n_srcs[0]; s++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            uint64_t n_tiles = 1 + next(c) % (n_srcs[s] < 10 ? 9 : 3);

            sum_case(c, n_tiles, n_srcs[s], 0, (enum fill)fill);
            sum_case(c, n_tiles, n_srcs[s], (uint32_t)(next(c) & 07777u), (enum fill)fill);
        }
    }
    sum_case(c, MAX_TILES, 3, 0, WIDE);
}

/* ---- norm ---- */

static void norm_case(struct cases *c, uint64_t n, double put)
{
    struct cst_table_tile *tiles = need(calloc(n + 1, sizeof *tiles));
    struct row sums = make_row(c, "sums", n, 8, 0, WIDE);
    struct row out = make_row(c, "norm", 1, 8, 0, ORDINARY);
    double want;

    snprintf(c->what, sizeof c->what, "%llu sums, one is %g", (unsigned long long)n, put);
    if (put >= 0.0 || isnan(put)) {
        uint64_t at = next(c) % n;

        memcpy(sums.want + 8 * at, &put, sizeof put);
        c->device->put(c->device, sums.at, sums.want, sums.bytes);
    }
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&tiles[i].sum_squares, sums.want + 8 * i, sizeof(double));
    }
    c->device->norm(c->device, n, sums.at, out.at);
    want = cst_norm_sum(tiles, n);
    memcpy(out.want, &want, sizeof want);
    compare_row(c, &sums);
    compare_row(c, &out);
    end_case(c);
    free(tiles);
}

static void norm_cases(struct cases *c)
{
    static const uint64_t counts[] = {0,    1,    2,    3,    31,   32,   33,    255,
                                      1023, 1024, 1025, 2047, 2048, 2049, 10007, 24415};
    const uint64_t bits = 0x7ff8000000000000u; /* what the reduction makes of any NaN */
    double nan;

    memcpy(&nan, &bits, sizeof nan);
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        norm_case(c, counts[i], -1.0);
        if (counts[i] > 0) {
            norm_case(c, counts[i], (double)INFINITY);
            norm_case(c, counts[i], nan);
        }
    }
}

/* ---- casts ---- */

static void cast_case(struct cases *c, uint64_t n, uint32_t shift, enum fill fill, bool up)
{
    struct row wide = make_row(c, "fp32", n, 4, shift & 7u, fill);
    struct row narrow = make_row(c, "bf16", n, 2, shift >> 3 & 7u, fill);

    snprintf(c->what, sizeof c->what, "n %llu, shift %02o, fill %d", (unsigned long long)n, shift,
             (int)fill);
    if (up) {
        c->device->upcast(c->device, n, narrow.at, wide.at);
        cst_upcast_ref(n, (const uint16_t *)(void *)narrow.want, (float *)(void *)wide.want);
    } else {
        c->device->cast(c->device, n, wide.at, narrow.at);
        cst_cast_ref(n, (const float *)(void *)wide.want, (uint16_t *)(void *)narrow.want);
    }
    compare_row(c, &wide);
    compare_row(c, &narrow);
    end_case(c);
}

static void casts(struct cases *c, bool up)
{
    for (unsigned l = 0; l < N_LENGTHS; l++) {
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t shift = i == 0 ? 0 : i < 3 ? i * 011u : (uint32_t)(next(c) & 077u);

            cast_case(c, lengths[l], shift, i % 2 == 0 ? HOSTILE : WIDE, up);
        }
    }
    cast_case(c, 1 << 18, 0, HOSTILE, up);
}

static void cast_cases(struct cases *c)
{
    casts(c, false);
}

static void upcast_cases(struct cases *c)
{
    casts(c, true);
}

/* ---- */

static void run(const char *op, void (*cases)(struct cases *), struct cases_device *device,
                uint64_t seed, struct cases_result *result)
{
    struct cases c = {.device = device, .result = result, .state = seed, .op = op};

    *result = (struct cases_result){.ok = true};
    cases(&c);
}

#define CST_CASES_OP(op)                                                                           \
    static void run_##op(struct cases_device *device, uint64_t seed, struct cases_result *result)  \
    {                                                                                              \
        run(#op, op##_cases, device, seed, result);                                                \
    }

CST_CASES_OP(adamw)
CST_CASES_OP(adamw_tiles)
CST_CASES_OP(reduce)
CST_CASES_OP(sum)
CST_CASES_OP(norm)
CST_CASES_OP(cast)
CST_CASES_OP(upcast)

const struct cases_op *cases_all(unsigned *n)
{
    static const struct cases_op all[] = {
        {"adamw", run_adamw},   {"adamw_tiles", run_adamw_tiles},
        {"reduce", run_reduce}, {"sum", run_sum},
        {"norm", run_norm},     {"cast", run_cast},
        {"upcast", run_upcast},
    };

    *n = sizeof all / sizeof all[0];
    return all;
}

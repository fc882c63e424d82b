/* SPDX-License-Identifier: Apache-2.0 */
/* Which of cuBLASLt's algorithms is fastest without changing a bit.
 *
 * Algorithms that add in the same order give equal bits, whatever their tiles; those that split k
 * between blocks do not. The library does not tell the order. A trial therefore multiplies operands
 * whose exact products are all zero: the second half of each sum takes back the first. What is left
 * are rounding errors alone, which are others for any other order. */
#include "client/gpt/cuda/cublas_inside.h"

#ifdef GPT_HAVE_CUBLAS

#include "client/gpt/cuda/carver.h"

#include <stdlib.h>
#include <string.h>

#define RUNS 3           /* Products that are timed together. */
#define GAIN 0.97f       /* A faster algorithm takes at most this part of the first one's time. */
#define LANES 64         /* Rows of a, or columns of b, that differ. */
#define PIECE (4u << 20) /* Bytes of a copy. */
#define MAX_SHARE 2      /* A trial takes at most this part of the free memory. */
#define MANTISSA UINT32_C(0x7f) /* Bits of a bf16. */

struct trial {
    const struct gpt_cublas *cublas;
    struct gpt_cublas_plan *plan;
    CUstream stream;
    CUdeviceptr memory; /* All arrays. */
    CUevent from, to;
    struct gpt_product
        products[2];            /* Same operands, two results: of the first and of another one. */
    float ms[GPT_CUBLAS_ALGOS]; /* Time of RUNS products; 0: refused. */
    uint8_t *host[2];           /* PIECE bytes each. */
};

static int check(const struct trial *t, CUresult result, const char *what, struct cst_err *err)
{
    return cst_cuda_check(t->cublas->driver, result, err, "trial of cuBLASLt: %s", what);
}

static size_t result_bytes(const struct gpt_product *p)
{
    return p->m * p->n * (p->fp32 ? sizeof(float) : sizeof(uint16_t));
}

/* -- operands --------------------------------------------------------------------------------- */

/* A bf16 between 1/8 and 8 in size, as a function of @i: splitmix64 (Steele et al. 2014). */
static uint16_t number(uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (uint16_t)((x & 1) << 15 | (124 + (x >> 1) % 6) << 7 | ((x >> 8) & MANTISSA));
}

/* Element of an operand at place @k of the sum. The second half repeats the first, in b with the
 * other sign. It begins at a third, so that halves that are added separately do not cancel each
 * other exactly. */
static uint16_t element(const struct gpt_product *p, bool is_b, size_t k, size_t lane)
{
    const size_t half = (p->k + 1) / 2, place = k < half ? k : (k - half + half / 3) % half;
    const uint16_t x = number(((is_b ? half : 0) + place) * LANES + lane % LANES);

    return is_b && k >= half ? x ^ 0x8000 : x;
}

/* Write an operand of @rows x @columns to @to. @k_is_row: place k of the sum is row k. */
static int fill(struct trial *t, CUdeviceptr to, bool is_b, size_t rows, size_t columns,
                bool k_is_row, struct cst_err *err)
{
    const struct gpt_product *p = &t->products[0];
    const size_t n = rows * columns, most = PIECE / sizeof(uint16_t);
    uint16_t *piece = (uint16_t *)(void *)t->host[0];
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;

        for (size_t i = 0; i < here; i++) {
            const size_t row = (at + i) / columns, column = (at + i) % columns;

            piece[i] = element(p, is_b, k_is_row ? row : column, k_is_row ? column : row);
        }
        rc = check(t,
                   t->cublas->driver->cuMemcpyHtoDAsync(to + at * sizeof *piece, piece,
                                                        here * sizeof *piece, t->stream),
                   "operands", err);
    }
    return rc;
}

/* Write both operands, and what epilogues read. */
static int fill_all(struct trial *t, struct cst_err *err)
{
    const struct gpt_product *p = &t->products[0];
    int rc = fill(t, p->a, false, p->turn_a ? p->k : p->m, p->turn_a ? p->m : p->k, p->turn_a, err);

    if (rc == 0) {
        rc = fill(t, p->b, true, p->turn_b ? p->n : p->k, p->turn_b ? p->k : p->n, !p->turn_b, err);
    }
    if (rc == 0) {
        rc = check(t, t->cublas->driver->cuMemsetD8Async(p->bias, 0, p->n * 2, t->stream), "a bias",
                   err);
    }
    for (int i = 0; rc == 0 && i < 2 && p->epilogue == GPT_EPILOGUE_GELU_BACKWARD; i++) {
        rc = fill(t, t->products[i].pre, false, p->m, p->n, false, err);
    }
    return rc;
}

static void carve(struct trial *t, struct gpt_carver *c)
{
    struct gpt_product *p = &t->products[0];

    p->a = gpt_carve(c, p->m * p->k * sizeof(uint16_t));
    p->b = gpt_carve(c, p->k * p->n * sizeof(uint16_t));
    p->bias = gpt_carve(c, p->n * sizeof(uint16_t));
    t->products[1] = *p;
    for (int i = 0; i < 2; i++) {
        t->products[i].c = gpt_carve(c, result_bytes(p));
        t->products[i].pre = p->epilogue >= GPT_EPILOGUE_BIAS_GELU
                                 ? gpt_carve(c, p->m * p->n * sizeof(uint16_t))
                                 : 0;
    }
}

/* Allocate everything. False: there is not enough memory. */
static bool allocate(struct trial *t)
{
    const struct cst_cuda_driver *d = t->cublas->driver;
    struct gpt_carver c = {0};
    size_t left = 0, all = 0;

    t->products[0] = t->plan->like;
    t->products[0].scale = 1.0f;
    carve(t, &c);
    t->host[0] = malloc(PIECE);
    t->host[1] = malloc(PIECE);
    if (t->host[0] == NULL || t->host[1] == NULL || d->cuMemGetInfo(&left, &all) != CUDA_SUCCESS ||
        c.bytes > left / MAX_SHARE || d->cuMemAlloc(&t->memory, c.bytes) != CUDA_SUCCESS) {
        t->memory = 0;
        return false;
    }
    c = (struct gpt_carver){.base = t->memory};
    carve(t, &c);
    return true;
}

/* -- time ------------------------------------------------------------------------------------- */

/* Enqueue @n times the product @p by algorithm @i. *refused: the library does not take it. */
static int enqueue(struct trial *t, unsigned i, const struct gpt_product *p, int n, bool *refused,
                   struct cst_err *err)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (int run = 0; status == CUBLAS_STATUS_SUCCESS && run < n; run++) {
        status = gpt_cublas_enqueue(t->cublas, t->plan, &t->plan->algos[i], 0.0f, p, t->stream);
    }
    *refused = gpt_cublas_refuses(status);
    return status == CUBLAS_STATUS_SUCCESS || *refused
               ? 0
               : gpt_cublas_fault(t->cublas, status, "trial of cublasLtMatmul", err);
}

static int time_one(struct trial *t, unsigned i, struct cst_err *err)
{
    const struct cst_cuda_driver *d = t->cublas->driver;
    bool refused;
    /* The first product is not timed, because it loads the kernel. */
    int rc = enqueue(t, i, &t->products[1], 1, &refused, err);

    if (rc != 0 || refused) {
        return rc;
    }
    rc = check(t, d->cuEventRecord(t->from, t->stream), "an event", err);
    if (rc == 0) {
        rc = enqueue(t, i, &t->products[1], RUNS, &refused, err);
    }
    if (rc == 0) {
        rc = check(t, d->cuEventRecord(t->to, t->stream), "an event", err);
    }
    if (rc == 0) {
        rc = check(t, d->cuEventSynchronize(t->to), "the stream", err);
    }
    if (rc == 0 && !refused) {
        rc = check(t, d->cuEventElapsedTime(&t->ms[i], t->from, t->to), "the time", err);
    }
    return rc;
}

/* -- bits ------------------------------------------------------------------------------------- */

static int same_bytes(struct trial *t, CUdeviceptr a, CUdeviceptr b, size_t bytes, bool *same,
                      struct cst_err *err)
{
    const struct cst_cuda_driver *d = t->cublas->driver;
    int rc = 0;

    for (size_t at = 0; rc == 0 && *same && at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;

        rc = check(t, d->cuMemcpyDtoHAsync(t->host[0], a + at, n, t->stream), "a result", err);
        if (rc == 0) {
            rc = check(t, d->cuMemcpyDtoHAsync(t->host[1], b + at, n, t->stream), "a result", err);
        }
        if (rc == 0) {
            rc = check(t, d->cuStreamSynchronize(t->stream), "the stream", err);
        }
        *same = rc == 0 && memcmp(t->host[0], t->host[1], n) == 0;
    }
    return rc;
}

/* Compare the results of algorithm @i with those of the first one. */
static int compare(struct trial *t, unsigned i, bool *same, struct cst_err *err)
{
    const struct gpt_product *first = &t->products[0], *other = &t->products[1];
    bool refused[2] = {false, false};
    int rc = enqueue(t, 0, first, 1, &refused[0], err);

    if (rc == 0) {
        rc = enqueue(t, i, other, 1, &refused[1], err);
    }
    *same = rc == 0 && !refused[0] && !refused[1];
    if (rc == 0) {
        rc = same_bytes(t, first->c, other->c, result_bytes(first), same, err);
    }
    if (rc == 0 && first->epilogue == GPT_EPILOGUE_BIAS_GELU) {
        rc = same_bytes(t, first->pre, other->pre, first->m * first->n * 2, same, err);
    }
    return rc;
}

/* Find the fastest algorithm with the bits of the first one; *best 0: there is none. */
static int find_best(struct trial *t, unsigned *best, struct cst_err *err)
{
    bool same = false;
    int rc = 0;

    *best = 0;
    while (rc == 0 && !same) {
        unsigned next = 0;

        for (unsigned i = 1; i < t->plan->n_algos; i++) {
            if (t->ms[i] > 0 && t->ms[i] <= GAIN * t->ms[0] &&
                (next == 0 || t->ms[i] < t->ms[next])) {
                next = i;
            }
        }
        if (next == 0) {
            return 0;
        }
        rc = compare(t, next, &same, err);
        t->ms[next] = 0; /* It is not compared again. */
        *best = same ? next : 0;
    }
    return rc;
}

static int run(struct trial *t, unsigned *best, struct cst_err *err)
{
    const struct cst_cuda_driver *d = t->cublas->driver;
    int rc = check(t, d->cuEventCreate(&t->from, CU_EVENT_DEFAULT), "an event", err);

    if (rc == 0) {
        rc = check(t, d->cuEventCreate(&t->to, CU_EVENT_DEFAULT), "an event", err);
    }
    if (rc == 0) {
        rc = fill_all(t, err);
    }
    for (unsigned i = 0; rc == 0 && i < t->plan->n_algos; i++) {
        rc = time_one(t, i, err);
    }
    return rc == 0 && t->ms[0] > 0 ? find_best(t, best, err) : rc;
}

int gpt_cublas_try(const struct gpt_cublas *cublas, struct gpt_cublas_plan *plan, CUstream stream,
                   struct cst_err *err)
{
    const struct cst_cuda_driver *d = cublas->driver;
    struct trial t = {.cublas = cublas, .plan = plan, .stream = stream};
    unsigned best = 0;
    int rc = allocate(&t) ? run(&t, &best, err) : 0;

    if (t.memory != 0) {
        (void)d->cuStreamSynchronize(stream); /* Whatever failed may still use the memory. */
        (void)d->cuMemFree(t.memory);
    }
    if (t.from != NULL) {
        (void)d->cuEventDestroy(t.from);
    }
    if (t.to != NULL) {
        (void)d->cuEventDestroy(t.to);
    }
    free(t.host[0]);
    free(t.host[1]);
    if (rc == 0 && best > 0) {
        const cublasLtMatmulAlgo_t fastest = plan->algos[best];

        plan->algos[1] = plan->algos[0]; /* In reserve: it gives the same bits. */
        plan->algos[0] = fastest;
        plan->n_algos = 2;
    } else if (rc == 0) {
        plan->n_algos = 1;
    }
    return rc;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests attention on a GPU: compares it with the formula in double precision, checks that two
 * runs have equal bits, and measures its speed. Exit status 77: no GPU. "--small": small shapes
 * and no speed, for a driver without a GPU. Operations are counted as usual: forward has 4 per
 * score that is not masked and element of a head, and backward 2.5 times as many, whatever is
 * computed twice. */
#include "client/gpt/cuda/gpu.h"
#include "tests/lib/attention_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_GPU = 77, RUNS = 10 };

static const struct gpt_attention_shape small[] = {
    {2, 33, 2, 16}, {2, 131, 2, 64}, {1, 129, 1, 112}, {1, 140, 1, 128}, {1, 70, 1, 256},
};
static const struct gpt_attention_shape large[] = {
    {2, 33, 2, 16},  {1, 700, 2, 32}, {1, 513, 3, 48},   {2, 640, 1, 64},   {1, 1000, 2, 64},
    {1, 777, 1, 80}, {2, 300, 2, 96}, {1, 1025, 1, 112}, {1, 1000, 2, 128}, {1, 400, 1, 256},
};

/* Shapes used in training. The speed of the last one is reported. */
static const struct gpt_attention_shape trained[] = {{8, 2048, 32, 64}, {8, 2048, 16, 128}};

/* One attention on the device. */
struct place {
    const struct gpt_gpu *gpu;
    CUdeviceptr qkv, out, lse, dout, dqkv, scratch;
};

static void need(int status, const struct cst_err *err)
{
    if (status != CST_OK) {
        (void)fprintf(stderr, "check_attention: %s: %s\n", cst_status_name(status), err->text);
        exit(EXIT_FAILURE);
    }
}

static void call(const struct gpt_gpu *gpu, CUresult result, const char *what)
{
    struct cst_err err = {0};

    need(cst_cuda_check(&gpu->driver, result, &err, "%s", what), &err);
}

static CUdeviceptr alloc(const struct gpt_gpu *gpu, size_t bytes)
{
    struct cst_err err = {0};
    CUdeviceptr p = 0;

    need(gpt_gpu_alloc(gpu, bytes, "an attention", &p, &err), &err);
    return p;
}

static void upload(const struct gpt_gpu *gpu, CUdeviceptr to, const void *from, size_t bytes)
{
    struct cst_err err = {0};

    need(gpt_gpu_upload(gpu, to, from, bytes, &err), &err);
    need(gpt_gpu_wait(gpu, &err), &err);
}

static void download(const struct gpt_gpu *gpu, void *to, CUdeviceptr from, size_t bytes)
{
    struct cst_err err = {0};

    need(gpt_gpu_download(gpu, to, from, bytes, &err), &err);
    need(gpt_gpu_wait(gpu, &err), &err);
}

static void place_open(struct place *p, const struct gpt_gpu *gpu, const struct attention_field *f)
{
    *p = (struct place){.gpu = gpu};
    p->qkv = alloc(gpu, 6 * f->n_out);
    p->out = alloc(gpu, 2 * f->n_out);
    p->lse = alloc(gpu, 4 * f->n_lse);
    p->dout = alloc(gpu, 2 * f->n_out);
    p->dqkv = alloc(gpu, 6 * f->n_out);
    p->scratch = alloc(gpu, gpt_cuda_attention_scratch(&f->shape));
    upload(gpu, p->qkv, f->qkv, 6 * f->n_out);
    upload(gpu, p->dout, f->dout, 2 * f->n_out);
}

static void place_close(struct place *p)
{
    gpt_gpu_free(p->gpu, p->qkv);
    gpt_gpu_free(p->gpu, p->out);
    gpt_gpu_free(p->gpu, p->lse);
    gpt_gpu_free(p->gpu, p->dout);
    gpt_gpu_free(p->gpu, p->dqkv);
    gpt_gpu_free(p->gpu, p->scratch);
}

static void forward(const struct place *p, const struct gpt_attention_shape *shape)
{
    struct cst_err err = {0};

    need(
        gpt_cuda_attention(&p->gpu->attention, p->gpu->stream, shape, p->qkv, p->out, p->lse, &err),
        &err);
}

static void backward(const struct place *p, const struct gpt_attention_shape *shape)
{
    struct cst_err err = {0};

    need(gpt_cuda_attention_backward(&p->gpu->attention, p->gpu->stream, shape, p->qkv, p->out,
                                     p->lse, p->dout, p->dqkv, p->scratch, &err),
         &err);
}

static void fill(const struct place *p, CUdeviceptr at, size_t bytes)
{
    call(p->gpu, p->gpu->driver.cuMemsetD8Async(at, 0xff, bytes, p->gpu->stream), "NaNs");
}

/* Run attention with results filled with NaN before, and copy the results to @f. */
static void run(const struct place *p, struct attention_field *f)
{
    fill(p, p->out, 2 * f->n_out);
    fill(p, p->lse, 4 * f->n_lse);
    fill(p, p->dqkv, 6 * f->n_out);
    fill(p, p->scratch, gpt_cuda_attention_scratch(&f->shape));
    forward(p, &f->shape);
    backward(p, &f->shape);
    download(p->gpu, f->out, p->out, 2 * f->n_out);
    download(p->gpu, f->lse, p->lse, 4 * f->n_lse);
    download(p->gpu, f->dqkv, p->dqkv, 6 * f->n_out);
}

/* True if the results are right. The bounds are those of tests/gpt/cuda_attention plus the
 * errors of fast functions. */
static bool judge(const struct attention_field *f, const struct gpt_attention_shape *shape)
{
    const struct attention_error e = attention_compare(f);
    const bool ok = e.out < 3e-3 && e.out_worst < 2e-2 && e.lse < 1e-5 && e.dq < 4e-3 &&
                    e.dk < 4e-3 && e.dv < 4e-3 && e.dqkv_worst < 6e-3;

    (void)printf("%zu x %4zu x %2zu x %3zu  out %.1e  lse %.1e  dq %.1e  dk %.1e  dv %.1e  %s\n",
                 shape->n_seqs, shape->context, shape->n_heads, shape->head_dim, e.out, e.lse, e.dq,
                 e.dk, e.dv, ok ? "ok" : "FAILED");
    (void)fflush(stdout);
    return ok;
}

static bool check(const struct gpt_gpu *gpu, const struct gpt_attention_shape *shape)
{
    struct attention_field f;
    struct place p;
    bool ok;

    attention_field_init(&f, *shape, 20, 1.0f);
    attention_reference(&f);
    place_open(&p, gpu, &f);
    run(&p, &f);
    ok = judge(&f, shape);
    place_close(&p);
    attention_field_close(&f);
    return ok;
}

/* Copy head @head of sequence @seq of @from. */
static void pick(const struct attention_field *from, size_t seq, size_t head,
                 struct attention_field *to)
{
    const struct gpt_attention_shape *s = &from->shape;
    const size_t dim = s->head_dim, width = s->n_heads * dim, bytes = 2 * dim;

    attention_field_init(to, (struct gpt_attention_shape){1, s->context, 1, dim}, 0, 1.0f);
    for (size_t i = 0; i < s->context; i++) {
        const size_t at = (seq * s->context + i) * width + head * dim;

        for (size_t part = 0; part < 3; part++) {
            const size_t a = (3 * i + part) * dim, b = 3 * (at - head * dim) + part * width;

            memcpy(to->qkv + a, from->qkv + b + head * dim, bytes);
            memcpy(to->dqkv + a, from->dqkv + b + head * dim, bytes);
        }
        memcpy(to->out + i * dim, from->out + at, bytes);
        memcpy(to->dout + i * dim, from->dout + at, bytes);
        to->lse[i] = from->lse[(seq * s->n_heads + head) * s->context + i];
    }
}

/* Milliseconds of one call of @what, the best of RUNS. */
static double measure(const struct place *p, const struct gpt_attention_shape *shape,
                      void (*what)(const struct place *, const struct gpt_attention_shape *))
{
    const struct cst_cuda_driver *d = &p->gpu->driver;
    CUevent from, to;
    float best = INFINITY;

    call(p->gpu, d->cuEventCreate(&from, CU_EVENT_DEFAULT), "an event");
    call(p->gpu, d->cuEventCreate(&to, CU_EVENT_DEFAULT), "an event");
    for (int i = 0; i < RUNS; i++) {
        float ms = 0;

        call(p->gpu, d->cuEventRecord(from, p->gpu->stream), "an event");
        what(p, shape);
        call(p->gpu, d->cuEventRecord(to, p->gpu->stream), "an event");
        call(p->gpu, d->cuEventSynchronize(to), "attention");
        call(p->gpu, d->cuEventElapsedTime(&ms, from, to), "an event");
        best = fminf(best, ms);
    }
    call(p->gpu, d->cuEventDestroy(from), "an event");
    call(p->gpu, d->cuEventDestroy(to), "an event");
    return (double)best;
}

static void tell_speed(const struct place *p, const struct gpt_attention_shape *s)
{
    const double scores =
        (double)(s->n_seqs * s->n_heads) * (double)s->context * (double)(s->context + 1) / 2;
    const double operations = 4 * scores * (double)s->head_dim;
    const double there = measure(p, s, forward), back = measure(p, s, backward);

    (void)printf("{\"context\": %zu, \"heads\": %zu, \"head_dim\": %zu, \"sequences\": %zu, "
                 "\"forward_ms\": %.3f, \"forward_tflops\": %.1f, \"backward_ms\": %.3f, "
                 "\"backward_tflops\": %.1f}\n",
                 s->context, s->n_heads, s->head_dim, s->n_seqs, there, operations / there * 1e-9,
                 back, 2.5 * operations / back * 1e-9);
}

/* True if another run writes the results in @f. */
static bool runs_the_same(const struct place *p, struct attention_field *f)
{
    struct attention_field again = *f;
    bool same;

    again.out = malloc(2 * f->n_out);
    again.lse = malloc(4 * f->n_lse);
    again.dqkv = malloc(6 * f->n_out);
    if (again.out == NULL || again.lse == NULL || again.dqkv == NULL) {
        perror("check_attention");
        exit(EXIT_FAILURE);
    }
    run(p, &again);
    same = memcmp(f->out, again.out, 2 * f->n_out) == 0 &&
           memcmp(f->lse, again.lse, 4 * f->n_lse) == 0 &&
           memcmp(f->dqkv, again.dqkv, 6 * f->n_out) == 0;
    free(again.out);
    free(again.lse);
    free(again.dqkv);
    (void)printf("two runs: %s\n", same ? "the same bits" : "FAILED: other bits");
    return same;
}

/* Check one shape: the last head is right, and two runs have equal bits. Also measure the speed. */
static bool check_whole(const struct gpt_gpu *gpu, const struct gpt_attention_shape *shape,
                        bool speed)
{
    struct attention_field f, one;
    struct place p;
    bool ok, same;

    attention_field_init(&f, *shape, 20, 1.0f);
    place_open(&p, gpu, &f);
    run(&p, &f);
    same = runs_the_same(&p, &f);
    pick(&f, shape->n_seqs - 1, shape->n_heads - 1, &one);
    attention_reference(&one);
    ok = judge(&one, shape);
    if (speed) {
        tell_speed(&p, shape);
    }
    place_close(&p);
    attention_field_close(&one);
    attention_field_close(&f);
    return ok && same;
}

int main(int argc, char **argv)
{
    const bool is_small = argc == 2 && strcmp(argv[1], "--small") == 0;
    const struct gpt_attention_shape *shapes = is_small ? small : large;
    const size_t n = is_small ? sizeof small / sizeof *small : sizeof large / sizeof *large;
    struct cst_err err = {0};
    struct gpt_gpu gpu;
    bool ok = true;
    int status;

    if (argc > 1 && !is_small) {
        (void)fprintf(stderr, "usage: check_attention [--small]\n");
        return 2;
    }
    status = gpt_gpu_open(&gpu, "cuda", false, &err);
    if (status == CST_EUNSUPPORTED) {
        (void)printf("check_attention: not run: %s\n", err.text);
        return NO_GPU;
    }
    need(status, &err);
    for (size_t i = 0; i < n; i++) {
        ok = check(&gpu, &shapes[i]) && ok;
    }
    if (is_small) {
        ok = check_whole(&gpu, &small[1], false) && ok;
    }
    for (size_t i = 0; !is_small && i < sizeof trained / sizeof *trained; i++) {
        ok = check_whole(&gpu, &trained[i], true) && ok;
    }
    gpt_gpu_close(&gpu);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of blocked attention against the plain formula in double precision, and of its gradients
 * against finite differences of the formula. */
#include "client/gpt/layers.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct gpt_simd *isas[3];
static unsigned n_isas;

static size_t n_out(const struct gpt_attention_shape *s)
{
    return s->n_seqs * s->context * s->n_heads * s->head_dim;
}

/* One query of the plain formula; the result is out (head_dim). */
static void naive_query(const struct gpt_attention_shape *s, const double *qkv, size_t seq,
                        size_t head, size_t t, double *out)
{
    const size_t width = s->n_heads * s->head_dim, row = 3 * width;
    const double *base = qkv + seq * s->context * row + head * s->head_dim;
    double *p = calloc(t + 1, sizeof *p), most = -1e300, sum = 0;

    ck_assert_ptr_nonnull(p);
    for (size_t j = 0; j <= t; j++) {
        for (size_t c = 0; c < s->head_dim; c++) {
            p[j] += base[t * row + c] * base[j * row + width + c] / sqrt((double)s->head_dim);
        }
        most = p[j] > most ? p[j] : most;
    }
    for (size_t j = 0; j <= t; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
    }
    memset(out, 0, s->head_dim * sizeof *out);
    for (size_t j = 0; j <= t; j++) {
        for (size_t c = 0; c < s->head_dim; c++) {
            out[c] += p[j] / sum * base[j * row + 2 * width + c];
        }
    }
    free(p);
}

static void naive(const struct gpt_attention_shape *s, const double *qkv, double *out)
{
    for (size_t i = 0; i < s->n_seqs * s->context * s->n_heads; i++) {
        const size_t head = i % s->n_heads, at = i / s->n_heads;

        naive_query(s, qkv, at / s->context, head, at % s->context, out + i * s->head_dim);
    }
}

/* Inputs and outputs of one test. Arrays in capitals are in double precision. */
struct field {
    struct gpt_attention_shape shape;
    struct gpt_layers layers;
    float *qkv, *out, *lse, *dout, *dqkv;
    double *QKV, *OUT, *WANT;
};

static void *need(size_t n, size_t size)
{
    void *p = aligned_alloc(128, (n * size + 127) / 128 * 128);

    ck_assert_ptr_nonnull(p);
    memset(p, 0, n * size);
    return p;
}

static void field_init(struct field *f, int isa, unsigned threads, struct gpt_attention_shape shape,
                       float deviation)
{
    const size_t n = n_out(&shape);

    f->shape = shape;
    ck_assert_int_eq(gpt_layers_init(&f->layers, isas[isa], false, threads, 3 * n, &shape), 0);
    f->qkv = need(3 * n, sizeof(float));
    f->out = need(n, sizeof(float));
    f->lse = need(n, sizeof(float));
    f->dout = need(n, sizeof(float));
    f->dqkv = need(3 * n, sizeof(float));
    f->QKV = need(3 * n, sizeof(double));
    f->OUT = need(n, sizeof(double));
    f->WANT = need(3 * n, sizeof(double));
    test_fill(f->qkv, 3 * n, 1, deviation);
    test_fill(f->dout, n, 2, 1.0f);
    for (size_t i = 0; i < 3 * n; i++) {
        f->QKV[i] = (double)f->qkv[i];
    }
}

static void field_close(struct field *f)
{
    gpt_layers_close(&f->layers);
    free(f->qkv);
    free(f->out);
    free(f->lse);
    free(f->dout);
    free(f->dqkv);
    free(f->QKV);
    free(f->OUT);
    free(f->WANT);
}

/* The contexts are below, at, above, and several times the block sizes. The heads have one to four
 * times the width of the widest vector. */
static const struct gpt_attention_shape shapes[] = {
    {2, 1, 1, 16}, {1, 31, 2, 32}, {2, 64, 1, 48}, {1, 65, 2, 64}, {1, 200, 1, 16},
};
#define N_SHAPES (int)(sizeof shapes / sizeof shapes[0])

/* Attention equals the plain formula for all shapes. */
START_TEST(attention_is_the_plain_formula)
{
    struct field f;

    field_init(&f, _i / N_SHAPES, 1, shapes[_i % N_SHAPES], 1.5f);
    gpt_attention(&f.layers, &f.shape, f.qkv, f.out, f.lse);
    naive(&f.shape, f.QKV, f.OUT);
    ck_assert_double_lt(test_worst(f.out, f.OUT, n_out(&f.shape)), 3e-6);
    field_close(&f);
}
END_TEST

/* Scores of some hundreds do not overflow, because the running maximum is subtracted. */
START_TEST(large_scores_do_not_overflow)
{
    struct field f;

    field_init(&f, _i, 1, (struct gpt_attention_shape){1, 150, 1, 16}, 12.0f);
    gpt_attention(&f.layers, &f.shape, f.qkv, f.out, f.lse);
    naive(&f.shape, f.QKV, f.OUT);
    ck_assert_double_lt(test_worst(f.out, f.OUT, n_out(&f.shape)), 1e-4);
    field_close(&f);
}
END_TEST

/* Later positions have no influence: other numbers after position t change nothing up to t. */
START_TEST(attention_is_causal)
{
    const size_t row = 3 * 2 * 16, t = 70;
    struct field f;
    float *before;

    field_init(&f, _i, 1, (struct gpt_attention_shape){1, 100, 2, 16}, 1.0f);
    before = need(n_out(&f.shape), sizeof(float));
    gpt_attention(&f.layers, &f.shape, f.qkv, before, f.lse);
    test_fill(f.qkv + (t + 1) * row, (99 - t) * row, 77, 3.0f);
    gpt_attention(&f.layers, &f.shape, f.qkv, f.out, f.lse);
    ck_assert_int_eq(memcmp(before, f.out, (t + 1) * 32 * sizeof(float)), 0);
    ck_assert_int_ne(memcmp(before, f.out, n_out(&f.shape) * sizeof(float)), 0);
    free(before);
    field_close(&f);
}
END_TEST

static double scalar(const struct field *f)
{
    double sum = 0;

    naive(&f->shape, f->QKV, f->OUT);
    for (size_t i = 0; i < n_out(&f->shape); i++) {
        sum += f->OUT[i] * (double)f->dout[i];
    }
    return sum;
}

/* Gradients of q, k and v agree with central differences of the plain formula. @stride: check only
 * every @stride-th element. */
static void check_gradients(int isa, struct gpt_attention_shape shape, size_t stride)
{
    struct field f;
    float *some;
    size_t n = 0;

    field_init(&f, isa, 1, shape, 1.0f);
    some = need(3 * n_out(&shape), sizeof(float));
    gpt_attention(&f.layers, &f.shape, f.qkv, f.out, f.lse);
    gpt_attention_backward(&f.layers, &f.shape, f.qkv, f.out, f.lse, f.dout, f.dqkv);
    for (size_t i = 0; i < 3 * n_out(&shape); i += stride, n++) {
        const double kept = f.QKV[i];
        double up, down;

        f.QKV[i] = kept + 1e-5;
        up = scalar(&f);
        f.QKV[i] = kept - 1e-5;
        down = scalar(&f);
        f.QKV[i] = kept;
        f.WANT[n] = (up - down) / 2e-5;
        some[n] = f.dqkv[i];
    }
    ck_assert_double_lt(test_worst(some, f.WANT, n), 1e-5);
    free(some);
    field_close(&f);
}

/* The gradients agree with finite differences for short, medium and long contexts. */
START_TEST(gradients_agree_with_finite_differences)
{
    check_gradients(_i, (struct gpt_attention_shape){2, 9, 2, 16}, 1);
    check_gradients(_i, (struct gpt_attention_shape){1, 35, 1, 32}, 31);
    check_gradients(_i, (struct gpt_attention_shape){1, 97, 1, 48}, 211);
}
END_TEST

/* One thread and five threads give the same bits, forward and backward. */
START_TEST(threads_do_not_change_bits)
{
    const struct gpt_attention_shape shape = {3, 70, 2, 32};
    const size_t bytes = n_out(&shape) * sizeof(float);
    struct field one, five;

    field_init(&one, _i, 1, shape, 1.0f);
    field_init(&five, _i, 5, shape, 1.0f);
    gpt_attention(&one.layers, &shape, one.qkv, one.out, one.lse);
    gpt_attention(&five.layers, &shape, five.qkv, five.out, five.lse);
    ck_assert_int_eq(memcmp(one.out, five.out, bytes), 0);
    gpt_attention_backward(&one.layers, &shape, one.qkv, one.out, one.lse, one.dout, one.dqkv);
    gpt_attention_backward(&five.layers, &shape, five.qkv, five.out, five.lse, five.dout,
                           five.dqkv);
    ck_assert_int_eq(memcmp(one.dqkv, five.dqkv, 3 * bytes), 0);
    field_close(&one);
    field_close(&five);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention");
    TCase *tcase = suite_case(suite, "attention", NULL, NULL);
    int n;

    n_isas = test_isas(isas);
    n = (int)n_isas;
    tcase_add_loop_test(tcase, attention_is_the_plain_formula, 0, n * N_SHAPES);
    tcase_add_loop_test(tcase, large_scores_do_not_overflow, 0, n);
    tcase_add_loop_test(tcase, attention_is_causal, 0, n);
    tcase_add_loop_test(tcase, gradients_agree_with_finite_differences, 0, n);
    tcase_add_loop_test(tcase, threads_do_not_change_bits, 0, n);
    return suite_run(suite);
}

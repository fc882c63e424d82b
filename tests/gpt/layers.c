/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of each layer on every instruction set: forward against the formula in double precision,
 * backward against finite differences of this formula. The formulas are written independently here.
 * Tolerances: fp32 has 6e-8 per operation, and sums of a few hundred terms lose two digits. Central
 * differences in double with step 1e-5 are accurate to about 1e-9. */
#include "client/gpt/layers.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 37
#define WIDTH 64
#define N (ROWS * WIDTH)
#define NEAR 3e-6
#define SLOPE 1e-4

static const struct gpt_simd *isas[3];
static unsigned n_isas;

static void find_isas(void)
{
    n_isas = test_isas(isas);
}

/* Layers of instruction set number @i, with fp32 operands and @threads threads. */
static struct gpt_layers layers_of(int i, unsigned threads)
{
    const struct gpt_attention_shape shape = {1, 8, 1, 16};
    struct gpt_layers layers;

    ck_assert_int_eq(gpt_layers_init(&layers, isas[i], false, threads, 4 * WIDTH, &shape), 0);
    return layers;
}

static void widen(const float *x, double *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (double)x[i];
    }
}

static void widen_bf16(const uint16_t *x, double *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (double)cst_bf16_to_fp32(x[i]);
    }
}

/* A scalar function of all inputs of a layer, whose gradient is computed. */
typedef double (*scalar_fn)(const void *args);

/* out[i] = d f / d x[i] by central differences. x is one of the arrays that @args points to. */
static void differences(scalar_fn f, const void *args, double *x, size_t n, double *out)
{
    const double step = 1e-5;

    for (size_t i = 0; i < n; i++) {
        const double kept = x[i];
        double up, down;

        x[i] = kept + step;
        up = f(args);
        x[i] = kept - step;
        down = f(args);
        x[i] = kept;
        out[i] = (up - down) / (2 * step);
    }
}

/* -- layer norm ------------------------------------------------------------------------------ */

struct norm_args {
    double *x, *w, *b, *dy;
};

static void norm_row(const double *x, const double *w, const double *b, double *y)
{
    double mean = 0, var = 0;

    for (size_t i = 0; i < WIDTH; i++) {
        mean += x[i] / WIDTH;
    }
    for (size_t i = 0; i < WIDTH; i++) {
        var += (x[i] - mean) * (x[i] - mean) / WIDTH;
    }
    for (size_t i = 0; i < WIDTH; i++) {
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * w[i] + b[i];
    }
}

/* The sum of dy y over all elements. Its gradients are those of the layer. */
static double norm_scalar(const void *p)
{
    const struct norm_args *a = p;
    double y[WIDTH], sum = 0;

    for (size_t r = 0; r < ROWS; r++) {
        norm_row(a->x + r * WIDTH, a->w, a->b, y);
        for (size_t i = 0; i < WIDTH; i++) {
            sum += y[i] * a->dy[r * WIDTH + i];
        }
    }
    return sum;
}

/* Layer norm and its three gradients are those of the formula. dx is added to. */
START_TEST(layernorm_is_its_formula)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[N], dy[N], y[N], dx[N], mean[ROWS], rstd[ROWS], dw[WIDTH], db[WIDTH];
    static double X[N], DY[N], W[WIDTH], B[WIDTH], want[N];
    uint16_t w[WIDTH], b[WIDTH];
    struct norm_args args = {X, W, B, DY};

    test_fill(x, N, 1, 2.0f);
    test_fill(dy, N, 2, 1.0f);
    test_fill_bf16(w, WIDTH, 3, 1.0f);
    test_fill_bf16(b, WIDTH, 4, 1.0f);
    widen(x, X, N);
    widen(dy, DY, N);
    widen_bf16(w, W, WIDTH);
    widen_bf16(b, B, WIDTH);
    gpt_layernorm(&layers, ROWS, WIDTH, x, w, b, y, mean, rstd);
    for (size_t r = 0; r < ROWS; r++) {
        norm_row(X + r * WIDTH, W, B, want + r * WIDTH);
    }
    ck_assert_double_lt(test_worst(y, want, N), NEAR);

    for (size_t i = 0; i < N; i++) {
        dx[i] = 0.5f;
    }
    gpt_layernorm_backward(&layers, ROWS, WIDTH, dy, x, w, mean, rstd, dx, dw, db);
    differences(norm_scalar, &args, X, N, want);
    for (size_t i = 0; i < N; i++) {
        want[i] += 0.5;
    }
    ck_assert_double_lt(test_worst(dx, want, N), SLOPE);
    differences(norm_scalar, &args, W, WIDTH, want);
    ck_assert_double_lt(test_worst(dw, want, WIDTH), SLOPE);
    differences(norm_scalar, &args, B, WIDTH, want);
    ck_assert_double_lt(test_worst(db, want, WIDTH), SLOPE);
    gpt_layers_close(&layers);
}
END_TEST

/* -- GELU ------------------------------------------------------------------------------------ */

static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* GELU adds the bias, keeps the sum, and has the tanh form. Its gradient is the slope, and its
 * column sums are the gradient of the bias. */
START_TEST(gelu_is_its_formula)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[N], before[N], dy[N], y[N], dx[N], sums[WIDTH];
    static double want[N], slope[N], want_sums[WIDTH];
    uint16_t bias[WIDTH];

    test_fill(x, N, 5, 3.0f);
    test_fill(dy, N, 6, 1.0f);
    test_fill_bf16(bias, WIDTH, 7, 0.5f);
    memcpy(before, x, sizeof x);
    gpt_gelu(&layers, ROWS, WIDTH, x, bias, y);
    gpt_gelu_backward(&layers, ROWS, WIDTH, x, dy, dx, sums);
    for (size_t i = 0; i < N; i++) {
        const double v = (double)(before[i] + cst_bf16_to_fp32(bias[i % WIDTH]));

        ck_assert_float_eq(x[i], (float)v);
        want[i] = gelu_of(v);
        slope[i] = (double)dy[i] * (gelu_of(v + 1e-5) - gelu_of(v - 1e-5)) / 2e-5;
        want_sums[i % WIDTH] = (i < WIDTH ? 0 : want_sums[i % WIDTH]) + slope[i];
    }
    ck_assert_double_lt(test_worst(y, want, N), NEAR);
    ck_assert_double_lt(test_worst(dx, slope, N), NEAR);
    ck_assert_double_lt(test_worst(sums, want_sums, WIDTH), SLOPE);
    gpt_layers_close(&layers);
}
END_TEST

/* Far from zero GELU is 0 or x, and never NaN. */
START_TEST(gelu_has_its_limits)
{
    struct gpt_layers layers = layers_of(_i, 1);
    float x[16] = {100, -100, 30, -30, 1e4f, -1e4f}, y[16], dy[16], dx[16], sums[16];
    uint16_t bias[16] = {0};

    for (size_t i = 0; i < 16; i++) {
        dy[i] = 1.0f;
    }
    gpt_gelu(&layers, 1, 16, x, bias, y);
    gpt_gelu_backward(&layers, 1, 16, x, dy, dx, sums);
    for (size_t i = 0; i < 6; i++) {
        ck_assert_float_eq_tol(y[i], i % 2 == 0 ? x[i] : 0.0f, 1e-6f);
        ck_assert_float_eq_tol(dx[i], i % 2 == 0 ? 1.0f : 0.0f, 1e-6f);
    }
    gpt_layers_close(&layers);
}
END_TEST

/* -- cross entropy --------------------------------------------------------------------------- */

#define VOCAB 256

static double row_loss(const double *x, uint32_t target)
{
    double most = x[0], sum = 0;

    for (size_t i = 0; i < VOCAB; i++) {
        most = x[i] > most ? x[i] : most;
    }
    for (size_t i = 0; i < VOCAB; i++) {
        sum += exp(x[i] - most);
    }
    return most + log(sum) - x[target];
}

/* Cross entropy is the mean of -log softmax, and its gradient agrees with finite differences. */
START_TEST(cross_entropy_is_its_formula)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[5 * VOCAB], dx[5 * VOCAB];
    static double X[VOCAB], want[5 * VOCAB];
    const uint32_t targets[5] = {0, 255, 17, 128, 31};
    float losses[5];
    double loss, sum = 0;

    test_fill(x, 5 * VOCAB, 8, 4.0f);
    loss = gpt_cross_entropy(&layers, 5, VOCAB, x, targets, losses, dx);
    for (size_t r = 0; r < 5; r++) {
        widen(x + r * VOCAB, X, VOCAB);
        sum += row_loss(X, targets[r]);
        for (size_t i = 0; i < VOCAB; i++) {
            const double kept = X[i];
            double up, down;

            X[i] = kept + 1e-5;
            up = row_loss(X, targets[r]);
            X[i] = kept - 1e-5;
            down = row_loss(X, targets[r]);
            X[i] = kept;
            want[r * VOCAB + i] = (up - down) / 2e-5 / 5;
        }
    }
    ck_assert_double_eq_tol(loss, sum / 5, 1e-5);
    ck_assert_double_lt(test_worst(dx, want, 5 * VOCAB), 1e-5);
    gpt_layers_close(&layers);
}
END_TEST

/* A vocabulary of any size has the results of a larger one whose other tokens are impossible. */
START_TEST(cross_entropy_of_any_width)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[3 * VOCAB], dx[3 * VOCAB], wide[3 * VOCAB], dwide[3 * VOCAB];
    float losses[3], want[3];

    for (size_t width = 17; width < 64; width += 7) {
        const uint32_t targets[3] = {0, (uint32_t)width - 1, 16};

        test_fill(x, 3 * width, 8, 4.0f);
        for (size_t i = 0; i < 3 * VOCAB; i++) {
            wide[i] = i % VOCAB < width ? x[i / VOCAB * width + i % VOCAB] : -1e4f;
        }
        (void)gpt_cross_entropy(&layers, 3, width, x, targets, losses, dx);
        (void)gpt_cross_entropy(&layers, 3, VOCAB, wide, targets, want, dwide);
        for (size_t i = 0; i < 3 * width; i++) {
            ck_assert_float_eq_tol(dx[i], dwide[i / width * VOCAB + i % width], 1e-6f);
            ck_assert_float_eq_tol(losses[i / width], want[i / width], 1e-5f);
        }
    }
    gpt_layers_close(&layers);
}
END_TEST

/* A NaN among the logits gives a NaN loss, so that a broken step cannot seem good. */
START_TEST(cross_entropy_keeps_nan)
{
    struct gpt_layers layers = layers_of(_i, 1);
    float x[VOCAB] = {0}, dx[VOCAB], loss;
    const uint32_t target = 3;

    x[200] = NAN;
    ck_assert(isnan(gpt_cross_entropy(&layers, 1, VOCAB, x, &target, &loss, dx)));
    gpt_layers_close(&layers);
}
END_TEST

/* -- biases, residuals, operands, embeddings -------------------------------------------------- */

/* gpt_bias computes y + bias, and gpt_residual x + (branch + bias), for each element. */
START_TEST(bias_and_residual_add)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[N], branch[N], y[N], z[N];
    uint16_t bias[WIDTH];

    test_fill(x, N, 9, 1.0f);
    test_fill(branch, N, 10, 1.0f);
    test_fill_bf16(bias, WIDTH, 11, 1.0f);
    memcpy(z, x, sizeof z);
    gpt_bias(&layers, ROWS, WIDTH, z, bias);
    gpt_residual(&layers, ROWS, WIDTH, x, branch, bias, y);
    for (size_t i = 0; i < N; i++) {
        const float b = cst_bf16_to_fp32(bias[i % WIDTH]);

        ck_assert_float_eq(z[i], x[i] + b);
        ck_assert_float_eq(y[i], x[i] + (branch[i] + b));
    }
    gpt_layers_close(&layers);
}
END_TEST

/* An operand is the array itself, or its values rounded to the nearest bf16. The sums are those of
 * the columns. */
START_TEST(operand_rounds_and_sums)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static float x[N], same[N], sums[WIDTH];
    static uint16_t half[N];
    static double want[WIDTH];

    test_fill(x, N, 12, 1.0f);
    x[5] = NAN;
    gpt_operand(&layers, ROWS, WIDTH, x, same, sums);
    ck_assert_int_eq(memcmp(x, same, sizeof x), 0);
    layers.bf16 = true;
    x[5] = 1e-40f; /* A subnormal number is kept. */
    gpt_operand(&layers, ROWS, WIDTH, x, half, sums);
    memset(want, 0, sizeof want);
    for (size_t i = 0; i < N; i++) {
        ck_assert_uint_eq(half[i], cst_fp32_to_bf16(x[i]));
        want[i % WIDTH] += (double)x[i];
    }
    ck_assert_double_lt(test_worst(sums, want, WIDTH), NEAR);
    gpt_layers_close(&layers);
}
END_TEST

/* Gradients are rounded to bf16, or first added in fp32. NaN stays NaN. */
START_TEST(put_rounds_and_accumulates)
{
    struct gpt_layers layers = layers_of(_i, 1);
    float x[32], y[32];
    uint16_t out[32];

    test_fill(x, 32, 13, 1.0f);
    test_fill(y, 32, 14, 1.0f);
    x[7] = NAN;
    gpt_put(&layers, 32, x, out, false);
    for (size_t i = 0; i < 32; i++) {
        ck_assert_uint_eq(out[i], cst_fp32_to_bf16(x[i]));
    }
    gpt_put(&layers, 32, y, out, true);
    for (size_t i = 0; i < 32; i++) {
        const float was = cst_bf16_to_fp32(cst_fp32_to_bf16(x[i]));

        ck_assert_uint_eq(out[i] & 0x7fff, cst_fp32_to_bf16(was + y[i]) & 0x7fff);
    }
    gpt_layers_close(&layers);
}
END_TEST

#define CONTEXT 12

/* The embedding adds the rows of token and position. Each row's gradient is the sum of the
 * gradients of its uses. */
START_TEST(embedding_and_its_gradient)
{
    struct gpt_layers layers = layers_of(_i, 1);
    static uint16_t wte[VOCAB * WIDTH], wpe[CONTEXT * WIDTH];
    static float y[3 * CONTEXT * WIDTH], dx[3 * CONTEXT * WIDTH];
    static float dwte[VOCAB * WIDTH], dwpe[CONTEXT * WIDTH];
    static double want_wte[VOCAB * WIDTH], want_wpe[CONTEXT * WIDTH];
    enum { N_TOKENS = 3 * CONTEXT };
    uint32_t tokens[N_TOKENS];

    for (size_t r = 0; r < N_TOKENS; r++) {
        tokens[r] = (uint32_t)(r * r % 11 * 23);
    }
    test_fill_bf16(wte, VOCAB * WIDTH, 15, 1.0f);
    test_fill_bf16(wpe, CONTEXT * WIDTH, 16, 1.0f);
    test_fill(dx, N_TOKENS * WIDTH, 17, 1.0f);
    gpt_embed(&layers, N_TOKENS, WIDTH, CONTEXT, tokens, wte, wpe, y);
    gpt_embed_backward(&layers, N_TOKENS, WIDTH, CONTEXT, VOCAB, tokens, dx, dwte, dwpe);
    memset(want_wte, 0, sizeof want_wte);
    memset(want_wpe, 0, sizeof want_wpe);
    for (size_t r = 0; r < N_TOKENS; r++) {
        for (size_t i = 0; i < WIDTH; i++) {
            const size_t t = tokens[r] * (size_t)WIDTH + i, p = r % CONTEXT * WIDTH + i;

            ck_assert_float_eq(y[r * WIDTH + i],
                               cst_bf16_to_fp32(wte[t]) + cst_bf16_to_fp32(wpe[p]));
            want_wte[t] += (double)dx[r * WIDTH + i];
            want_wpe[p] += (double)dx[r * WIDTH + i];
        }
    }
    ck_assert_double_lt(test_worst(dwte, want_wte, VOCAB * WIDTH), NEAR);
    ck_assert_double_lt(test_worst(dwpe, want_wpe, CONTEXT * WIDTH), NEAR);
    gpt_layers_close(&layers);
}
END_TEST

/* -- threads ----------------------------------------------------------------------------------- */

struct outcome {
    float norm[N], mean[ROWS], rstd[ROWS], dx[N], dw[WIDTH], db[WIDTH];
    float act[N], dact[N], sums[WIDTH], dwte[VOCAB * WIDTH], dwpe[ROWS * WIDTH];
};

static void run_all(const struct gpt_layers *layers, struct outcome *o)
{
    static float x[N], dy[N], pre[N];
    uint16_t w[WIDTH], b[WIDTH];
    uint32_t tokens[ROWS];

    test_fill(x, N, 18, 1.0f);
    test_fill(dy, N, 19, 1.0f);
    test_fill(pre, N, 20, 1.0f);
    test_fill_bf16(w, WIDTH, 21, 1.0f);
    test_fill_bf16(b, WIDTH, 22, 1.0f);
    for (size_t r = 0; r < ROWS; r++) {
        tokens[r] = 'a';
    }
    memset(o, 0, sizeof *o);
    gpt_layernorm(layers, ROWS, WIDTH, x, w, b, o->norm, o->mean, o->rstd);
    gpt_layernorm_backward(layers, ROWS, WIDTH, dy, x, w, o->mean, o->rstd, o->dx, o->dw, o->db);
    gpt_gelu(layers, ROWS, WIDTH, pre, b, o->act);
    gpt_gelu_backward(layers, ROWS, WIDTH, pre, dy, o->dact, o->sums);
    gpt_embed_backward(layers, ROWS, WIDTH, ROWS, VOCAB, tokens, dy, o->dwte, o->dwpe);
}

/* One thread and seven threads give the same bits. */
START_TEST(threads_do_not_change_bits)
{
    struct outcome *o = calloc(2, sizeof *o);
    struct gpt_layers one = layers_of(_i, 1), seven = layers_of(_i, 7);

    ck_assert_ptr_nonnull(o);
    run_all(&one, &o[0]);
    run_all(&seven, &o[1]);
    ck_assert_int_eq(memcmp(&o[0], &o[1], sizeof *o), 0);
    gpt_layers_close(&one);
    gpt_layers_close(&seven);
    free(o);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layers");
    TCase *tcase = suite_case(suite, "layers", NULL, NULL);
    int n;

    find_isas();
    n = (int)n_isas;
    tcase_add_loop_test(tcase, layernorm_is_its_formula, 0, n);
    tcase_add_loop_test(tcase, gelu_is_its_formula, 0, n);
    tcase_add_loop_test(tcase, gelu_has_its_limits, 0, n);
    tcase_add_loop_test(tcase, cross_entropy_is_its_formula, 0, n);
    tcase_add_loop_test(tcase, cross_entropy_of_any_width, 0, n);
    tcase_add_loop_test(tcase, cross_entropy_keeps_nan, 0, n);
    tcase_add_loop_test(tcase, bias_and_residual_add, 0, n);
    tcase_add_loop_test(tcase, operand_rounds_and_sums, 0, n);
    tcase_add_loop_test(tcase, put_rounds_and_accumulates, 0, n);
    tcase_add_loop_test(tcase, embedding_and_its_gradient, 0, n);
    tcase_add_loop_test(tcase, threads_do_not_change_bits, 0, n);
    return suite_run(suite);
}

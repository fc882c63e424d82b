/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the router of a mixture against its formulas in double precision, of its gradients
 * against finite differences of the formulas, and of the order of its choices. The tolerances are
 * those of layers.c. */
#include "client/gpt/router.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 29
#define WIDTH 32
#define EXPERTS 6
#define MAX_K 4
#define BALANCE 0.7f

static const struct gpt_attention_shape attention = {1, 8, 1, 16};

/* Inputs, and memory for all outputs. */
struct fixture {
    struct gpt_layers layers;
    struct gpt_router_shape shape;
    float x[ROWS * WIDTH], dgates[ROWS * MAX_K], shares[EXPERTS];
    uint16_t x_bf16[ROWS * WIDTH], w[WIDTH * EXPERTS];
    float probs[ROWS * EXPERTS], gates[ROWS * MAX_K];
    uint32_t chosen[ROWS * MAX_K], counts[EXPERTS], slots[ROWS * MAX_K], rows[ROWS * MAX_K];
    float dlogits[ROWS * EXPERTS], dw[WIDTH * EXPERTS], dx[ROWS * WIDTH];
    struct gpt_choice choice;
};

static struct fixture *fixture_open(uint32_t top_k, unsigned threads)
{
    struct fixture *f = calloc(1, sizeof *f);

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(
        gpt_layers_init(&f->layers, gpt_simd_get(NULL), false, threads, WIDTH, &attention), 0);
    f->shape = (struct gpt_router_shape){ROWS, WIDTH, EXPERTS, top_k};
    test_fill(f->x, ROWS * WIDTH, 1, 1.0f);
    test_fill_bf16(f->w, WIDTH * EXPERTS, 2, 0.3f);
    test_fill(f->dgates, ROWS * MAX_K, 3, 1.0f);
    for (size_t e = 0; e < EXPERTS; e++) {
        f->shares[e] = (float)(e + 1) / 21.0f;
    }
    f->choice = (struct gpt_choice){f->probs, f->chosen, f->gates, f->counts, f->slots, f->rows};
    gpt_router_forward(&f->layers, &f->shape, f->x, f->w, &f->choice);
    return f;
}

static void fixture_close(struct fixture *f)
{
    gpt_layers_close(&f->layers);
    free(f);
}

/* Logits z of a row. */
static void logits(const double *x, const double *w, double *z)
{
    for (size_t e = 0; e < EXPERTS; e++) {
        z[e] = 0;
        for (size_t i = 0; i < WIDTH; i++) {
            z[e] += x[i] * w[i * EXPERTS + e];
        }
    }
}

static double sum_exp(const double *z)
{
    double sum = 0;

    for (size_t e = 0; e < EXPERTS; e++) {
        sum += exp(z[e]);
    }
    return sum;
}

/* Gate of choice @j of a row whose choices are @chosen. */
static double gate(const double *z, const uint32_t *chosen, uint32_t top_k, uint32_t j)
{
    double sum = 0;

    if (top_k == 1) {
        return exp(z[chosen[0]]) / sum_exp(z);
    }
    for (uint32_t i = 0; i < top_k; i++) {
        sum += exp(z[chosen[i]]);
    }
    return exp(z[chosen[j]]) / sum;
}

/* The loss whose gradients gpt_router_backward computes. The choices are constant, because a small
 * step changes none. */
static double loss(const struct fixture *f, const double *x, const double *w)
{
    const uint32_t k = f->shape.top_k;
    double sum = 0, z[EXPERTS];

    for (size_t r = 0; r < ROWS; r++) {
        logits(x + r * WIDTH, w, z);
        for (uint32_t j = 0; j < k; j++) {
            sum += (double)f->dgates[r * k + j] * gate(z, f->chosen + r * k, k, j);
        }
        for (size_t e = 0; e < EXPERTS; e++) {
            sum += (double)BALANCE * EXPERTS * (double)f->shares[e] * exp(z[e]) / sum_exp(z) / ROWS;
        }
    }
    return sum;
}

static void widen(const struct fixture *f, double *x, double *w)
{
    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (double)f->x[i];
    }
    for (size_t i = 0; i < WIDTH * EXPERTS; i++) {
        w[i] = (double)cst_bf16_to_fp32(f->w[i]);
    }
}

static double slope(const struct fixture *f, const double *x, const double *w, double *at)
{
    const double kept = *at, step = 1e-5;
    double up, down;

    *at = kept + step;
    up = loss(f, x, w);
    *at = kept - step;
    down = loss(f, x, w);
    *at = kept;
    return (up - down) / (2 * step);
}

/* Probabilities are the softmax of the logits, the choices are the largest logits in descending
 * order, and the gates follow the formula, for 1 to 4 choices. */
START_TEST(choices_are_the_largest)
{
    const uint32_t k = (uint32_t)_i;
    struct fixture *f = fixture_open(k, 1);
    static double x[ROWS * WIDTH], w[WIDTH * EXPERTS];
    double z[EXPERTS];

    widen(f, x, w);
    for (size_t r = 0; r < ROWS; r++) {
        const uint32_t *chosen = f->chosen + r * k;

        logits(x + r * WIDTH, w, z);
        for (size_t e = 0; e < EXPERTS; e++) {
            uint32_t larger = 0;

            for (size_t o = 0; o < EXPERTS; o++) {
                larger += z[o] > z[e] ? 1 : 0;
            }
            ck_assert(larger >= k || chosen[larger] == e);
            ck_assert_double_eq_tol(f->probs[r * EXPERTS + e], exp(z[e]) / sum_exp(z), 1e-5);
        }
        for (uint32_t j = 0; j < k; j++) {
            ck_assert_double_eq_tol(f->gates[r * k + j], gate(z, chosen, k, j), 1e-5);
        }
    }
    fixture_close(f);
}
END_TEST

/* Slots are the choices sorted by expert, then by row. Each choice has exactly one slot. */
START_TEST(slots_are_sorted)
{
    const uint32_t k = (uint32_t)_i;
    struct fixture *f = fixture_open(k, 1);
    uint32_t slot = 0;

    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < ROWS * k; i++) {
            if (f->chosen[i] == e) {
                ck_assert_uint_eq(f->slots[i], slot);
                ck_assert_uint_eq(f->rows[slot], i / k);
                slot++;
                n++;
            }
        }
        ck_assert_uint_eq(f->counts[e], n);
    }
    ck_assert_uint_eq(slot, ROWS * k);
    fixture_close(f);
}
END_TEST

/* Of equal logits the first are chosen. A row with NaN still chooses different experts. */
START_TEST(ties_and_nan_choose)
{
    struct fixture *f = fixture_open(2, 1);

    memset(f->w, 0, sizeof f->w);
    f->x[0] = NAN;
    gpt_router_forward(&f->layers, &f->shape, f->x, f->w, &f->choice);
    for (size_t r = 0; r < ROWS; r++) {
        ck_assert_uint_eq(f->chosen[2 * r], 0);
        ck_assert_uint_eq(f->chosen[2 * r + 1], 1);
    }
    ck_assert(isnan(f->gates[0]));
    ck_assert_float_eq(f->gates[2], 0.5f);
    fixture_close(f);
}
END_TEST

/* The gradients by w and by x of gates and balance loss agree with finite differences. */
START_TEST(gradients_are_slopes)
{
    struct fixture *f = fixture_open((uint32_t)_i, 1);
    static double x[ROWS * WIDTH], w[WIDTH * EXPERTS], want[ROWS * WIDTH];

    widen(f, x, w);
    gpt_router_backward(&f->layers, &f->shape, f->x, f->w, &f->choice, f->dgates, f->shares,
                        BALANCE, f->dlogits, f->dw, f->dx);
    for (size_t i = 0; i < WIDTH * EXPERTS; i++) {
        want[i] = slope(f, x, w, &w[i]);
    }
    ck_assert_double_lt(test_worst(f->dw, want, WIDTH * EXPERTS), 1e-4);
    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        want[i] = slope(f, x, w, &x[i]);
    }
    ck_assert_double_lt(test_worst(f->dx, want, ROWS * WIDTH), 1e-4);
    fixture_close(f);
}
END_TEST

/* The balance loss alone lowers the logit of the expert with the largest share. */
START_TEST(balance_spreads)
{
    struct fixture *f = fixture_open(2, 1);
    double pull[EXPERTS] = {0};

    memset(f->dgates, 0, sizeof f->dgates);
    memset(f->shares, 0, sizeof f->shares);
    f->shares[3] = 1.0f;
    gpt_router_backward(&f->layers, &f->shape, f->x, f->w, &f->choice, f->dgates, f->shares,
                        BALANCE, f->dlogits, f->dw, f->dx);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t e = 0; e < EXPERTS; e++) {
            pull[e] += (double)f->dlogits[r * EXPERTS + e];
        }
    }
    for (size_t e = 0; e < EXPERTS; e++) {
        ck_assert(e == 3 ? pull[e] > 0 : pull[e] < 0);
    }
    fixture_close(f);
}
END_TEST

/* One thread and five threads give the same bits. Rows have the same probabilities when other rows
 * are absent. */
START_TEST(threads_and_ranks_do_not_change_bits)
{
    struct fixture *a = fixture_open(2, 1), *b = fixture_open(2, 5);

    gpt_router_backward(&a->layers, &a->shape, a->x, a->w, &a->choice, a->dgates, a->shares,
                        BALANCE, a->dlogits, a->dw, a->dx);
    gpt_router_backward(&b->layers, &b->shape, b->x, b->w, &b->choice, b->dgates, b->shares,
                        BALANCE, b->dlogits, b->dw, b->dx);
    ck_assert_int_eq(memcmp(a->gates, b->gates, sizeof a->gates), 0);
    ck_assert_int_eq(memcmp(a->dw, b->dw, sizeof a->dw), 0);
    ck_assert_int_eq(memcmp(a->dx, b->dx, sizeof a->dx), 0);
    b->shape.rows = 7;
    gpt_router_forward(&b->layers, &b->shape, b->x, b->w, &b->choice);
    ck_assert_int_eq(memcmp(a->probs, b->probs, 7 * EXPERTS * sizeof(float)), 0);
    fixture_close(a);
    fixture_close(b);
}
END_TEST

/* A bf16 operand gives the results of an fp32 operand of the same values. */
START_TEST(bf16_operands_are_read)
{
    struct fixture *a = fixture_open(2, 1), *b = fixture_open(2, 1);

    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        b->x_bf16[i] = cst_fp32_to_bf16(b->x[i]);
        a->x[i] = cst_bf16_to_fp32(b->x_bf16[i]);
    }
    b->layers.bf16 = true;
    gpt_router_forward(&a->layers, &a->shape, a->x, a->w, &a->choice);
    gpt_router_forward(&b->layers, &b->shape, b->x_bf16, b->w, &b->choice);
    ck_assert_int_eq(memcmp(a->probs, b->probs, sizeof a->probs), 0);
    ck_assert_int_eq(memcmp(a->chosen, b->chosen, sizeof a->chosen), 0);
    fixture_close(a);
    fixture_close(b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("router");
    TCase *tcase = suite_case(suite, "router", NULL, NULL);

    tcase_add_loop_test(tcase, choices_are_the_largest, 1, MAX_K + 1);
    tcase_add_loop_test(tcase, slots_are_sorted, 1, MAX_K + 1);
    tcase_add_test(tcase, ties_and_nan_choose);
    tcase_add_loop_test(tcase, gradients_are_slopes, 1, MAX_K + 1);
    tcase_add_test(tcase, balance_spreads);
    tcase_add_test(tcase, threads_and_ranks_do_not_change_bits);
    tcase_add_test(tcase, bf16_operands_are_read);
    return suite_run(suite);
}

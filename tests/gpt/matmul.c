/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of oneDNN's products against simple sums in double precision. */
#include "client/gpt/matmul.h"
#include "client/gpt/memory.h"
#include "client/gpt/parallel.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    size_t m, n, k;
};

/* Rows of 512 elements are 2 KiB apart. */
static const struct shape shapes[] = {
    {64, 48, 32}, {128, 256, 64}, {33, 16, 80}, {1, 16, 16}, {512, 16, 24}, {32, 512, 40},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

/* Operands in the type of the products, and the product of the rounded operands in double
 * precision. */
struct operands {
    void *a, *b;
    float *c;
    double *want;
};

static double element(const void *p, size_t i, bool bf16)
{
    return (double)(bf16 ? cst_bf16_to_fp32(((const uint16_t *)p)[i]) : ((const float *)p)[i]);
}

static void fill(void *p, size_t n, uint64_t seed, bool bf16)
{
    if (bf16) {
        test_fill_bf16(p, n, seed, 1.0f);
    } else {
        test_fill(p, n, seed, 1.0f);
    }
}

static void operands_init(struct operands *o, const struct shape *s, bool turn_a, bool turn_b,
                          bool bf16)
{
    o->a = gpt_memory_get(s->m * s->k * sizeof(float));
    o->b = gpt_memory_get(s->k * s->n * sizeof(float));
    o->c = gpt_memory_get(s->m * s->n * sizeof(float));
    o->want = gpt_memory_get(s->m * s->n * sizeof(double));
    ck_assert(o->a != NULL && o->b != NULL && o->c != NULL && o->want != NULL);
    fill(o->a, s->m * s->k, 1, bf16);
    fill(o->b, s->k * s->n, 2, bf16);
    for (size_t i = 0; i < s->m; i++) {
        for (size_t j = 0; j < s->n; j++) {
            for (size_t k = 0; k < s->k; k++) {
                o->want[i * s->n + j] += element(o->a, turn_a ? k * s->m + i : i * s->k + k, bf16) *
                                         element(o->b, turn_b ? j * s->k + k : k * s->n + j, bf16);
            }
        }
    }
}

static void operands_close(struct operands *o)
{
    gpt_memory_put(o->a);
    gpt_memory_put(o->b);
    gpt_memory_put(o->c);
    gpt_memory_put(o->want);
}

static void check_all(bool bf16)
{
    struct gpt_matmul *mm;
    struct cst_err err = {0};

    gpt_parallel_limit(1);
    ck_assert_msg(gpt_matmul_open(&mm, bf16, 2, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < 4 * N_SHAPES; i++) {
        const struct shape *s = &shapes[i / 4];
        const bool turn_a = (i & 1) != 0, turn_b = (i & 2) != 0;
        struct operands o;

        operands_init(&o, s, turn_a, turn_b, bf16);
        ck_assert_msg(gpt_matmul(mm, s->m, s->n, s->k, o.a, turn_a, o.b, turn_b, o.c, &err) == 0,
                      "%s", err.text);
        ck_assert_double_lt(test_worst(o.c, o.want, s->m * s->n), 2e-6);
        operands_close(&o);
    }
    gpt_matmul_close(mm);
}

/* Products of fp32 operands, plain and transposed, are right. */
START_TEST(fp32_products)
{
    check_all(false);
}
END_TEST

#ifndef __aarch64__
/* Without AVX-512, operands whose rows are a multiple of 2 KiB apart are copied, and the products
 * are right. The limit of the instruction set takes effect if no earlier test ran in this process.
 */
START_TEST(fp32_products_without_avx512)
{
    ck_assert_int_eq(setenv("CISTERN_ISA", "avx2", 1), 0);
    check_all(false);
}
END_TEST
#endif

/* Products of bf16 operands are as exact as those of fp32 operands of the same values, because they
 * are summed in fp32. */
START_TEST(bf16_products)
{
    if (gpt_matmul_fast_bf16()) {
        check_all(true);
    }
}
END_TEST

struct concurrent {
    const struct operands *operands;
    float *c;
    bool bf16;
    int rc;
};

static void *concurrent_main(void *arg)
{
    struct concurrent *t = arg;
    const struct shape *s = &shapes[1];
    struct gpt_matmul *mm;
    struct cst_err err;

    gpt_parallel_limit(1);
    t->rc = gpt_matmul_open(&mm, t->bf16, 1, &err);
    for (int i = 0; t->rc == 0 && i < 50; i++) {
        memset(t->c, 0xff, s->m * s->n * sizeof(float));
        t->rc = gpt_matmul(mm, s->m, s->n, s->k, t->operands->a, true, t->operands->b, false, t->c,
                           &err);
    }
    if (t->rc == 0) {
        gpt_matmul_close(mm);
    }
    return NULL;
}

/* Ranks in threads of one process compute the same bits as one rank alone. */
START_TEST(threads_have_contexts_of_their_own)
{
    const struct shape *s = &shapes[1];
    const bool bf16 = gpt_matmul_fast_bf16();
    struct concurrent t[4];
    pthread_t thread[4];
    struct operands o;
    struct concurrent alone = {.operands = &o, .bf16 = bf16};

    operands_init(&o, s, true, false, bf16);
    alone.c = o.c;
    concurrent_main(&alone);
    ck_assert_int_eq(alone.rc, 0);
    for (size_t i = 0; i < 4; i++) {
        t[i] = alone;
        t[i].c = gpt_memory_get(s->m * s->n * sizeof(float));
        ck_assert_ptr_nonnull(t[i].c);
        ck_assert_int_eq(pthread_create(&thread[i], NULL, concurrent_main, &t[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
        ck_assert_int_eq(t[i].rc, 0);
        ck_assert_int_eq(memcmp(t[i].c, o.c, s->m * s->n * sizeof(float)), 0);
        gpt_memory_put(t[i].c);
    }
    operands_close(&o);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("matmul");
    TCase *tcase = suite_case(suite, "matmul", NULL, NULL);

    tcase_add_test(tcase, fp32_products);
#ifndef __aarch64__
    tcase_add_test(tcase, fp32_products_without_avx512);
#endif
    tcase_add_test(tcase, bf16_products);
    tcase_add_test(tcase, threads_have_contexts_of_their_own);
    return suite_run(suite);
}

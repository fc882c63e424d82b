/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the search for products of data, tensor and pipeline parallelism. */
#include "offload/parallel/degrees.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_UNITS = 8 };

static struct cst_degrees_unit units[N_UNITS];
static struct cst_unit_tie tie;
static struct cst_degrees_input input;
static struct cst_products products;
static struct cst_err err;

/* Equal units: a forward pass takes 1 second, on links that take no time, with enough memory. */
static void setup(void)
{
    for (int i = 0; i < N_UNITS; i++) {
        units[i] = (struct cst_degrees_unit){.flops = 1000,
                                             .kept_bytes = 800,
                                             .input_bytes = 80,
                                             .out_bytes = 80,
                                             .sum_bytes = 160,
                                             .n_params = 1000};
    }
    input = (struct cst_degrees_input){.units = units,
                                       .n_units = N_UNITS,
                                       .ties = &tie,
                                       .n_ranks = 4,
                                       .n_micro = 8,
                                       .heads = 12,
                                       .flops = 1000,
                                       .link = 1e12,
                                       .to_host = 1e12,
                                       .to_rank = 1e12,
                                       .sums = 1e12,
                                       .updates = 1e12,
                                       .rank_bytes = 1 << 30,
                                       .param_bytes = 4};
}

static void teardown(void)
{
    cst_products_close(&products);
}

static void search(void)
{
    cst_products_close(&products);
    suite_must(cst_degrees_search(&products, &input, &err) == CST_OK, "%s", err.text);
}

static const struct cst_product *find(uint32_t dp, uint32_t tp, uint32_t pp)
{
    for (uint32_t i = 0; i < products.n; i++) {
        const struct cst_product *p = &products.products[i];

        if (p->dp == dp && p->tp == tp && p->pp == pp) {
            return p;
        }
    }
    ck_abort_msg("no product %u x %u x %u", dp, tp, pp);
    return NULL;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void refused(uint32_t dp, uint32_t tp, uint32_t pp, int status, const char *words)
{
    const struct cst_product *p = find(dp, tp, pp);

    ck_assert_int_eq(p->err.status, status);
    ck_assert_msg(strstr(p->err.text, words) != NULL, "%s", p->err.text);
    ck_assert(p->cuts == NULL && p->step == 0);
}

/* Every product is there once, those that work first and the fastest first; each fits, and has all
 * units. */
START_TEST(all_products)
{
    input.n_ranks = 24;
    input.n_micro = 48;
    input.rank_bytes = 14000; /* Pipelines recompute. */
    search();
    ck_assert_uint_eq(products.n, 30); /* 2^3 x 3: 10 x 3. */
    ck_assert_uint_ge(products.n_working, 3);
    for (uint32_t i = 0; i < products.n; i++) {
        const struct cst_product *p = &products.products[i];
        uint32_t n_units = 0;

        ck_assert_uint_eq(p->dp * p->tp * p->pp, 24);
        ck_assert(find(p->dp, p->tp, p->pp) == p);
        ck_assert((p->err.status == CST_OK) == (i < products.n_working));
        if (i >= products.n_working) {
            ck_assert(p->err.text[0] != '\0');
            continue;
        }
        ck_assert(i == 0 || p->step >= p[-1].step);
        ck_assert_uint_le(p->rank_bytes, input.rank_bytes);
        ck_assert(p->step == p->pipeline + p->commit && p->pipeline > 0);
        for (uint32_t s = 0; s < p->n_stages; s++) {
            n_units += p->cuts[s].n_units;
        }
        ck_assert_uint_eq(n_units, N_UNITS);
    }
}
END_TEST

/* The times of products are those of the formulas, where links take no time. */
START_TEST(times)
{
    search();
    /* One micro-batch takes 8 x 3 seconds on one rank. */
    ck_assert(is_near(find(4, 1, 1)->pipeline, 2 * 24));
    ck_assert(is_near(find(1, 4, 1)->pipeline, 8 * 6));
    /* Four stages: 8 + 3 turns of 6 seconds with 1f1b; two stages per rank wait half as long; with
     * ZB-H1 the first rank waits F + I - W = 2 seconds for each other one. */
    ck_assert_str_eq(find(1, 1, 4)->kind->name, "zb-h1");
    ck_assert_double_le(find(1, 1, 4)->pipeline, 8 * 6 + 3 * 2 + 1e-3);
    ck_assert_double_gt(find(1, 1, 4)->pipeline, 8 * 6);
}
END_TEST

/* Where links are slow, a product that sends less is better; sums are counted in both passes. */
START_TEST(links)
{
    struct cst_product product;
    const struct cst_schedule_kind *kind = NULL;

    input.link = 160;
    ck_assert_int_eq(cst_schedule_find(&kind, "1f1b", &err), CST_OK);
    ck_assert_int_eq(cst_degrees_try(&product, &input, 1, 2, 1, kind, 1, &err), CST_OK);
    /* Of 160 bytes each rank receives 80 twice, in 1 second: 8 x (1.5 + 2 x 1) for a micro-batch.
     */
    ck_assert(is_near(product.pipeline, 8 * 8 * (3. / 2 + 2)));
    ck_assert_uint_eq(product.sum_bytes, UINT64_C(8) * 8 * 2 * 160);
    ck_assert_uint_eq(product.message_bytes, 0);
    free(product.cuts);
    input.n_micro = 3;
    ck_assert_int_eq(cst_degrees_try(&product, &input, 1, 1, 2, kind, 1, &err), CST_OK);
    /* 80 bytes take half a second. The last stage waits for a message at the beginning, and for
     * the third micro-batch, whose forward pass follows the first backward pass of the first stage:
     * 4.5 + 12 + 12, and 1 until F2 is there; then F2, B2, a message and B2. */
    ck_assert(is_near(product.pipeline, 4.5 + 24 + 1 + 12 + 0.5 + 8));
    ck_assert_uint_eq(product.message_bytes, 3 * 80);
    ck_assert_uint_eq(product.sum_bytes, 0);
    free(product.cuts);
    input.n_micro = 8;
    search();
    ck_assert_uint_eq(products.products[0].dp, 4);
}
END_TEST

/* The commit counts gradients, sums, updates and weights. */
START_TEST(commit)
{
    input.to_host = 1000;
    input.to_rank = 2000;
    input.updates = 400;
    input.sums = 100;
    search();
    ck_assert(is_near(find(1, 4, 1)->commit, 4 + 20 + 2));
    ck_assert(is_near(find(2, 2, 1)->commit, 8 + 20 + 80 + 4));
    ck_assert_uint_eq(find(2, 2, 1)->weight_bytes, 8000);
}
END_TEST

/* With little memory a pipeline recomputes, before it waits for gradients. */
START_TEST(memory)
{
    const struct cst_product *p;

    input.n_ranks = 2;
    input.rank_bytes = 4 * 4000 + 4 * 800 + 4 * 80 + 700;
    search();
    refused(2, 1, 1, CST_EBUDGET, "each of 1 stages needs 37.5 KiB (38400 bytes)");
    p = find(1, 1, 2);
    ck_assert_int_eq(p->err.status, CST_OK);
    ck_assert_uint_gt(p->cuts[0].n_recomputed, 0);
    ck_assert_uint_eq(p->cuts[1].n_recomputed, 0);
    ck_assert_msg(strcmp(p->kind->name, "shifted") == 0 || strcmp(p->kind->name, "early") == 0,
                  "%s", p->kind->name);
}
END_TEST

/* No kind of schedule needs more memory than there is, whatever recomputes. */
START_TEST(every_kind_fits)
{
    const struct cst_schedule_kind *kind = cst_schedule_kind((uint32_t)_i);
    uint32_t n_working = 0, n_recomputing = 0;

    for (uint32_t pp = 2; pp <= 4; pp++) {
        for (input.rank_bytes = 8000; input.rank_bytes < 30000; input.rank_bytes += 150) {
            for (uint32_t v = 1; v <= (kind->interleaves ? 2U : 1U); v++) {
                struct cst_product p;

                ck_assert_int_eq(cst_degrees_try(&p, &input, 1, 1, pp, kind, v, &err), CST_OK);
                suite_must(p.rank_bytes <= input.rank_bytes, "%s on %u: %lu bytes of %lu",
                           kind->name, pp, (unsigned long)p.rank_bytes,
                           (unsigned long)input.rank_bytes);
                n_working += p.err.status == CST_OK;
                for (uint32_t s = 0; s < p.n_stages; s++) {
                    n_recomputing += p.cuts[s].n_recomputed > 0;
                }
                free(p.cuts);
            }
        }
    }
    ck_assert(n_working > 100 && n_recomputing > 50);
}
END_TEST

/* Shared parameters take memory on both stages that have them, and are updated once. */
START_TEST(ties)
{
    uint64_t apart;

    input.n_ranks = 2;
    search();
    apart = find(2, 1, 1)->rank_bytes;
    tie = (struct cst_unit_tie){0, N_UNITS - 1, 1000};
    input.n_ties = 1;
    search();
    ck_assert_uint_eq(find(2, 1, 1)->rank_bytes, apart - 4000);
    ck_assert(is_near(find(2, 1, 1)->commit, 2 * 2 * 7000 / 1e12 + 2 * 7000 / 1e12));
}
END_TEST

/* Only what is asked for is tried: degrees, a kind of schedule, and repeated passes everywhere. */
START_TEST(wishes)
{
    input.n_ranks = 2;
    input.pp = 2;
    input.recompute = true;
    ck_assert_int_eq(cst_schedule_find(&input.kind, "1f1b", &err), CST_OK);
    search();
    ck_assert_uint_eq(products.n, 1);
    ck_assert(is_near(products.products[0].pipeline, (8 + 1) * (4 + 4 + 8)));
    ck_assert_uint_eq(products.products[0].cuts[1].n_recomputed, 4);
    ck_assert_int_eq(cst_schedule_find(&input.kind, "shifted", &err), CST_OK);
    search();
    ck_assert_uint_eq(products.products[0].cuts[1].n_recomputed, 0);
    ck_assert_double_le(products.products[0].pipeline, (8 + 1) * (4 + 4 + 8) - 12 + 1e-6);
    input.kind = NULL;
    input.recompute = false;
    input.n_ranks = 12;
    input.tp = 3;
    input.pp = 0;
    search();
    ck_assert_uint_eq(products.n, 3);
    input.pp = 8;
    ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "no product of 12 ranks has the given degrees: data x tensor x "
                               "pipeline must be 12");
}
END_TEST

/* Products that divide nothing are refused with the numbers. */
START_TEST(refusals)
{
    input.n_ranks = 16;
    search();
    refused(2, 8, 1, CST_EINVAL, "12 heads do not divide into 8 parts");
    refused(16, 1, 1, CST_EINVAL, "8 micro-batches do not divide among 16 replicas");
    refused(1, 1, 16, CST_EINVAL, "16 stages: a model of 8 units can be cut into 1 to 8");
    input.heads = 0;
    search();
    refused(8, 2, 1, CST_EINVAL, "wanted its number of heads");
    input.link = 0;
    ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
    input.n_micro = 0;
    ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
}
END_TEST

/* Numbers that are too large to be added are refused, in whichever unit they are. */
START_TEST(too_large)
{
    uint64_t *const fields[] = {&units[_i].kept_bytes, &units[_i].input_bytes, &units[_i].out_bytes,
                                &units[_i].sum_bytes, &units[_i].n_params};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const uint64_t was = *fields[i];

        *fields[i] = INT64_MAX;
        ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "too large"));
        *fields[i] = was;
    }
    units[_i].flops = INFINITY;
    ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
    units[_i].flops = NAN;
    ck_assert_int_eq(cst_degrees_search(&products, &input, &err), CST_EINVAL);
    units[_i].flops = 1000;
    search();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_degrees");
    TCase *tc = suite_case(s, "degrees", setup, teardown);

    tcase_add_test(tc, all_products);
    tcase_add_test(tc, times);
    tcase_add_test(tc, links);
    tcase_add_test(tc, commit);
    tcase_add_test(tc, memory);
    tcase_add_loop_test(tc, every_kind_fits, 0, 6);
    tcase_add_test(tc, ties);
    tcase_add_test(tc, wishes);
    tcase_add_test(tc, refusals);
    tcase_add_loop_test(tc, too_large, 0, N_UNITS);
    return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/update_undo.h"
#include "proto/grad_limit.h"
#include "tests/kernels/update_rows.h"

/* Every variant has the reference's bits and changes no other element: with each optimizer,
 * format, rounding and type of gradient, in any length, in place. Formats other than fp32 begin
 * at a block. */
START_TEST(test_variants_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed() + (uint64_t)_i;
    const size_t total = 320;
    struct rows start, got, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&start, how.moments, total);
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    for (int round = 0; round < 200; round++) {
        struct cst_update_scalars scalars =
            round % 4 == 0 ? hostile_scalars(&state) : ordinary_scalars(1 + (uint64_t)round);
        struct cst_update_random random = {.seed = hostile_next(&state),
                                           .t = hostile_next(&state) >> (round % 2 == 0 ? 60 : 0),
                                           .element = hostile_next(&state) >> 12 << 5};
        size_t first = hostile_next(&state) % 4 * 32;
        size_t n = round % 3 == 0 ? total - first : hostile_next(&state) % (total - first);
        struct cst_update_rows rows;

        if (round % 3 == 1) {
            fill_ordinary(&start, &state);
        } else {
            fill_hostile(&start, &state);
        }
        if (how.moments == CST_MOMENTS_FP32 && round % 5 == 0) {
            first = total - n;
        }
        copy_rows(&got, &start);
        copy_rows(&want, &start);
        rows = rows_from(how, &got, &got, first);
        fn_of(kernels, how)(&scalars, &random, n, &rows, NULL);
        truth_update(how, &scalars, &random, &want, first, n);
        assert_same(&got, &want);
    }
}
END_TEST

/* Rows may be misaligned by different numbers of elements, with the weight row at every position
 * within a cache line. */
START_TEST(test_rows_misaligned_apart)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    const struct cst_update_random random = {.seed = 5, .t = 3, .element = 4096};
    const size_t total = 416;
    struct rows start, got, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&start, how.moments, total);
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    for (size_t shift = 0; shift < 40; shift++) {
        size_t n = 300 - shift;
        struct cst_update_rows rows;

        fill_hostile(&start, &state);
        copy_rows(&got, &start);
        copy_rows(&want, &start);
        memmove(got.grad + 3, got.grad, n * sizeof *got.grad);
        memmove(got.grad_fp32 + 9, got.grad_fp32, n * sizeof *got.grad_fp32);
        memmove(got.master + 7, got.master, n * sizeof *got.master);
        rows = rows_from(how, &got, &got, 0);
        rows.grad_bf16 += how.wide ? 0 : 3;
        rows.grad_fp32 += how.wide ? 9 : 0;
        rows.master_in += 7;
        rows.master += 7;
        rows.weight += shift;
        fn_of(kernels, how)(&scalars, &random, n, &rows, NULL);
        truth_update(how, &scalars, &random, &want, 0, n);
        ck_assert_mem_eq(got.master + 7, want.master, n * sizeof *got.master);
        ck_assert_mem_eq(got.weight + shift, want.weight, n * sizeof *got.weight);
        for (int k = 0; k < 2; k++) {
            ck_assert_mem_eq(got.moments[k].values, want.moments[k].values,
                             moment_bytes(how.moments, total));
        }
    }
}
END_TEST

/* Out of place, rows that are read do not change, and the results equal those in place. */
START_TEST(test_elsewhere)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const size_t total = 256;
    struct rows start, in, out, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&start, how.moments, total);
    allocate(&in, how.moments, total);
    allocate(&out, how.moments, total);
    allocate(&want, how.moments, total);
    for (size_t n = total - 70; n <= total; n += 7) {
        const struct cst_update_scalars scalars = ordinary_scalars(n);
        const struct cst_update_random random = {.seed = n, .t = n, .element = 64};
        struct cst_update_rows rows = rows_from(how, &in, &out, 0);

        fill_hostile(&start, &state);
        copy_rows(&in, &start);
        copy_rows(&out, &start);
        copy_rows(&want, &start);
        fn_of(kernels, how)(&scalars, &random, n, &rows, NULL);
        truth_update(how, &scalars, &random, &want, 0, n);
        assert_same(&in, &start);
        assert_same(&out, &want);
    }
}
END_TEST

/* Dividing an update at any blocks does not change the result: tiles of a row have the bits of the
 * whole row. */
START_TEST(test_pieces_give_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    const size_t total = 3 * 4096;
    struct cst_update_random random = {.seed = 7, .t = 3, .element = 5 * 4096};
    struct rows got, want;
    struct cst_update_rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    fill_ordinary(&got, &state);
    copy_rows(&want, &got);
    rows = rows_from(how, &want, &want, 0);
    fn_of(kernels, how)(&scalars, &random, total, &rows, NULL);
    for (size_t i = 0; i < total;) {
        size_t n = 32 + hostile_next(&state) % 100 * 32;

        n = n < total - i ? n : total - i;
        random.element = 5 * 4096 + i;
        rows = rows_from(how, &got, &got, i);
        fn_of(kernels, how)(&scalars, &random, n, &rows, NULL);
        i += n;
    }
    assert_same(&got, &want);
}
END_TEST

/* Moments up to the largest number of mx8: blocks with magnitudes above and below 2^127, and some
 * that are too large. */
START_TEST(test_huge_moments)
{
    const struct cst_kernels *kernels = hostile_row(_i / 4);
    const struct how how = {.optimizer = _i % 2 == 0 ? CST_OPTIMIZER_SGD : CST_OPTIMIZER_ADAMW,
                            .moments = CST_MOMENTS_MX8,
                            .rounding =
                                _i / 2 % 2 == 0 ? CST_ROUNDING_NEAREST : CST_ROUNDING_STOCHASTIC,
                            .wide = true};
    /* exp_avg of SGD is the gradient here, and exp_avg_sq of ADAMW the square of the gradient. */
    const float most = how.optimizer == CST_OPTIMIZER_SGD ? 0x1.fp127f : 0x1.f8p63f;
    const size_t total = 32 * 200;
    uint64_t state = hostile_seed();
    struct cst_update_scalars scalars;
    struct cst_update_random random = {.seed = 1, .t = 1};
    struct rows got, want;
    struct cst_update_rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    fill_ordinary(&got, &state);
    for (size_t i = 0; i < total; i++) {
        got.grad_fp32[i] = most * hostile_unit(&state) * (i / 32 % 2 == 0 ? 0.97f : 1.0f);
    }
    for (int k = 0; k < 2; k++) {
        cst_moments_clear(how.moments, (unsigned)k, 0, total, &got.moments[k]);
    }
    copy_rows(&want, &got);
    cst_update_prepare(&scalars, 1e-3, 0.0, 0.0, 1e-8, 0.0, 1.0f, 1);
    rows = rows_from(how, &got, &got, 0);
    fn_of(kernels, how)(&scalars, &random, total, &rows, NULL);
    truth_update(how, &scalars, &random, &want, 0, total);
    assert_same(&got, &want);
}
END_TEST

/* Every NaN in the result is the canonical one, and the weight is the rounded master weight. */
START_TEST(test_nan_is_canonical)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    const struct cst_update_random random = {.seed = 7, .t = 3};
    const size_t total = 4096;
    float moments[2][4096];
    size_t n_nan = 0;
    struct rows got;
    struct cst_update_rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, total);
    fill_hostile(&got, &state);
    rows = rows_from(how, &got, &got, 0);
    fn_of(kernels, how)(&scalars, &random, total, &rows, NULL);
    for (unsigned k = 0; k < 2; k++) {
        cst_moments_decode(how.moments, k, 0, total, &got.moments[k], moments[k]);
    }
    for (size_t i = 0; i < total; i++) {
        suite_must(got.weight[i] == cst_fp32_to_bf16(got.master[i]), "weight %zu is %04x", i,
                   got.weight[i]);
        if (isnan(got.master[i])) {
            suite_must(truth_bits(got.master[i]) == CST_UPDATE_NAN, "master weight %zu", i);
            n_nan++;
        }
        if (isnan(moments[0][i])) {
            suite_must(truth_bits(moments[0][i]) == CST_UPDATE_NAN, "moment %zu", i);
        }
    }
    ck_assert_uint_gt(n_nan, 100);
}
END_TEST

/* With an undo slot the bits are equal. At the end the slot holds the last group, or with fp32
 * moments perhaps half of it: its old bytes, with numbers from the base. */
START_TEST(test_undo_has_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    const struct cst_update_random random = {.seed = 7, .t = 3};
    const size_t total = 224;
    struct rows got, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    for (size_t n = 0; n <= total; n++) {
        struct cst_update_undo undo = {.base = 1000};
        struct cst_update_rows rows = rows_from(how, &got, &got, 0);
        const struct cst_update_old *old;
        uint32_t first, last;

        fill_hostile(&got, &state);
        copy_rows(&want, &got);
        fn_of(kernels, how)(&scalars, &random, n, &rows, &undo);
        if (n == 0) {
            ck_assert_uint_eq(undo.held, 0);
            continue;
        }
        first = cst_update_undo_first(undo.held) - 1000;
        last = cst_update_undo_n(undo.held);
        old = &undo.old[cst_update_undo_buffer(undo.held)];
        ck_assert_uint_eq(first + last, n);
        ck_assert(first == (n - 1) / 32 * 32 ||
                  (how.moments == CST_MOMENTS_FP32 && first == (n - 1) / 16 * 16));
        ck_assert_mem_eq(old->master, want.master + first, last * sizeof(float));
        for (unsigned k = 0; k < cst_optimizer_n_moments(how.optimizer); k++) {
            struct cst_update_moment at = moment_at(&want, (int)k, first);

            ck_assert_mem_eq(old->moments[k], at.values,
                             how.moments == CST_MOMENTS_MX8 ? last
                                                            : moment_bytes(how.moments, last));
            if (how.moments == CST_MOMENTS_MX8) {
                ck_assert_uint_eq(old->exponents[k], *at.exponents);
            }
        }
        truth_update(how, &scalars, &random, &want, 0, n);
        assert_same(&got, &want);
    }
}
END_TEST

/* Weights that are written to the gradient's place equal those written to their own row. The undo
 * slot holds the last group's gradient, which is overwritten. */
START_TEST(test_weights_over_the_gradient)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed();
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    const struct cst_update_random random = {.seed = 7, .t = 3};
    const size_t total = 224;
    struct rows got, want;

    if (kernels == NULL || how.wide) {
        return;
    }
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    for (size_t n = 1; n <= total; n++) {
        struct cst_update_undo undo = {.base = 0};
        struct cst_update_rows rows = rows_from(how, &got, &got, 0);
        uint32_t first;

        fill_hostile(&got, &state);
        copy_rows(&want, &got);
        rows.weight = got.grad;
        fn_of(kernels, how)(&scalars, &random, n, &rows, n % 2 == 0 ? &undo : NULL);
        truth_update(how, &scalars, &random, &want, 0, n);
        ck_assert_mem_eq(got.grad, want.weight, n * sizeof *got.grad);
        ck_assert_mem_eq(got.grad + n, want.grad + n, (total - n) * sizeof *got.grad);
        if (n % 2 == 0) {
            first = cst_update_undo_first(undo.held);
            ck_assert_mem_eq(undo.old[cst_update_undo_buffer(undo.held)].grad, want.grad + first,
                             cst_update_undo_n(undo.held) * sizeof *want.grad);
        }
        memcpy(got.grad, want.grad, n * sizeof *got.grad); /* everything else is equal */
        memcpy(got.weight, want.weight, n * sizeof *got.weight);
        assert_same(&got, &want);
    }
}
END_TEST

/* AdamW as in torch.optim.AdamW, for one element, in double. */
struct exact {
    double p;
    double m;
    double v;
};

static void exact_step(struct exact *x, double grad, double lr, double beta1, double beta2,
                       double eps, double weight_decay, int t)
{
    double bias1 = 1.0 - pow(beta1, t);
    double bias2 = 1.0 - pow(beta2, t);

    x->p *= 1.0 - lr * weight_decay;
    x->m += (1.0 - beta1) * (grad - x->m);
    x->v = beta2 * x->v + (1.0 - beta2) * grad * grad;
    x->p -= lr / bias1 * x->m / (sqrt(x->v) / sqrt(bias2) + eps);
}

/* 200 steps stay near the double-precision definition. Let u = 2^-24 be the largest rounding error
 * of one operation. The error of m is u x max|g| x (2 + 1 / (1 - beta1)) = 12 u max|g|, because old
 * errors decay with beta1. The error of v is 2 u of v for each step, because errors hardly decay
 * with beta2; its root has an error of u t. Here max|g| is below 8 sqrt(v) and |m| below 4 sqrt(v),
 * both bias-corrected, so the error of a step of p is lr x (8 x 12 + 4 x 200) u < 1200 u lr. In
 * addition p, which is below 1.2, is rounded twice: 2.4 u. */
START_TEST(test_against_double_precision)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const struct how how = {.optimizer = CST_OPTIMIZER_ADAMW};
    const double lr = 1e-3, beta1 = (double)0.9f, beta2 = (double)0.999f, eps = (double)1e-3f;
    const double weight_decay = (double)0.1f, u = 0x1p-24;
    const size_t n = 96;
    uint64_t state = hostile_seed();
    struct exact exact[96];
    struct rows got;
    double worst = 0.0;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, CST_MOMENTS_FP32, n);
    for (size_t i = 0; i < n; i++) {
        got.master[i] = hostile_unit(&state);
        exact[i] = (struct exact){.p = (double)got.master[i]};
    }
    for (int t = 1; t <= 200; t++) {
        struct cst_update_rows rows = rows_from(how, &got, &got, 0);
        struct cst_update_scalars scalars;

        for (size_t i = 0; i < n; i++) {
            float g = (hostile_unit(&state) + 0.3f) * ldexpf(1.0f, (int)(i % 12) - 8);

            got.grad[i] = cst_fp32_to_bf16(g);
            exact_step(&exact[i], 0.25 * (double)cst_bf16_to_fp32(got.grad[i]), lr, beta1, beta2,
                       eps, weight_decay, t);
        }
        cst_update_prepare(&scalars, lr, beta1, beta2, eps, weight_decay, 0.25f, (uint64_t)t);
        fn_of(kernels, how)(&scalars, NULL, n, &rows, NULL);
        for (size_t i = 0; i < n; i++) {
            double off = fabs((double)got.master[i] - exact[i].p);

            worst = off > worst ? off : worst;
            suite_must(off <= t * (1200 * u * lr + 2.4 * u), "%s: step %d, element %zu: %g off",
                       kernels->isa, t, i, off);
        }
    }
    printf("%s: 200 steps, at most %g from double precision\n", kernels->isa, worst);
}
END_TEST

/* The scalars are those of the definition, rounded to float: at the first step, where the bias is
 * largest, and after very many steps. */
START_TEST(test_prepare)
{
    struct cst_update_scalars s;

    cst_update_prepare(&s, 0.001, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    ck_assert(s.grad_scale == 0.5f);
    ck_assert(s.beta1 == 0.9f && s.beta2 == 0.999f);
    ck_assert(s.one_minus_beta1 == (float)(1.0 - 0.9));
    ck_assert(s.one_minus_beta2 == (float)(1.0 - 0.999));
    ck_assert(s.inv_sqrt_bias2 == (float)(1.0 / sqrt(1.0 - 0.999)));
    ck_assert(s.eps == 1e-8f);
    ck_assert(s.lr == 0.001f && s.weight_decay == 0.1f);
    ck_assert(s.decay == 0.9999f);
    ck_assert(s.step_size == (float)(0.001 / (1.0 - 0.9)));
    ck_assert(s.ratio_limit == (float)(1.0 - 0.9));
    for (uint64_t t = 1; t < 3000000; t = t * 3 / 2 + 1) {
        s = ordinary_scalars(t);
        ck_assert_float_eq_tol(s.step_size, (float)(0.001 / (1.0 - pow(0.9, (double)t))),
                               0.001f * 0x1p-23f);
        ck_assert_float_eq_tol(s.inv_sqrt_bias2, (float)(1.0 / sqrt(1.0 - pow(0.999, (double)t))),
                               s.inv_sqrt_bias2 * 0x1p-23f);
    }
    ck_assert(s.step_size == 0.001f);
    ck_assert(s.ratio_limit == 1.0f);
    ck_assert(s.inv_sqrt_bias2 == 1.0f);
}
END_TEST

/* The results have fixed bits, which are part of the format: a state updated by another compiler,
 * machine or version is equal. */
START_TEST(test_golden_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const size_t total = 1003;
    uint64_t hash = HOSTILE_HASH_START;
    uint64_t state = 1;
    struct rows got;
    float *m, *v;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, CST_MOMENTS_FP32, 1024);
    m = got.moments[0].values;
    v = got.moments[1].values;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < total; i++) {
            if (k == 0) {
                got.grad[i] = hostile_bf16(&state);
                got.weight[i] = hostile_bf16(&state);
                got.master[i] = hostile_fp32(&state);
                m[i] = hostile_fp32(&state);
                v[i] = hostile_fp32(&state);
            } else {
                m[i] = hostile_unit(&state) * 0.01f;
                got.grad[i] = cst_fp32_to_bf16(hostile_unit(&state) * 0.1f);
                got.weight[i] = 0;
                got.master[i] = hostile_unit(&state);
                v[i] = m[i] * m[i] * (1.0f + hostile_unit(&state));
            }
        }
        for (uint64_t t = 1; t <= 5; t++) {
            const struct how how = {.optimizer = CST_OPTIMIZER_ADAMW};
            const struct cst_update_scalars scalars = ordinary_scalars(t);
            struct cst_update_rows rows = rows_from(how, &got, &got, 0);

            fn_of(kernels, how)(&scalars, NULL, total, &rows, NULL);
        }
        hash = hostile_hash(hash, got.weight, total * sizeof *got.weight);
        hash = hostile_hash(hash, got.master, total * sizeof *got.master);
        hash = hostile_hash(hash, m, total * sizeof *m);
        hash = hostile_hash(hash, v, total * sizeof *v);
    }
    ck_assert_msg(hash == 0x16d244e8a7f2e3caull, "%s: %#llx", kernels->isa,
                  (unsigned long long)hash);
}
END_TEST

/* Results with 8-bit moments have fixed bits, too, with either rounding. */
START_TEST(test_golden_bits_mx8)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const size_t total = 1024;
    uint64_t hash = HOSTILE_HASH_START;
    uint64_t state = 1;
    struct rows got;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, CST_MOMENTS_MX8, total);
    for (int k = 0; k < 2; k++) {
        const struct how how = {.optimizer = CST_OPTIMIZER_ADAMW,
                                .moments = CST_MOMENTS_MX8,
                                .rounding =
                                    k == 0 ? CST_ROUNDING_NEAREST : CST_ROUNDING_STOCHASTIC};

        fill_ordinary(&got, &state);
        for (uint64_t t = 1; t <= 5; t++) {
            const struct cst_update_scalars scalars = ordinary_scalars(t);
            const struct cst_update_random random = {.seed = 9, .t = t};
            struct cst_update_rows rows = rows_from(how, &got, &got, 0);

            fn_of(kernels, how)(&scalars, &random, total, &rows, NULL);
        }
        hash = hostile_hash(hash, got.weight, total * sizeof *got.weight);
        hash = hostile_hash(hash, got.master, total * sizeof *got.master);
        for (int i = 0; i < 2; i++) {
            hash = hostile_hash(hash, got.moments[i].values, moment_bytes(how.moments, total));
        }
    }
    ck_assert_msg(hash == 0x456afdc2f4e40899ull, "%s: %#llx", kernels->isa,
                  (unsigned long long)hash);
}
END_TEST

/* Gradients as large as the limit leave finite states, however many there are and whatever the
 * betas are, in each format. This is the reason for the limit. */
START_TEST(test_at_the_limit)
{
    static const float betas[][2] = {
        {0.9f, 0.999f}, {0.0f, 0.0f}, {0.99999f, 0x1.fffffep-1f}, {0x1.fffffep-1f, 0x1.ffffe8p-1f}};
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    struct rows x;

    if (kernels == NULL) {
        return;
    }
    ck_assert(cst_grad_limit_holds(0x1p40 * 0x1p40, 0x1p23f));
    allocate(&x, how.moments, CST_UPDATE_GROUP);
    for (size_t b = 0; b < sizeof betas / sizeof betas[0]; b++) {
        const struct cst_update_rows rows = rows_from(how, &x, &x, 0);

        memset(x.master, 0, x.n * sizeof *x.master);
        for (unsigned k = 0; k < 2; k++) {
            cst_moments_clear(how.moments, k, 0, x.n, &x.moments[k]);
        }
        for (uint64_t t = 1; t <= 1000; t++) {
            struct cst_update_random random = {.seed = 1, .t = t};
            struct cst_update_scalars scalars;

            cst_update_prepare(&scalars, 1e-3, (double)betas[b][0], (double)betas[b][1], 1e-8, 0.01,
                               0x1p23f, t);
            /* Always positive, alternating, and positive for a long time before negative. */
            for (size_t i = 0; i < x.n; i++) {
                bool down = i % 3 == 1 ? t % 2 == 1 : i % 3 == 2 && t > 700;

                x.grad_fp32[i] = down ? -0x1p40f : 0x1p40f;
                x.grad[i] = down ? 0xd380 : 0x5380;
            }
            fn_of(kernels, how)(&scalars, &random, x.n, &rows, NULL);
        }
        for (size_t i = 0; i < x.n; i++) {
            suite_must(isfinite(x.master[i]), "master weight %zu", i);
            for (unsigned k = 0; k < cst_optimizer_n_moments(how.optimizer); k++) {
                suite_must(isfinite(truth_load(&x, k, i)), "moment %zu", i);
            }
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("update");
    TCase *update = suite_case(suite, "update", NULL, NULL);
    TCase *adamw = suite_case(suite, "adamw", NULL, NULL);
    int n_rows = hostile_n_rows(), n = n_rows * N_HOWS;

    tcase_add_loop_test(update, test_variants_agree, 0, n);
    tcase_add_loop_test(update, test_rows_misaligned_apart, 0, n);
    tcase_add_loop_test(update, test_elsewhere, 0, n);
    tcase_add_loop_test(update, test_pieces_give_the_same_bits, 0, n);
    tcase_add_loop_test(update, test_huge_moments, 0, 4 * n_rows);
    tcase_add_loop_test(update, test_nan_is_canonical, 0, n);
    tcase_add_loop_test(update, test_undo_has_the_same_bits, 0, n);
    tcase_add_loop_test(update, test_weights_over_the_gradient, 0, n);
    tcase_add_loop_test(update, test_at_the_limit, 0, n);
    tcase_add_loop_test(adamw, test_against_double_precision, 0, n_rows);
    tcase_add_loop_test(adamw, test_golden_bits, 0, n_rows);
    tcase_add_loop_test(adamw, test_golden_bits_mx8, 0, n_rows);
    tcase_add_test(adamw, test_prepare);
    return hostile_main(suite);
}

#include "kernels/adamw_undo.h"
#include "tests/kernels/hostile.h"

#include <math.h>

/* Rows of one update, each ending at an unmapped page. */
struct rows {
    uint16_t *grad;
    uint16_t *weight;
    float *master;
    float *exp_avg;
    float *exp_avg_sq;
};

static void allocate(struct rows *rows, size_t n)
{
    rows->grad = hostile_buffer(n * sizeof *rows->grad);
    rows->weight = hostile_buffer(n * sizeof *rows->weight);
    rows->master = hostile_buffer(n * sizeof *rows->master);
    rows->exp_avg = hostile_buffer(n * sizeof *rows->exp_avg);
    rows->exp_avg_sq = hostile_buffer(n * sizeof *rows->exp_avg_sq);
}

static void copy(struct rows *to, const struct rows *from, size_t n)
{
    memcpy(to->grad, from->grad, n * sizeof *to->grad);
    memcpy(to->weight, from->weight, n * sizeof *to->weight);
    memcpy(to->master, from->master, n * sizeof *to->master);
    memcpy(to->exp_avg, from->exp_avg, n * sizeof *to->exp_avg);
    memcpy(to->exp_avg_sq, from->exp_avg_sq, n * sizeof *to->exp_avg_sq);
}

static void assert_same(const struct rows *got, const struct rows *want, size_t n)
{
    ck_assert_mem_eq(got->grad, want->grad, n * sizeof *got->grad);
    ck_assert_mem_eq(got->weight, want->weight, n * sizeof *got->weight);
    ck_assert_mem_eq(got->master, want->master, n * sizeof *got->master);
    ck_assert_mem_eq(got->exp_avg, want->exp_avg, n * sizeof *got->exp_avg);
    ck_assert_mem_eq(got->exp_avg_sq, want->exp_avg_sq, n * sizeof *got->exp_avg_sq);
}

static void fill_hostile(struct rows *rows, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        rows->grad[i] = hostile_bf16(state);
        rows->weight[i] = hostile_bf16(state);
        rows->master[i] = hostile_fp32(state);
        rows->exp_avg[i] = hostile_fp32(state);
        rows->exp_avg_sq[i] = hostile_fp32(state);
    }
}

/* What training looks like after some steps. */
static void fill_ordinary(struct rows *rows, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        float m = hostile_unit(state) * 0.01f;

        rows->grad[i] = cst_fp32_to_bf16(hostile_unit(state) * 0.1f);
        rows->weight[i] = 0;
        rows->master[i] = hostile_unit(state);
        rows->exp_avg[i] = m;
        rows->exp_avg_sq[i] = m * m * (1.0f + hostile_unit(state));
    }
}

static void update(cst_adamw_fn adamw, const struct cst_adamw *hyper, const struct rows *rows,
                   size_t first, size_t n)
{
    adamw(hyper, n, rows->grad + first, rows->master + first, rows->exp_avg + first,
          rows->exp_avg_sq + first, rows->weight + first);
}

static struct cst_adamw ordinary_hyper(void)
{
    struct cst_adamw hyper;

    cst_adamw_prepare(&hyper, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, 3);
    return hyper;
}

static struct cst_adamw hostile_hyper(uint64_t *state)
{
    return (struct cst_adamw){
        .grad_scale = hostile_fp32(state),
        .one_minus_beta1 = hostile_fp32(state),
        .beta2 = hostile_fp32(state),
        .one_minus_beta2 = hostile_fp32(state),
        .inv_sqrt_bias2 = hostile_fp32(state),
        .eps = hostile_fp32(state),
        .decay = hostile_fp32(state),
        .step_size = hostile_fp32(state),
    };
}

/* Every variant has the reference's bits and touches no element outside: any length, each row at an
 * alignment of its own. */
START_TEST(test_variants_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const size_t total = 300;
    struct rows got;
    struct rows want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, total);
    allocate(&want, total);
    for (int round = 0; round < 3000; round++) {
        size_t n = hostile_next(&state) % 160;
        size_t first = round % 2 == 0 ? total - n : hostile_next(&state) % 80;
        struct cst_adamw hyper = round % 4 == 0 ? hostile_hyper(&state) : ordinary_hyper();

        if (round % 3 == 0) {
            fill_ordinary(&got, total, &state);
        } else {
            fill_hostile(&got, total, &state);
        }
        copy(&want, &got, total);
        update(kernels->adamw, &hyper, &got, first, n);
        update(cst_adamw_ref, &hyper, &want, first, n);
        assert_same(&got, &want, total);
    }
}
END_TEST

/* Rows that are misaligned by different numbers of elements, the weights' row at every place within
 * a line. */
START_TEST(test_rows_misaligned_apart)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const struct cst_adamw hyper = ordinary_hyper();
    const size_t total = 400;
    struct rows got;
    struct rows want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, total);
    allocate(&want, total);
    for (size_t shift = 0; shift < 40; shift++) {
        size_t n = 300 - shift;

        fill_hostile(&got, total, &state);
        copy(&want, &got, total);
        kernels->adamw(&hyper, n, got.grad + 3, got.master + 7, got.exp_avg + 1,
                       got.exp_avg_sq + 13, got.weight + shift);
        cst_adamw_ref(&hyper, n, want.grad + 3, want.master + 7, want.exp_avg + 1,
                      want.exp_avg_sq + 13, want.weight + shift);
        assert_same(&got, &want, total);
    }
}
END_TEST

/* Cutting an update into pieces anywhere does not change it. */
START_TEST(test_pieces_give_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const struct cst_adamw hyper = ordinary_hyper();
    const size_t total = 5000;
    struct rows got;
    struct rows want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, total);
    allocate(&want, total);
    fill_ordinary(&got, total, &state);
    copy(&want, &got, total);
    update(kernels->adamw, &hyper, &want, 0, total);
    for (size_t i = 0; i < total;) {
        size_t n = hostile_next(&state) % 200;

        n = n < total - i ? n : total - i;
        update(kernels->adamw, &hyper, &got, i, n);
        i += n;
    }
    assert_same(&got, &want, total);
}
END_TEST

/* Whatever NaN goes in, CST_ADAMW_NAN comes out, and the weight is the master rounded. */
START_TEST(test_nan_is_canonical)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const struct cst_adamw hyper = ordinary_hyper();
    const size_t total = 4096;
    size_t n_nan = 0;
    struct rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&rows, total);
    fill_hostile(&rows, total, &state);
    update(kernels->adamw, &hyper, &rows, 0, total);
    for (size_t i = 0; i < total; i++) {
        const float states[] = {rows.master[i], rows.exp_avg[i], rows.exp_avg_sq[i]};

        ck_assert_uint_eq(rows.weight[i], cst_fp32_to_bf16(rows.master[i]));
        for (int k = 0; k < 3; k++) {
            const uint32_t nan = CST_ADAMW_NAN;

            if (isnan(states[k])) {
                ck_assert_mem_eq(&states[k], &nan, sizeof nan);
                n_nan++;
            }
        }
    }
    ck_assert_uint_gt(n_nan, 100);
}
END_TEST

/* With an undo the bits are the same, and at the end it holds the last group: its old values,
 * numbered from the base. */
START_TEST(test_undo_has_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const struct cst_adamw hyper = ordinary_hyper();
    const size_t total = 300;
    struct rows got;
    struct rows want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, total);
    allocate(&want, total);
    for (size_t n = 0; n <= 200; n++) {
        struct cst_adamw_undo undo = {.base = 1000};
        size_t at = n % 3 == 0 ? total - n : hostile_next(&state) % (total - n);
        uint32_t first;
        uint32_t k;
        float(*old)[CST_ADAMW_GROUP];

        fill_hostile(&got, total, &state);
        copy(&want, &got, total);
        kernels->adamw_undo(&hyper, n, got.grad + at, got.master + at, got.exp_avg + at,
                            got.exp_avg_sq + at, got.weight + at, &undo);
        if (n == 0) {
            ck_assert_uint_eq(undo.held, 0);
            continue;
        }
        first = cst_adamw_undo_first(undo.held) - 1000;
        k = cst_adamw_undo_n(undo.held);
        old = undo.old[cst_adamw_undo_buffer(undo.held)];
        ck_assert_uint_eq(first + k, n);
        ck_assert_mem_eq(old[0], want.master + at + first, k * sizeof(float));
        ck_assert_mem_eq(old[1], want.exp_avg + at + first, k * sizeof(float));
        ck_assert_mem_eq(old[2], want.exp_avg_sq + at + first, k * sizeof(float));
        update(cst_adamw_ref, &hyper, &want, at, n);
        assert_same(&got, &want, total);
    }
}
END_TEST

/* Gradients in fp32: those that bf16 has give the bits of the bf16 kernel; of any, every variant
 * has the reference's, with an undo too, which holds what it should. */
START_TEST(test_fp32_gradients)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const size_t total = 300;
    float *grad = hostile_buffer(total * sizeof *grad);
    struct rows start, got, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&start, total);
    allocate(&got, total);
    allocate(&want, total);
    for (int round = 0; round < 3000; round++) {
        struct cst_adamw hyper = round % 4 == 0 ? hostile_hyper(&state) : ordinary_hyper();
        size_t n = hostile_next(&state) % 160;
        size_t at = round % 2 == 0 ? total - n : hostile_next(&state) % 80;
        struct cst_adamw_undo undo = {.base = 7};
        bool narrow = round % 3 == 0;

        fill_hostile(&start, total, &state);
        for (size_t i = 0; i < total; i++) {
            grad[i] = narrow ? cst_bf16_to_fp32(start.grad[i]) : hostile_fp32(&state);
        }
        copy(&want, &start, total);
        copy(&got, &start, total);
        if (narrow) {
            update(cst_adamw_ref, &hyper, &want, at, n);
        } else {
            cst_adamw_f32_ref(&hyper, n, grad + at, want.master + at, want.exp_avg + at,
                              want.exp_avg_sq + at, want.weight + at);
        }
        kernels->adamw_f32(&hyper, n, grad + at, got.master + at, got.exp_avg + at,
                           got.exp_avg_sq + at, got.weight + at);
        assert_same(&got, &want, total);
        copy(&got, &start, total);
        kernels->adamw_undo_f32(&hyper, n, grad + at, got.master + at, got.exp_avg + at,
                                got.exp_avg_sq + at, got.weight + at, &undo);
        assert_same(&got, &want, total);
        if (n > 0) {
            uint32_t first = cst_adamw_undo_first(undo.held) - 7;
            uint32_t k = cst_adamw_undo_n(undo.held);

            ck_assert_uint_eq(first + k, n);
            ck_assert_mem_eq(undo.old[cst_adamw_undo_buffer(undo.held)][2],
                             start.exp_avg_sq + at + first, k * sizeof(float));
        }
    }
}
END_TEST

/* AdamW as torch.optim.AdamW has it, for one element, in double. */
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

/* 200 steps stay beside the double-precision definition. With u = 2^-24, the rounding of one
 * operation, at worst: m is wrong by u x max|g| x (2 + 1 / (1 - beta1)) = 12 u max|g|, since old
 * errors fade with beta1; v by 2 u of itself for each step, since they hardly fade with beta2, its
 * root by u t. Here max|g| is below 8 sqrt(v) and |m| below 4 sqrt(v), both bias-corrected: a step
 * moves p wrongly by lr x (8 x 12 + 4 x 200) u < 1200 u lr. Besides, p, below 1.2, is rounded
 * twice: 2.4 u. */
START_TEST(test_against_double_precision)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const double lr = 1e-3, beta1 = (double)0.9f, beta2 = (double)0.999f, eps = (double)1e-3f;
    const double weight_decay = (double)0.1f;
    const double u = 0x1p-24;
    const int n_steps = 200;
    uint64_t state = hostile_seed();
    struct exact exact[100];
    struct cst_adamw hyper;
    struct rows rows;
    double worst = 0.0;

    if (kernels == NULL) {
        return;
    }
    allocate(&rows, 100);
    for (size_t i = 0; i < 100; i++) {
        rows.master[i] = hostile_unit(&state);
        rows.exp_avg[i] = rows.exp_avg_sq[i] = 0.0f;
        exact[i] = (struct exact){.p = (double)rows.master[i]};
    }
    for (int t = 1; t <= n_steps; t++) {
        for (size_t i = 0; i < 100; i++) {
            float g = (hostile_unit(&state) + 0.3f) * ldexpf(1.0f, (int)(i % 12) - 8);

            rows.grad[i] = cst_fp32_to_bf16(g);
            exact_step(&exact[i], 0.25 * (double)cst_bf16_to_fp32(rows.grad[i]), lr, beta1, beta2,
                       eps, weight_decay, t);
        }
        cst_adamw_prepare(&hyper, lr, beta1, beta2, eps, weight_decay, 0.25f, (uint64_t)t);
        update(kernels->adamw, &hyper, &rows, 0, 100);
        for (size_t i = 0; i < 100; i++) {
            double off = fabs((double)rows.master[i] - exact[i].p);

            worst = off > worst ? off : worst;
            ck_assert_msg(off <= t * (1200 * u * lr + 2.4 * u), "%s: step %d, element %zu: %g off",
                          kernels->isa, t, i, off);
        }
    }
    printf("%s: %d steps, at most %g from double precision\n", kernels->isa, n_steps, worst);
}
END_TEST

/* The scalars are the definition's, rounded to float: at the first step, where the bias is largest,
 * and after very many. */
START_TEST(test_prepare)
{
    struct cst_adamw hyper;

    cst_adamw_prepare(&hyper, 0.001, 0.9, 0.999, 1e-8, 0.1, 0.5f, 1);
    ck_assert(hyper.grad_scale == 0.5f);
    ck_assert(hyper.one_minus_beta1 == (float)(1.0 - 0.9));
    ck_assert(hyper.beta2 == 0.999f);
    ck_assert(hyper.one_minus_beta2 == (float)(1.0 - 0.999));
    ck_assert(hyper.inv_sqrt_bias2 == (float)(1.0 / sqrt(1.0 - 0.999)));
    ck_assert(hyper.eps == 1e-8f);
    ck_assert(hyper.decay == 0.9999f);
    ck_assert(hyper.step_size == (float)(0.001 / (1.0 - 0.9)));
    for (uint64_t t = 1; t < 3000000; t = t * 3 / 2 + 1) {
        cst_adamw_prepare(&hyper, 0.001, 0.9, 0.999, 1e-8, 0.1, 1.0f, t);
        ck_assert_float_eq_tol(hyper.step_size, (float)(0.001 / (1.0 - pow(0.9, (double)t))),
                               0.001f * 0x1p-23f);
        ck_assert_float_eq_tol(hyper.inv_sqrt_bias2,
                               (float)(1.0 / sqrt(1.0 - pow(0.999, (double)t))),
                               hyper.inv_sqrt_bias2 * 0x1p-23f);
    }
    ck_assert(hyper.step_size == 0.001f);
    ck_assert(hyper.inv_sqrt_bias2 == 1.0f);
}
END_TEST

/* The bits themselves are part of the format: a state updated by another compiler, machine or
 * version is the same. */
START_TEST(test_golden_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const size_t total = 1003;
    uint64_t hash = HOSTILE_HASH_START;
    uint64_t state = 1;
    struct rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&rows, total);
    for (int k = 0; k < 2; k++) {
        if (k == 0) {
            fill_hostile(&rows, total, &state);
        } else {
            fill_ordinary(&rows, total, &state);
        }
        for (uint64_t t = 1; t <= 5; t++) {
            struct cst_adamw hyper;

            cst_adamw_prepare(&hyper, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, t);
            update(kernels->adamw, &hyper, &rows, 0, total);
        }
        hash = hostile_hash(hash, rows.weight, total * sizeof *rows.weight);
        hash = hostile_hash(hash, rows.master, total * sizeof *rows.master);
        hash = hostile_hash(hash, rows.exp_avg, total * sizeof *rows.exp_avg);
        hash = hostile_hash(hash, rows.exp_avg_sq, total * sizeof *rows.exp_avg_sq);
    }
    ck_assert_msg(hash == 0x16d244e8a7f2e3caull, "%s: %#llx", kernels->isa,
                  (unsigned long long)hash);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("adamw");
    TCase *adamw = tcase_create("adamw");
    TCase *prepare = tcase_create("prepare");

    tcase_add_loop_test(adamw, test_variants_agree, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_rows_misaligned_apart, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_pieces_give_the_same_bits, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_nan_is_canonical, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_undo_has_the_same_bits, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_fp32_gradients, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_against_double_precision, 0, hostile_n_rows());
    tcase_add_loop_test(adamw, test_golden_bits, 0, hostile_n_rows());
    tcase_add_test(prepare, test_prepare);
    suite_add_tcase(suite, adamw);
    suite_add_tcase(suite, prepare);
    return hostile_main(suite);
}

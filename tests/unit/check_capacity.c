/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the choice of chunk capacities: the padding of GPT-2, OPT and LLaMA, outliers and their
 * size classes, given capacities, and missing bytes. */
#include "offload/layout/capacity.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/layout_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cst_model model;
static struct cst_layout layout;
static struct cst_layout_config config;
static struct cst_err err;

static void setup(void)
{
    cst_model_init(&model);
    memset(&layout, 0, sizeof layout);
    config =
        (struct cst_layout_config){.n_nodes = 1, .world = 1, .max_classes = CST_LAYOUT_MAX_CLASSES};
}

static void teardown(void)
{
    cst_layout_close(&layout);
    cst_model_close(&model);
}

static uint32_t tensor(int64_t n_elems)
{
    char name[32];

    (void)snprintf(name, sizeof name, "t%u", model.n_tensors);
    ck_assert_int_eq(declare_tensor(&model, name, &n_elems, 1, 1, 1, &err), CST_OK);
    return model.n_tensors - 1;
}

static void use(uint32_t n, const uint32_t *tensors)
{
    char name[32];

    (void)snprintf(name, sizeof name, "op%u", model.n_operators);
    ck_assert_int_eq(cst_model_operator(&model, name, tensors, n, NULL, &err), CST_OK);
}

/* Declare tensors of @sizes and one operator that uses them. */
static void block(uint32_t n, const int64_t *sizes)
{
    uint32_t tensors[16];

    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = tensor(sizes[i]);
    }
    use(n, tensors);
}

/* Declare a GPT: the embedding is tied to the head, and there are biases. With @split the tensors
 * q, k and v are separate, as in OPT; otherwise they are one matrix, as in GPT-2. */
static void declare_gpt(int64_t d, uint32_t n_layers, int64_t vocab, int64_t n_ctx, bool split)
{
    uint32_t wte = tensor(vocab * d);

    use(2, (uint32_t[]){wte, tensor(n_ctx * d)});
    for (uint32_t i = 0; i < n_layers; i++) {
        block(2, (int64_t[]){d, d});
        if (split) {
            block(6, (int64_t[]){d * d, d, d * d, d, d * d, d});
        } else {
            block(2, (int64_t[]){3 * d * d, 3 * d});
        }
        block(2, (int64_t[]){d * d, d});
        block(2, (int64_t[]){d, d});
        block(2, (int64_t[]){4 * d * d, 4 * d});
        block(2, (int64_t[]){4 * d * d, d});
    }
    block(2, (int64_t[]){d, d});
    use(1, (uint32_t[]){wte});
}

static void declare_llama(int64_t d, int64_t d_kv, int64_t d_mlp, uint32_t n_layers, int64_t vocab)
{
    block(1, (int64_t[]){vocab * d});
    for (uint32_t i = 0; i < n_layers; i++) {
        block(4, (int64_t[]){d, d * d, d * d_kv, d * d_kv});
        block(1, (int64_t[]){d * d});
        block(3, (int64_t[]){d, d * d_mlp, d * d_mlp});
        block(1, (int64_t[]){d_mlp * d});
    }
    block(1, (int64_t[]){d});
    block(1, (int64_t[]){vocab * d});
}

static const struct preset {
    const char *name;
    bool llama, split;
    int64_t d, vocab, n_ctx; /* n_ctx is, for LLaMA, the number of elements of a key */
    int64_t d_mlp;           /* LLaMA only */
    uint32_t n_layers;
} presets[] = {
    {.name = "gpt2-124m", .d = 768, .vocab = 50257, .n_ctx = 1024, .n_layers = 12},
    {.name = "gpt2-355m", .d = 1024, .vocab = 50257, .n_ctx = 1024, .n_layers = 24},
    {.name = "gpt2-774m", .d = 1280, .vocab = 50257, .n_ctx = 1024, .n_layers = 36},
    {.name = "gpt2-1558m", .d = 1600, .vocab = 50257, .n_ctx = 1024, .n_layers = 48},
    {.name = "opt-1.3b", .split = true, .d = 2048, .vocab = 50272, .n_ctx = 2050, .n_layers = 24},
    {.name = "opt-6.7b", .split = true, .d = 4096, .vocab = 50272, .n_ctx = 2050, .n_layers = 32},
    {.name = "opt-13b", .split = true, .d = 5120, .vocab = 50272, .n_ctx = 2050, .n_layers = 40},
    {.name = "opt-30b", .split = true, .d = 7168, .vocab = 50272, .n_ctx = 2050, .n_layers = 48},
    {.name = "opt-66b", .split = true, .d = 9216, .vocab = 50272, .n_ctx = 2050, .n_layers = 64},
    {.name = "opt-175b", .split = true, .d = 12288, .vocab = 50272, .n_ctx = 2050, .n_layers = 96},
    {.name = "llama-7b",
     .llama = true,
     .d = 4096,
     .n_ctx = 4096,
     .d_mlp = 11008,
     .vocab = 32000,
     .n_layers = 32},
    {.name = "llama-13b",
     .llama = true,
     .d = 5120,
     .n_ctx = 5120,
     .d_mlp = 13824,
     .vocab = 32000,
     .n_layers = 40},
    {.name = "llama-65b",
     .llama = true,
     .d = 8192,
     .n_ctx = 8192,
     .d_mlp = 22016,
     .vocab = 32000,
     .n_layers = 80},
    {.name = "llama3-8b",
     .llama = true,
     .d = 4096,
     .n_ctx = 1024,
     .d_mlp = 14336,
     .vocab = 128256,
     .n_layers = 32},
    {.name = "llama2-70b",
     .llama = true,
     .d = 8192,
     .n_ctx = 1024,
     .d_mlp = 28672,
     .vocab = 32000,
     .n_layers = 80},
};

enum { N_PRESETS = sizeof presets / sizeof *presets };

static void declare_preset(const struct preset *p)
{
    if (p->llama) {
        declare_llama(p->d, p->n_ctx, p->d_mlp, p->n_layers, p->vocab);
    } else {
        declare_gpt(p->d, p->n_layers, p->vocab, p->n_ctx, p->split);
    }
}

/* Elements by which full chunks exceed the parameters. */
static uint64_t waste(void)
{
    uint64_t full = 0;

    for (uint32_t k = 0; k < layout.n_classes; k++) {
        full += layout.classes[k].n_chunks * layout.classes[k].capacity;
    }
    return full - model.n_params;
}

static uint64_t need_bytes(void)
{
    uint64_t bytes = 0;

    for (uint32_t k = 0; k < layout.n_classes; k++) {
        bytes += layout.classes[k].min_blocks * 2 * layout.classes[k].capacity;
    }
    return bytes;
}

/* The number of missing bytes in the last error. */
static uint64_t bytes_short(void)
{
    const char *bytes = strstr(err.text, " short");

    ck_assert_msg(bytes != NULL, "%s", err.text);
    bytes -= strlen(bytes[-1] == ')' ? " bytes)" : " bytes");
    while (bytes[-1] >= '0' && bytes[-1] <= '9') {
        bytes--;
    }
    return strtoull(bytes, NULL, 10);
}

static void build(void)
{
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
    rig_check_layout(&layout, &model, &config);
}

/* Padding is at most 2 % of the pool's blocks, for a large pool, for a pool of a quarter of the
 * weights, and for a pool 1.5 times as large as the smallest accepted one. _i: preset. */
START_TEST(presets_waste_little)
{
    static const double shares[] = {0, 2, 0.5};
    uint64_t least;

    declare_preset(&presets[_i]);
    config.pool_bytes = 1;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EPOOL);
    least = 1 + bytes_short();
    for (uint32_t i = 0; i < 3; i++) {
        config.pool_bytes = (uint64_t)(shares[i] * (double)model.n_params);
        if (i > 0 && config.pool_bytes < least + least / 2) {
            config.pool_bytes = least + least / 2;
        }
        build();
        ck_assert_msg((double)waste() <= 0.02 * (double)model.n_params,
                      "%s: %.2f %% in chunks of %lu", presets[_i].name,
                      100 * (double)waste() / (double)model.n_params,
                      (unsigned long)layout.capacity);
        if (getenv("VERBOSE") != NULL) {
            printf("%-10s pool %5.2f GB: ", presets[_i].name, (double)config.pool_bytes / 1e9);
            for (uint32_t k = 0; k < layout.n_classes; k++) {
                printf(" %u x %.2fM (min %u)", layout.classes[k].n_chunks,
                       (double)layout.classes[k].capacity / 1e6, layout.classes[k].min_blocks);
            }
            printf("  waste %.3f %%, least pool %.2f GB\n",
                   100 * (double)waste() / (double)model.n_params, (double)need_bytes() / 1e9);
        }
        cst_layout_close(&layout);
    }
}
END_TEST

/* Declare 20 tensors of 5000 elements with one operator each, and one of 200000 elements that the
 * first and the last operator use. */
static void declare_outlier(void)
{
    uint32_t tied = tensor(200000);

    use(1, &tied);
    for (uint32_t i = 0; i < 20; i++) {
        use(1, (uint32_t[]){tensor(5000)});
    }
    use(1, &tied);
}

/* An outlier gets a size class of its own if that saves enough memory, and does not determine the
 * capacity of all chunks. With only one class it does. */
START_TEST(an_outlier_has_its_class)
{
    declare_outlier();
    build();
    ck_assert_uint_eq(layout.n_classes, 2);
    ck_assert_uint_eq(layout.classes[1].capacity, 200704);
    ck_assert_uint_eq(layout.classes[1].n_chunks, 1);
    ck_assert_uint_eq(layout.classes[1].min_blocks, 2);
    ck_assert_uint_eq(layout.classes[1].min_operator, 21);
    ck_assert_uint_eq(layout.classes[1].max_blocks, 2);
    ck_assert_uint_lt(layout.capacity, 110000);
    cst_layout_close(&layout);
    config.max_classes = 1;
    build();
    ck_assert_uint_eq(layout.n_classes, 1);
    ck_assert_uint_ge(layout.capacity, 200000);
}
END_TEST

/* With a given capacity, larger tensors get further classes, three at most, with the least
 * padding. */
START_TEST(classes_for_a_given_capacity)
{
    static const int64_t sizes[] = {4000, 10000, 11000, 40000, 90000, 91000, 92000};
    static const uint64_t two[] = {4096, 12288, 94208}, three[] = {4096, 12288, 40960, 94208};

    for (uint32_t i = 0; i < 7; i++) {
        use(1, (uint32_t[]){tensor(sizes[i])});
    }
    config.chunk_elems = 4000;
    build();
    ck_assert_uint_eq(layout.n_classes, 4);
    for (uint32_t k = 0; k < 4; k++) {
        ck_assert_uint_eq(layout.classes[k].capacity, three[k]);
    }
    ck_assert_uint_eq(layout.classes[1].n_chunks, 2);
    ck_assert_uint_eq(layout.classes[3].n_chunks, 3);
    cst_layout_close(&layout);
    config.max_classes = 3;
    build();
    ck_assert_uint_eq(layout.n_classes, 3);
    for (uint32_t k = 0; k < 3; k++) {
        ck_assert_uint_eq(layout.classes[k].capacity, two[k]);
    }
}
END_TEST

/* If more sizes exceed the given capacity than can have classes, sizes are rounded up together.
 * Every tensor has a class that holds it. */
START_TEST(many_sizes_above_a_given_capacity)
{
    for (uint32_t i = 0; i < 500; i++) {
        use(1, (uint32_t[]){tensor(4000 + 5000 * i)});
    }
    config.chunk_elems = 4096;
    build();
    ck_assert_uint_eq(layout.n_classes, 4);
    ck_assert_uint_le(layout.classes[3].capacity, 4000 + 5000 * 499 + 4096 * 64);
}
END_TEST

static void refuse(uint64_t first, uint64_t second, uint64_t third, const char *words)
{
    config.chunk_elems = first;
    config.class_elems[0] = second;
    config.class_elems[1] = third;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

/* Classes can be given. They must grow, be large enough and not be too large. A tensor that the
 * first class could never hold is refused as well. */
START_TEST(given_classes)
{
    declare_outlier();
    refuse(8192, 8192, 0, "must grow: 8192 elements after 8192");
    refuse(8192, 65536, 10000, "must grow: 10000 elements after 65536");
    refuse(8192, 65536, 0, "of 65536 elements are smaller than the largest tensor, 200000");
    refuse(8192, UINT64_C(1) << 31, 0, "2147483648 elements: at most 1073741824");
    refuse(4096, 204800, 0, "of 4096 elements are smaller than the smallest tensor, 5056");
    config.class_elems[3] = 1 << 20;
    config.class_elems[2] = 1 << 19;
    refuse(8192, 65536, 1 << 18, "more than 4 classes");
    config.class_elems[3] = 0;
    config.max_classes = 0; /* max_classes is only for capacities that are chosen */
    config.class_elems[2] = 0;
    config.class_elems[1] = 200001;
    config.class_elems[0] = 65536;
    config.chunk_elems = 8192;
    build();
    ck_assert_uint_eq(layout.n_classes, 3);
    ck_assert_uint_eq(layout.classes[1].n_chunks, 0);
    ck_assert_uint_eq(layout.classes[1].min_blocks, 0);
    ck_assert_uint_eq(layout.classes[2].capacity, 200704);
    cst_layout_close(&layout);
    config.max_classes = 5;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
}
END_TEST

/* The missing bytes are summed over all classes and exact: a budget with that many bytes more is
 * accepted, and with one less is refused. _i: seed. */
START_TEST(shortfall_is_exact)
{
    uint64_t least;

    srand((unsigned)_i);
    config.world = 1 + rig_below(4);
    rig_random_model(&model, config.world);
    config.pool_bytes = 1;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EPOOL);
    least = 1 + bytes_short();
    config.pool_bytes = least - 1;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EPOOL);
    ck_assert_uint_eq(bytes_short(), 1);
    config.pool_bytes = least;
    build();
    ck_assert_uint_le(need_bytes(), least);
}
END_TEST

/* The message for classes that do not fit. */
START_TEST(shortfall_of_classes)
{
    declare_outlier();
    config.chunk_elems = 8192;
    config.pool_bytes = 800000;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EPOOL);
    ck_assert_msg(strstr(err.text, "pool of 781.2 KiB (800000 bytes): 48 blocks of 16.0 KiB, "
                                   "operator 'op20' needs 3, and 2 of 392.0 KiB: 50.8 KiB "
                                   "(51968 bytes) short") != NULL,
                  "%s", err.text);
}
END_TEST

/* Candidates are in ascending order, and each gives the same layout as when it is given as the
 * capacity. _i: seed. */
START_TEST(candidates)
{
    struct cst_packing packing;
    struct cst_capacities all;

    srand((unsigned)_i);
    config.world = 1 + rig_below(4);
    rig_random_model(&model, config.world);
    ck_assert_int_eq(cst_packing_init(&packing, &model, &config, &err), CST_OK);
    ck_assert_int_eq(cst_capacities_open(&all, &packing, config.max_classes), CST_OK);
    cst_packing_close(&packing);
    ck_assert_uint_gt(all.n, 0);
    for (uint32_t i = 0; i < all.n; i++) {
        const struct cst_sizes *sizes = &all.list[i].sizes;
        uint64_t elems = 0;

        ck_assert(i == 0 || sizes->v[0] >= all.list[i - 1].sizes.v[0]);
        config.chunk_elems = sizes->v[0];
        for (uint32_t k = 1; k <= sizes->n; k++) {
            config.class_elems[k - 1] = k < sizes->n ? sizes->v[k] : 0;
        }
        config.max_classes = 0;
        build();
        for (uint32_t k = 0; k < layout.n_classes; k++) {
            elems += layout.classes[k].n_chunks * layout.classes[k].capacity;
        }
        ck_assert_uint_eq(layout.n_classes, sizes->n);
        ck_assert_uint_eq(elems - model.weight_bytes / 2, all.list[i].waste);
        ck_assert_uint_eq(need_bytes(), all.list[i].bytes);
        cst_layout_close(&layout);
    }
    free(all.list);
}
END_TEST

/* A tensor of 2^30 elements is accepted, in a chunk of its own whose fp32 rows are segments of 4
 * GiB. One element more is refused. */
START_TEST(the_largest_tensor)
{
    use(1, (uint32_t[]){tensor(CST_LAYOUT_MAX_CHUNK_ELEMS)});
    for (uint32_t i = 0; i < 40; i++) {
        use(1, (uint32_t[]){tensor(40 << 20)});
    }
    build();
    ck_assert_uint_eq(layout.n_classes, 2);
    ck_assert_uint_eq(layout.classes[1].capacity, CST_LAYOUT_MAX_CHUNK_ELEMS);
    ck_assert_uint_le(layout.capacity, 1u << 28);
    cst_layout_close(&layout);
    use(1, (uint32_t[]){tensor(CST_LAYOUT_MAX_CHUNK_ELEMS + 1ll)});
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "1073741888 elements, a chunk can have 1073741824"));
}
END_TEST

/* With 64 ranks and 1000 experts each, the search ends and computes every rank's needs. */
START_TEST(many_experts)
{
    int64_t n_elems = 3000;
    char name[32];

    config.world = 64;
    for (uint32_t r = 0; r < 64; r++) {
        ck_assert_int_eq(cst_model_group(&model, bits(UINT64_C(1) << r), &err), CST_OK);
    }
    for (uint32_t i = 0; i < 64000; i++) {
        (void)snprintf(name, sizeof name, "expert%u", i);
        ck_assert_int_eq(cst_model_tensor(&model,
                                          &(struct cst_tensor_words){.name = name,
                                                                     .shape = &n_elems,
                                                                     .n_dims = 1,
                                                                     .lr_scale = 1,
                                                                     .decay_scale = 1,
                                                                     .group = 1 + i % 64,
                                                                     .pattern = CST_PATTERN_EXPERT},
                                          &err),
                         CST_OK);
        use(1, &i);
    }
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_OK);
    ck_assert_uint_eq(layout.n_chunks, 64000);
    ck_assert_uint_eq(layout.needs[63].min_blocks[0], 3);
    ck_assert_uint_eq(layout.needs[63].max_blocks[0], 2000);
}
END_TEST

/* A layout of 100000 chunks works. The model may have more entries than that of a job. */
START_TEST(many_chunks)
{
    model.max_entries = 100000;
    for (uint32_t i = 0; i < 100000; i++) {
        use(1, (uint32_t[]){tensor(4000)});
    }
    config.chunk_elems = 4096;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_OK);
    ck_assert_uint_eq(layout.n_chunks, 100000);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 3);
    ck_assert_uint_eq(layout.arena_bytes, 16ull * 4096 * 100000);
    ck_assert_int_eq(cst_model_operator(&model, "more", (uint32_t[]){0}, 1, NULL, &err),
                     CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "more than 100000 operators"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("capacity");
    TCase *tc = suite_case(s, "choose", setup, teardown);

    tcase_add_loop_test(tc, presets_waste_little, 0, N_PRESETS);
    tcase_add_test(tc, an_outlier_has_its_class);
    tcase_add_test(tc, classes_for_a_given_capacity);
    tcase_add_test(tc, many_sizes_above_a_given_capacity);
    tcase_add_test(tc, given_classes);
    tcase_add_loop_test(tc, shortfall_is_exact, 1, 51);
    tcase_add_test(tc, shortfall_of_classes);
    tcase_add_loop_test(tc, candidates, 1, 21);
    tcase_add_test(tc, the_largest_tensor);
    tcase_add_test(tc, many_experts);
    tcase_add_test(tc, many_chunks);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

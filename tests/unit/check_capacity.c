/* Capacities of chunks: what GPT-2, OPT and LLaMA lose to padding, outliers and their classes, what
 * is given, what is short. */
#include "offload/layout.h"
#include "tests/lib/suite.h"
#include "tests/unit/layout_rig.h"

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
    ck_assert_int_eq(cst_model_tensor(&model, name, &n_elems, 1, 1, 1, &err), CST_OK);
    return model.n_tensors - 1;
}

static void use(uint32_t n, const uint32_t *tensors)
{
    char name[32];

    (void)snprintf(name, sizeof name, "op%u", model.n_operators);
    ck_assert_int_eq(cst_model_operator(&model, name, tensors, n, &err), CST_OK);
}

/* Tensors of @sizes, used by one operator. */
static void block(uint32_t n, const int64_t *sizes)
{
    uint32_t tensors[16];

    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = tensor(sizes[i]);
    }
    use(n, tensors);
}

/* Embedding tied to the head, biases everywhere; GPT-2 has q, k, v in one matrix, OPT has three. */
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
    int64_t d, vocab, n_ctx; /* n_ctx; LLaMA: elements of a key */
    int64_t d_mlp;           /* LLaMA */
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

/* Elements that full chunks have beyond the parameters. */
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

/* The bytes that the last error says are short. */
static uint64_t bytes_short(void)
{
    const char *colon = strrchr(err.text, ':');

    ck_assert_msg(colon != NULL && strstr(colon, " bytes short") != NULL, "%s", err.text);
    return strtoull(colon + 1, NULL, 10);
}

static void build(void)
{
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
    rig_check_layout(&layout, &model, &config);
}

/* At most 2 % of padding, in the pool's blocks, whether the pool is large, holds a quarter of the
 * weights, or is the least that is accepted with half as much again. _i: preset. */
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

static Suite *suite(void)
{
    Suite *s = suite_create("capacity");
    TCase *tc = tcase_create("choose");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, presets_waste_little, 0, N_PRESETS);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

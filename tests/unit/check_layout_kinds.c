/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the layout of models with groups and patterns: tensors that share a chunk, rows of
 * frozen chunks, needs of ranks, chunks of a base job. */
#include "offload/layout/layout.h"
#include "tests/lib/suite.h"
#include "tests/unit/layout_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <inttypes.h>
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
    config = (struct cst_layout_config){.n_nodes = 1, .world = 4, .chunk_elems = 8192};
}

static void teardown(void)
{
    cst_layout_close(&layout);
    cst_model_close(&model);
}

static uint32_t declare(struct cst_model *to, const char *name, int64_t n_elems, uint32_t group,
                        uint32_t pattern)
{
    struct cst_tensor_words words = {.name = name,
                                     .shape = &n_elems,
                                     .n_dims = 1,
                                     .lr_scale = 1,
                                     .decay_scale = 1,
                                     .group = group,
                                     .pattern = pattern};

    ck_assert_msg(cst_model_tensor(to, &words, &err) == CST_OK, "%s", err.text);
    return to->n_tensors - 1;
}

static uint32_t tensor(int64_t n_elems, uint32_t group, uint32_t pattern)
{
    char name[32];

    (void)snprintf(name, sizeof name, "t%u", model.n_tensors);
    return declare(&model, name, n_elems, group, pattern);
}

static void use(uint32_t n, const uint32_t *tensors)
{
    char name[32];

    (void)snprintf(name, sizeof name, "op%u", model.n_operators);
    ck_assert_int_eq(cst_model_operator(&model, name, tensors, n, NULL, &err), CST_OK);
}

static void build(void)
{
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
    rig_check_layout(&layout, &model, &config);
    rig_check_needs(&layout, &model, config.world, 1);
}

/* Tensors of different ranks or different patterns do not share a chunk. Tensors of equal groups
 * with different numbers do. */
START_TEST(kinds_apart)
{
    ck_assert_int_eq(cst_model_group(&model, bits(0x3), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x3), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0xf), &err), CST_OK);
    for (uint32_t i = 0; i < 2; i++) {
        tensor(100, 0, CST_PATTERN_SHARD);
        tensor(100, 1, CST_PATTERN_SHARD);
        tensor(100, 2, CST_PATTERN_SHARD);
        tensor(100, 3, CST_PATTERN_SHARD);
        tensor(100, 0, CST_PATTERN_FROZEN);
    }
    build();
    ck_assert_uint_eq(layout.n_chunks, 3);
    /* Both groups have all four ranks. */
    ck_assert_uint_eq(model.tensors[0].chunk, model.tensors[8].chunk);
    ck_assert_uint_eq(model.tensors[1].chunk, model.tensors[7].chunk);
    ck_assert_uint_eq(word_of(layout.chunks[0].ranks), 0xf);
    ck_assert_uint_eq(word_of(layout.chunks[1].ranks), 0x3);
    ck_assert_int_eq(layout.chunks[2].pattern, CST_PATTERN_FROZEN);
}
END_TEST

/* The chunks of each kind are filled even if tensors of other kinds come in between. */
START_TEST(kinds_interleaved)
{
    for (uint32_t i = 0; i < 10; i++) {
        tensor(1600, 0, CST_PATTERN_SHARD);
        tensor(800, 0, CST_PATTERN_FROZEN);
        use(2, (uint32_t[]){2 * i, 2 * i + 1});
    }
    build();
    /* Five tensors of 1600 fit, for two kinds; nine of 832 fit and one more chunk. */
    ck_assert_uint_eq(layout.n_chunks, 4);
    ck_assert_uint_eq(layout.chunks[0].n_tensors, 5);
    ck_assert_uint_eq(layout.chunks[1].n_tensors, 9);
}
END_TEST

/* Tensors of different experts do not share a chunk, and those of one operator do, so an expert
 * without tokens needs nothing. */
START_TEST(experts_apart)
{
    for (uint32_t i = 0; i < 3; i++) {
        tensor(100, 0, CST_PATTERN_EXPERT);
        tensor(100, 0, CST_PATTERN_EXPERT);
        use(2, (uint32_t[]){2 * i, 2 * i + 1});
    }
    build();
    ck_assert_uint_eq(layout.n_chunks, 3);
    ck_assert_uint_eq(model.tensors[2].chunk, model.tensors[3].chunk);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 3);
}
END_TEST

/* A gradient that an expert shares with another operator may stay open until the step, if the
 * expert has no tokens. */
START_TEST(need_with_experts)
{
    uint32_t gate = tensor(8000, 0, CST_PATTERN_SHARD);

    for (uint32_t i = 0; i < 3; i++) {
        uint32_t expert = tensor(8000, 0, CST_PATTERN_EXPERT);

        use(2, (uint32_t[]){gate, expert});
    }
    build();
    ck_assert_uint_eq(layout.classes[0].min_blocks,
                      5); /* two weights, two gradients, one prefetched chunk */
    cst_layout_close(&layout);
    use(1, (uint32_t[]){tensor(8000, 0, CST_PATTERN_SHARD)});
    use(1, (uint32_t[]){gate});
    build();
    ck_assert_uint_eq(layout.classes[0].min_blocks, 5);
}
END_TEST

/* A frozen chunk has only weights, 2 bytes per element, and its operators open no gradient. */
START_TEST(frozen)
{
    for (uint32_t i = 0; i < 4; i++) {
        use(1, (uint32_t[]){tensor(8192, 0, CST_PATTERN_FROZEN)});
    }
    build();
    ck_assert_uint_eq(layout.arena_bytes, 4 * 2 * 8192);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 2); /* its weights and one prefetched chunk */
    ck_assert_uint_eq(layout.classes[0].max_blocks, 4);
    ck_assert_uint_eq(layout.n_tiles, 0);
    ck_assert_uint_eq(layout.n_spans, 0);
}
END_TEST

/* A parameter has 18 bytes with gradients of 4 bytes, and 16 otherwise. */
START_TEST(bytes_per_parameter)
{
    tensor(8192, 0, CST_PATTERN_SHARD);
    build();
    ck_assert_uint_eq(layout.arena_bytes, 16 * 8192);
    cst_layout_close(&layout);
    config.grad_bytes = 4;
    build();
    ck_assert_uint_eq(layout.arena_bytes, 18 * 8192);
    cst_layout_close(&layout);
    config.grad_bytes = 3;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
}
END_TEST

/* A rank's needs come from its own operators. The numbers of a size class are the largest of all
 * ranks. */
START_TEST(needs_of_ranks)
{
    ck_assert_int_eq(cst_model_group(&model, bits(0x1), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x2), &err), CST_OK);
    use(1, (uint32_t[]){tensor(8192, 1, CST_PATTERN_SHARD)});
    use(3, (uint32_t[]){tensor(8192, 2, CST_PATTERN_SHARD), tensor(8192, 2, CST_PATTERN_SHARD),
                        tensor(8192, 2, CST_PATTERN_SHARD)});
    build();
    ck_assert_uint_eq(layout.needs[0].min_blocks[0], 2);
    ck_assert_uint_eq(layout.needs[1].min_blocks[0], 6);
    ck_assert_uint_eq(layout.needs[1].min_operator[0], 1);
    ck_assert_uint_eq(layout.needs[2].min_blocks[0], 1);
    ck_assert_uint_eq(layout.needs[2].max_blocks[0], 0);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 6);
    ck_assert_uint_eq(layout.classes[0].min_operator, 1);
    ck_assert_uint_eq(layout.classes[0].max_blocks, 6);
}
END_TEST

/* The first and the last stage of a pipeline share an embedding, whose gradient waits in the last
 * stage for that of the first one, which needs what the last one computes meanwhile. A smaller pool
 * is refused, with one that works. */
START_TEST(needs_of_a_tied_pipeline)
{
    uint32_t wte;
    uint64_t lacks;

    config.world = 3;
    ck_assert_int_eq(cst_model_group(&model, bits(0x1), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x2), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x4), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x5), &err), CST_OK);
    wte = tensor(8192, 4, CST_PATTERN_SHARD);
    use(2, (uint32_t[]){wte, tensor(8192, 1, CST_PATTERN_SHARD)});
    use(1, (uint32_t[]){tensor(8192, 2, CST_PATTERN_SHARD)});
    use(1, (uint32_t[]){tensor(8192, 3, CST_PATTERN_SHARD)});
    use(3, (uint32_t[]){tensor(8192, 3, CST_PATTERN_SHARD), tensor(8192, 3, CST_PATTERN_SHARD),
                        tensor(8192, 3, CST_PATTERN_SHARD)});
    use(2, (uint32_t[]){wte, tensor(8192, 3, CST_PATTERN_SHARD)});
    build();
    ck_assert_uint_eq(layout.needs[0].min_blocks[0], 4); /* two weights and two gradients */
    ck_assert_uint_eq(layout.needs[1].min_blocks[0], 2);
    /* Three weights, three gradients and that of wte, and the next weight. */
    ck_assert_uint_eq(layout.needs[2].min_blocks[0], 8);
    ck_assert_uint_eq(layout.needs[2].min_operator[0], 3);
    config.pool_bytes = UINT64_C(8) * 2 * 8192 - 1;
    cst_layout_close(&layout);
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EPOOL);
    ck_assert_int_eq(sscanf(strstr(err.text, "("), "(%" SCNu64 " bytes)", &lacks), 1);
    config.pool_bytes += lacks;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_OK);
}
END_TEST

/* A rank that holds a tensor but runs no operator of it is known to contribute nothing at the end
 * of the micro-batch. */
START_TEST(needs_beside_a_rank_without_operators)
{
    uint32_t shared;

    config.world = 2;
    ck_assert_int_eq(cst_model_group(&model, bits(0x1), &err), CST_OK);
    shared = tensor(8192, 0, CST_PATTERN_SHARD);
    use(1, (uint32_t[]){tensor(8192, 1, CST_PATTERN_SHARD)});
    use(2, (uint32_t[]){shared, tensor(8192, 1, CST_PATTERN_SHARD)});
    build();
    ck_assert_uint_eq(layout.needs[0].min_blocks[0], 5);
    ck_assert_uint_eq(layout.needs[1].min_blocks[0], 1);
}
END_TEST

/* A group with a rank that the job does not have is refused, with both numbers. */
START_TEST(ranks_beyond_the_world)
{
    ck_assert_int_eq(cst_model_group(&model, bits(0x30), &err), CST_OK);
    tensor(8192, 0, CST_PATTERN_SHARD);
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "group 1 has rank 5, the job has ranks 0..3"));
    config.world = CST_LAYOUT_MAX_WORLD + 1;
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
}
END_TEST

/* -- base ----------------------------------------------------------------------------------- */

/* A job with two frozen chunks and a trained one. */
static void build_base(struct cst_model *base, struct cst_layout *laid_out)
{
    struct cst_layout_config own = {.n_nodes = 1, .world = 2, .chunk_elems = 8192};

    cst_model_init(base);
    (void)declare(base, "head", 3000, 0, CST_PATTERN_SHARD);
    (void)declare(base, "a", 3000, 0, CST_PATTERN_FROZEN);
    (void)declare(base, "b", 3000, 0, CST_PATTERN_FROZEN);
    (void)declare(base, "c", 3000, 0, CST_PATTERN_FROZEN);
    (void)declare(base, "d", 3000, 0, CST_PATTERN_FROZEN);
    ck_assert_msg(cst_layout_build(laid_out, base, &own, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(laid_out->n_chunks, 3);
}

/* Frozen tensors that the base job has lie in its chunks and cost no memory. Other tensors are this
 * job's own. */
START_TEST(shared_with_a_base)
{
    struct cst_layout base_layout;
    struct cst_model base;
    uint32_t b, a, c, d, head, adapter;
    const struct cst_layout_row *row, *theirs;

    build_base(&base, &base_layout);
    config.base_model = &base;
    config.base = &base_layout;
    d = declare(&model, "d", 2999, 0, CST_PATTERN_FROZEN); /* the base has another shape */
    b = declare(&model, "b", 3000, 0, CST_PATTERN_FROZEN);
    a = declare(&model, "a", 3000, 0, CST_PATTERN_FROZEN);
    c = declare(&model, "c", 3000, 0, CST_PATTERN_SHARD);        /* trained in this job */
    head = declare(&model, "head", 3000, 0, CST_PATTERN_FROZEN); /* trained in the base job */
    adapter = declare(&model, "adapter", 64, 0, CST_PATTERN_SHARD);
    use(2, (uint32_t[]){b, adapter});
    use(2, (uint32_t[]){a, adapter});
    build();
    ck_assert_uint_eq(model.tensors[a].chunk, model.tensors[b].chunk);
    ck_assert_uint_eq(layout.chunks[model.tensors[a].chunk].base_chunk, base.tensors[1].chunk);
    ck_assert_uint_eq(model.tensors[a].offset, base.tensors[1].offset);
    ck_assert_uint_eq(model.tensors[b].offset, base.tensors[2].offset);
    ck_assert_uint_eq(layout.chunks[model.tensors[d].chunk].base_chunk, CST_LAYOUT_OWN);
    ck_assert_uint_eq(layout.chunks[model.tensors[c].chunk].base_chunk, CST_LAYOUT_OWN);
    ck_assert_uint_eq(layout.chunks[model.tensors[head].chunk].base_chunk, CST_LAYOUT_OWN);
    row = &layout.chunks[model.tensors[a].chunk].rows[CST_ROW_WEIGHT];
    theirs = &base_layout.chunks[base.tensors[1].chunk].rows[CST_ROW_WEIGHT];
    ck_assert(layout.segments[row->segment].is_base);
    ck_assert_uint_eq(layout.segments[row->segment].base_segment, theirs->segment);
    ck_assert_uint_eq(row->offset, theirs->offset);
    /* d and head are frozen; c and the adapter have 16 bytes per element; all rows are whole
     * pages */
    ck_assert_uint_eq(layout.arena_bytes, 12288 + 2 * 8192 + 3 * 16384 - 4096 * 3 + 4096 * 0);
    cst_layout_close(&base_layout);
    cst_model_close(&base);
}
END_TEST

/* If two groups of this job use one chunk of the base job, each has a chunk for it. A base job may
 * itself have a base. */
START_TEST(base_of_a_base)
{
    struct cst_layout base_layout, middle_layout;
    struct cst_model base, middle;
    struct cst_layout_config middle_config = config;

    build_base(&base, &base_layout);
    cst_model_init(&middle);
    (void)declare(&middle, "b", 3000, 0, CST_PATTERN_FROZEN);
    (void)declare(&middle, "a", 3000, 0, CST_PATTERN_FROZEN);
    middle_config.base_model = &base;
    middle_config.base = &base_layout;
    ck_assert_int_eq(cst_layout_build(&middle_layout, &middle, &middle_config, &err), CST_OK);
    ck_assert_uint_eq(middle_layout.arena_bytes, 0);
    ck_assert_int_eq(cst_model_group(&model, bits(0x2), &err), CST_OK);
    use(1, (uint32_t[]){declare(&model, "a", 3000, 0, CST_PATTERN_FROZEN)});
    use(1, (uint32_t[]){declare(&model, "b", 3000, 1, CST_PATTERN_FROZEN)});
    config.base_model = &middle;
    config.base = &middle_layout;
    build();
    ck_assert_uint_eq(layout.n_chunks, 2);
    ck_assert_uint_eq(layout.n_segments, 1);
    ck_assert_uint_eq(layout.chunks[0].base_chunk, layout.chunks[1].base_chunk);
    ck_assert_uint_eq(model.tensors[0].offset, base.tensors[1].offset);
    ck_assert_uint_eq(layout.segments[0].base_segment, 0);
    cst_layout_close(&middle_layout);
    cst_model_close(&middle);
    cst_layout_close(&base_layout);
    cst_model_close(&base);
}
END_TEST

/* A chunk of the base job that is larger than this job's chunks gets a size class that holds it. */
START_TEST(base_of_larger_chunks)
{
    struct cst_layout base_layout;
    struct cst_model base;

    build_base(&base, &base_layout);
    config.base_model = &base;
    config.base = &base_layout;
    config.chunk_elems = 4096;
    (void)declare(&model, "a", 3000, 0, CST_PATTERN_FROZEN);
    (void)declare(&model, "x", 3000, 0, CST_PATTERN_SHARD);
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
    config.max_classes = 2;
    build();
    ck_assert_uint_eq(layout.n_classes, 2);
    ck_assert_uint_eq(layout.chunks[model.tensors[0].chunk].size_class, 1);
    cst_layout_close(&base_layout);
    cst_model_close(&base);
}
END_TEST

/* The layout of a random model has the properties that every layout must have, and its needs are
 * those of workers that run it. _i: seed. */
START_TEST(random_models)
{
    srand((unsigned)_i);
    config = (struct cst_layout_config){.world = 1 + rig_below(6),
                                        .n_nodes = 1 + rig_below(3),
                                        .grad_bytes = 2 * (1 + rig_below(2)),
                                        .max_classes = rig_below(5),
                                        .states.optimizer =
                                            _i % 2 == 0 ? CST_OPTIMIZER_MUON : CST_OPTIMIZER_ADAMW};
    rig_random_model(&model, config.world);
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "seed %d: %s", _i,
                  err.text);
    rig_check_layout(&layout, &model, &config);
    rig_check_needs(&layout, &model, config.world, (unsigned)_i);
    /* The chosen capacity can be given, with the same result. */
    config.chunk_elems = layout.capacity;
    for (uint32_t k = 1; k < layout.n_classes; k++) {
        config.class_elems[k - 1] = layout.classes[k].capacity;
    }
    for (uint32_t k = 0, n = layout.n_chunks; k < 2; k++) {
        cst_layout_close(&layout);
        ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "seed %d: %s", _i,
                      err.text);
        rig_check_layout(&layout, &model, &config);
        ck_assert(k > 0 || layout.n_chunks == n);
        config.chunk_elems += 4096 * rig_below(10);
        memset(config.class_elems, 0, sizeof config.class_elems);
        config.max_classes = 4;
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("layout of kinds");
    TCase *tc = suite_case(s, "build", setup, teardown);

    tcase_add_test(tc, kinds_apart);
    tcase_add_test(tc, kinds_interleaved);
    tcase_add_test(tc, experts_apart);
    tcase_add_test(tc, need_with_experts);
    tcase_add_test(tc, frozen);
    tcase_add_test(tc, bytes_per_parameter);
    tcase_add_test(tc, needs_of_ranks);
    tcase_add_test(tc, needs_of_a_tied_pipeline);
    tcase_add_test(tc, needs_beside_a_rank_without_operators);
    tcase_add_test(tc, ranks_beyond_the_world);
    tcase_add_test(tc, shared_with_a_base);
    tcase_add_test(tc, base_of_a_base);
    tcase_add_test(tc, base_of_larger_chunks);
    tcase_add_loop_test(tc, random_models, 1, 301);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

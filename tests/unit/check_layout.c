/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the layout: tensors in chunks, capacity, the smallest pool, rows in segments. */
#include "offload/layout/layout.h"
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

static int build(uint64_t chunk_elems, uint64_t pool_bytes, uint32_t n_nodes)
{
    config = (struct cst_layout_config){
        .chunk_elems = chunk_elems, .pool_bytes = pool_bytes, .n_nodes = n_nodes, .world = 1};
    return cst_layout_build(&layout, &model, &config, &err);
}

static void check_layout(void)
{
    rig_check_layout(&layout, &model, &config);
}

/* Tensors lie in the order of their first use, packed next-fit and aligned. Unused tensors come
 * last. */
START_TEST(order_of_first_use)
{
    uint32_t unused;
    uint32_t a;
    uint32_t b;
    uint32_t c;

    unused = tensor(100);
    a = tensor(3000);
    b = tensor(1000);
    c = tensor(100);
    use(1, (uint32_t[]){b});
    use(2, (uint32_t[]){a, b});
    use(1, (uint32_t[]){c});
    ck_assert_int_eq(build(4096, 0, 1), CST_OK);
    check_layout();
    ck_assert_uint_eq(layout.order[0], b);
    ck_assert_uint_eq(layout.order[1], a);
    ck_assert_uint_eq(layout.order[2], c);
    ck_assert_uint_eq(layout.order[3], unused);
    ck_assert_uint_eq(layout.n_chunks, 2);
    ck_assert_uint_eq(model.tensors[a].offset, 1024);
    ck_assert_uint_eq(model.tensors[c].chunk, 1);
    ck_assert_uint_eq(layout.chunks[0].n_uses, 3);
    ck_assert_uint_eq(layout.uses[1].n_chunks, 1); /* a and b lie in one chunk */
}
END_TEST

/* A tensor that just fits has the chunk to itself, without padding. */
START_TEST(exact_fit)
{
    tensor(4096);
    tensor(4096);
    use(2, (uint32_t[]){0, 1});
    ck_assert_int_eq(build(4096, 0, 1), CST_OK);
    check_layout();
    ck_assert_uint_eq(layout.n_chunks, 2);
    ck_assert_uint_eq(layout.arena_bytes, 2 * 4096 * 16);
}
END_TEST

/* The smallest pool holds an operator's weights, the gradients that are open in its backward, and
 * one prefetched chunk. */
START_TEST(need_of_a_chain)
{
    for (uint32_t i = 0; i < 6; i++) {
        tensor(4096);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(4096, 0, 1), CST_OK);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 3);
    ck_assert_uint_eq(layout.classes[0].max_blocks, 12);
}
END_TEST

/* The gradient of a tensor that the first and the last operator share stays open during the whole
 * backward pass. */
START_TEST(need_with_tied_tensors)
{
    for (uint32_t i = 0; i < 6; i++) {
        tensor(4096);
    }
    use(1, (uint32_t[]){0});
    use(2, (uint32_t[]){1, 2});
    use(1, (uint32_t[]){3});
    use(1, (uint32_t[]){4});
    use(2, (uint32_t[]){5, 0});
    ck_assert_int_eq(build(4096, 0, 1), CST_OK);
    /* op1 in backward: weights 1 and 2, gradients 1, 2 and 0, one prefetched chunk */
    ck_assert_uint_eq(layout.classes[0].min_blocks, 6);
    ck_assert_uint_eq(layout.classes[0].min_operator, 1);
}
END_TEST

/* If two operators have tensors in one chunk, the chunk's gradient stays open until the backward of
 * the first of them ends. */
START_TEST(need_with_shared_chunks)
{
    tensor(2000);
    tensor(6000);
    tensor(8000);
    tensor(8000);
    use(1, (uint32_t[]){0});
    use(1, (uint32_t[]){2});
    use(1, (uint32_t[]){3});
    use(1, (uint32_t[]){1});
    ck_assert_int_eq(build(8192, 0, 1), CST_OK); /* chunks: 0 | 2 | 3 | 1 */
    ck_assert_uint_eq(layout.n_chunks, 4);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 3);
    cst_layout_close(&layout);
    /* Both tensors are used again at the end, so their gradients stay open throughout. */
    use(2, (uint32_t[]){0, 1});
    ck_assert_int_eq(build(8192, 0, 1), CST_OK);
    /* weights, 0 and 1, both gradients, one prefetched chunk. */
    ck_assert_uint_eq(layout.classes[0].min_blocks, 5);
    ck_assert_uint_eq(layout.classes[0].min_operator, 4);
}
END_TEST

/* A pool that is too small is refused with the number of missing bytes and the operator that needs
 * them. One byte less than enough is refused, and enough is accepted. */
START_TEST(pool_too_small)
{
    uint64_t enough = 3 * 2 * 4096;

    for (uint32_t i = 0; i < 4; i++) {
        tensor(4096);
        use(1, (uint32_t[]){i});
    }
    for (int given = 0; given < 2; given++) {
        ck_assert_int_eq(build(given ? 4096 : 0, enough - 100, 1), CST_EPOOL);
        ck_assert_ptr_nonnull(strstr(err.text,
                                     "pool of 23.9 KiB (24476 bytes): 2 blocks of 8.0 KiB, "
                                     "operator 'op3' needs 3: 100 bytes short"));
    }
    ck_assert_int_eq(build(0, enough, 1), CST_OK);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 3);
    ck_assert_uint_eq(layout.capacity, 4096);
}
END_TEST

/* The number before @words in the last error. */
static uint64_t number_before(const char *words)
{
    const char *number = strstr(err.text, words);

    ck_assert_msg(number != NULL, "%s", err.text);
    while (number[-1] >= '0' && number[-1] <= '9') {
        number--;
    }
    return strtoull(number, NULL, 10);
}

/* The number of missing bytes in the last error. */
static uint64_t bytes_short(void)
{
    return number_before(strstr(err.text, " bytes) short") != NULL ? " bytes) short"
                                                                   : " bytes short");
}

/* The number of missing bytes is exact, however small the pool was: a pool with that many bytes
 * more is accepted, and with one byte less it is refused. _i: seed of a model with random tensors
 * and uses. */
START_TEST(shortfall_is_exact)
{
    int64_t large, small;
    uint64_t least, percent;

    srand((unsigned)_i);
    large = 4097 + rand() % 8000;
    small = 1 + rand() % large;
    for (uint32_t i = 0; i < 40; i += 2) { /* one chunk for both may be better than one for each */
        tensor(large);
        tensor(small);
        use(2, (uint32_t[]){i, i + 1});
    }
    ck_assert_int_eq(build(0, 1, 1), CST_EPOOL);
    least = 1 + bytes_short();
    ck_assert_int_eq(build(0, least - 1, 1), CST_EPOOL);
    ck_assert_uint_eq(bytes_short(), 1);
    ck_assert_uint_eq(number_before(" bytes), "), least);
    percent = number_before("% of the job's weights, is enough");
    /* The percentage that is named is exact as well: it is enough, and one per cent less is not. */
    ck_assert_int_eq(build(0, percent * 2 * model.n_params / 100, 1), CST_OK);
    cst_layout_close(&layout);
    ck_assert_int_eq(build(0, (percent - 1) * 2 * model.n_params / 100, 1), CST_EPOOL);
    ck_assert_int_eq(build(0, least, 1), CST_OK);
    ck_assert_uint_le(2 * layout.capacity * layout.classes[0].min_blocks, least);
}
END_TEST

/* The capacity with the least padding is chosen among those of which the pool holds 8 blocks, or
 * otherwise the fewest that suffice. */
START_TEST(least_waste)
{
    for (uint32_t i = 0; i < 30; i++) {
        /* 8192: 1 fits and 3192 are lost; 20480: 4 fit (padded to 5056) and 480 are lost. */
        tensor(5000);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(0, 8 * 2 * 20480, 1), CST_OK);
    check_layout();
    ck_assert_uint_le(layout.capacity, 20480);
    ck_assert_uint_ge(8 * 2 * 20480 / (2 * layout.capacity), 8);
    for (uint64_t c = 8192; c <= 20480; c += 4096) { /* no other capacity is better */
        uint64_t per_chunk = (c - 5000) / 5056 + 1;
        uint64_t chunks = (30 + per_chunk - 1) / per_chunk;

        ck_assert_uint_le(layout.n_chunks * layout.capacity, chunks * c);
    }
    cst_layout_close(&layout);
    ck_assert_int_eq(build(0, 3 * 2 * 8192, 1), CST_OK);
    ck_assert_uint_eq(layout.capacity, 8192);
}
END_TEST

/* Arenas hold the used elements instead of capacities: at most 16.5 bytes per parameter for a model
 * of the usual shape. */
START_TEST(arena_bytes)
{
    tensor(256 * 384);
    use(1, (uint32_t[]){0});
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t first = model.n_tensors;

        tensor(384);
        tensor(384 * 1152);
        tensor(384 * 384);
        tensor(384);
        tensor(384 * 1536);
        tensor(1536 * 384);
        use(2, (uint32_t[]){first, first + 1});
        use(1, (uint32_t[]){first + 2});
        use(2, (uint32_t[]){first + 3, first + 4});
        use(1, (uint32_t[]){first + 5});
    }
    use(1, (uint32_t[]){0 + 1});
    ck_assert_int_eq(build(0, model.n_params, 1), CST_OK); /* half of the weights */
    check_layout();
    ck_assert_double_le((double)layout.arena_bytes / (double)model.n_params, 16.5);
}
END_TEST

/* Check that each node has segments of its own, and only as many as it would have alone. */
static void check_node_segments(uint32_t n_nodes)
{
    uint32_t last[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};

    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout.chunks[c];

        ck_assert_uint_lt(chunk->node, n_nodes);
        for (unsigned r = 0; r < CST_ROW_COUNT; r++) {
            uint32_t segment = chunk->rows[r].segment;

            ck_assert_uint_eq(layout.segments[segment].node, chunk->node);
            ck_assert(last[chunk->node] == UINT32_MAX || segment == last[chunk->node] ||
                      layout.segments[last[chunk->node]].bytes > CST_LAYOUT_SEGMENT_BYTES / 2);
            last[chunk->node] = segment;
        }
    }
}

/* Consecutive chunks of one size are spread over all nodes (_i: their number), wherever the
 * sequence begins. */
START_TEST(nodes)
{
    uint32_t n_nodes = (uint32_t)_i;

    for (uint32_t i = 0; i < 21; i++) {
        tensor(4000);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(4096, 0, n_nodes), CST_OK);
    check_layout();
    ck_assert_uint_eq(layout.n_chunks, 21);
    check_node_segments(n_nodes);
    ck_assert_uint_eq(layout.n_segments, n_nodes);
    for (uint32_t first = 0; first < layout.n_chunks; first++) {
        uint32_t n[4] = {0};

        for (uint32_t c = first; c < layout.n_chunks; c++) {
            n[layout.chunks[c].node]++;
            for (uint32_t node = 0; node < n_nodes; node++) {
                ck_assert_uint_ge(n[node], (c - first + 1) / n_nodes);
                ck_assert_uint_le(n[node], (c - first) / n_nodes + 1);
            }
        }
    }
}
END_TEST

/* Declare 24 tensors of one chunk each. Tensor i belongs to @groups[i % 3]. Lay them out for two
 * ranks, near to @near[0] and @near[1], on two nodes. */
static void build_near(const uint32_t groups[3], const uint32_t near[2])
{
    const int64_t n_elems = 4000;

    ck_assert_int_eq(cst_model_group(&model, bits(1), &err), CST_OK); /* Group 1: rank 0. */
    ck_assert_int_eq(cst_model_group(&model, bits(2), &err), CST_OK); /* Group 2: rank 1. */
    for (uint32_t i = 0; i < 24; i++) {
        char name[32];
        const struct cst_tensor_words words = {.name = name,
                                               .shape = &n_elems,
                                               .n_dims = 1,
                                               .group = groups[i % 3],
                                               .lr_scale = 1,
                                               .decay_scale = 1};

        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_int_eq(cst_model_tensor(&model, &words, &err), CST_OK);
        use(1, &i);
    }
    config = (struct cst_layout_config){
        .chunk_elems = 4096, .n_nodes = 2, .world = 2, .near_node = {near[0], near[1]}};
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_OK);
    check_layout();
    ck_assert_uint_eq(layout.n_chunks, 24);
}

/* Returns how many chunks with these @ranks are on @node. */
static uint32_t count_on(uint64_t ranks, uint32_t node)
{
    uint32_t n = 0;

    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        n += word_of(layout.chunks[c].ranks) == ranks && layout.chunks[c].node == node;
    }
    return n;
}

/* A chunk whose ranks are near to one node is there. Chunks of all ranks are dealt. */
START_TEST(near_nodes)
{
    build_near((uint32_t[]){0, 1, 2}, (uint32_t[]){2, 1});
    ck_assert_uint_eq(count_on(1, 1), 8);
    ck_assert_uint_eq(count_on(2, 0), 8);
    ck_assert_uint_eq(count_on(3, 0), 4);
    ck_assert_uint_eq(count_on(3, 1), 4);
}
END_TEST

/* If no rank is near to some node, or if it is not known what a rank is near to (_i == 1), nodes
 * take turns. */
START_TEST(near_one_node)
{
    build_near((uint32_t[]){0, 1, 2}, (uint32_t[]){1, _i == 0 ? 1 : 0});
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        ck_assert_uint_eq(layout.chunks[c].node, c % 2);
    }
}
END_TEST

/* A node does not get more than its share, if one rank has nearly all chunks. */
START_TEST(near_share)
{
    build_near((uint32_t[]){1, 1, 1}, (uint32_t[]){1, 2});
    ck_assert_uint_eq(count_on(1, 0), 12);
    ck_assert_uint_eq(count_on(1, 1), 12);
}
END_TEST

/* With chunks of several sizes, all nodes have about equally many bytes at each point of the
 * sequence. */
START_TEST(nodes_of_sizes)
{
    uint64_t elems[3] = {0};

    for (uint32_t i = 0; i < 60; i++) {
        tensor(1000 + 300 * (i % 7));
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(4096, 0, 3), CST_OK);
    check_layout();
    check_node_segments(3);
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        elems[layout.chunks[c].node] += layout.chunks[c].n_elems;
        for (unsigned node = 0; node < 3; node++) {
            ck_assert_uint_le(elems[node], elems[(node + 1) % 3] + layout.capacity + 1024);
        }
    }
}
END_TEST

/* Rows fill a segment up to 256 MiB, and no row lies in two segments. */
START_TEST(big_segments)
{
    for (uint32_t i = 0; i < 5; i++) {
        tensor(30 << 20);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(30 << 20, 0, 1), CST_OK);
    check_layout();
    ck_assert_uint_gt(layout.n_segments, 5 * 16 * 30 / 256);
}
END_TEST

/* Rows in files fill segments of up to 4 GiB, of which the daemon needs fewer, and lie one after
 * the other. */
START_TEST(file_segments)
{
    const uint64_t row = UINT64_C(4) * (30 << 20);
    uint64_t bytes[3] = {0};
    uint32_t n[3] = {0};

    for (uint32_t i = 0; i < 40; i++) {
        tensor(30 << 20);
        use(1, (uint32_t[]){i});
    }
    config = (struct cst_layout_config){
        .chunk_elems = 30 << 20, .n_nodes = 1, .world = 1, .n_devices = 2};
    for (uint32_t i = 0; i < 2; i++) {
        config.devices[i] = (struct cst_layout_device){.engine = 1 + i,
                                                       .bytes = CST_LAYOUT_ALL,
                                                       .reservation_bytes = CST_LAYOUT_BUFFERS,
                                                       .in_host = true};
    }
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
    for (uint32_t s = 0; s < layout.n_segments; s++) {
        const struct cst_layout_segment *segment = &layout.segments[s];

        ck_assert_uint_le(segment->tier, 2);
        ck_assert_uint_le(segment->bytes, segment->tier == 0 ? CST_LAYOUT_SEGMENT_BYTES
                                                             : CST_LAYOUT_FILE_SEGMENT_BYTES);
        bytes[segment->tier] += segment->bytes;
        n[segment->tier]++;
    }
    for (uint32_t tier = 1; tier <= 2; tier++) {
        ck_assert_uint_eq(bytes[tier], 20 * 3 * row);
        ck_assert_uint_eq(n[tier], (bytes[tier] + CST_LAYOUT_FILE_SEGMENT_BYTES - 1) /
                                       CST_LAYOUT_FILE_SEGMENT_BYTES);
    }
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        const struct cst_layout_row *master = &layout.chunks[c].rows[CST_ROW_MASTER];

        ck_assert_uint_eq(layout.segments[master->segment].tier, layout.chunks[c].tier);
        ck_assert_uint_le(master->offset + row, layout.segments[master->segment].bytes);
    }
}
END_TEST

/* A row that is larger than a segment has a segment of its own, and there is a largest chunk. */
START_TEST(chunks_have_a_limit)
{
    for (uint32_t i = 0; i < 16; i++) {
        tensor(CST_LAYOUT_MAX_CHUNK_ELEMS / 2 - 5000);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(0, UINT64_C(1) << 40, 1), CST_OK);
    check_layout();
    ck_assert_uint_le(layout.capacity, CST_LAYOUT_MAX_CHUNK_ELEMS);
}
END_TEST

/* 65536 tensors of many sizes are laid out, with a capacity that the layout chooses. */
START_TEST(many_tensors)
{
    for (uint32_t i = 0; i < CST_LAYOUT_MAX_TENSORS; i++) {
        tensor(1 + (int64_t)i * 7919 % 5000);
        use(1, (uint32_t[]){i});
    }
    ck_assert_int_eq(build(0, 64 << 20, 1), CST_OK);
    check_layout();
    ck_assert_uint_ge((64u << 20) / (2 * layout.capacity), layout.classes[0].min_blocks);
}
END_TEST

/* The layout refuses a model without tensors, a capacity below the largest tensor or above the
 * largest chunk, and a tensor above the largest chunk. */
START_TEST(refusals)
{
    ck_assert_int_eq(build(0, 0, 1), CST_EINVAL);
    tensor(5000);
    use(1, (uint32_t[]){0});
    ck_assert_int_eq(build(4096, 0, 1), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "largest tensor, 5056"));
    ck_assert_int_eq(build(CST_LAYOUT_MAX_CHUNK_ELEMS + 1ull, 0, 1), CST_EINVAL);
    ck_assert_int_eq(build(0, 0, 0), CST_EINVAL);
    ck_assert_int_eq(build(5001, 0, 1), CST_OK); /* the capacity is rounded up */
    ck_assert_uint_eq(layout.capacity, 8192);
    cst_layout_close(&layout);
    tensor(CST_LAYOUT_MAX_CHUNK_ELEMS + 1ll);
    ck_assert_int_eq(build(0, 0, 1), CST_EINVAL);
}
END_TEST

/* With one chunk and one operator, only blocks for the weights and the gradient are needed. */
START_TEST(tiny)
{
    tensor(1);
    use(1, (uint32_t[]){0});
    ck_assert_int_eq(build(0, 0, 1), CST_OK);
    check_layout();
    ck_assert_uint_eq(layout.capacity, 4096);
    ck_assert_uint_eq(layout.classes[0].min_blocks, 2);
    ck_assert_uint_eq(layout.classes[0].max_blocks, 2);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("layout");
    TCase *tc = suite_case(s, "build", setup, teardown);

    tcase_add_test(tc, order_of_first_use);
    tcase_add_test(tc, exact_fit);
    tcase_add_test(tc, need_of_a_chain);
    tcase_add_test(tc, need_with_tied_tensors);
    tcase_add_test(tc, need_with_shared_chunks);
    tcase_add_test(tc, pool_too_small);
    tcase_add_loop_test(tc, shortfall_is_exact, 1, 51);
    tcase_add_test(tc, least_waste);
    tcase_add_test(tc, arena_bytes);
    tcase_add_loop_test(tc, nodes, 1, 5);
    tcase_add_test(tc, near_nodes);
    tcase_add_loop_test(tc, near_one_node, 0, 2);
    tcase_add_test(tc, near_share);
    tcase_add_test(tc, nodes_of_sizes);
    tcase_add_test(tc, big_segments);
    tcase_add_test(tc, file_segments);
    tcase_add_test(tc, chunks_have_a_limit);
    tcase_add_test(tc, many_tensors);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, tiny);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the model as JSON: the file describes the tensors and operators that the worker
 * declares, `cistern plan` can read it, and the costs follow their formulas. */
#include "client/cli/model_json.h"
#include "client/gpt/describe.h"
#include "client/gpt/host_moe.h"
#include "client/gpt/memory.h"
#include "client/gpt/pass_host.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char *const lines[] = {
    "--layers 3 --heads 2 --width 64 --context 32 --batch 4 --describe x",
    "--layers 2 --heads 2 --width 64 --context 32 --batch 4 --micro-batches 2 --describe x",
    "--layers 2 --heads 2 --width 64 --context 32 --batch 4 --experts 6 --world 4 --describe x",
    "--layers 2 --heads 2 --width 64 --context 32 --batch 4 --lora 4 --world 2 --describe x",
};

#define N_LINES (int)(sizeof lines / sizeof lines[0])

/* Every group, tensor and operator in the file is equal to the model's. */
START_TEST(what_is_written_is_the_model)
{
    struct gpt_options o = test_options(lines[_i]);
    struct cli_model read;
    struct gpt_model model;
    struct cst_err err = {0};

    o.describe = test_path(0, "model.json");
    ck_assert_msg(gpt_describe(&o, &err) == 0, "%s", err.text);
    ck_assert_msg(cli_model_read(&read, o.describe, &err) == 0, "%s", err.text);
    ck_assert_int_eq(gpt_model_init(&model, &o, &err), 0);
    ck_assert_uint_eq(read.world, o.job.world);
    ck_assert_uint_eq(read.heads, 2);
    ck_assert_uint_eq(read.model.n_groups, 1 + model.n_groups);
    ck_assert_uint_eq(read.model.n_tensors, model.n_tensors);
    ck_assert_uint_eq(read.model.n_operators, model.n_operators);
    ck_assert_uint_eq(read.model.n_params, model.n_params);
    for (uint32_t g = 1; g <= model.n_groups; g++) {
        ck_assert_uint_eq(word_of(&read.model.groups[g - 1]), 1ull << (g - 1));
    }
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        ck_assert_str_eq(read.model.tensors[t].name, model.tensors[t].name);
        ck_assert_uint_eq(read.model.tensors[t].n_elems, model.tensors[t].n_elems);
        ck_assert_uint_eq(read.model.tensors[t].group, model.tensors[t].group);
        ck_assert_int_eq(read.model.tensors[t].pattern, model.tensors[t].pattern);
        ck_assert_float_eq(read.model.tensors[t].decay_scale, model.tensors[t].decay_scale);
    }
    for (uint32_t i = 0; i < model.n_operators; i++) {
        const struct cst_layout_operator *op = &read.model.operators[i];
        const struct cst_operator_cost cost = gpt_describe_cost(&o, &model, i);

        ck_assert_str_eq(op->name, model.operators[i].name);
        ck_assert_uint_eq(op->n_tensors, model.operators[i].n_tensors);
        ck_assert_double_eq(op->flops, cost.flops);
        /* Stages end with blocks, and ranks that divide tensors sum after these operators. */
        ck_assert_uint_eq(op->out_bytes != 0, model.operators[i].kind == GPT_OP_FCPROJ &&
                                                  model.operators[i].layer + 1 < model.layers);
        ck_assert_uint_eq(op->sum_bytes != 0, model.operators[i].kind == GPT_OP_EMBED ||
                                                  model.operators[i].kind == GPT_OP_PROJ ||
                                                  model.operators[i].kind == GPT_OP_FCPROJ);
        ck_assert_float_eq(op->expected_uses, cost.expected_uses);
        for (uint32_t k = 0; k < op->n_tensors; k++) {
            ck_assert_uint_eq(op->tensors[k], (uint32_t)model.operators[i].tensors[k]);
        }
    }
    cli_model_close(&read);
    gpt_model_close(&model);
}
END_TEST

/* The operations of a forward pass are 2 per matrix element and token, and those of attention. An
 * expert's operations are those of its even share of all ranks' tokens. */
START_TEST(operations_follow_the_formula)
{
    const struct gpt_options o = test_options(lines[_i]);
    const double rows = (double)(o.batch / o.job.updates.micro_batches) * o.context;
    struct gpt_model m;
    struct cst_err err = {0};
    double sum = 0, want = 0;

    ck_assert_int_eq(gpt_model_init(&m, &o, &err), 0);
    for (uint32_t i = 0; i < m.n_operators; i++) {
        const struct cst_operator_cost cost = gpt_describe_cost(&o, &m, i);

        sum += cost.flops;
        ck_assert(cost.expected_uses > 0.0f && cost.expected_uses <= 1.0f);
    }
    want = 2 * rows * m.layers * (4.0 * 64 * 64 + (m.context + 1.0) * 64) + 2 * rows * 256 * 64;
    want += m.experts == 0 ? 2 * rows * m.layers * 8 * 64 * 64
                           : 2 * rows * m.layers * (2.0 * m.world * 8 * 64 * 64 + 6 * 64);
    want += 2 * rows * m.layers * m.lora * (64 + 192 + 64 + 64 + 64 + 256 + 256 + 64);
    ck_assert_double_eq_tol(sum / want, 1.0, 1e-12);
    gpt_model_close(&m);
}
END_TEST

/* The operators of a dense model together keep all memory of a pass except its scratch arrays. */
START_TEST(bytes_kept_are_those_of_the_pass)
{
    struct gpt_options o = test_options(lines[0]);
    struct gpt_pass_host p = {.bf16 = false};
    struct gpt_model m;
    struct cst_err err = {0};
    uint64_t sum = 0;

    o.matmul = GPT_MATMUL_FP32;
    ck_assert_int_eq(gpt_model_init(&m, &o, &err), 0);
    for (uint32_t i = 0; i < m.n_operators; i++) {
        sum += gpt_describe_cost(&o, &m, i).activation_bytes;
    }
    p.head.model = &m;
    p.head.max_seqs = o.batch;
    ck_assert_int_eq(gpt_host_plan(&m, o.batch, false, 0, &p.stash.plan, &err), 0);
    ck_assert_int_eq(gpt_host_memory_open(&p, &err), 0);
    ck_assert_uint_eq(p.stash.plan.held_bytes, p.memory_bytes);
    ck_assert_uint_eq(sum,
                      (uint64_t)((char *)p.dx - (char *)p.memory) + 4 * 32 * sizeof *p.head.tokens);
    gpt_memory_put(p.memory);
    free(p.blocks);
    gpt_model_close(&m);
}
END_TEST

/* A limit decides how many blocks are held: as many as fit, at least two. What is planned is what
 * the pass allocates, to the byte, and a smaller limit is refused with the least one. */
START_TEST(a_limit_decides_how_many_blocks_are_held)
{
    const struct gpt_options o =
        test_options("--layers 5 --heads 1 --width 32 --context 16 --batch 2 --describe -");
    struct gpt_stash_plan all, plan;
    struct gpt_model m;
    struct cst_err err = {0};
    char least[32];

    ck_assert_int_eq(gpt_model_init(&m, &o, &err), 0);
    ck_assert_int_eq(gpt_host_plan(&m, 2, true, 0, &all, &err), 0);
    ck_assert(all.n_buffers == 5 && all.n_stashed == 0);
    for (uint32_t n = 2; n <= 5; n++) {
        const uint64_t limit = all.held_bytes - (5 - n) * all.block_bytes;
        struct gpt_pass_host p = {.head = {.model = &m, .max_seqs = 2}, .bf16 = true};

        ck_assert_int_eq(gpt_host_plan(&m, 2, true, limit, &plan, &err), 0);
        ck_assert(plan.n_buffers == n && plan.n_stashed == 5 - n && plan.held_bytes == limit);
        ck_assert_int_eq(
            gpt_host_plan(&m, 2, true, limit + all.block_bytes - 1, &p.stash.plan, &err), 0);
        ck_assert_uint_eq(p.stash.plan.n_buffers, n);
        ck_assert_int_eq(gpt_host_memory_open(&p, &err), 0);
        ck_assert_uint_eq(p.memory_bytes, limit);
        for (uint32_t i = n; i < 5; i++) {
            ck_assert_ptr_eq(p.blocks[i].x, p.blocks[i - n].x);
            ck_assert_ptr_eq(p.blocks[i].act, p.blocks[i - n].act);
        }
        gpt_memory_put(p.memory);
        free(p.blocks);
    }
    ck_assert_int_eq(
        gpt_host_plan(&m, 2, true, all.held_bytes - 3 * all.block_bytes - 1, &plan, &err),
        CST_EINVAL);
    (void)snprintf(least, sizeof least, "%llu bytes",
                   (unsigned long long)(all.held_bytes - 3 * all.block_bytes));
    ck_assert_ptr_nonnull(strstr(err.text, least));
    gpt_model_close(&m);
}
END_TEST

/* A file that cannot be written is an error whose text names the file. */
START_TEST(unwritable_files_are_told)
{
    struct gpt_options o = test_options(lines[0]);
    struct cst_err err = {0};

    o.describe = "/nonexistent/model.json";
    ck_assert_int_eq(gpt_describe(&o, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "/nonexistent/model.json") != NULL, "%s", err.text);
    o.describe = "/dev/full";
    ck_assert_int_eq(gpt_describe(&o, &err), CST_EIO);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("describe");
    TCase *tcase = suite_case(suite, "describe", NULL, NULL);

    tcase_add_loop_test(tcase, what_is_written_is_the_model, 0, N_LINES);
    tcase_add_loop_test(tcase, operations_follow_the_formula, 0, N_LINES);
    tcase_add_test(tcase, bytes_kept_are_those_of_the_pass);
    tcase_add_test(tcase, a_limit_decides_how_many_blocks_are_held);
    tcase_add_test(tcase, unwritable_files_are_told);
    return suite_run(suite);
}

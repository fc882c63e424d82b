/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plans in files: a plan is read as it was written. An invalid plan, or a plan of another
 * job, is refused with the field and its values. */
#include "offload/layout/digest.h"
#include "offload/plan/saved.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/cistern-plan.XXXXXX";
static struct cst_saved_plan plan;

static void setup(void)
{
    int fd;
    struct cst_err err;

    search_rig_setup();
    (void)strcpy(path + strlen(path) - 6, "XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    declare("gpt2-124m", 2, 2, false);
    f.budget.device_bytes = 3000000000;
    search();
    cst_plan_saved_make(&plan, &f.config, &f.plans.best);
    ck_assert_int_eq(cst_saved_plan_write(&plan, json_object(), path, &err), CST_OK);
}

static void teardown(void)
{
    (void)unlink(path);
    search_rig_teardown();
}

/* A plan is read as it was written, and the job gets the choices of the search. */
START_TEST(round_trip)
{
    struct cst_saved_plan read;
    struct cst_plan_choice choice;
    struct cst_layout layout;
    struct cst_err err;

    ck_assert_msg(cst_saved_plan_read(&read, path, &err) == CST_OK, "%s", err.text);
    ck_assert_int_eq(cst_saved_plan_same(&plan, &read, 0, &err), CST_OK);
    ck_assert_double_eq(plan.step_s, read.step_s);
    cst_plan_saved_choice(&read, &choice);
    ck_assert_mem_eq(choice.n_blocks, f.plans.best.n_blocks, sizeof choice.n_blocks);
    ck_assert_mem_eq(choice.layout.class_elems, f.plans.best.layout.class_elems,
                     sizeof choice.layout.class_elems);
    choice.layout.n_nodes = 1;
    ck_assert_int_eq(cst_layout_build(&layout, &f.model, &choice.layout, &err), CST_OK);
    ck_assert_uint_eq(layout.n_chunks, f.plans.best.n_chunks);
    cst_layout_close(&layout);
}
END_TEST

static void change(const char *object, const char *key, json_t *value)
{
    json_t *root = json_load_file(path, 0, NULL), *at;

    ck_assert_ptr_nonnull(root);
    at = object[0] != '\0' ? json_object_get(root, object) : root;
    ck_assert_int_eq(value != NULL ? json_object_set_new(at, key, value) : json_object_del(at, key),
                     0);
    ck_assert_int_eq(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* A plan can have updates in lent memory. Of a plan that does not say so, the pools lend nothing.
 */
START_TEST(lent)
{
    struct cst_saved_plan read;
    struct cst_plan_choice choice;
    struct cst_err err;

    f.plans.best.lends = true;
    cst_plan_saved_make(&plan, &f.config, &f.plans.best);
    ck_assert_int_eq(cst_saved_plan_write(&plan, json_object(), path, &err), CST_OK);
    ck_assert_msg(cst_saved_plan_read(&read, path, &err) == CST_OK, "%s", err.text);
    cst_plan_saved_choice(&read, &choice);
    ck_assert(choice.lends);
    change("plan", "lent", NULL);
    ck_assert_msg(cst_saved_plan_read(&read, path, &err) == CST_OK, "%s", err.text);
    ck_assert_int_eq(cst_saved_plan_same(&plan, &read, 1, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "has lent yes, that of rank 1 has no"));
    cst_plan_saved_choice(&read, &choice);
    ck_assert(!choice.lends);
}
END_TEST

/* A plan of another job is refused with the field and both values. */
START_TEST(another_job)
{
    static const struct {
        size_t offset;
        const char *words;
    } fields[] = {
        {offsetof(struct cst_saved_plan, world), "made for world 2, the job has 3"},
        {offsetof(struct cst_saved_plan, micro_batches), "micro_batches 1, the job has 2"},
        {offsetof(struct cst_saved_plan, optimizer), "optimizer adamw, the job has adam"},
        {offsetof(struct cst_saved_plan, moments), "moments fp32, the job has bf16"},
        {offsetof(struct cst_saved_plan, overlap), "overlap commit, the job has early"},
        {offsetof(struct cst_saved_plan, grad_over_weight), "grad_over_weight no, the job has yes"},
        {offsetof(struct cst_saved_plan, n_tensors), "n_tensors 148, the job has 149"},
        {offsetof(struct cst_saved_plan, fingerprint), "another model (fingerprint "},
    };
    const struct cst_layout_states states = {.optimizer = CST_OPTIMIZER_ADAMW};
    struct cst_saved_plan job;
    struct cst_err err;

    cst_plan_saved_job(&job, &f.model, 2, 1, &states, CST_OVERLAP_COMMIT);
    ck_assert_int_eq(cst_saved_plan_is_for(&plan, &job, &err), CST_OK);
    ++*(uint32_t *)(void *)((char *)&job + fields[_i].offset);
    ck_assert_int_eq(cst_saved_plan_is_for(&plan, &job, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, fields[_i].words) != NULL, "%s", err.text);
}
END_TEST

/* All ranks must have equal plans: a difference is named. */
START_TEST(another_plan)
{
    struct cst_saved_plan other = plan;
    struct cst_err err;

    other.n_blocks[0]++;
    ck_assert_int_eq(cst_saved_plan_same(&plan, &other, 1, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "that of rank 1 has"));
    other = plan;
    other.prefetch_depth = 77;
    ck_assert_int_eq(cst_saved_plan_same(&plan, &other, 1, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "that of rank 1 has 77"));
}
END_TEST

/* An invalid plan is refused with its place. */
START_TEST(no_plan)
{
    struct cst_saved_plan read;
    struct cst_err err;
    const char *words = "";

    switch (_i) {
    case 0:
        change("", "cistern_plan", json_integer(2));
        words = "a plan of version 2, this program reads version 1";
        break;
    case 1:
        change("plan", "n_chunk", json_integer(2));
        words = "plan: unknown key 'n_chunk'";
        break;
    case 2:
        change("for", "world", NULL);
        words = "for: no 'world'";
        break;
    case 3:
        change("plan", "n_chunks", json_integer(0));
        words = "a plan of 0 chunks";
        break;
    case 4:
        change("for", "moments", json_string("fp64"));
        words = "for.moments: 'fp64' is not known";
        break;
    case 5:
        change("plan", "classes", json_array());
        words = "plan.classes: 0 values, allowed are 1 to 4";
        break;
    case 6:
        change("plan", "step_s", json_real(1e10));
        words = "a plan with a step of 1e+10 s";
        break;
    default:
        change("", "plan", NULL);
        words = "no 'plan'";
        break;
    }
    ck_assert_int_eq(cst_saved_plan_read(&read, path, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    ck_assert_ptr_nonnull(strstr(err.text, path));
}
END_TEST

/* The digest covers everything on which a layout depends, but not hints. */
START_TEST(digest)
{
    const int64_t shape[] = {8, 16};
    const uint32_t uses[] = {0};
    const struct cst_operator_hints hints = {.flops = 5};
    struct cst_model models[5];
    struct cst_err err;

    for (uint32_t i = 0; i < 5; i++) {
        const int64_t other[] = {16, 8};

        cst_model_init(&models[i]);
        ck_assert_int_eq(declare_tensor(&models[i], i == 1 ? "b" : "a", i == 2 ? other : shape, 2,
                                        1, i == 4 ? 0 : 1, &err),
                         CST_OK);
        ck_assert_int_eq(cst_model_operator(&models[i], i == 3 ? "y" : "x", uses, 1,
                                            i == 4 ? &hints : NULL, &err),
                         CST_OK);
    }
    for (uint32_t i = 1; i < 5; i++) {
        ck_assert((cst_model_digest(&models[i], 2) == cst_model_digest(&models[0], 2)) == (i == 4));
    }
    for (uint32_t i = 0; i < 5; i++) {
        cst_model_close(&models[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("saved_plan");
    TCase *tc = suite_case(suite, "files", setup, teardown);

    tcase_add_test(tc, round_trip);
    tcase_add_test(tc, lent);
    tcase_add_loop_test(tc, another_job, 0, 8);
    tcase_add_test(tc, another_plan);
    tcase_add_loop_test(tc, no_plan, 0, 8);
    tc = suite_case(suite, "models", NULL, NULL);
    tcase_add_test(tc, digest);
    return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of exhausted memory: in loops the n-th allocation fails. The status is CST_ENOMEM, nothing
 * leaks, and the failed call works when repeated. */
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With --wrap the linker redirects all calls of these functions to __wrap_... Allocations count
 * only inside the module under test. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
int __real_cst_model_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                            struct cst_err *err);
int __real_cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                              uint32_t n_tensors, const struct cst_operator_hints *hints,
                              struct cst_err *err);
int __real_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err);
int __real_cst_core_open(struct cst_core **out, const struct cst_core_config *config,
                         struct cst_err *err);
void __real_cst_core_step(struct cst_core *core, const struct cst_event *event,
                          struct cst_actions *actions);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
int __wrap_cst_model_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                            struct cst_err *err);
int __wrap_cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                              uint32_t n_tensors, const struct cst_operator_hints *hints,
                              struct cst_err *err);
int __wrap_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err);
int __wrap_cst_core_open(struct cst_core **out, const struct cst_core_config *config,
                         struct cst_err *err);
void __wrap_cst_core_step(struct cst_core *core, const struct cst_event *event,
                          struct cst_actions *actions);

static int fail_in = -1; /* number of allocations until one fails; negative: none fails */
static bool inside;      /* the module under test is running */

static bool fails(void)
{
    return inside && fail_in >= 0 && fail_in-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

int __wrap_cst_model_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                            struct cst_err *err)
{
    int status;

    inside = true;
    status = __real_cst_model_tensor(model, words, err);
    inside = false;
    return status;
}

int __wrap_cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                              uint32_t n_tensors, const struct cst_operator_hints *hints,
                              struct cst_err *err)
{
    int status;

    inside = true;
    status = __real_cst_model_operator(model, name, tensors, n_tensors, hints, err);
    inside = false;
    return status;
}

int __wrap_cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                            const struct cst_layout_config *config, struct cst_err *err)
{
    int status;

    inside = true;
    status = __real_cst_layout_build(layout, model, config, err);
    inside = false;
    return status;
}

int __wrap_cst_core_open(struct cst_core **out, const struct cst_core_config *config,
                         struct cst_err *err)
{
    int status;

    inside = true;
    status = __real_cst_core_open(out, config, err);
    inside = false;
    return status;
}

void __wrap_cst_core_step(struct cst_core *core, const struct cst_event *event,
                          struct cst_actions *actions)
{
    inside = true;
    __real_cst_core_step(core, event, actions);
    inside = false;
}

static struct rig rig;
static struct cst_err last_err;

/* Each of 100 tensors and operators is declared again after its first declaration found no
 * memory. */
START_TEST(declare)
{
    struct cst_model model;
    uint32_t n_failed = 0;
    int64_t shape = 100;
    char name[32];

    cst_model_init(&model);
    fail_in = _i;
    for (uint32_t i = 0; i < 100; i++) {
        int status;

        (void)snprintf(name, sizeof name, "n%u", i);
        while ((status = declare_tensor(&model, name, &shape, 1, 1, 1, &last_err)) == CST_ENOMEM) {
            n_failed++;
        }
        ck_assert_int_eq(status, CST_OK);
        while ((status = cst_model_operator(&model, name, &i, 1, NULL, &last_err)) == CST_ENOMEM) {
            n_failed++;
        }
        ck_assert_int_eq(status, CST_OK);
    }
    ck_assert_uint_eq(n_failed, 1);
    ck_assert_uint_eq(model.n_tensors, 100);
    ck_assert_uint_eq(model.n_operators, 100);
    for (uint32_t i = 0; i < 100; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        ck_assert_uint_eq(cst_model_find(&model, name), i);
        ck_assert_uint_eq(model.tensors[i].n_uses, 1);
    }
    cst_model_close(&model);
}
END_TEST

/* A tensor with a box and an external name is declared again until there is memory for it. A failed
 * declaration leaves nothing behind. */
START_TEST(declare_boxes)
{
    struct cst_tensor_words words = {.name = "box",
                                     .n_dims = 1,
                                     .shape = (int64_t[]){4},
                                     .whole = (int64_t[]){8},
                                     .first = (int64_t[]){4},
                                     .external_names = (const char *[]){"file"},
                                     .n_external = 1,
                                     .pattern = CST_PATTERN_TENSOR};
    int status = CST_ENOMEM, n = 0;
    struct cst_model model;

    while (status == CST_ENOMEM) {
        cst_model_init(&model);
        fail_in = n++;
        status = cst_model_tensor(&model, &words, &last_err);
        ck_assert_uint_eq(model.n_tensors, status == CST_OK ? 1 : 0);
        cst_model_close(&model);
    }
    fail_in = -1;
    ck_assert_int_eq(status, CST_OK);
    /* Allocations: index, names, marks, tensors, names in files (3), box, external. */
    ck_assert_int_eq(n, 10);
}
END_TEST

/* A layout without memory reports that, and leaves nothing behind. _i: further classes, and a base
 * job. */
START_TEST(lay_out)
{
    struct cst_layout_config config = {.n_nodes = 1, .max_classes = _i == 0 ? 1 : 4};
    struct cst_layout layout, base;
    int status = CST_ENOMEM;
    int n = 0;

    rig_open(&rig, 10, 1, 20, 1);
    if (_i == 1) {
        ck_assert_int_eq(cst_layout_build(&base, &rig.model, &config, &last_err), CST_OK);
        config.base_model = &rig.model;
        config.base = &base;
    }
    while (status == CST_ENOMEM) {
        fail_in = n++;
        status = cst_layout_build(&layout, &rig.model, &config, &last_err);
        ck_assert_msg(status == CST_OK || last_err.status == CST_ENOMEM, "no words");
    }
    fail_in = -1;
    ck_assert_int_eq(status, CST_OK);
    ck_assert_int_gt(n, 8);
    cst_layout_close(&layout);
    if (_i == 1) {
        cst_layout_close(&base);
    }
    rig_close(&rig);
}
END_TEST

/* Opening a core without memory reports that, and leaves nothing behind. */
START_TEST(open_core)
{
    struct cst_core_config config;
    struct cst_core *core = NULL;
    int status = CST_ENOMEM;
    int n = 0;

    rig_open(&rig, 10, 2, 20, 1);
    config = (struct cst_core_config){
        .model = &rig.model, .layout = &rig.layout, .world = 2, .pools = rig.pools};
    while (status == CST_ENOMEM) {
        fail_in = n++;
        status = cst_core_open(&core, &config, &last_err);
    }
    fail_in = -1;
    ck_assert_int_eq(status, CST_OK);
    ck_assert_int_gt(n, 10);
    cst_core_close(core);
    rig_close(&rig);
}
END_TEST

/* Send 200 fetches that all wait and are then served, while the @n-th allocation fails. Returns how
 * many got CST_ENOMEM. */
static uint32_t many_requests(int n)
{
    uint64_t tags[200];
    uint64_t held[3];
    uint32_t n_failed = 0;

    rig_open(&rig, 6, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        held[c] = rig_get(&rig, 0, c);
    }
    fail_in = n;
    for (uint32_t i = 0; i < 200; i++) {
        tags[i] = rig_fetch(&rig, 0, 3 + i % 3);
        while (!rig_waits(&rig, tags[i])) {
            ck_assert_int_eq(rig_status(&rig, tags[i]), CST_ENOMEM);
            n_failed++;
            tags[i] = rig_fetch(&rig, 0, 3 + i % 3);
        }
    }
    ck_assert_int_lt(fail_in, 0);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_release(&rig, 0, c, held[c]);
    }
    rig_drain(&rig);
    for (uint32_t i = 0; i < 200; i++) {
        ck_assert_int_eq(rig_status(&rig, tags[i]), CST_OK);
    }
    rig_close(&rig);
    return n_failed;
}

/* A request for which the core has no memory gets CST_ENOMEM and can be repeated. Requests before
 * it are not affected. If only the trace has no memory, no request fails. */
START_TEST(requests)
{
    uint32_t n_failed = 0;

    for (int n = 0; n < 6; n++) {
        n_failed += many_requests(n);
    }
    ck_assert_uint_ge(n_failed, 3);
}
END_TEST

/* A trace that loses entries is not used: the step goes on, and the old prediction stays. */
START_TEST(traces)
{
    struct cst_rank_stats stats;
    struct cst_core_stats core;

    rig_open(&rig, 40, 1, 8, 1);
    rig_start(&rig, 1);
    fail_in = _i;
    rig_whole_step(&rig, 40, 1);
    fail_in = -1;
    rig_whole_step(&rig, 40, 1);
    rig_whole_step(&rig, 40, 1);
    cst_core_stats(rig.core, &core);
    ck_assert_uint_eq(core.step, 3);
    cst_core_rank_stats(rig.core, 0, &stats);
    ck_assert_uint_eq(stats.surprises, 0);
    rig_close(&rig);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("out of memory");
    TCase *tc = suite_case(s, "offload", NULL, NULL);

    tcase_add_loop_test(tc, declare, 0, 20);
    tcase_add_test(tc, declare_boxes);
    tcase_add_loop_test(tc, lay_out, 0, 2);
    tcase_add_test(tc, open_core);
    tcase_add_test(tc, requests);
    tcase_add_loop_test(tc, traces, 0, 4);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

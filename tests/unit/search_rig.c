/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/search_rig.h"

#include "offload/plan/preset.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct search_rig f;

void search_rig_setup(void)
{
    memset(&f, 0, sizeof f);
    cst_model_init(&f.model);
    cst_rates_a100(&f.rates, 1);
    f.budget = (struct cst_plan_budget){.device_bytes = CST_PLAN_NO_LIMIT,
                                        .host_bytes = CST_PLAN_NO_LIMIT};
    f.config = (struct cst_plan_config){
        .model = &f.model, .world = 1, .budget = &f.budget, .rates = &f.rates, .micro_batches = 1};
}

void search_rig_teardown(void)
{
    cst_model_close(&f.model);
}

void search(void)
{
    struct cst_err err;

    ck_assert_msg(cst_plan_search(&f.plans, &f.config, &err) == CST_OK, "%s", err.text);
}

void declare(const char *name, uint32_t world, uint32_t batch, bool recompute)
{
    const struct cst_preset_options options = {
        .world = world, .batch = batch, .recompute = recompute};
    struct cst_err err;

    ck_assert_msg(cst_preset_declare(&f.model, cst_preset_find(name), &options, &err) == CST_OK,
                  "%s", err.text);
    cst_rates_a100(&f.rates, world);
    f.config.world = world;
    f.config.recompute = recompute;
}

void declare_slow(uint32_t world)
{
    declare("gpt2-355m", world, 2, false);
    f.budget.device_bytes = 8000000000;
    f.rates.nodes[0].update = 2e9;
    f.config.max_events = 60000;
}

uint64_t search_ns(void)
{
    search();
    return f.plans.best.predicted.step_ns;
}

struct cst_layout build_best(void)
{
    struct cst_layout layout;
    struct cst_err err;

    ck_assert_msg(cst_layout_build(&layout, &f.model, &f.plans.best.layout, &err) == CST_OK, "%s",
                  err.text);
    return layout;
}

void check_promise(void)
{
    struct cst_replay_result again;
    struct cst_err err;

    ck_assert_uint_le(f.plans.best.bound_ns, f.plans.best.predicted.step_ns);
    ck_assert_int_eq(cst_plan_replay(&f.config, &f.plans.best, 0, NULL, NULL, &again, &err),
                     CST_OK);
    ck_assert_mem_eq(&again, &f.plans.best.predicted, sizeof again);
}

void refuse(int status, const char *words)
{
    struct cst_err err;

    ck_assert_int_eq(cst_plan_search(&f.plans, &f.config, &err), status);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

void one_byte(uint64_t *limit, int status)
{
    struct cst_err err;
    const char *at;

    ck_assert_int_eq(cst_plan_search(&f.plans, &f.config, &err), status);
    at = strstr(err.text, " short");
    ck_assert_msg(at != NULL, "%s", err.text);
    at -= strlen(at[-1] == ')' ? " bytes)" : " bytes");
    while (at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    *limit += strtoull(at, NULL, 10) - 1;
    ck_assert_msg(cst_plan_search(&f.plans, &f.config, &err) == status, "one byte less fits");
    *limit += 1;
    ck_assert_msg(cst_plan_search(&f.plans, &f.config, &err) == CST_OK, "%s", err.text);
}

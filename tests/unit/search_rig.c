#include "tests/unit/search_rig.h"

#include <check.h>
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
    cst_plans_close(&f.plans);
    cst_model_close(&f.model);
}

void search(void)
{
    struct cst_err err;

    ck_assert_msg(cst_plan_search(&f.plans, &f.config, &err) == CST_OK, "%s", err.text);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/plan_rig.h"

#include <check.h>
#include <string.h>

void plan_rig_host_rates(struct cst_rates *out)
{
    *out = (struct cst_rates){
        .n_devices = 1,
        .devices = {{.name = "host", .up = 8e9, .down = 8e9, .flops = 100e9}},
        .n_nodes = 1,
        .nodes = {{.cores = 8,
                   .pass = 24e9,
                   .update = 800e6,
                   .reduce = 3e9,
                   .copy = 8e9,
                   .products = 300e9}},
        .request_s = 30e-6,
    };
}

static void open_pools(struct plan_rig *rig, uint32_t world, bool gpu, double share)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        rig->pools[rank] = (struct cst_core_pool){.tier = gpu ? 1 + rank : CST_TIER_HOST};
        for (uint32_t i = 0; i < rig->layout.n_classes; i++) {
            const struct cst_layout_class *class = &rig->layout.classes[i];
            uint32_t n = (uint32_t)(share * class->max_blocks + 0.5);

            rig->pools[rank].parts[i].n_blocks = n > class->min_blocks ? n : class->min_blocks;
        }
    }
}

void plan_rig_open_model(struct plan_rig *rig, struct cst_model *model, uint32_t world,
                         uint64_t chunk_elems, bool gpu, double pool_share)
{
    struct cst_err err;

    memset(rig, 0, sizeof *rig);
    rig->model = *model;
    rig->layout_config =
        (struct cst_layout_config){.chunk_elems = chunk_elems, .n_nodes = 1, .world = world};
    ck_assert_msg(cst_layout_build(&rig->layout, &rig->model, &rig->layout_config, &err) == CST_OK,
                  "%s", err.text);
    if (gpu) {
        cst_rates_a100(&rig->rates, world);
    } else {
        plan_rig_host_rates(&rig->rates);
    }
    open_pools(rig, world, gpu, pool_share);
    rig->core = (struct cst_core_config){
        .model = &rig->model, .layout = &rig->layout, .world = world, .pools = rig->pools};
    rig->replay = (struct cst_replay_config){
        .core = &rig->core, .rates = &rig->rates, .n_steps = 3, .micro_batches = 1};
}

void plan_rig_declare(struct cst_model *model, const char *name, uint32_t world)
{
    const struct cst_preset_options options = {.world = world, .batch = 4};
    struct cst_err err;

    ck_assert_msg(cst_preset_declare(model, cst_preset_find(name), &options, &err) == CST_OK, "%s",
                  err.text);
}

void plan_rig_fp32(struct cst_model *model)
{
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        model->tensors[t].dtype = CST_FP32;
    }
    model->weight_bytes = 4 * model->n_params;
}

void plan_rig_open(struct plan_rig *rig, const char *name, uint32_t world, uint64_t chunk_elems,
                   bool gpu, double pool_share)
{
    struct cst_model model;

    cst_model_init(&model);
    plan_rig_declare(&model, name, world);
    plan_rig_open_model(rig, &model, world, chunk_elems, gpu, pool_share);
}

static void lay_out_again(struct plan_rig *rig)
{
    struct cst_err err;

    cst_layout_close(&rig->layout);
    ck_assert_msg(cst_layout_build(&rig->layout, &rig->model, &rig->layout_config, &err) == CST_OK,
                  "%s", err.text);
}

void plan_rig_micro_batches(struct plan_rig *rig, uint32_t n)
{
    rig->layout_config.grad_bytes = n > 1 ? 4 : 2;
    rig->core.micro_batches = n;
    rig->replay.micro_batches = n;
    lay_out_again(rig);
}

void plan_rig_updates(struct plan_rig *rig, const struct cst_layout_states *states,
                      enum cst_overlap overlap)
{
    rig->layout_config.states = *states;
    rig->layout_config.states.two_weights = overlap != CST_OVERLAP_COMMIT;
    rig->core.policy.overlap = overlap;
    lay_out_again(rig);
}

void plan_rig_reservations(struct plan_rig *rig, uint32_t n, uint64_t bytes, uint32_t k,
                           uint64_t states)
{
    rig->core.reservations = rig->reservations;
    rig->core.n_reservations = n;
    rig->core.interleave = k;
    rig->layout_config.n_devices = states > 0 ? n : 0;
    for (uint32_t i = 0; i < n; i++) {
        rig->reservations[i] =
            (struct cst_core_device_reservation){.engine = 1 + i, .bytes = bytes};
        rig->layout_config.devices[i] = (struct cst_layout_device){
            .engine = 1 + i, .bytes = states, .reservation_bytes = bytes};
    }
    lay_out_again(rig);
}

void plan_rig_close(struct plan_rig *rig)
{
    cst_layout_close(&rig->layout);
    cst_model_close(&rig->model);
}

struct cst_replay_result plan_rig_run(const struct plan_rig *rig)
{
    struct cst_replay_result result;
    struct cst_err err;
    int rc = cst_replay_run(&rig->replay, &result, &err);

    ck_assert_msg(rc == CST_OK, "%s: %s", cst_status_name(rc), err.text);
    return result;
}

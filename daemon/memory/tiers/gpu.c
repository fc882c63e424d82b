/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs, which the GPU's engine allocates. */
#include "daemon/memory/tiers/gpu.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "daemon/engine/rates.h"
#include "daemon/memory/memory_pools.h"
#include "daemon/memory/set_aside.h"
#include "proto/size.h"

#include <stdio.h>

/* Assumed of a GPU that was not measured: products in flop/s, and updates in elements/s. */
#define GPU_PRODUCTS 5e12
#define GPU_UPDATE 20e9
/* What a plain bf16 product reaches on a GPU if neither the rates nor the user tell, flop/s. */
#define GPU_FLOPS 100e12

/* States and reservations are used by the accelerator's own engine alone. */
int cstd_tier_gpu_create(struct cstd_memory *memory, const struct cstd_tier *tier,
                         const struct cstd_tier_piece *piece, struct cst_err *err)
{
    if (piece->use == CSTD_TIER_SLOTS) {
        cstd_set_aside_update(tier->daemon, tier->gpu);
    }
    return cstd_memory_add_device_segment(
        memory, piece->bytes, tier,
        piece->use == CSTD_TIER_POOL ? cstd_memory_readers(memory, tier) : (struct cst_set){{0}},
        err);
}

void cstd_tier_gpu_count(const struct cstd_tier *tier)
{
    cstd_set_aside_update(tier->daemon, tier->gpu);
}

struct cst_set cstd_tier_gpu_unreachable(const struct cstd_tier *tier)
{
    return cstd_gpus_unreachable(tier->daemon->gpus, tier->gpu);
}

unsigned cstd_tier_gpu_n_updaters(const struct cstd_tier *tier)
{
    (void)tier;
    return 0;
}

const struct cstd_tier *cstd_tier_gpu_updater(const struct cstd_tier *tier, uint32_t rank)
{
    (void)rank;
    return tier;
}

const struct cstd_tier *cstd_tier_gpu_buffers(const struct cstd_tier *tier)
{
    return tier;
}

/* -- rates ------------------------------------------------------------------------------------ */

static double seen_or(const struct cstd_rates_median *median, double otherwise)
{
    double seen = cstd_rates_median_get(median);

    return seen > 0 ? seen : otherwise;
}

/* What was seen of the GPU's engine, or those of a GPU on a slow link. */
static void rates(const struct cstd_tier *tier, const struct cst_rates_node *node,
                  struct cst_rates_device *out)
{
    const struct cstd_rates_seen *seen = &tier->daemon->engines->v[tier->number].seen;

    (void)node;
    *out = (struct cst_rates_device){.memory_bytes = tier->gpu->memory_bytes,
                                     .up = seen_or(&seen->up, 10e9),
                                     .down = seen_or(&seen->down, 10e9),
                                     .copy_latency_s = 20e-6,
                                     .update = seen_or(&seen->update, GPU_UPDATE),
                                     .memory = 500e9,
                                     .products = seen_or(&seen->products, GPU_PRODUCTS)};
    (void)snprintf(out->name, sizeof out->name, "%s", tier->product);
}

/* -- explain ---------------------------------------------------------------------------------- */

/* Write a line that says what is set aside on the accelerator. */
static void explain_card(const struct cstd_tier *tier, char line[192])
{
    struct cst_card card;
    char words[CST_CARD_WORDS], memory[CST_SIZE_TEXT];

    cstd_set_aside_count(tier->daemon, tier->gpu, &card);
    cst_card_words(&card, words, sizeof words);
    (void)snprintf(line, 192, "%s: set aside of %s: %.100s", tier->label,
                   cst_size_text(tier->gpu->memory_bytes, memory), words);
}

/* The number is said, because the core only knows numbers. */
unsigned cstd_tier_gpu_explain(const struct cstd_tier *tier, uint32_t rank, char lines[][192],
                               unsigned max)
{
    unsigned n = 0;

    if (n < max) {
        (void)snprintf(lines[n++], 192, "rank %u: its pool is on %s, %s, %s, engine %u", rank,
                       tier->label, tier->uuid, tier->product, tier->number);
    }
    if (tier->gpu->pool_auto && n < max) {
        explain_card(tier, lines[n++]);
    }
    return n;
}

const struct cstd_tier_kind cstd_tier_cuda = {.name = "cuda",
                                              .apart = true,
                                              .one_budget = true,
                                              .handles = true,
                                              .workers_copy = true,
                                              .flops = GPU_FLOPS,
                                              .create = cstd_tier_gpu_create,
                                              .count = cstd_tier_gpu_count,
                                              .unreachable = cstd_tier_gpu_unreachable,
                                              .n_updaters = cstd_tier_gpu_n_updaters,
                                              .updater = cstd_tier_gpu_updater,
                                              .buffers = cstd_tier_gpu_buffers,
                                              .rates = rates,
                                              .explain = cstd_tier_gpu_explain};

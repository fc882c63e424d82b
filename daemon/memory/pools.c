/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/pools.h"
#include "proto/round_up.h"
#include "proto/size.h"

#include <inttypes.h>

static uint64_t block_bytes(const struct cst_layout *layout, uint32_t class)
{
    return layout->classes[class].capacity * 2;
}

uint32_t cstd_pools_per_slab(const struct cst_layout *layout, uint32_t class)
{
    uint64_t n = CST_LAYOUT_SEGMENT_BYTES / block_bytes(layout, class);

    return n > 0 ? (uint32_t)n : 1;
}

uint32_t cstd_pools_slabs(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks)
{
    uint32_t per_slab = cstd_pools_per_slab(layout, class);

    return n_blocks / per_slab + (n_blocks % per_slab > 0 ? 1 : 0);
}

uint64_t cstd_pools_slab_bytes(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks,
                               uint64_t grain)
{
    return cst_round_up(n_blocks * block_bytes(layout, class), grain);
}

static uint64_t class_bytes(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks,
                            uint64_t grain)
{
    uint32_t per_slab = cstd_pools_per_slab(layout, class);

    return n_blocks / per_slab * cstd_pools_slab_bytes(layout, class, per_slab, grain) +
           cstd_pools_slab_bytes(layout, class, n_blocks % per_slab, grain);
}

uint64_t cstd_pools_bytes(const struct cst_layout *layout, const struct cstd_pools_blocks *blocks,
                          uint64_t grain)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < layout->n_classes; c++) {
        bytes += class_bytes(layout, c, blocks->n[c], grain);
    }
    return bytes;
}

/* Return the largest number of blocks of @class that fit in @bytes and that @rank can use. */
static uint32_t most_blocks(const struct cst_layout *layout, uint32_t rank, uint32_t class,
                            uint64_t bytes, uint64_t grain)
{
    uint32_t per_slab = cstd_pools_per_slab(layout, class);
    uint32_t max = layout->needs[rank].max_blocks[class];
    uint64_t slab = cstd_pools_slab_bytes(layout, class, per_slab, grain);
    uint64_t rest = bytes % slab / grain * grain / block_bytes(layout, class);
    uint64_t n = bytes / slab * per_slab + (rest < per_slab ? rest : per_slab);

    return n < max ? (uint32_t)n : max;
}

/* Report the first class whose minimum, together with the classes before it, exceeds @bytes. */
static int too_small(const struct cst_layout *layout, const struct cst_model *model, uint32_t rank,
                     uint64_t bytes, uint64_t grain, struct cst_err *err)
{
    const struct cst_layout_need *need = &layout->needs[rank];
    uint64_t sum = 0, all = 0;
    uint32_t c = 0;
    char pool[CST_SIZE_EXACT], block[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT], enough[CST_SIZE_EXACT];

    for (uint32_t i = 0; i < layout->n_classes; i++) {
        all += class_bytes(layout, i, need->min_blocks[i], grain);
    }
    for (; c + 1 < layout->n_classes; c++) {
        sum += class_bytes(layout, c, need->min_blocks[c], grain);
        if (sum > bytes) {
            break;
        }
    }
    return cst_err_set(err, CST_EPOOL,
                       "pool of %s: operator '%s' needs %" PRIu32
                       " blocks of %s (size class %" PRIu32 " of %" PRIu32
                       "): %s short; a pool of %s, %" PRIu64 "%% of the job's weights, is enough",
                       cst_size_exact(bytes, pool), model->operators[need->min_operator[c]].name,
                       need->min_blocks[c], cst_size_text(block_bytes(layout, c), block), c + 1,
                       layout->n_classes, cst_size_exact(all - bytes, lacks),
                       cst_size_exact(all, enough), cst_layout_percent(model, all));
}

/* Raise *blocks to @planned, limited to what @rank can use, if all classes fit. */
static void take_planned(const struct cst_layout *layout, uint32_t rank, uint64_t bytes,
                         uint64_t grain, const struct cstd_pools_blocks *planned,
                         struct cstd_pools_blocks *blocks)
{
    const struct cst_layout_need *need = &layout->needs[rank];
    struct cstd_pools_blocks wanted = *blocks;

    for (uint32_t c = 0; c < layout->n_classes; c++) {
        uint32_t n = planned->n[c] < need->max_blocks[c] ? planned->n[c] : need->max_blocks[c];

        wanted.n[c] = n > wanted.n[c] ? n : wanted.n[c];
    }
    if (cstd_pools_bytes(layout, &wanted, grain) <= bytes) {
        *blocks = wanted;
    }
}

int cstd_pools_divide(const struct cst_layout *layout, const struct cst_model *model, uint32_t rank,
                      uint64_t bytes, uint64_t grain, const struct cstd_pools_blocks *planned,
                      struct cstd_pools_blocks *out, struct cst_err *err)
{
    struct cstd_pools_blocks blocks = {{0}};
    uint64_t least, left;

    for (uint32_t c = 0; c < layout->n_classes; c++) {
        blocks.n[c] = layout->needs[rank].min_blocks[c];
    }
    least = cstd_pools_bytes(layout, &blocks, grain);
    if (least > bytes) {
        return too_small(layout, model, rank, bytes, grain, err);
    }
    if (planned != NULL) {
        take_planned(layout, rank, bytes, grain, planned, &blocks);
    }
    left = bytes - cstd_pools_bytes(layout, &blocks, grain);
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        /* The bytes of this class are divided anew, because the last slab may have space for more
         * blocks. */
        left += class_bytes(layout, c, blocks.n[c], grain);
        blocks.n[c] = most_blocks(layout, rank, c, left, grain);
        left -= class_bytes(layout, c, blocks.n[c], grain);
    }
    *out = blocks;
    return CST_OK;
}

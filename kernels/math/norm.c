/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/norm.h"

double cst_norm_sum(const struct cst_table_tile *tiles, uint64_t n_tiles)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n_tiles; i++) {
        sum += tiles[i].sum_squares;
    }
    return sum;
}

static void clear(struct cst_table_header *table, const struct cst_table_span *span)
{
    struct cst_table_tile *tiles = cst_table_tiles(table);

    for (uint64_t i = 0; i < cst_table_n_tiles(span->n_elems); i++) {
        tiles[span->first_tile + i].sum_squares = 0.0;
    }
}

double cst_norm_of_step(struct cst_table_header *table, uint64_t mark)
{
    const struct cst_table_span *spans = cst_table_spans(table);

    for (uint32_t i = 0; table->has_steps != 0 && i < table->n_spans; i++) {
        if (cst_table_is_idle(table, &spans[i], mark)) {
            clear(table, &spans[i]);
        }
    }
    return cst_norm_sum(cst_table_tiles(table), table->n_tiles);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/tile_squares.h"

#include "offload/core/core_state.h"

/* The layout of tensor @i of those of chunk @c. */
static const struct cst_layout_tensor *tensor_of(const struct cst_core *core, uint32_t c,
                                                 uint32_t i)
{
    const struct cst_layout *layout = core->layout;

    return &core->model->tensors[layout->order[layout->chunks[c].first_tensor + i]];
}

uint64_t cst_tile_squares_count(const struct cst_core *core, uint32_t c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < core->layout->chunks[c].n_tensors; i++) {
        n += cst_table_n_tiles(tensor_of(core, c, i)->n_elems);
    }
    return n;
}

uint32_t cst_tile_squares_read(const struct cst_core *core, uint32_t c, double *to)
{
    const struct cst_table_tile *tiles = cst_table_tiles(core->table);
    uint32_t n = 0;

    for (uint32_t i = 0; i < core->layout->chunks[c].n_tensors; i++) {
        const struct cst_layout_tensor *t = tensor_of(core, c, i);

        for (uint64_t k = 0; k < cst_table_n_tiles(t->n_elems); k++) {
            to[n++] = tiles[t->first_tile + k].sum_squares;
        }
    }
    return n;
}

void cst_tile_squares_write(struct cst_core *core, uint32_t c, const double *from)
{
    struct cst_table_tile *tiles = cst_table_tiles(core->table);

    for (uint32_t i = 0; i < core->layout->chunks[c].n_tensors; i++) {
        const struct cst_layout_tensor *t = tensor_of(core, c, i);

        for (uint64_t k = 0; k < cst_table_n_tiles(t->n_elems); k++) {
            tiles[t->first_tile + k].sum_squares = *from++;
        }
    }
}

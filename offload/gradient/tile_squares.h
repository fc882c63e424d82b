/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of squares of the tiles of a chunk's gradient, one after the other, as machines tell
 * them to each other (offload/base/machines.h). They are in the job table. Called by partials. */
#ifndef CST_TILE_SQUARES_H
#define CST_TILE_SQUARES_H

#include <stdint.h>

struct cst_core;

/* The number of tiles of chunk @c. */
uint64_t cst_tile_squares_count(const struct cst_core *core, uint32_t c);

/* Copy them from the job table to @to. Returns their number. */
uint32_t cst_tile_squares_read(const struct cst_core *core, uint32_t c, double *to);

/* Copy them from @from to the job table. */
void cst_tile_squares_write(struct cst_core *core, uint32_t c, const double *from);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The minimum number of blocks of each size class that a rank needs. Private to layout.c and
 * capacity.c. */
#ifndef CST_MIN_BLOCKS_H
#define CST_MIN_BLOCKS_H

#include "offload/layout/packing.h"

/* The need of rank @rank, as cst_layout_build describes: min_blocks, min_operator, and max_blocks
 * for the weights and gradients of all chunks that it holds. @packing must be packed. */
struct cst_layout_need cst_min_blocks_of_rank(struct cst_packing *packing, uint32_t rank);

/* The maxima of all ranks. */
struct cst_layout_need cst_min_blocks_of_all(struct cst_packing *packing);

#endif

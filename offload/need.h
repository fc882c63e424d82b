/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks of each size class a rank needs at least. Private to layout.c and capacity.c. */
#ifndef CST_NEED_H
#define CST_NEED_H

#include "offload/packing.h"

/* Of rank @rank. min_blocks and min_operator as cst_layout_build says; max_blocks: weights and
 * gradients of all that it holds. */
struct cst_layout_need cst_need_of_rank(struct cst_packing *packing, uint32_t rank);

/* The most of all ranks. */
struct cst_layout_need cst_need_of_all(struct cst_packing *packing);

#endif

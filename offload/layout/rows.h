/* SPDX-License-Identifier: Apache-2.0 */
/* Places of the chunks' rows: node, accelerator, segment, offset. The last part of laying out a
 * model. Private to layout.c, except cst_rows_in_host. */
#ifndef CST_ROWS_H
#define CST_ROWS_H

#include "offload/layout/layout.h"

/* Distribute the chunks to the nodes, balanced by bytes. CST_EINVAL: a chunk of the base job is on
 * a node that does not exist. CST_ENOMEM. */
int cst_rows_place_nodes(struct cst_layout *layout, const struct cst_layout_config *config,
                         struct cst_err *err);

/* Place the states of as many chunks as fit on @config's devices, the last chunks first. */
void cst_rows_place_on_devices(struct cst_layout *layout, const struct cst_layout_config *config);

/* Place every row in a segment; allocates layout->segments. CST_ENOMEM. */
int cst_rows_place(struct cst_layout *layout, const struct cst_model *model,
                   const struct cst_layout_config *config);

#define CST_ROWS_COUNT (CST_ROW_COUNT + 1) /* Rows of a chunk, with the second weight row. */

/* Return the bytes, with padding, that row @row (below CST_ROWS_COUNT) of @chunk has in host
 * memory of its job, and set *place to where they begin. 0: the row is not there, is another job's,
 * or shares the pages of the weight row. */
uint64_t cst_rows_in_host(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          uint32_t row, struct cst_layout_row *place);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Places of the chunks' rows: node, accelerator, segment, offset. The last part of laying out a
 * model. Private to layout.c. */
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
int cst_rows_place(struct cst_layout *layout, const struct cst_layout_config *config);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where each chunk's rows are: node, accelerator, segment, offset. The last part of laying a model
 * out; private to layout.c. */
#ifndef CST_ROWS_H
#define CST_ROWS_H

#include "offload/layout.h"

/* Chunks to nodes in turn, balanced by bytes. CST_EINVAL: a chunk of the base is on a node that
 * there is not; CST_ENOMEM. */
int cst_rows_place_nodes(struct cst_layout *layout, const struct cst_layout_config *config,
                         struct cst_err *err);

/* The states of as many chunks as fit go to @config's devices, the last chunks first. */
void cst_rows_place_on_devices(struct cst_layout *layout, const struct cst_layout_config *config);

/* Every row to its segment; makes layout->segments. CST_ENOMEM. */
int cst_rows_place(struct cst_layout *layout, const struct cst_layout_config *config);

#endif

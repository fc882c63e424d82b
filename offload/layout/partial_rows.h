/* SPDX-License-Identifier: Apache-2.0 */
/* The places of the sums of rank blocks (offload/base/machines.h). Called by rows.c. */
#ifndef CST_PARTIAL_ROWS_H
#define CST_PARTIAL_ROWS_H

#include "offload/layout/layout.h"

/* The largest number of segments that cst_partial_rows_place adds to @layout, of which chunks and
 * configuration are filled in. */
size_t cst_partial_rows_segments(const struct cst_layout *layout, uint32_t n_nodes);

/* Add the rows and landings of partials to @layout. CST_ENOMEM. */
int cst_partial_rows_place(struct cst_layout *layout, uint32_t n_nodes);

#endif

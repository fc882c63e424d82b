/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters that ranks announce by PREPARE and repeat in STEP. The
 * announcements are kept by rank.h. Called by core.c and commit. */
#ifndef CST_PREPARE_H
#define CST_PREPARE_H

#include "offload/base/event.h"

struct cst_core;

void cst_prepare(struct cst_core *core, const struct cst_event *event);

/* CST_EMISMATCH: @rank's STEP differs from what was prepared, or from the begun updates. */
int cst_prepare_check_step(const struct cst_core *core, uint32_t rank, struct cst_err *err);

/* CST_EMISMATCH: the ranks' STEPs have different hyper-parameters. */
int cst_prepare_compare_steps(const struct cst_core *core, struct cst_err *err);

#endif

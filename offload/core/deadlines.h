/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to requests that wait too long for other ranks, and for whom they wait. Owns
 * nothing. Called by core.c. */
#ifndef CST_DEADLINES_H
#define CST_DEADLINES_H

struct cst_core;

/* Answer the requests whose deadline has passed. A late STEP ends the attempt. */
void cst_deadlines_expire(struct cst_core *core);

#endif

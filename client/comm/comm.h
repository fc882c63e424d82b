/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of a job, for the rest of libcistern. cistern/comm.h has the public functions.
 */
#ifndef CSTC_COMM_H
#define CSTC_COMM_H

#include "cistern/comm.h"

/* Free the list of communicators that begins with @comm, which may be NULL, when their client has
 * ended its connection. @forked: this is a forked child, which did not inherit the mappings. */
void cstc_comm_free_all(struct cst_comm *comm, bool forked);

#endif

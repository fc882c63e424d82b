/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank opens a communicator of a job (cst_comm_open), and how it leaves one. Used by the
 * job's thread only. */
#ifndef CSTC_COMM_OPEN_H
#define CSTC_COMM_OPEN_H

#include "client/comm/comm.h"

/* Take @comm out of the list of the job, and tell the other ranks and the daemon. Frees neither
 * @comm nor what it has on a device, except slots. */
void cstc_comm_leave(struct cst_comm *comm);

#endif

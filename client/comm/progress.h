/* SPDX-License-Identifier: Apache-2.0 */
/* How many calls each rank of a communicator by NCCL has done, as the ranks say it in the shared
 * memory: in the line of a rank, 1 plus this number, modulo 2^32; 0 until it has joined. A rank
 * that has closed its communicator has written its line before. In other communicators no rank is
 * missing or late here: there the lines have the rounds of a flow. Any thread; those that are
 * named, with the lock of the watch. */
#ifndef CSTC_PROGRESS_H
#define CSTC_PROGRESS_H

#include "client/comm/comm.h"

/* This rank has joined, and has done @n_calls calls. With the lock. */
void cstc_progress_say(struct cst_comm *comm, uint64_t n_calls);

/* Return whether this rank's line does not say what it has said: the memory was given back, and has
 * become zeros. With the lock. */
bool cstc_progress_is_lost(const struct cst_comm *comm);

/* Return a rank that has closed its communicator and has not done @n_calls calls, or that has not
 * joined. CST_COMM_MAX_RANKS: there is none. */
uint32_t cstc_progress_missing(const struct cst_comm *comm, uint64_t n_calls);

/* Return another rank that has not done @n_calls calls; the own rank: there is none. */
uint32_t cstc_progress_late(const struct cst_comm *comm, uint64_t n_calls);

#endif

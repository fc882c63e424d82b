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

/* The attempt is over. Return whether the calls that were started will end all the same:
 *   - CSTC_ENDS_SURELY: all other ranks have done them.
 *   - CSTC_ENDS_PROBABLY: a rank has done them and has closed its communicator, so that the attempt
 *     may be over because it has left, and all ranks have started them. If another one has died,
 *     they do not end.
 *   - CSTC_ENDS_NEVER otherwise.
 * With the lock. */
enum cstc_ends { CSTC_ENDS_NEVER, CSTC_ENDS_PROBABLY, CSTC_ENDS_SURELY };
enum cstc_ends cstc_progress_ends(const struct cst_comm *comm);

/* So long is the probable end awaited, in milliseconds. Then the watch gives the calls up. */
#define CSTC_PROGRESS_END_MS 2000

#endif

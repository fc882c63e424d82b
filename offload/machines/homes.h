/* SPDX-License-Identifier: Apache-2.0 */
/* Which machines have the states of a chunk: its home, which sums and updates it, and its buddies,
 * which have copies. Pure functions; any thread.
 *
 * Every chunk has an order of all machine numbers, which never changes while a number stands for
 * one machine. Its copies are at the first ones in this order that are members; the first of them
 * is the home. So if a machine leaves, its chunks go to their first buddies, which have the states,
 * and each is copied to one machine more; if one is added, it takes part of the chunks, and no
 * other chunk moves. A machine that takes the number of one that has left takes its chunks, too.
 *
 * The order of chunk c among the n machines with which the job was made begins with c mod n:
 * neighbours in the model are on different machines and use all links at once. The others follow in
 * a rotation that begins elsewhere in each round of n chunks, so that the chunks of a machine that
 * is lost are spread over all others:
 *
 *   n = 4    chunk 0: 0 1 2 3    chunk 4: 0 2 3 1    chunk 8: 0 3 1 2
 *            chunk 1: 1 2 3 0    chunk 5: 1 3 0 2    chunk 9: 1 0 2 3
 *
 * Each machine with a higher number k is inserted at one of the k + 1 places of each order, at each
 * one about equally often: with thousands of chunks, no machine has a fifth more than its share. If
 * machines share a rack, an order is sorted: first the first one of each rack, then the second
 * ones. Then the loss of a rack is survived by two copies. */
#ifndef CST_HOMES_H
#define CST_HOMES_H

#include "proto/set.h"

struct cst_homes {
    /* Machines with which the job was made: numbers 0 to n_first - 1; at least 1, at most
     * CST_SET_MAX. */
    uint32_t n_first;
    uint32_t n_copies; /* At least 1. */
    /* Per number below CST_SET_MAX: the rack of its machine, below CST_SET_MAX, also of a machine
     * that has left; CST_SET_MAX: no machine has had this number. NULL: each machine has a rack of
     * its own. Borrowed. */
    const uint32_t *racks;
};

/* Write the home of @chunk and then its buddies to @out, which has room for n_copies. @machines are
 * those that have their states: a machine that was added counts when its states were copied.
 * Returns the number of copies: the smaller one of n_copies and the number of machines. */
uint32_t cst_homes_copies(const struct cst_homes *homes, uint32_t chunk,
                          const struct cst_set *machines, uint32_t *out);

/* Return the home of @chunk; CST_SET_MAX: *machines is empty. */
uint32_t cst_homes_home(const struct cst_homes *homes, uint32_t chunk,
                        const struct cst_set *machines);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the calls that two ranks make in the same place. The ranks say what they call in shared
 * memory, which another process can change at any time: it is read once, and then compared. */
#ifndef CSTC_COMPARE_H
#define CSTC_COMPARE_H

#include "cistern/status.h"
#include "proto/comm_memory.h"

/* What a rank calls. */
struct cstc_compare_side {
    uint32_t name; /* Number of the rank in the job. */
    struct cst_comm_header header;
};

/* Read what is at @from, each number once. Numbers that are read later are not older. */
struct cst_comm_header cstc_compare_read(const struct cst_comm_header *from);
void cstc_compare_read_numbers(uint64_t *out, const uint64_t *from, size_t n);

/* Compare call @number, from 1 on, of two ranks. CST_EMISMATCH: they differ, and *err has both. */
int cstc_compare_headers(uint64_t number, const struct cstc_compare_side *a,
                         const struct cstc_compare_side *b, struct cst_err *err);

/* Call @number is an all-to-all. Rank @from sends @sent bytes to rank @to, which receives @received
 * from it. CST_EMISMATCH: they differ. All ranks compare the numbers of every two ranks, so that
 * the call fails in all of them. */
int cstc_compare_counts(uint64_t number, uint32_t from, uint64_t sent, uint32_t to,
                        uint64_t received, struct cst_err *err);

#endif

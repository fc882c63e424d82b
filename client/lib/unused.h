/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors have no gradient in the step of this rank, for a job that skips such tensors. */
#ifndef CSTC_UNUSED_H
#define CSTC_UNUSED_H

#include "cistern/status.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cst_job;

struct cstc_unused {
    bool skips;     /* The job skips them. If not, the pointers are NULL. */
    size_t n_bytes; /* Bytes of a bit for each tensor. */
    /* A bit for each tensor, from the lowest bit of the first byte on: no gradient of it was
     * written in this step, or only zeros; it was discarded. Owned. */
    uint8_t *without, *discarded;
};

/* Prepare for the declared tensors. CST_ENOMEM. */
int cstc_unused_open(struct cst_job *job, struct cst_err *err);
void cstc_unused_close(struct cst_job *job);

/* A step begins: no gradient was written. */
void cstc_unused_reset(struct cst_job *job);

/* The backward pass of operator @op has ended, and has written the gradients of its tensors. */
void cstc_unused_written(struct cst_job *job, uint32_t op);

/* Say in @msg which tensors have no gradient. The message borrows the bits. */
void cstc_unused_fill(struct cst_job *job, Cistern__Step *msg);

/* Fill @msg, which is initialised and borrows @missed, with the next of the @n numbers of steps
 * that tensors have missed, from *told on, and let *told be how many the daemon knows then. The
 * first message replaces what the daemon was told before: with @n 0, no tensor has missed any. */
void cstc_unused_fill_missed(Cistern__Restore *msg, const uint64_t *missed, size_t n, size_t *told);

#endif

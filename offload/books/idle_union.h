/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of all machines say together of the tensors without a gradient in a step: the
 * union of what each machine tells in its UNUSED (offload/base/machines.h), or on one machine what
 * its ranks have said. A tensor is idle if it is so on each machine. Does not look at ranks, and
 * counts no steps. Called by idle alone. */
#ifndef CST_IDLE_UNION_H
#define CST_IDLE_UNION_H

#include "offload/books/membership.h"

struct cst_idle_union {
    size_t n_bytes;       /* Bytes of a bit for each tensor. */
    struct cst_when when; /* The latest one about which a machine has told something. */
    uint64_t told;        /* Bit m: machine m has told what its ranks have said. */
    /* A bit for each tensor: no rank of a machine in `told` has a gradient; no rank here has one,
     * to be told. Owned. */
    uint8_t *idle, *own;
};

/* Fill *out for @n_tensors tensors. CST_ENOMEM: the caller calls cst_idle_union_close nevertheless.
 */
int cst_idle_union_open(struct cst_idle_union *out, uint32_t n_tensors);
void cst_idle_union_close(struct cst_idle_union *all);

/* Take @what, an UNUSED of machine @machine. What an earlier step, attempt or epoch has told is
 * void, and @what has no effect if it is of an earlier one. CST_EPROTO, with words: @what has more
 * bits than the job has tensors. */
int cst_idle_union_take(struct cst_idle_union *all, uint32_t machine,
                        const struct cst_machine_message *what, struct cst_err *err);

/* Fill in @out, an UNUSED, with the bits of this machine, which @all owns. Bytes at the end that
 * are 0 are left out, so that nothing is told of a step that uses all tensors. */
void cst_idle_union_fill(const struct cst_idle_union *all, struct cst_machine_message *out);

/* True if all of @machines have told what their ranks say about @when. */
bool cst_idle_union_has(const struct cst_idle_union *all, uint64_t machines,
                        const struct cst_when *when);

#endif

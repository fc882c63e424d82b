/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that the files of a checkpoint have. The ranks of a job declare parts of some tensors
 * (cst_tensor_spec.whole_name); files have the wholes, so that they do not depend on the ranks.
 * Pure; only allocates memory. */
#ifndef CST_CHECKPOINT_WHOLES_H
#define CST_CHECKPOINT_WHOLES_H

#include "offload/layout/reshard.h"
#include "proto/cistern.pb-c.h"

struct cstc_wholes {
    struct cst_model parts; /* The tensors of a description, in its order. All are in group 0. */
    struct cst_model files; /* The tensors of the files. */
    uint32_t *of;           /* Number in `files` of the whole of each part. */
    struct cst_reshard way; /* From `parts` to `files`. */
    /* The description, with the tensors of `files` instead of its own and without operators. It
     * borrows from the description and from `files`. */
    Cistern__JobDescription description;
    Cistern__TensorDecl *decls, **list; /* Private: its tensors. */
    uint32_t *chunks;                   /* Private: all are in one chunk. */
};

/* True if a tensor of @d is a part of a whole that has a name of its own. */
bool cstc_wholes_has_parts(const Cistern__JobDescription *d);

/* Find the tensors that files have for @d, which cstc_content_check has accepted and which is
 * borrowed. @joined: they are the wholes; otherwise each tensor has its own name in files. The
 * caller closes *wholes; after a failure it is closed. Statuses: those of cst_wholes_open, and
 * CST_EINVAL: a tensor could not have been declared. CST_EMISMATCH also means that the parts of a
 * whole are updated by Muon and without it. */
int cstc_wholes_open(struct cstc_wholes *wholes, const Cistern__JobDescription *d, bool joined,
                     struct cst_err *err);

/* Free everything. A zeroed struct is allowed. */
void cstc_wholes_close(struct cstc_wholes *wholes);

#endif

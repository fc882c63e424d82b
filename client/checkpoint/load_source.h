/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint from which a job is loaded: its files, which are all checked before anything is
 * written, and what they have of the job. Writes nothing. Used by the client's thread only. */
#ifndef CST_LOAD_SOURCE_H
#define CST_LOAD_SOURCE_H

#include "client/checkpoint/content.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/wholes.h"
#include "client/lib/job.h"

/* Everything is owned, except the job. */
struct cstc_load_source {
    struct cst_job *job;
    int dirfd;                                /* The directory; -1: not open. */
    char warning[CSTC_LISTING_WARNING_BYTES]; /* About the directory; "": none. */
    struct cstc_manifest manifest;
    struct cstc_wholes wholes;   /* The tensors of the files. */
    struct cstc_content content; /* Of wholes.description. */
    /* Number of the first entry of each tensor of the files; those of a tensor follow each other,
     * and tensors of one whole have the same ones. UINT32_MAX: it has none. */
    uint32_t *entries;
    struct cst_model from;  /* The tensors of the files, at their places in the job's wholes. */
    struct cst_reshard way; /* From `from` to the tensors of the job. */
    struct cstc_tensor_file *files; /* The files with tensors. Entries of the content name these. */
    struct cstc_tensor_entry *places; /* Of each entry of states, in its file. */
    struct cstc_weights *weights;     /* Of each entry of weights. */
    /* If the job and the checkpoint count the steps of each tensor: those that it has missed, by
     * its number in the job; otherwise NULL. */
    uint64_t *missed;
    size_t n_missed;   /* Numbers in `missed`. */
    uint32_t n_open;   /* Files that are open. */
    uint32_t n_models; /* The first ones of these, which have weights. */
    bool converts;     /* The job has another format of moments. */
    /* The job, or the one that was saved, has blocks of mx8 moments that the files do not have. */
    bool divides;
};

/* Open the checkpoint at @path, as cst_load describes, for @job, and check everything. The statuses
 * of cst_load that say what is wrong with the checkpoint, CST_EIO, CST_ENOMEM: nothing is owned. */
int cstc_load_source_open(struct cstc_load_source *source, struct cst_job *job, const char *path,
                          struct cst_err *err);
/* Close the files and free everything. */
void cstc_load_source_close(struct cstc_load_source *source);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint contains: which rows of which tensors, under which names, in which files.
 * Follows from the description of the job alone. Pure. */
#ifndef CSTC_CONTENT_H
#define CSTC_CONTENT_H

#include "client/checkpoint/weights.h"
#include "client/lib/state_io.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>

/* A tensor's name and the longest suffix. */
#define CSTC_CONTENT_NAME_BYTES (CST_LAYOUT_NAME_BYTES + 32)
#define CSTC_CONTENT_FILE_BYTES 64

/* A row of a tensor, or the exponents of a row in mx8. */
struct cstc_content_entry {
    char name[CSTC_CONTENT_NAME_BYTES]; /* Name in the file. */
    uint32_t tensor;                    /* Number in the description. */
    uint32_t row;                       /* enum cst_row */
    bool raw, exponents;                /* As in TensorIo. */
    enum cstc_dtype dtype;
    int64_t shape[CSTC_TENSOR_MAX_DIMS];
    uint32_t n_dims;
    uint64_t n_elems; /* Elements of the tensor, not of the exponents. */
    uint64_t bytes;
    uint32_t file; /* Index into cstc_content.files. */
    /* Entries of model files: the declaration of the tensor, which has its external names. Other
     * entries: NULL. */
    const Cistern__TensorDecl *weights;
};

/* States; the weights of a model; the weights of adapters. */
enum cstc_content_kind {
    CSTC_CONTENT_STATES,
    CSTC_CONTENT_MODEL,
    CSTC_CONTENT_ADAPTER,
    CSTC_CONTENT_KINDS
};

struct cstc_content_file {
    char name[CSTC_CONTENT_FILE_BYTES];
    enum cstc_content_kind kind;
};

struct cstc_content {
    /* In the order of the tensors' names, so that files do not depend on chunks or ranks; in a
     * tensor: master weights, weights, moments. A load writes in this order, because writing master
     * weights changes the others. In each file the order is the same. */
    struct cstc_content_entry *entries;
    uint32_t n_entries;
    struct cstc_content_file *files;
    uint32_t n_files;
};

/* Check a description, which may come from a file that anybody wrote: every list has its length,
 * and every number is that of something. CST_EINVAL. */
int cstc_content_check(const Cistern__JobDescription *description, struct cst_err *err);

/* Make the content of a checkpoint of @description, which is borrowed. No file has more than
 * @file_bytes of data, unless it has only one entry. Tensors of a base job are left out. @fp32:
 * model files have the master weights, and of bf16 tensors only frozen ones are BF16. The master
 * weights of fp32 tensors are in model files alone. CST_EINVAL: the
 * description contradicts itself; CST_ENOMEM. */
int cstc_content_make(struct cstc_content *content, const Cistern__JobDescription *description,
                      uint64_t file_bytes, bool fp32, struct cst_err *err);

/* The declaration of a tensor in the form of cstc_weights_find. The result points into @decl. */
struct cst_tensor_words cstc_content_words(const Cistern__TensorDecl *decl);

/* Returns whether entry @entry is the last one of its file. */
bool cstc_content_ends_file(const struct cstc_content *content, uint32_t entry);

void cstc_content_close(struct cstc_content *content);

/* The piece of @entry that begins at element @first, a multiple of 32, and has at most @most bytes,
 * a multiple of 4096. The tensor's number is that of the description. */
struct cstc_state_piece cstc_content_piece(const struct cstc_content_entry *entry, uint64_t first,
                                           uint64_t most);

/* Bytes of the elements [0, @n_elems) of @entry. */
uint64_t cstc_content_bytes(const struct cstc_content_entry *entry, uint64_t n_elems);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a tensor in model files: one tensor of the file under its own name, or several
 * external tensors (cst_tensor_spec.external_names). */
#ifndef CSTC_WEIGHTS_H
#define CSTC_WEIGHTS_H

#include "client/checkpoint/tensor_file.h"
#include "offload/layout/layout.h"

/* A tensor of a model file. */
struct cstc_weights_part {
    const char *name;
    int64_t shape[CSTC_TENSOR_MAX_DIMS];
    uint32_t n_dims;
    uint64_t first_row;                  /* Number of its first row among the rows of all parts. */
    const struct cstc_tensor_file *file; /* Where it is. */
    struct cstc_tensor_entry place;
};

/* Rows of a transposed tensor that were read together. */
struct cstc_weights_band {
    char *elems; /* Row by row. Owned; NULL: there are none. */
    enum cstc_dtype dtype;
    uint64_t row, n_rows; /* The first row, and the number of rows. */
};

/* The parts of a tensor in open files. */
struct cstc_weights {
    struct cstc_weights_part *parts; /* Owned. */
    uint32_t n_parts;
    uint64_t columns; /* Elements in a row of the tensor. */
    bool transposed;  /* The parts' rows are columns of the tensor. */
    struct cstc_weights_band band;
};

/* Returns the number of tensors that the tensor @words is in model files. */
uint32_t cstc_weights_count(const struct cst_tensor_words *words);

/* Store the name, the shape and the first row of part @i of @words. The name is borrowed. */
void cstc_weights_part(const struct cst_tensor_words *words, uint32_t i,
                       struct cstc_weights_part *out);

/* Find the parts of @words in @files, which @weights refers to. A file may have a name without
 * @prefix, with which the name begins; NULL: it must have the whole name. CST_EINVAL: a part is
 * missing, or has another shape, or its type is not F32, BF16 or F16; the words name it.
 * CST_ENOMEM. */
int cstc_weights_find(struct cstc_weights *weights, const struct cst_tensor_words *words,
                      const struct cstc_tensor_file *files, uint32_t n_files, const char *prefix,
                      struct cst_err *err);
void cstc_weights_close(struct cstc_weights *weights);

/* True if all parts are bf16. */
bool cstc_weights_are_bf16(const struct cstc_weights *weights);

/* Free what was read ahead. */
void cstc_weights_rest(struct cstc_weights *weights);

/* Read the elements [first, first + n) of the tensor, in its own order, as @dtype, which is F32 or
 * BF16. Elements that have this type keep their bits. A transposed tensor should be read in its
 * order: up to 32 MiB are read ahead, and kept until its last element is read. CST_EIO: a file
 * cannot be read, or has become shorter. CST_ENOMEM. */
int cstc_weights_read(struct cstc_weights *weights, uint64_t first, uint64_t n,
                      enum cstc_dtype dtype, void *out, struct cst_err *err);

#endif

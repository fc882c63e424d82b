/* SPDX-License-Identifier: Apache-2.0 */
/* Files in the safetensors format: the length of the header (8 bytes, little endian), the header (a
 * JSON object), the data of all tensors without gaps. See
 * https://huggingface.co/docs/safetensors. Here the header is padded with spaces, so that the data
 * begins at a multiple of 4096 bytes. */
#ifndef CSTC_TENSOR_FILE_H
#define CSTC_TENSOR_FILE_H

#include "cistern/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define CSTC_TENSOR_MAX_DIMS 8
/* Longest header that is read. A header takes about 150 bytes for each tensor. */
#define CSTC_TENSOR_MAX_HEADER (100u << 20)

/* Element types that cistern writes or reads. */
enum cstc_dtype {
    CSTC_DTYPE_BF16,
    CSTC_DTYPE_F32,
    CSTC_DTYPE_U8,
    CSTC_DTYPE_F16,
    CSTC_DTYPE_OTHER
};

/* Bytes of an element; 0: OTHER. */
unsigned cstc_dtype_bytes(enum cstc_dtype dtype);

/* A tensor of a file. */
struct cstc_tensor_entry {
    enum cstc_dtype dtype;
    uint32_t n_dims;
    int64_t shape[CSTC_TENSOR_MAX_DIMS];
    uint64_t begin; /* First byte of the data, from the beginning of the file. */
    uint64_t bytes; /* Size of the data. */
};

/* A header that is being made. */
struct cstc_tensor_header {
    json_t *json;   /* Owned. */
    uint64_t bytes; /* Bytes of data of the tensors so far. */
};

/* Begin a header. CST_ENOMEM. cstc_tensor_header_close frees it. */
int cstc_tensor_header_open(struct cstc_tensor_header *header, struct cst_err *err);
void cstc_tensor_header_close(struct cstc_tensor_header *header);

/* Add a tensor, whose data follows those of the tensors before. CST_ENOMEM; CST_EEXIST: the name is
 * taken. */
int cstc_tensor_header_add(struct cstc_tensor_header *header, const char *name,
                           enum cstc_dtype dtype, const int64_t *shape, uint32_t n_dims,
                           struct cst_err *err);

/* Make the first bytes of the file: length, JSON and padding. The caller frees *out. CST_ENOMEM. */
int cstc_tensor_header_bytes(const struct cstc_tensor_header *header, void **out, size_t *bytes,
                             struct cst_err *err);

/* An open file of tensors. */
struct cstc_tensor_file {
    int fd;         /* Owned. */
    char name[256]; /* For messages. */
    uint64_t bytes; /* Length of the file. */
    uint64_t data;  /* Where the data begins. */
    json_t *header; /* Owned. */
};

/* Open the file @name of the directory @dirfd and check its whole header: every tensor lies in the
 * file, its shape and type have the size of its data, and no two tensors overlap. CST_ENOTFOUND;
 * CST_EIO; CST_EINVAL: not such a file, the words name the tensor; CST_ENOMEM. */
int cstc_tensor_file_open(struct cstc_tensor_file *file, int dirfd, const char *name,
                          struct cst_err *err);
void cstc_tensor_file_close(struct cstc_tensor_file *file);

/* Find the tensor @name. CST_ENOTFOUND: the file does not have it. */
int cstc_tensor_file_find(const struct cstc_tensor_file *file, const char *name,
                          struct cstc_tensor_entry *out, struct cst_err *err);

/* Read @bytes at @offset of the file. CST_EIO: an error, or the file ends before. */
int cstc_tensor_file_read(const struct cstc_tensor_file *file, uint64_t offset, void *data,
                          size_t bytes, struct cst_err *err);

#endif

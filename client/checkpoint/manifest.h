/* SPDX-License-Identifier: Apache-2.0 */
/* The file cistern.json of a checkpoint: the description of the job, and the size and checksum of
 * each other file. It is written last. */
#ifndef CSTC_MANIFEST_H
#define CSTC_MANIFEST_H

#include "client/checkpoint/content.h"
#include "client/checkpoint/file_writer.h"

#define CSTC_MANIFEST_NAME "cistern.json"
#define CSTC_MODEL_CONFIG_NAME "config.json"
#define CSTC_ADAPTER_CONFIG_NAME "adapter_config.json"
#define CSTC_BUFFERS_NAME "buffers.safetensors"

struct cstc_manifest_file {
    char name[CSTC_CONTENT_FILE_BYTES];
    uint64_t bytes;
    struct cstc_file_hash hash;
};

struct cstc_manifest {
    Cistern__JobDescription *description; /* Owned by a manifest that was read. */
    struct cstc_manifest_file *files;     /* Owned by a manifest that was read. */
    uint32_t n_files;
    /* Files have the wholes of the description's tensors, joined (wholes.h). Otherwise, as in all
     * checkpoints of earlier versions, they have each tensor under its own name. */
    bool joined;
};

/* Write the manifest to the directory @dirfd. *bytes is its size. CST_EIO, CST_ENOMEM. */
int cstc_manifest_write(const struct cstc_manifest *manifest, int dirfd, uint64_t *bytes,
                        struct cst_err *err);

/* Read the manifest of the directory @dirfd. CST_ENOTFOUND: there is none; CST_EINVAL: it is not
 * valid; CST_EUNSUPPORTED: it has a later format, which this version cannot read; CST_EIO;
 * CST_ENOMEM. */
int cstc_manifest_read(struct cstc_manifest *manifest, int dirfd, struct cst_err *err);
void cstc_manifest_close(struct cstc_manifest *manifest);

/* Check that all files of @manifest are in the directory @dirfd, with their sizes and, if @hashes,
 * their checksums. CST_EINVAL: one is missing, torn or altered; the words name it. CST_EIO. */
int cstc_manifest_check(const struct cstc_manifest *manifest, int dirfd, bool hashes,
                        struct cst_err *err);

/* Write @json as the file @name of @dirfd. CST_EIO, CST_ENOMEM. */
int cstc_json_write(const json_t *json, int dirfd, const char *name, uint64_t *bytes,
                    struct cstc_file_hash *hash, struct cst_err *err);

#endif

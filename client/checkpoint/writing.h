/* SPDX-License-Identifier: Apache-2.0 */
/* The writing of a checkpoint, whatever its states come from: pieces of states are asked for in the
 * order of the files' contents (joining.h) and appended to the files.
 *
 *   open -> cstc_joining_next of `joining`, cstc_writing_take, ... -> end -> close
 *
 * Used by the client's thread only. */
#ifndef CSTC_WRITING_H
#define CSTC_WRITING_H

#include "client/checkpoint/directory.h"
#include "client/checkpoint/joining.h"
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/transpose.h"

struct cstc_writing {
    /* From the caller, before open; borrowed. The others are 0. */

    const char *dir;     /* Directory of the checkpoints. */
    uint32_t keep;       /* As in struct cst_save_spec. */
    bool fp32;           /* Model files have the fp32 master weights. */
    const void *buffers; /* Contents of buffers.safetensors; NULL: there is no such file. */
    uint64_t buffers_bytes;
    Cistern__JobDescription *description;

    /* Owned. */

    bool has_directory;
    bool whole; /* The checkpoint has its name. */
    struct cstc_wholes wholes;
    struct cstc_content content; /* Of the wholes. */
    struct cstc_joining joining; /* The caller sets `most` before the first piece. */
    struct cstc_directory directory;
    struct cstc_file_writer **writers; /* One for each file of the content; NULL: not open. */
    struct cstc_manifest manifest;     /* Owns nothing. */
    struct cstc_manifest_file *files;  /* The files that are complete. */
    uint32_t n_files;
    uint64_t bytes;                  /* Of all complete files. */
    struct cstc_transpose transpose; /* Weights that are transposed in the file. */
};

/* Make the list of contents and the directory. The statuses of cstc_content_check,
 * cstc_content_make and cstc_directory_begin; CST_ENOMEM. The caller closes @w in any case. */
int cstc_writing_open(struct cstc_writing *w, struct cst_err *err);

/* Append @data, that of the next piece of `joining`. CST_EIO, CST_ENOMEM. */
int cstc_writing_take(struct cstc_writing *w, const struct cstc_state_piece *piece,
                      const void *data, struct cst_err *err);

/* All pieces were taken: write what is about all files, and give the checkpoint its name. The
 * statuses of cstc_directory_commit and cstc_directory_keep. */
int cstc_writing_end(struct cstc_writing *w, struct cst_err *err);

/* Free everything; without `end` the files are removed. */
void cstc_writing_close(struct cstc_writing *w);

#endif

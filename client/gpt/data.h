/* SPDX-License-Identifier: Apache-2.0 */
/* The training text: a file of tokens, and the choice of the stretches that a step trains on. The
 * choice is a pure function of the seed and of the sequence's number in the run. Therefore a
 * repeated step reads the same tokens, and runs with another number of ranks but the same total
 * number of sequences per step do too. The file is not mapped into memory: if it became shorter
 * during the run, an access beyond its end would kill the process. */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Form of a token in the file. Larger ones are little-endian. */
enum gpt_tokens { GPT_TOKENS_BYTES, GPT_TOKENS_UINT16, GPT_TOKENS_UINT32 };

struct gpt_data {
    const char *name;    /* path, borrowed; for messages */
    int fd;              /* the file */
    bool owns_fd;        /* false: another gpt_data closes the file, or none is open */
    uint64_t file_bytes; /* size of the file when it was opened */
    size_t first;        /* number of the first token in the file */
    size_t n_tokens;
    enum gpt_tokens form;
    uint32_t vocab; /* tokens are below this number */
};

/* The text that is trained on, and the text for validation, which may have no tokens. */
struct gpt_texts {
    struct gpt_data train, validation;
};

/* Open the file at @path, which is borrowed. The caller closes @data with gpt_data_close. A
 * sequence and its targets take @context + 1 tokens. Statuses:
 *   - CST_EINVAL: the file has fewer than @context + 1 tokens or not a whole number of them, or is
 *     not a regular file.
 *   - CST_EIO: the file cannot be read. */
int gpt_data_open(struct gpt_data *data, const char *path, enum gpt_tokens form, uint32_t vocab,
                  size_t context, struct cst_err *err);
void gpt_data_close(struct gpt_data *data);

/* Move the last @percent of the tokens of @data to @part, which uses the open file of @data.
 * CST_EINVAL: one of both has fewer than @context + 1 tokens. */
int gpt_data_split(struct gpt_data *data, double percent, size_t context, struct gpt_data *part,
                   struct cst_err *err);

/* Store the @context tokens from number @at on in @tokens, and those from @at + 1 on in @targets.
 * Statuses:
 *   - CST_EINVAL: a token is not in the vocabulary; the error names its place in the file.
 *   - CST_EIO: the file could not be read, or it has become shorter since it was opened. */
int gpt_data_sequence(const struct gpt_data *data, size_t at, size_t context, uint32_t *tokens,
                      uint32_t *targets, struct cst_err *err);

/* Fill @tokens and @targets (n_seqs x context each, owned by the caller) with the sequences
 * [first, first + n_seqs) of the run. A sequence is a stretch at a random place of the text. Its
 * targets are the stretch that begins one token later. Any thread may call this function.
 * The statuses are those of gpt_data_sequence. */
int gpt_data_batch(const struct gpt_data *data, uint64_t seed, uint64_t first, size_t n_seqs,
                   size_t context, uint32_t *tokens, uint32_t *targets, struct cst_err *err);

#endif

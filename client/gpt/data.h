/* SPDX-License-Identifier: Apache-2.0 */
/* The training text: a file of bytes that is mapped into memory, and the choice of the stretches
 * that a step trains on. The choice is a pure function of the seed and of the sequence's number in
 * the run. Therefore a repeated step reads the same bytes, and runs with another number of ranks
 * but the same total number of sequences per step do too. */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct gpt_data {
    const uint8_t *bytes; /* mapped read-only */
    size_t n_bytes;
};

/* Map the file at @path into @data. The caller ends the mapping with gpt_data_close. A sequence and
 * its targets take @context + 1 bytes. Statuses:
 *   - CST_EINVAL: the file has fewer than @context + 1 bytes, or is not a regular file.
 *   - CST_EIO: the file cannot be read. */
int gpt_data_open(struct gpt_data *data, const char *path, size_t context, struct cst_err *err);
void gpt_data_close(struct gpt_data *data);

/* Fill @tokens and @targets (n_seqs x context bytes each, owned by the caller) with the sequences
 * [first, first + n_seqs) of the run. A sequence is a stretch at a random place of the text. Its
 * targets are the stretch that begins one byte later. Any thread may call this function. */
void gpt_data_batch(const struct gpt_data *data, uint64_t seed, uint64_t first, size_t n_seqs,
                    size_t context, uint8_t *tokens, uint8_t *targets);

#endif

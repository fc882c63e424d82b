/* SPDX-License-Identifier: Apache-2.0 */
/* The training text: a file of bytes in memory, and which stretches of it a step uses. The choice
 * is a pure function of (seed, number of the sequence in the run), so that a step that is done
 * again sees the same bytes, and so do other numbers of ranks with the same sequences per step
 * together.
 */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct gpt_data {
    const uint8_t *bytes; /* mapped, read only */
    size_t n_bytes;
};

/* Map the file at @path. A sequence and its targets take @context + 1 bytes: CST_EINVAL if the file
 * has fewer, or is not a regular file; CST_EIO if it cannot be read. gpt_data_close unmaps. */
int gpt_data_open(struct gpt_data *data, const char *path, size_t context, struct cst_err *err);
void gpt_data_close(struct gpt_data *data);

/* Fill @tokens and @targets (n_seqs x context each) with sequences [first, first + n_seqs) of the
 * run: stretches at random places, targets one byte on. Any thread. */
void gpt_data_batch(const struct gpt_data *data, uint64_t seed, uint64_t first, size_t n_seqs,
                    size_t context, uint8_t *tokens, uint8_t *targets);

#endif

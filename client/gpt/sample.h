/* SPDX-License-Identifier: Apache-2.0 */
/* Text from the trained model, byte by byte, its weights read through the store's operators as in
 * training. */
#ifndef GPT_SAMPLE_H
#define GPT_SAMPLE_H

#include "client/gpt/pass.h"

/* Generate @n bytes after @prompt into @out (n bytes, the caller's). The last context bytes are
 * seen. A byte is a function of (seed, its number) and the weights. @temperature 0: the likeliest
 * byte. Statuses of the pass. */
int gpt_sample(struct gpt_pass *pass, struct gpt_store *store, const char *prompt, uint64_t seed,
               double temperature, uint64_t n, char *out, struct cst_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Text generation by the trained model, byte by byte. */
#ifndef GPT_SAMPLE_H
#define GPT_SAMPLE_H

#include "client/gpt/pass.h"

/* Generate @n bytes after @prompt into @out (n bytes, owned by the caller). Each byte is predicted
 * from the last context bytes. It is a function of the weights, the seed and its number. @store
 * provides the weights to @pass. @temperature 0: always the most probable byte. The statuses are
 * those of the pass. */
int gpt_sample(struct gpt_pass *pass, struct gpt_store *store, const char *prompt, uint64_t seed,
               double temperature, uint64_t n, char *out, struct cst_err *err);

#endif

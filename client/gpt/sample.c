/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/sample.h"

#include "client/gpt/rng.h"

#include <math.h>
#include <string.h>

#define STREAM_SAMPLE (2ull << 40) /* larger than the stream of the data */

/* The byte at which the cumulative probability exceeds @at. */
static uint8_t pick(const float *logits, double temperature, double at)
{
    double p[GPT_VOCAB], sum = 0.0;
    unsigned best = 0;

    for (unsigned i = 1; i < GPT_VOCAB; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    if (temperature <= 0.0) {
        return (uint8_t)best;
    }
    for (unsigned i = 0; i < GPT_VOCAB; i++) {
        p[i] = exp((double)(logits[i] - logits[best]) / temperature);
        sum += p[i];
    }
    at *= sum;
    for (unsigned i = 0; i < GPT_VOCAB; i++) {
        at -= p[i];
        if (at < 0.0) {
            return (uint8_t)i;
        }
    }
    /* Rounding can leave @at at 0 or above after the last byte. */
    return (uint8_t)best;
}

int gpt_sample(struct gpt_pass *pass, struct gpt_store *store, const char *prompt, uint64_t seed,
               double temperature, uint64_t n, char *out, struct cst_err *err)
{
    const size_t context = pass->model->context, given = strlen(prompt);
    size_t seen = given < context ? given : context;

    memset(pass->tokens, 0, context * sizeof *pass->tokens);
    for (size_t i = 0; i < seen; i++) {
        pass->tokens[i] = (uint8_t)prompt[given - seen + i];
    }
    /* The model needs at least one byte. */
    if (seen == 0) {
        pass->tokens[seen++] = '\n';
    }
    for (uint64_t i = 0; i < n; i++) {
        const double at = gpt_rng_unit(seed, STREAM_SAMPLE, i);
        float logits[GPT_VOCAB];
        int rc = pass->ops->forward(pass, store, 1, false, err);

        if (rc == 0) {
            rc = pass->ops->logits(pass, seen - 1, logits, err);
        }
        if (rc != 0) {
            return rc;
        }
        out[i] = (char)pick(logits, temperature, at);
        if (seen == context) {
            memmove(pass->tokens, pass->tokens + 1, --seen * sizeof *pass->tokens);
        }
        pass->tokens[seen++] = (uint8_t)out[i];
    }
    return 0;
}

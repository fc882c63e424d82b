/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/card.h"

#include "proto/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A CUDA context with its kernels takes about half a GiB on cards of data centres. Workspaces:
 * cistern-gpt takes 64 MiB for cuBLASLt, and PyTorch takes 32 MiB on Hopper. On a card of less than
 * 4 GiB, which is a part of a card or a stand-in, both are a fixed share instead. */
#define CONTEXT_BYTES (UINT64_C(512) << 20)
#define CONTEXT_SHARE 8
#define WORKSPACE_BYTES (UINT64_C(64) << 20)
#define WORKSPACE_SHARE 64
/* Share of a card that is left to ranks that do not declare their activations. */
#define ASSUMED_SHARE 10

#define MOST_ACTIVATIONS (UINT64_MAX / 1024)

static uint64_t at_most(uint64_t bytes, uint64_t limit)
{
    return bytes < limit ? bytes : limit;
}

static void add_context(struct cst_card *card)
{
    card->n_contexts++;
    card->context_bytes += at_most(CONTEXT_BYTES, card->memory_bytes / CONTEXT_SHARE);
}

void cst_card_init(struct cst_card *card, uint64_t memory_bytes)
{
    *card = (struct cst_card){.memory_bytes = memory_bytes};
    add_context(card);
}

void cst_card_add_rank(struct cst_card *card, uint64_t activation_bytes)
{
    add_context(card);
    card->workspace_bytes += at_most(WORKSPACE_BYTES, card->memory_bytes / WORKSPACE_SHARE);
    card->activation_bytes += at_most(activation_bytes, MOST_ACTIVATIONS - card->activation_bytes);
    if (activation_bytes == 0) {
        card->n_undeclared++;
        card->assumed_bytes = card->memory_bytes / ASSUMED_SHARE;
    }
}

uint64_t cst_card_bytes(const struct cst_card *card)
{
    return card->context_bytes + card->workspace_bytes + card->activation_bytes +
           card->assumed_bytes;
}

/* Append a part to the list in @out; nothing if it has no bytes. */
__attribute__((format(printf, 4, 5))) static void add_part(char *out, size_t n, uint64_t bytes,
                                                           const char *format, ...)
{
    char size[CST_SIZE_TEXT];
    size_t used = strlen(out);
    va_list args;

    if (bytes == 0) {
        return;
    }
    (void)snprintf(out + used, n - used, "%s%s for ", used > 0 ? ", " : "",
                   cst_size_text(bytes, size));
    used = strlen(out);
    va_start(args, format);
    (void)vsnprintf(out + used, n - used, format, args);
    va_end(args);
}

void cst_card_words(const struct cst_card *card, char *out, size_t n)
{
    out[0] = '\0';
    add_part(out, n, card->context_bytes, "%u CUDA context%s", card->n_contexts,
             card->n_contexts == 1 ? "" : "s");
    add_part(out, n, card->workspace_bytes, "workspaces of libraries");
    add_part(out, n, card->activation_bytes, "activations");
    add_part(out, n, card->assumed_bytes, "activations of %u rank%s without a declaration",
             card->n_undeclared, card->n_undeclared == 1 ? "" : "s");
}

uint64_t cst_card_activations(const struct cst_model *model, uint32_t rank)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct cst_layout_operator *op = &model->operators[i];

        if (cst_model_runs(model, op, rank)) {
            bytes += at_most(op->activation_bytes, MOST_ACTIVATIONS - bytes);
        }
    }
    return bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a job whose ranks each do all operators that they hold, over micro-batches of
 * their own: an addend is the contribution of one rank of the group in one micro-batch. Has no
 * state: how far a rank is stands in the rank. */
#include "offload/schedule/step_schedule.h"

#include "offload/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>

static bool serves(const struct cst_model *model)
{
    return model->n_stages == 0;
}

static int check(const struct cst_model *model, uint32_t micro_batches, enum cst_overlap overlap,
                 struct cst_err *err)
{
    (void)model;
    (void)micro_batches;
    (void)overlap;
    (void)err;
    return CST_OK;
}

static int open(struct cst_core *core, struct cst_err *err)
{
    (void)err;
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        struct cst_chunk *chunk = &core->chunks[c];

        chunk->n_in_sum = cst_set_count(chunk->ranks);
        chunk->n_addends = core->micro_batches * chunk->n_in_sum;
    }
    return CST_OK;
}

static void nothing(struct cst_core *core)
{
    (void)core;
}

static uint32_t addend_of(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    return core->ranks[rank].micro * chunk->n_in_sum +
           (chunk->n_in_sum == core->world ? rank : cst_set_count_below(chunk->ranks, rank));
}

static enum cst_addend_state state_of(const struct cst_core *core, uint32_t c, uint32_t first,
                                      const struct cst_rank *r)
{
    if (r->micro * core->chunks[c].n_in_sum > first) {
        return CST_ADDEND_NEVER; /* The rank is in a later micro-batch. */
    }
    if (r->stepped) {
        return core->attempt.closing ? CST_ADDEND_NEVER : CST_ADDEND_LEFT_OUT;
    }
    return CST_ADDEND_EXPECTED;
}

static enum cst_addend_state state(const struct cst_core *core, uint32_t c, uint32_t first,
                                   uint32_t rank)
{
    return state_of(core, c, first, &core->ranks[rank]);
}

static uint64_t expected(const struct cst_core *core, uint32_t c, uint32_t first, uint32_t word,
                         uint64_t among)
{
    const struct cst_rank *ranks = &core->ranks[word * CST_SET_WORD];
    uint64_t left = 0;

    for (; among != 0; among &= among - 1) {
        if (state_of(core, c, first, &ranks[__builtin_ctzll(among)]) == CST_ADDEND_EXPECTED) {
            left |= among & (0 - among);
        }
    }
    return left;
}

static void say(const struct cst_core *core, uint32_t c, uint32_t addend,
                char text[CST_ADDEND_TEXT])
{
    (void)snprintf(text, CST_ADDEND_TEXT, "micro-batch %" PRIu32,
                   addend / core->chunks[c].n_in_sum + 1);
}

static uint32_t block_of(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    (void)c;
    return rank / core->partials.block_ranks;
}

static uint32_t n_losses(const struct cst_core *core)
{
    return core->partials.on ? core->partials.block_ranks : core->world;
}

static void losses(const struct cst_core *core, double *out)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        out[rank] = core->ranks[rank].loss;
    }
}

/* A rank that gives no loss has 0. */
static double mean_loss(const double *of_ranks, uint32_t n)
{
    double sum = 0;
    uint32_t n_given = 0;

    for (uint32_t rank = 0; rank < n; rank++) {
        sum += of_ranks[rank];
        n_given += of_ranks[rank] != 0;
    }
    return n_given > 0 ? sum / n_given : 0;
}

static const char *check_state(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->attempt.phase == CST_PHASE_RUNNING && !core->ranks[rank].joined &&
            !core->attempt.closing) {
            return "all ranks take part in an attempt that runs";
        }
    }
    return NULL;
}

const struct cst_step_schedule cst_data_parallel = {.repeats = true,
                                                    .by_rank = true,
                                                    .work = &cst_step_no_work,
                                                    .serves = serves,
                                                    .check = check,
                                                    .open = open,
                                                    .close = nothing,
                                                    .begin = nothing,
                                                    .addend_of = addend_of,
                                                    .state = state,
                                                    .expected = expected,
                                                    .block_of = block_of,
                                                    .say = say,
                                                    .n_losses = n_losses,
                                                    .losses = losses,
                                                    .mean_loss = mean_loss,
                                                    .check_state = check_state};

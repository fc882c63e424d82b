/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/cluster_engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The time at which a command ends. */
struct ending {
    uint64_t ticket, at;
};

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

void cluster_engine_open(struct cluster_engine *e, const struct cst_layout *layout)
{
    *e = (struct cluster_engine){
        .n_endings = 1024, .n_chunks = layout->n_chunks, .n_tiles = layout->n_tiles};
    while (e->n_endings < 8 * e->n_chunks) {
        e->n_endings *= 2;
    }
    e->endings = must(calloc(e->n_endings, sizeof *e->endings));
    e->sums = must(calloc(e->n_chunks, sizeof *e->sums));
}

void cluster_engine_close(struct cluster_engine *e)
{
    free(e->endings);
    free(e->sums);
}

void cluster_engine_restart(struct cluster_engine *e)
{
    for (uint32_t c = 0; c < e->n_chunks; c++) {
        e->sums[c].handed = 0;
    }
}

static uint64_t cost_of(const struct cluster_engine *e, const struct cst_command *command)
{
    uint64_t elems = CST_LAYOUT_CAPACITY_STEP; /* elements of a chunk */

    switch (command->kind) {
    case CST_COMMAND_COPY:
        return 10000 + command->bytes / 20;
    case CST_COMMAND_REDUCE:
        return 5000 + elems * (2 * command->n_src + 4) / 40;
    case CST_COMMAND_NORM:
        return 20000 + e->n_tiles / 10;
    case CST_COMMAND_UPDATE:
        return 5000 + elems * (28 + 2 * command->n_src) / 40;
    case CST_COMMAND_FILL:
    case CST_COMMAND_SET_MASTER:
    case CST_COMMAND_ROUND:
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
    case CST_COMMAND_FLUSH:
        break;
    }
    return 0;
}

static bool update(struct cluster_engine *e, const struct cst_command *command, char words[96])
{
    struct cluster_sum *sum = &e->sums[command->chunk];

    if (command->n_src > 0) {
        sum->added = command->n_src;
        e->n_fused++;
    }
    if (command->mark != sum->updated + 1) {
        (void)snprintf(words, 96, "chunk %" PRIu32 ": update %" PRIu64 " after update %" PRIu64,
                       command->chunk, command->mark, sum->updated);
        return false;
    }
    if (sum->added != sum->handed) {
        (void)snprintf(words, 96,
                       "chunk %" PRIu32 ": %" PRIu32 " contributions in the sum, %" PRIu32
                       " were handed in",
                       command->chunk, sum->added, sum->handed);
        return false;
    }
    sum->updated = command->mark;
    sum->handed = 0;
    return true;
}

/* Each lane executes its commands in the order of their tickets. */
uint64_t cluster_engine_take(struct cluster_engine *e, const struct cst_command *command,
                             uint64_t now, char words[96])
{
    uint64_t *lane = &e->lanes[command->kind == CST_COMMAND_COPY ? 0 : 1];
    uint64_t at = *lane > now ? *lane : now, cost = cost_of(e, command);

    if (cost == 0) {
        (void)snprintf(words, 96, "a command of kind %d, which nobody asked for",
                       (int)command->kind);
        return 0;
    }
    if (command->kind == CST_COMMAND_REDUCE) {
        struct cluster_sum *sum = &e->sums[command->chunk];

        sum->added = command->n_src + (command->accumulate ? sum->added : 0);
    } else if (command->kind == CST_COMMAND_UPDATE && !update(e, command, words)) {
        return 0;
    }
    for (uint32_t i = 0; i < command->n_after; i++) {
        const struct ending *first = &e->endings[command->after[i] % e->n_endings];

        at = first->ticket == command->after[i] && first->at > at ? first->at : at;
    }
    *lane = at + cost;
    e->endings[command->ticket % e->n_endings] =
        (struct ending){.ticket = command->ticket, .at = *lane};
    return *lane;
}

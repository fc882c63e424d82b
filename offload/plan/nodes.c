/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/nodes.h"

#include "proto/patterns.h"

/* What one machine pulls in a step, what others pull from it, and what it has; bytes. */
struct machine {
    uint64_t sums, copies, weights, rows;
    uint64_t served_sums, served_copies, served_weights;
};

/* Bytes of a partial sum of the chunk. */
static uint64_t partial_bytes(const struct cst_plan_config *config,
                              const struct cst_layout_chunk *chunk)
{
    bool alone = cst_set_count(chunk->ranks) == 1 && config->micro_batches == 1;

    return (alone && chunk->dtype != CST_FP32 ? 2 : 4) * chunk->n_elems;
}

/* Bytes of the states, which only some machines have. */
static uint64_t state_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
        bytes += cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);
    }
    return bytes;
}

/* Bytes of weights and gradients, which every machine has: partial sums lie
 * in the rows of gradients. */
static uint64_t everywhere_bytes(const struct cst_layout *layout,
                                 const struct cst_layout_chunk *chunk)
{
    return cst_layout_chunk_row_bytes(layout, chunk, CST_ROW_WEIGHT, chunk->n_elems) +
           cst_layout_chunk_row_bytes(layout, chunk, CST_ROW_WEIGHT_OTHER, chunk->n_elems) +
           cst_layout_chunk_row_bytes(layout, chunk, CST_ROW_GRAD, chunk->n_elems);
}

static void add_chunk(struct machine *machines, const struct cst_plan_nodes_config *nodes,
                      const struct cst_plan_config *config, const struct cst_layout *layout,
                      uint32_t c)
{
    const struct cst_layout_machines all = {.n = nodes->n_nodes, .copies = nodes->n_copies};
    const struct cst_layout_chunk *chunk = &layout->chunks[c];
    uint64_t weights = cst_layout_chunk_row_bytes(layout, chunk, CST_ROW_WEIGHT, chunk->n_elems);
    uint64_t partial = partial_bytes(config, chunk);
    bool trained = cst_layout_has_states(chunk);
    struct machine *home = &machines[cst_layout_keeper(&all, c, 0)];

    for (uint32_t m = 0; m < all.n; m++) {
        machines[m].rows += everywhere_bytes(layout, chunk);
        machines[m].weights += trained ? weights : 0;
        machines[m].served_sums += trained && &machines[m] != home ? partial : 0;
    }
    if (!trained) {
        return;
    }
    home->sums += (all.n - 1) * partial;
    home->served_copies += (all.copies - 1) * cst_layout_grad_bytes(layout, chunk);
    home->served_weights += (all.n - all.copies) * weights;
    for (uint32_t i = 0; i < all.copies; i++) {
        struct machine *keeper = &machines[cst_layout_keeper(&all, c, i)];

        keeper->weights -= weights;
        keeper->rows += state_bytes(layout, chunk);
        keeper->copies += i > 0 ? cst_layout_grad_bytes(layout, chunk) : 0;
    }
}

/* Returns by how much @link_s seconds of a link are longer than @under_s seconds of computing with
 * which they run, where both work on @n_chunks chunks one after the other. Whichever is faster
 * waits for the other one, except for one chunk. */
static double exposed(double link_s, double under_s, uint32_t n_chunks)
{
    double part = 1.0 / (n_chunks > 0 ? n_chunks : 1);
    double rest = link_s - under_s * (1 - part);

    return rest > link_s * part ? rest : link_s * part;
}

/* Compute the step, from that of a machine alone. */
static void add_step(struct cst_plan_nodes *out, const struct cst_plan_nodes_config *nodes,
                     const struct cst_plan_choice *choice)
{
    double kept = (double)nodes->n_copies / nodes->n_nodes;

    out->sum_exposed_s = exposed(out->sum_s, out->sum_under_s, choice->n_chunks);
    out->weight_exposed_s = exposed(out->weight_s, out->weight_under_s, choice->n_chunks);
    out->step_s = (double)choice->predicted.step_ns * 1e-9 -
                  (double)choice->predicted.update_exposed_ns * 1e-9 * (1 - kept) +
                  out->sum_exposed_s + out->weight_exposed_s;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Compute the times in which all links are done with a part of a step: those of the machine that
 * pulls or serves most in this part. */
static void add_link_times(struct cst_plan_nodes *out, const struct cst_plan_nodes_config *nodes,
                           const struct machine *machines)
{
    uint64_t sums = 0, weights = 0;

    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        const struct machine *m = &machines[i];

        sums = larger(sums, larger(m->sums + m->copies, m->served_sums + m->served_copies));
        weights = larger(weights, larger(m->weights, m->served_weights));
    }
    out->sum_s = (double)sums / nodes->bytes_per_s;
    out->weight_s = (double)weights / nodes->bytes_per_s;
}

/* Compute how much of these times hides. */
static void add_hidden(struct cst_plan_nodes *out, const struct cst_plan_nodes_config *nodes,
                       const struct cst_plan_config *config, const struct cst_plan_choice *choice)
{
    /* A forward pass is one part of this many; the rest of a micro-batch is its backward pass. */
    double parts = config->recompute ? 4 : 3;
    double micro_s = (double)choice->predicted.compute_ns * 1e-9 / config->micro_batches;
    double sum_share, weight_share;

    out->weight_under_s = micro_s / parts;
    out->sum_under_s = micro_s - out->weight_under_s;
    if (micro_s > 0) {
        sum_share = out->sum_s / out->sum_under_s;
        weight_share = out->weight_s / out->weight_under_s;
        out->hidden_tokens = (double)(nodes->tokens * config->world) *
                             (sum_share > weight_share ? sum_share : weight_share);
    }
}

int cst_plan_nodes(struct cst_plan_nodes *out, const struct cst_plan_nodes_config *nodes,
                   const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                   struct cst_err *err)
{
    struct machine machines[CST_SET_MAX] = {{0}}, *most = &machines[0];
    struct cst_layout layout;
    int rc = cst_layout_build(&layout, config->model, &choice->layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        add_chunk(machines, nodes, config, &layout, c);
    }
    cst_layout_close(&layout);
    *out = (struct cst_plan_nodes){.sum_bytes = 0};
    for (uint32_t m = 0; m < nodes->n_nodes; m++) {
        const struct machine *machine = &machines[m];

        if (machine->sums + machine->copies + machine->weights >
            most->sums + most->copies + most->weights) {
            most = &machines[m];
        }
        out->row_bytes = machine->rows > out->row_bytes ? machine->rows : out->row_bytes;
    }
    out->sum_bytes = most->sums;
    out->copy_bytes = most->copies;
    out->weight_bytes = most->weights;
    add_link_times(out, nodes, machines);
    add_hidden(out, nodes, config, choice);
    add_step(out, nodes, choice);
    return CST_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of the simulation: initialisation and end. */
#include "offload/simulate/simulate.h"

#include <stdlib.h>

/* Allocate the arrays that the books borrow. */
static int describe(struct cst_sim_worker *w, struct cst_lease_model *books)
{
    const struct cst_model *model = w->sim->config->core->model;
    const struct cst_layout *layout = w->sim->config->core->layout;

    w->operators = calloc(model->n_operators + 1ul, sizeof *w->operators);
    w->tensor_chunk = calloc(model->n_tensors + 1ul, sizeof *w->tensor_chunk);
    w->traits = calloc(layout->n_chunks + 1ul, sizeof *w->traits);
    if (w->operators == NULL || w->tensor_chunk == NULL || w->traits == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        w->tensor_chunk[t] = model->tensors[t].chunk;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        w->traits[c] =
            (struct cst_lease_trait){.size_class = (uint8_t)layout->chunks[c].size_class,
                                     .trains = cst_layout_has_states(&layout->chunks[c])};
    }
    for (uint32_t op = 0; op < model->n_operators; op++) {
        const struct cst_layout_operator *o = &model->operators[op];

        w->operators[op] = (struct cst_lease_operator){.name = o->name,
                                                       .tensors = o->tensors,
                                                       .n_tensors = o->n_tensors,
                                                       .stage = o->stage,
                                                       .runs = cst_model_runs(model, o, w->rank)};
    }
    *books = (struct cst_lease_model){.operators = w->operators,
                                      .tensor_chunk = w->tensor_chunk,
                                      .traits = w->traits,
                                      .n_operators = model->n_operators,
                                      .n_tensors = model->n_tensors,
                                      .n_chunks = layout->n_chunks};
    return CST_OK;
}

static int open_books(struct cst_sim_worker *w, struct cst_err *err)
{
    const struct cst_core_pool *pool = &w->sim->config->core->pools[w->rank];
    struct cst_lease_model books;
    int rc = describe(w, &books);

    if (rc != CST_OK) {
        return cst_err_set(err, rc, "no memory to replay rank %u", w->rank);
    }
    for (uint32_t class = 0; class < CST_LAYOUT_MAX_CLASSES; class ++) {
        books.blocks[class] = pool->parts[class].n_blocks;
    }
    return cst_sequence_init(&w->sequence, &books, w->sim->config->micro_batches, w->stream,
                             &cst_sim_worker_calls, w, err);
}

static void set_speed(struct cst_sim_worker *w)
{
    const struct cst_rates *rates = w->sim->config->rates;
    double share = w->sim->config->flops_share > 0 ? w->sim->config->flops_share : 1;
    uint32_t n_here = 0; /* Number of ranks that compute on the processors. */

    w->flops = w->rates->flops * share / 1e9;
    for (uint32_t rank = 0; !w->stream && rank < w->sim->world; rank++) {
        double ranks = w->sim->config->stands_for == NULL ? 1 : w->sim->config->stands_for[rank];

        n_here += !cst_tier_is_apart(w->sim->config->core->pools[rank].tier) ? (uint32_t)ranks : 0;
    }
    /* Each rank has its share of the cores, whether the others use theirs or not. */
    if (n_here > 0) {
        uint32_t cores = 0;

        for (uint32_t i = 0; i < rates->n_nodes; i++) {
            cores += rates->nodes[i].cores;
        }
        w->flops /= n_here;
        w->cores = (cores == 0 ? 1 : cores) * w->stands_for / n_here;
    }
}

int cst_sim_worker_open(struct cst_sim *sim, uint32_t rank, struct cst_err *err)
{
    struct cst_sim_worker *w = &sim->workers[rank];
    const struct cst_core_config *core = sim->config->core;
    uint32_t tier = core->pools[rank].tier;
    bool apart = cst_tier_is_apart(tier);

    *w = (struct cst_sim_worker){
        .sim = sim,
        .rank = rank,
        .stands_for = sim->config->stands_for == NULL ? 1 : sim->config->stands_for[rank],
        .device = apart ? tier - sim->n_nodes : CST_NONE,
        .stream = apart,
    };
    w->rates = cst_sim_device(sim, w->device);
    w->node = apart ? sim->engines[tier].node : rank % sim->n_nodes;
    w->compute.node = w->copying.node = w->node;
    w->compute.owner = w->copying.owner = w;
    w->copying.link = CST_LINK_UP;
    w->copying.device = w->device;
    set_speed(w);
    w->ops = malloc((2ul * core->model->n_operators + 1) * sizeof *w->ops);
    if (w->ops == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to replay rank %u", rank);
    }
    if (w->rates->flops <= 0) {
        return cst_err_set(err, CST_EINVAL, "rates: device '%s': flops is not known",
                           w->rates->name);
    }
    return open_books(w, err);
}

void cst_sim_worker_close(struct cst_sim_worker *w)
{
    for (uint32_t i = 0; i < w->n_batches; i++) {
        free(w->batches[i].items);
        free(w->batches[i].replies);
    }
    free(w->batches);
    free(w->entries);
    free(w->copies);
    free(w->ops);
    free(w->operators);
    free(w->tensor_chunk);
    free(w->traits);
    cst_sequence_close(&w->sequence);
}

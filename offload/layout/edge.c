/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/edge.h"

#include "offload/layout/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(const char *name)
{
    size_t n = name != NULL ? strlen(name) : 0;

    for (size_t i = 0; i < n; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e) {
            return false;
        }
    }
    return n >= 1 && n < CST_EDGE_NAME_BYTES;
}

static int check(const struct cst_edge_words *words, uint32_t world, struct cst_err *err)
{
    if (!is_name(words->name)) {
        return cst_err_set(err, CST_EINVAL,
                           "edge '%.64s': a name has 1 to %d bytes, all of them printable",
                           words->name != NULL ? words->name : "", CST_EDGE_NAME_BYTES - 1);
    }
    if ((words->from >= world || words->to >= world) &&
        (words->from != CST_EDGE_ANY || words->to != CST_EDGE_ANY)) {
        return cst_err_set(err, CST_EINVAL,
                           "edge '%s' from rank %" PRIu32 " to rank %" PRIu32
                           ", but the job has %" PRIu32 " ranks",
                           words->name, words->from, words->to, world);
    }
    if (words->n_slots < 1 || words->n_slots > CST_EDGE_MAX_SLOTS || words->slot_bytes < 1 ||
        words->slot_bytes > CST_EDGE_MAX_BYTES / words->n_slots) {
        return cst_err_set(
            err, CST_EINVAL,
            "edge '%s': %" PRIu32 " slots of %" PRIu64
            " bytes; an edge has 1 to %d slots, and 1 to %" PRIu64 " bytes in all slots together",
            words->name, words->n_slots, words->slot_bytes, CST_EDGE_MAX_SLOTS, CST_EDGE_MAX_BYTES);
    }
    if (words->on_device && words->to == CST_EDGE_ANY) {
        return cst_err_set(err, CST_EINVAL,
                           "edge '%s' of all ranks: it has no receiver on whose device the slots "
                           "could be; declare it without on_device",
                           words->name);
    }
    return CST_OK;
}

static int find_free_name(const struct cst_model *model, const char *name, struct cst_err *err)
{
    for (uint32_t i = 0; i < model->n_edges; i++) {
        if (strcmp(model->edges[i].name, name) == 0) {
            return cst_err_set(err, CST_EEXIST, "edge '%s' is declared already, as number %" PRIu32,
                               name, i);
        }
    }
    return CST_OK;
}

int cst_model_edge(struct cst_model *model, const struct cst_edge_words *words, uint32_t world,
                   struct cst_err *err)
{
    struct cst_layout_edge *edges, *edge;
    int rc = check(words, world, err);

    rc = rc == CST_OK ? find_free_name(model, words->name, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    if (model->n_edges == CST_EDGE_MAX) {
        return cst_err_set(err, CST_EINVAL, "edge '%s': a job has at most %d edges", words->name,
                           CST_EDGE_MAX);
    }
    edges = realloc(model->edges, (model->n_edges + 1) * sizeof *edges);
    if (edges == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for edge '%s'", words->name);
    }
    model->edges = edges;
    edge = &edges[model->n_edges++];
    *edge = (struct cst_layout_edge){.from = words->from,
                                     .to = words->to,
                                     .slot_bytes = words->slot_bytes,
                                     .n_slots = words->n_slots,
                                     .on_device = words->on_device};
    memcpy(edge->name, words->name, strlen(words->name) + 1);
    return CST_OK;
}

int cst_model_same_edge(const struct cst_model *model, uint32_t i,
                        const struct cst_edge_words *other, const char *mine, const char *theirs,
                        struct cst_err *err)
{
    const struct cst_layout_edge *edge;

    if (i >= model->n_edges) {
        return cst_err_set(err, CST_EMISMATCH,
                           "edge %" PRIu32 " '%.63s' of %s: %s declared only %" PRIu32, i,
                           other->name, mine, theirs, model->n_edges);
    }
    edge = &model->edges[i];
    if (strcmp(edge->name, other->name) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "edge %" PRIu32 " is '%.63s' in %s and '%s' in %s",
                           i, other->name, mine, edge->name, theirs);
    }
    if (edge->from != other->from || edge->to != other->to) {
        return cst_err_set(err, CST_EMISMATCH,
                           "edge '%s' goes from rank %" PRIu32 " to rank %" PRIu32
                           " in %s, and from rank %" PRIu32 " to rank %" PRIu32 " in %s",
                           edge->name, other->from, other->to, mine, edge->from, edge->to, theirs);
    }
    if (edge->slot_bytes != other->slot_bytes || edge->n_slots != other->n_slots) {
        return cst_err_set(err, CST_EMISMATCH,
                           "edge '%s' has %" PRIu32 " slots of %" PRIu64
                           " bytes in %s, and %" PRIu32 " slots of %" PRIu64 " bytes in %s",
                           edge->name, other->n_slots, other->slot_bytes, mine, edge->n_slots,
                           edge->slot_bytes, theirs);
    }
    if (edge->on_device != other->on_device) {
        return cst_err_set(err, CST_EMISMATCH,
                           "edge '%s' has slots in %s memory in %s, and in %s memory in %s",
                           edge->name, other->on_device ? "device" : "host", mine,
                           edge->on_device ? "device" : "host", theirs);
    }
    return CST_OK;
}

int cst_model_copy_edges(struct cst_model *model, const struct cst_model *from, uint32_t n,
                         struct cst_err *err)
{
    /* malloc(0) may return NULL. */
    model->edges = malloc((n + 1) * sizeof *model->edges);
    if (model->edges == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " edges", n);
    }
    if (n > 0) {
        memcpy(model->edges, from->edges, n * sizeof *model->edges);
    }
    model->n_edges = n;
    return CST_OK;
}

uint64_t cst_layout_edge_bytes(const struct cst_layout_edge *edge)
{
    return edge->on_device ? cst_edge_head_bytes(edge->n_slots)
                           : cst_edge_bytes(edge->slot_bytes, edge->n_slots);
}

uint64_t cst_model_edge_bytes(const struct cst_model *model)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < model->n_edges; i++) {
        bytes += cst_layout_edge_bytes(&model->edges[i]);
    }
    return bytes;
}

uint32_t cst_model_edges_on_device(const struct cst_model *model, uint32_t i)
{
    uint32_t n = 0;

    while (i > 0) {
        n += model->edges[--i].on_device;
    }
    return n;
}

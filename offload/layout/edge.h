/* SPDX-License-Identifier: Apache-2.0 */
/* Edges of a model: where one rank puts arrays, such as activations, for another rank or for
 * itself. An edge is declared like a group; it has no part in chunks and plans. Its memory is
 * described in proto/edge_memory.h. */
#ifndef CST_LAYOUT_EDGE_H
#define CST_LAYOUT_EDGE_H

#include "cistern/status.h"
#include "proto/edge_memory.h"

struct cst_model;

struct cst_layout_edge {
    char name[CST_EDGE_NAME_BYTES];
    /* The rank that puts and the rank that takes; they may be the same. CST_EDGE_ANY in both: all
     * ranks do. */
    uint32_t from, to;
    uint64_t slot_bytes; /* Size of a slot. */
    uint32_t n_slots;    /* Number of slots. */
    bool on_device;      /* The slots have a memory of their own, on a device if possible. */
};

/* True if all ranks put and take. */
static inline bool cst_layout_edge_is_shared(const struct cst_layout_edge *edge)
{
    return edge->from == CST_EDGE_ANY;
}

/* True if the rank that puts is the one that takes. */
static inline bool cst_layout_edge_is_own(const struct cst_layout_edge *edge)
{
    return edge->from == edge->to && !cst_layout_edge_is_shared(edge);
}

/* True if @rank is an end of the edge. */
static inline bool cst_layout_edge_has(const struct cst_layout_edge *edge, uint32_t rank)
{
    return cst_layout_edge_is_shared(edge) || edge->from == rank || edge->to == rank;
}

/* Everything that a declaration says about an edge. */
struct cst_edge_words {
    const char *name;
    uint32_t from, to;
    uint64_t slot_bytes;
    uint32_t n_slots;
    bool on_device;
};

/* Declare an edge of a job with @world ranks. Its number is the value of n_edges before the call.
 * Statuses:
 *   - CST_EINVAL: a name that is empty, longer than 63 bytes or not printable; a rank that the job
 *     does not have; no slots, too many slots or too many bytes; slots of all ranks on a device;
 *     too many edges.
 *   - CST_EEXIST: the name is in use.
 *   - CST_ENOMEM. */
int cst_model_edge(struct cst_model *model, const struct cst_edge_words *words, uint32_t world,
                   struct cst_err *err);

/* CST_OK if edge @i is declared like @other. Else CST_EMISMATCH, as for cst_model_same_group. */
int cst_model_same_edge(const struct cst_model *model, uint32_t i,
                        const struct cst_edge_words *other, const char *mine, const char *theirs,
                        struct cst_err *err);

/* Copy the first @n edges of @from to @model, which must have none. CST_ENOMEM. */
int cst_model_copy_edges(struct cst_model *model, const struct cst_model *from, uint32_t n,
                         struct cst_err *err);

/* Bytes of the memory with the words of @edge. Its slots are in there, too, or have a memory of
 * their own (on_device). */
uint64_t cst_layout_edge_bytes(const struct cst_layout_edge *edge);

/* The sum of cst_layout_edge_bytes over all edges of @model. */
uint64_t cst_model_edge_bytes(const struct cst_model *model);

/* Number of edges of @model before edge @i whose slots have a memory of their own. With n_edges in
 * place of @i: of all of them. */
uint32_t cst_model_edges_on_device(const struct cst_model *model, uint32_t i);

#endif

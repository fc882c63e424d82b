/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/declare_message.h"

#include "cistern/cistern.h"
#include "offload/layout/box.h"
#include "offload/layout/edge.h"
#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>

/* Upper limit of the bytes of a declaration in a message. A tag or a length has at most 5 bytes,
 * the size of a dimension at most 10, the number of a tensor at most 3. */
static size_t tensor_bytes(const struct cst_layout_tensor *tensor)
{
    size_t bytes =
        96 + strlen(tensor->name) + (tensor->box != NULL ? 30 : 10) * (size_t)tensor->n_dims;

    if (tensor->box != NULL) {
        bytes += 6 + strlen(tensor->box->name);
    }
    for (uint32_t i = 0; tensor->external != NULL && i < tensor->external->n; i++) {
        bytes += 16 + strlen(tensor->external->names[i]);
    }
    return bytes;
}

static size_t operator_bytes(const struct cst_layout_operator *op)
{
    return 64 + strlen(op->name) + 3 * (size_t)op->n_tensors;
}

enum {
    EDGE_BYTES = 48 + CST_EDGE_NAME_BYTES, /* The same for an edge. */
};

/* The same for a group: two bytes for each rank. */
static size_t group_bytes(const struct cst_model *model, uint32_t group)
{
    const struct cst_set ranks = cst_model_group_ranks(model, group);

    return 16 + 2 * (size_t)cst_set_count(&ranks);
}

/* Make the message of a group. The list of ranks lies after the struct in the same allocation. */
static Cistern__GroupDecl *make_group(const struct cst_set *group)
{
    Cistern__GroupDecl *msg = malloc(sizeof *msg + cst_set_count(group) * sizeof *msg->ranks);

    if (msg != NULL) {
        cistern__group_decl__init(msg);
        msg->ranks = (uint32_t *)(void *)(msg + 1);
        CST_SET_EACH (r, group) {
            msg->ranks[msg->n_ranks++] = r;
        }
    }
    return msg;
}

/* Make the message of an edge. It borrows the name from the declaration. */
static Cistern__EdgeDecl *make_edge(const struct cst_layout_edge *edge)
{
    Cistern__EdgeDecl *msg = malloc(sizeof *msg);

    if (msg != NULL) {
        cistern__edge_decl__init(msg);
        msg->name = (char *)(uintptr_t)edge->name;
        msg->from = edge->from;
        msg->to = edge->to;
        msg->slot_bytes = edge->slot_bytes;
        msg->n_slots = edge->n_slots;
        msg->has_on_device = msg->on_device = edge->on_device;
    }
    return msg;
}

/* Make the message of a tensor. It borrows the name and the shapes from the declaration. */
static Cistern__TensorDecl *make_tensor(const struct cst_layout_tensor *tensor)
{
    Cistern__TensorDecl *msg = malloc(sizeof *msg);

    if (msg != NULL) {
        cistern__tensor_decl__init(msg);
        msg->name = (char *)(uintptr_t)tensor->name;
        msg->dtype = tensor->dtype;
        msg->n_shape = tensor->n_dims;
        msg->shape = (int64_t *)(uintptr_t)tensor->shape;
        msg->has_lr_scale = true;
        msg->lr_scale = tensor->lr_scale;
        msg->has_decay_scale = true;
        msg->decay_scale = tensor->decay_scale;
        msg->has_param_group = tensor->param_group != 0;
        msg->param_group = tensor->param_group;
        msg->has_update = tensor->update != CST_TENSOR_UPDATE_AUTO;
        msg->update = tensor->update;
        msg->has_group = tensor->group != 0;
        msg->group = tensor->group;
        msg->has_pattern = tensor->pattern != CST_PATTERN_SHARD;
        msg->pattern = tensor->pattern;
        msg->n_whole_shape = msg->n_box_first = tensor->box != NULL ? tensor->n_dims : 0;
        msg->whole_shape = tensor->box != NULL ? tensor->box->whole : NULL;
        msg->box_first = tensor->box != NULL ? tensor->box->first : NULL;
        msg->n_box_packed = cst_box_is_packed(tensor) ? tensor->n_dims : 0;
        msg->box_packed = tensor->box != NULL ? tensor->box->packed : NULL;
        if (tensor->external != NULL) {
            msg->n_external_name = msg->n_external_rows = tensor->external->n;
            msg->external_name = tensor->external->names;
            msg->external_rows = tensor->external->rows;
            msg->has_transposed = tensor->external->transposed;
            msg->transposed = tensor->external->transposed;
        }
        if (tensor->box != NULL && tensor->box->name[0] != '\0') {
            msg->whole_name = (char *)(uintptr_t)tensor->box->name;
        }
    }
    return msg;
}

static Cistern__OperatorDecl *make_operator(const struct cst_layout_operator *op, bool has_stage)
{
    Cistern__OperatorDecl *msg = malloc(sizeof *msg);

    if (msg != NULL) {
        cistern__operator_decl__init(msg);
        msg->name = (char *)(uintptr_t)op->name;
        msg->n_tensors = op->n_tensors;
        msg->tensors = op->tensors;
        msg->has_flops = op->flops > 0;
        msg->flops = op->flops;
        msg->has_activation_bytes = op->activation_bytes > 0;
        msg->activation_bytes = op->activation_bytes;
        msg->has_expected_uses = op->expected_uses != 1; /* 1 is the default. */
        msg->expected_uses = op->expected_uses;
        msg->has_stage = has_stage;
        msg->stage = op->stage;
    }
    return msg;
}

/* Return how many groups after the first @done ones fit into *room bytes, and reduce *room. */
static uint32_t fit_groups(const struct cst_model *model, uint32_t done, size_t *room)
{
    uint32_t n = 0;

    while (done + n + 1 < model->n_groups && group_bytes(model, done + n + 1) <= *room) {
        *room -= group_bytes(model, done + n + 1);
        n++;
    }
    return n;
}

/* Return how many edges after the first @done ones fit into *room bytes, and reduce *room. */
static uint32_t fit_edges(const struct cst_model *model, uint32_t done, size_t *room)
{
    uint32_t n = model->n_edges - done;

    n = n < *room / EDGE_BYTES ? n : (uint32_t)(*room / EDGE_BYTES);
    *room -= (size_t)n * EDGE_BYTES;
    return n;
}

/* Return how many tensors from number @first on fit into *room bytes, and reduce *room. */
static uint32_t fit_tensors(const struct cst_model *model, uint32_t first, size_t *room)
{
    uint32_t n = 0;

    while (first + n < model->n_tensors && tensor_bytes(&model->tensors[first + n]) <= *room) {
        *room -= tensor_bytes(&model->tensors[first + n++]);
    }
    return n;
}

static uint32_t fit_operators(const struct cst_model *model, uint32_t first, size_t *room)
{
    uint32_t n = 0;

    while (first + n < model->n_operators &&
           operator_bytes(&model->operators[first + n]) <= *room) {
        *room -= operator_bytes(&model->operators[first + n++]);
    }
    return n;
}

/* The numbers of declarations in one message. */
struct load {
    uint32_t n_edges, n_groups, n_tensors, n_operators;
};

static struct load fit(const struct cst_model *model, const struct cstc_declare_cursor *cursor)
{
    size_t room = CST_FRAME_DECLARE_BYTES;
    struct load load = {.n_edges = fit_edges(model, cursor->edge, &room)};

    load.n_groups = fit_groups(model, cursor->group, &room);

    /* Tensors refer to groups, and operators to tensors: the daemon must know these first. */
    if (cursor->group + load.n_groups + 1 == model->n_groups) {
        load.n_tensors = fit_tensors(model, cursor->tensor, &room);
        if (cursor->tensor + load.n_tensors == model->n_tensors) {
            load.n_operators = fit_operators(model, cursor->op, &room);
        }
    }
    /* If a declaration is alone, the message may be longer. */
    if (load.n_edges + load.n_groups + load.n_tensors + load.n_operators == 0) {
        if (cursor->tensor < model->n_tensors) {
            load.n_tensors = 1;
        } else if (cursor->op < model->n_operators &&
                   operator_bytes(&model->operators[cursor->op]) <= CST_FRAME_MAX_BODY) {
            load.n_operators = 1;
        }
    }
    return load;
}

static int fill_edges(const struct cst_model *model, struct cstc_declare_cursor *cursor, uint32_t n,
                      Cistern__Declare *msg)
{
    msg->edges = calloc((size_t)n + 1, sizeof *msg->edges);
    for (; msg->edges != NULL && msg->n_edges < n; msg->n_edges++) {
        msg->edges[msg->n_edges] = make_edge(&model->edges[cursor->edge]);
        if (msg->edges[msg->n_edges] == NULL) {
            return CST_ENOMEM;
        }
        cursor->edge++;
    }
    return msg->edges != NULL ? CST_OK : CST_ENOMEM;
}

static int fill_groups(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                       uint32_t n, Cistern__Declare *msg)
{
    msg->groups = calloc((size_t)n + 1, sizeof *msg->groups);
    for (; msg->groups != NULL && msg->n_groups < n; msg->n_groups++) {
        const struct cst_set ranks = cst_model_group_ranks(model, cursor->group + 1);

        msg->groups[msg->n_groups] = make_group(&ranks);
        if (msg->groups[msg->n_groups] == NULL) {
            return CST_ENOMEM;
        }
        cursor->group++;
    }
    return msg->groups != NULL ? CST_OK : CST_ENOMEM;
}

static int fill_tensors(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                        uint32_t n, Cistern__Declare *msg)
{
    msg->tensors = calloc((size_t)n + 1, sizeof *msg->tensors);
    for (; msg->tensors != NULL && msg->n_tensors < n; msg->n_tensors++) {
        msg->tensors[msg->n_tensors] = make_tensor(&model->tensors[cursor->tensor]);
        if (msg->tensors[msg->n_tensors] == NULL) {
            return CST_ENOMEM;
        }
        cursor->tensor++;
    }
    return msg->tensors != NULL ? CST_OK : CST_ENOMEM;
}

static int fill_operators(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                          uint32_t n, Cistern__Declare *msg)
{
    msg->operators = calloc((size_t)n + 1, sizeof *msg->operators);
    for (; msg->operators != NULL && msg->n_operators < n; msg->n_operators++) {
        msg->operators[msg->n_operators] =
            make_operator(&model->operators[cursor->op], model->n_stages > 0);
        if (msg->operators[msg->n_operators] == NULL) {
            return CST_ENOMEM;
        }
        cursor->op++;
    }
    return msg->operators != NULL ? CST_OK : CST_ENOMEM;
}

static int fill_message(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                        const struct load *load, Cistern__Declare *msg)
{
    int rc = fill_edges(model, cursor, load->n_edges, msg);

    rc = rc == CST_OK ? fill_groups(model, cursor, load->n_groups, msg) : rc;
    rc = rc == CST_OK ? fill_tensors(model, cursor, load->n_tensors, msg) : rc;
    return rc == CST_OK ? fill_operators(model, cursor, load->n_operators, msg) : rc;
}

int cstc_declare_message(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                         Cistern__Declare **out, struct cst_err *err)
{
    struct load load = fit(model, cursor);
    Cistern__Declare *msg;

    if (load.n_edges == 0 && load.n_groups == 0 && load.n_tensors == 0 && load.n_operators == 0) {
        if (cursor->op < model->n_operators) {
            const struct cst_layout_operator *op = &model->operators[cursor->op];

            return cst_err_set(err, CST_EINVAL, "operator '%s': %u tensors do not fit a message",
                               op->name, op->n_tensors);
        }
        *out = NULL;
        return CST_OK;
    }
    msg = malloc(sizeof *msg);
    if (msg == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a declaration");
    }
    cistern__declare__init(msg);
    if (fill_message(model, cursor, &load, msg) != CST_OK) {
        cstc_declare_free_message(msg);
        return cst_err_set(err, CST_ENOMEM, "no memory for a declaration");
    }
    *out = msg;
    return CST_OK;
}

void cstc_declare_free_message(Cistern__Declare *msg)
{
    if (msg == NULL) {
        return;
    }
    for (size_t i = 0; i < msg->n_edges; i++) {
        free(msg->edges[i]);
    }
    for (size_t i = 0; i < msg->n_groups; i++) {
        free(msg->groups[i]);
    }
    for (size_t i = 0; i < msg->n_tensors; i++) {
        free(msg->tensors[i]);
    }
    for (size_t i = 0; i < msg->n_operators; i++) {
        free(msg->operators[i]);
    }
    free(msg->edges);
    free(msg->groups);
    free(msg->tensors);
    free(msg->operators);
    free(msg);
}

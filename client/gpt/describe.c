/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/describe.h"

#include "client/gpt/compute_device.h"
#include "client/gpt/output.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Number of elements of the matrices that each row of the operator's input is multiplied by. */
static double matrix_elems(const struct gpt_model *m, const struct gpt_operator *op)
{
    double sum = 0;

    /* The embedding looks rows up and multiplies nothing. */
    for (uint32_t i = 0; op->kind != GPT_OP_EMBED && i < op->n_tensors; i++) {
        const struct gpt_tensor *t = &m->tensors[op->tensors[i]];

        sum += t->n_dims == 2 ? (double)t->n_elems : 0.0;
    }
    return sum;
}

struct cst_operator_cost gpt_describe_cost(const struct gpt_options *o, const struct gpt_model *m,
                                           uint32_t number)
{
    const struct gpt_operator *op = &m->operators[number];
    double rows = (double)(o->batch / o->job.updates.micro_batches) * m->context;
    struct cst_operator_cost cost = {
        .activation_bytes = gpt_device_activations(o, m, number),
        .expected_uses = 1.0f,
    };

    /* A rank computes its experts on the tokens of all ranks. */
    if (op->kind == GPT_OP_EXPERT) {
        const double part = (double)m->top_k / m->experts;

        cost.expected_uses = (float)(1.0 - pow(1.0 - part, rows * m->world));
        rows *= m->world * part;
    }
    cost.flops = 2.0 * rows * matrix_elems(m, op);
    /* The operator qkv also computes the attention. */
    if (op->kind == GPT_OP_QKV) {
        cost.flops += 2.0 * rows * (m->context + 1.0) * m->width;
    }
    return cost;
}

static const char *pattern_name(enum cst_pattern_kind pattern)
{
    return pattern == CST_PATTERN_EXPERT   ? "expert"
           : pattern == CST_PATTERN_FROZEN ? "frozen"
                                           : "shard";
}

static void write_groups(FILE *f, const struct gpt_model *m)
{
    if (m->n_groups > 0) {
        (void)fprintf(f, " \"groups\": [");
        for (uint32_t g = 1; g <= m->n_groups; g++) {
            (void)fprintf(f, "%s[", g == 1 ? "" : ", ");
            for (uint64_t left = gpt_model_group(m, g); left != 0; left &= left - 1) {
                (void)fprintf(f, "%d%s", __builtin_ctzll(left),
                              (left & (left - 1)) != 0 ? ", " : "");
            }
            (void)fprintf(f, "]");
        }
        (void)fprintf(f, "],\n");
    }
}

static void write_tensor(FILE *f, const struct gpt_tensor *t, bool last)
{
    (void)fprintf(f, "  {\"name\": \"%s\", \"shape\": [%" PRId64, t->name, t->shape[0]);
    if (t->n_dims == 2) {
        (void)fprintf(f, ", %" PRId64, t->shape[1]);
    }
    (void)fprintf(f, "]");
    if (t->group != 0) {
        (void)fprintf(f, ", \"group\": %u", t->group);
    }
    if (t->pattern != CST_PATTERN_SHARD) {
        (void)fprintf(f, ", \"pattern\": \"%s\"", pattern_name(t->pattern));
    }
    if (t->decay_scale != 1.0f) {
        (void)fprintf(f, ", \"decay_scale\": %g", (double)t->decay_scale);
    }
    (void)fprintf(f, "}%s\n", last ? "" : ",");
}

/* Return the bytes of the hidden state if it is all that goes on after @op: after the embedding,
 * the projection of the attention and the feed-forward network. Else 0. */
static uint64_t hidden_bytes(const struct gpt_options *o, const struct gpt_model *m,
                             const struct gpt_operator *op)
{
    const uint64_t rows = (uint64_t)(o->batch / o->job.updates.micro_batches) * m->context;

    return op->kind == GPT_OP_EMBED || op->kind == GPT_OP_PROJ || op->kind == GPT_OP_FCPROJ
               ? rows * m->width * sizeof(float)
               : 0;
}

/* Whether a stage can end with @op: the worker cuts between blocks. */
static bool ends_stage(const struct gpt_model *m, const struct gpt_operator *op)
{
    return op->kind == GPT_OP_FCPROJ && op->layer + 1 < m->layers;
}

static void write_operator(FILE *f, const struct gpt_options *o, const struct gpt_model *m,
                           const struct gpt_operator *op, const struct cst_operator_cost *cost,
                           bool last)
{
    const uint64_t hidden = hidden_bytes(o, m, op);

    (void)fprintf(f, "  {\"name\": \"%s\", \"tensors\": [", op->name);
    for (uint32_t i = 0; i < op->n_tensors; i++) {
        (void)fprintf(f, "%s\"%s\"", i == 0 ? "" : ", ", m->tensors[op->tensors[i]].name);
    }
    (void)fprintf(f, "], \"flops\": %.17g, \"activation_bytes\": %" PRIu64, cost->flops,
                  cost->activation_bytes);
    if (cost->expected_uses != 1.0f) {
        (void)fprintf(f, ", \"expected_uses\": %.9g", (double)cost->expected_uses);
    }
    if (ends_stage(m, op)) {
        (void)fprintf(f, ", \"out_bytes\": %" PRIu64, hidden);
    }
    if (hidden > 0) {
        (void)fprintf(f, ", \"tp_bytes\": %" PRIu64, hidden);
    }
    if (m->stages > 0) {
        (void)fprintf(f, ", \"stage\": %" PRIu32, gpt_model_stage(m, op));
    }
    (void)fprintf(f, "}%s\n", last ? "" : ",");
}

static void write_model(FILE *f, const struct gpt_options *o, const struct gpt_model *m)
{
    const size_t n_seqs = o->batch / o->job.updates.micro_batches;

    (void)fprintf(f, "{\"name\": \"gpt-%ux%u", m->layers, m->width);
    if (m->experts > 0) {
        (void)fprintf(f, "-%u-experts", m->experts);
    }
    if (m->lora > 0) {
        (void)fprintf(f, "-lora-%u", m->lora);
    }
    (void)fprintf(f, "\", \"world\": %u, \"tokens\": %zu, \"heads\": %u,\n", m->world,
                  n_seqs * m->context, m->heads);
    write_groups(f, m);
    (void)fprintf(f, " \"tensors\": [\n");
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        write_tensor(f, &m->tensors[i], i + 1 == m->n_tensors);
    }
    (void)fprintf(f, " ],\n \"operators\": [\n");
    for (uint32_t i = 0; i < m->n_operators; i++) {
        const struct cst_operator_cost cost = gpt_describe_cost(o, m, i);

        write_operator(f, o, m, &m->operators[i], &cost, i + 1 == m->n_operators);
    }
    (void)fprintf(f, " ]}\n");
}

int gpt_describe(const struct gpt_options *options, struct cst_err *err)
{
    const bool here = strcmp(options->describe, "-") == 0;
    struct gpt_model model;
    FILE *f = stdout;
    bool failed;
    int rc = gpt_model_init(&model, options, err);

    if (rc != 0) {
        return rc;
    }
    if (!here) {
        rc = gpt_output_check(options->describe, "--describe", err);
        rc = rc == 0 ? gpt_output_open(&f, options->describe, false, "--describe", err) : rc;
    }
    if (rc == 0) {
        write_model(f, options, &model);
        /* Write errors are checked only here: the results of fprintf are ignored. */
        failed = ferror(f) != 0;
        failed = (here ? fflush(f) : fclose(f)) != 0 || failed;
        if (failed) {
            rc = cst_err_errno(err, CST_EIO, errno, "--describe '%s'", options->describe);
        }
    }
    gpt_model_close(&model);
    return rc;
}

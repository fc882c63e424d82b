/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the fastest product of data, tensor and pipeline parallelism for a number of ranks:
 * for each product the cuts into stages (stages.h) and the kind of schedule (schedule.h) whose
 * simulated step (schedule_time.h) is shortest.
 *
 * What is assumed of a product dp x tp x pp:
 *
 *   - Tensor parallelism divides the floating-point operations, parameters and activations of each
 *     unit by its degree (with sequence parallelism, Korthikanti et al. 2022). It is in the way of
 *     computing: sums of units are not hidden.
 *   - Each of the dp replicas of the pipeline has an equal share of the step's micro-batches.
 *   - A message between stages takes its bytes over the link between ranks. Stages and sums share
 * no link with others.
 *   - A backward pass takes twice as long as the forward pass: as long for the gradients of the
 *     inputs, with their sums, and as long for those of the weights.
 *   - After the last backward pass each rank hands in its gradients and gets new weights over its
 *     link to the host, where all replicas' gradients are summed and the parameters updated. None
 *     of this is hidden.
 *
 * Pure; only allocates memory. */
#ifndef CST_DEGREES_H
#define CST_DEGREES_H

#include "offload/parallel/schedule.h"
#include "offload/parallel/stages.h"

/* Most bytes of a micro-batch, and most parameters, that all units can have together: times the
 * micro-batches they still are numbers of 64 bits. */
#define CST_DEGREES_MOST (UINT64_C(1) << 46)
#define CST_DEGREES_MOST_FLOPS 1e30

/* A unit of the undivided model, for one micro-batch. */
struct cst_degrees_unit {
    double flops;         /* Floating-point operations of the forward pass. */
    uint64_t kept_bytes;  /* Kept from its forward to its backward pass. */
    uint64_t input_bytes; /* Of its input: kept instead if it recomputes. */
    uint64_t out_bytes;   /* Of its output, which the next unit gets. */
    /* Of what tensor parallelism sums in the forward pass, and as much again in the backward pass.
     */
    uint64_t sum_bytes;
    uint64_t n_params; /* Number of its parameters. */
};

struct cst_degrees_input {
    const struct cst_degrees_unit *units; /* In the order of the forward pass. */
    uint32_t n_units;
    const struct cst_unit_tie *ties; /* Shared parameters; `bytes` is their number. */
    uint32_t n_ties;
    uint32_t n_ranks;
    uint32_t n_micro;        /* Micro-batches of a step, of all replicas together. */
    uint32_t heads;          /* Degrees of tensor parallelism divide this number. */
    double flops;            /* Flop/s of a rank. */
    double link;             /* Bytes/s between two ranks. */
    double link_latency;     /* Seconds that a message or a sum takes in addition. */
    double to_host, to_rank; /* Bytes/s of a rank's link to the host, and back. */
    double sums, updates;    /* Elements/s of all hosts together. */
    uint64_t rank_bytes;     /* Memory of a rank. */
    uint32_t param_bytes;    /* Bytes of a rank's memory for a parameter: weight and gradient. */
    /* Only products with these degrees are tried; 0: with any. */
    uint32_t dp, tp, pp;
    const struct cst_schedule_kind *kind; /* Only this kind of schedule; NULL: any. */
    /* All units recompute, but not those of the last stage of a kind that recomputes early. */
    bool recompute;
};

/* One product, and its best form. */
struct cst_product {
    uint32_t dp, tp, pp;
    /* CST_OK; CST_EINVAL or CST_EBUDGET: the product is refused, for the reason in err.text. The
     * fields below are then 0. */
    struct cst_err err;
    const struct cst_schedule_kind *kind;
    uint32_t n_stages, n_micro; /* Stages; micro-batches of a replica. */
    struct cst_stage_cut *cuts; /* For each stage. Owned. */
    double step;                /* Seconds of a step. */
    double pipeline, commit;    /* Its two parts: all passes; gradients, update and weights. */
    double bubble;              /* Share of the pipeline in which ranks wait. */
    uint64_t rank_bytes;        /* Most memory that a rank needs. */
    /* Bytes that the rank with most of them receives in a step. */
    uint64_t sum_bytes, message_bytes, weight_bytes;
};

struct cst_products {
    /* Those that work come first, the fastest first; then those that are refused. Owned. */
    struct cst_product *products;
    uint32_t n, n_working;
};

/* Try all products dp x tp x pp = n_ranks. The caller frees *out with cst_products_close.
 * CST_EINVAL: a number of @input is 0 or too large, or no product has the given degrees;
 * CST_ENOMEM.
 */
int cst_degrees_search(struct cst_products *out, const struct cst_degrees_input *input,
                       struct cst_err *err);

/* Try one product with one kind of schedule, with @per_rank stages for each rank. The caller frees
 * out->cuts. The refusal is in out->err. CST_ENOMEM. */
int cst_degrees_try(struct cst_product *out, const struct cst_degrees_input *input, uint32_t dp,
                    uint32_t tp, uint32_t pp, const struct cst_schedule_kind *kind,
                    uint32_t per_rank, struct cst_err *err);

void cst_products_close(struct cst_products *products);

#endif

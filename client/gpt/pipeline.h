/* SPDX-License-Identifier: Apache-2.0 */
/* Bound pipelines (--parallel pipeline): each stage of the model belongs to one rank, and each rank
 * does the actions of its list (offload/parallel/schedule.h) in their order, over edges between the
 * ranks of neighbouring stages:
 *
 *   0 .. S - 2          output of stage i, as in --parallel dispatch
 *   S - 1 .. 2 S - 3    gradient for stage i - (S - 1)
 *   2 S - 2 .. 3 S - 4  input of stage i - (2 S - 2) + 1, which its rank keeps for the backward
 * pass 3 S - 3             gradient of the residual stream before the embedding, in the first stage
 *
 * A rank has memory for the activations of one micro-batch, so that a backward pass computes them
 * again from the stage's input, unless the action before it has done so ("R").
 *
 * Sums. A gradient is the sum of the contributions of micro-batches, in their order, whatever the
 * schedule is. To the job each backward pass is a micro-batch of its own, as the passes of a rank
 * can be those of several stages. The first and the last stage share the token embedding: its
 * gradient has the last stage's contributions first, and then the first stage's, which are computed
 * when its list is done. This is the order of --parallel dispatch, and no contribution waits in a
 * pool for those of other ranks:
 *
 *   micro-batches of the job   0 .. n - 1      n .. 2 n - 1    2 n .. 2 n + M - 1
 *   rank of the first stage    nothing         its backward passes, then the embedding's
 *   other ranks                backward passes
 *
 * n is the largest number of backward passes of a rank. With a frozen embedding there are only the
 * first n. */
#ifndef GPT_PIPELINE_H
#define GPT_PIPELINE_H

#include "client/gpt/unit.h"
#include "offload/parallel/schedule.h"

struct gpt_pipeline {
    struct cst_schedule schedule;
    uint32_t *in_flight; /* Most micro-batches in flight, for each stage. Owned. */
    uint32_t n_units;    /* Most backward passes of a rank in a step. */
    bool embeds_later;   /* The embedding is trained, and runs backward at the end. */
};

/* Make the schedule of @options, or read it from their file, and check it. The caller frees *out
 * with gpt_pipeline_close. CST_EINVAL: it is for other ranks, stages or micro-batches, or it is one
 * that this worker cannot run; the words say what it can. The statuses of
 * gpt_pipeline_read_file and cst_schedule_make. */
int gpt_pipeline_open(struct gpt_pipeline *out, const struct gpt_options *options,
                      struct cst_err *err);
/* Free the lists. A zeroed pipeline is allowed. */
void gpt_pipeline_close(struct gpt_pipeline *pipeline);

/* Micro-batches of the job. */
uint32_t gpt_pipeline_micro_batches(const struct gpt_pipeline *pipeline);

/* Number of edges, and what edge @edge is, with name and rank numbers. @bytes: size of the residual
 * stream of a micro-batch. @name has room for the name. */
uint32_t gpt_pipeline_n_edges(const struct gpt_pipeline *pipeline);
#define GPT_PIPELINE_NAME_BYTES 48
struct cst_edge_spec gpt_pipeline_edge(const struct gpt_pipeline *pipeline, uint32_t edge,
                                       uint64_t bytes, char name[GPT_PIPELINE_NAME_BYTES]);

/* What a rank does in a step. */
struct gpt_pipeline_run {
    struct gpt_pass *pass;
    struct gpt_store *store;
    uint32_t rank;
    size_t n_seqs; /* Of a micro-batch. */
    /* Fill the pass's tokens and targets with those of micro-batch @micro. */
    int (*load)(void *arg, uint32_t micro, struct cst_err *err);
    void *arg;
    /* Room for the actions of the rank's list; gets those that were done, in their order. */
    struct cst_stage_action *done;
    uint32_t n_done;
    double loss; /* Mean over the micro-batches, in the rank of the last stage; else 0. */
};

/* Do the actions of the rank's list, and hand all gradients in. The caller then commits the step.
 * The statuses of the store, the device and `load`. */
int gpt_pipeline_step(struct gpt_pipeline_run *run, struct cst_err *err);

#endif

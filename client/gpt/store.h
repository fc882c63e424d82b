/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank's model states live: a table of operations with a row each for the daemon
 * (store_daemon.c), this process (store_local.c), and a view of either (store_read.c). Semantics,
 * types and statuses are those of cistern/cistern.h; tensors and operators go by their number in
 * the model. A handle is used by one thread. */
#ifndef GPT_STORE_H
#define GPT_STORE_H

#include "cistern/cistern.h"
#include "client/gpt/model.h"

struct gpt_store;

struct gpt_store_ops {
    const char *name;
    bool (*initialised)(const struct gpt_store *store);
    uint64_t (*steps)(const struct gpt_store *store);
    int (*sync)(struct gpt_store *store, uint64_t *step, struct cst_err *err);
    int (*op_begin)(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                    struct cst_io *io, uint32_t n_io, struct cst_err *err);
    int (*op_end)(struct gpt_store *store, uint32_t op, struct cst_err *err);
    int (*accumulate)(struct gpt_store *store, struct cst_err *err);
    /* NULL: nothing is done early. */
    int (*prepare)(struct gpt_store *store, const struct cst_hyper_params *params,
                   struct cst_err *err);
    int (*step)(struct gpt_store *store, const struct cst_hyper_params *params,
                struct cst_step_result *result, struct cst_err *err);
    int (*read)(struct gpt_store *store, uint32_t tensor, enum cst_state state, uint64_t first,
                uint64_t n_elems, void *data, struct cst_err *err);
    int (*write)(struct gpt_store *store, uint32_t tensor, enum cst_state state, uint64_t first,
                 uint64_t n_elems, const void *data, struct cst_err *err);
    int (*stat)(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err);
    /* Free the handle. @good: in good order; else as if the worker had died, so that other ranks do
     * not wait for it. */
    void (*close)(struct gpt_store *store, bool good);
};

/* The head of each row's own struct. */
struct gpt_store {
    const struct gpt_store_ops *ops;
    struct cst_plan
        plan; /* chunks and blocks; of the local store: n_params and arena_bytes alone */
};

struct gpt_device;

/* Connect to the daemon, open the job as --rank on --device, have @device join it, declare @model
 * and commit. @model and @device are borrowed for the store's life. Statuses of cst_connect,
 * cst_job_open, the device's join, cst_commit. */
int gpt_store_daemon_open(struct gpt_store **out, const struct gpt_options *options,
                          const struct gpt_model *model, struct gpt_device *device,
                          struct cst_err *err);

/* A store for looking at the weights alone: forwards through the operators of @model, with the
 * weights read out of @from's tensors. It takes part in no step and needs no other rank. Both are
 * borrowed for its life. CST_ENOMEM. */
int gpt_store_read_open(struct gpt_store **out, struct gpt_store *from,
                        const struct gpt_model *model, struct cst_err *err);

/* Bytes of its buffer: the weights of the largest operator, as they lie in it. */
size_t gpt_store_read_bytes(const struct gpt_model *model);

/* States of all ranks of one process. */
struct gpt_local;

struct gpt_local_config {
    uint32_t world;          /* ranks */
    uint32_t micro_batches;  /* per step, at least 1 */
    uint32_t engine_threads; /* team for reduce and update; 0: one per usable core */
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding; /* of moments that are not fp32 */
    uint64_t seed;              /* of stochastic rounding */
    enum cst_overlap overlap;   /* EARLY has the bits of COMMIT, and is the same here */
    uint64_t delay_from;        /* DELAYED: the first step that is */
};

/* @model is borrowed. CST_ENOMEM. Close when all ranks' stores are closed. */
int gpt_local_open(struct gpt_local **out, const struct gpt_model *model,
                   const struct gpt_local_config *config, struct cst_err *err);
void gpt_local_close(struct gpt_local *local);

/* End all waits of its ranks, now and later, with CST_ECANCELLED: a rank will not come. Any thread.
 */
void gpt_local_break(struct gpt_local *local);

/* The store of one rank; each at most once. CST_ENOMEM. */
int gpt_store_local_open(struct gpt_store **out, struct gpt_local *local, uint32_t rank,
                         struct cst_err *err);

#endif

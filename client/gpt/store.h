/* SPDX-License-Identifier: Apache-2.0 */
/* Store of a rank's model states: a table of operations, implemented for the daemon
 * (store_daemon.c), for this process (store_local.c), and as a read-only view of another store
 * (store_read.c). The semantics, types and statuses are those of cistern/cistern.h. Tensors and
 * operators have their numbers in the model. A handle is used by one thread. */
#ifndef GPT_STORE_H
#define GPT_STORE_H

#include "cistern/checkpoint.h"
#include "cistern/comm.h"
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
    /* Begin to copy @bytes bytes between @data and array @number of this rank's stash, and end it,
     * as cst_put_start, cst_take_start and cst_edge_wait do. NULL: this store has no stash. */
    int (*put_start)(struct gpt_store *store, uint32_t number, const void *data, uint64_t bytes,
                     struct cst_err *err);
    int (*take_start)(struct gpt_store *store, uint32_t number, void *data, uint64_t bytes,
                      struct cst_err *err);
    int (*stash_wait)(struct gpt_store *store, uint32_t number, struct cst_err *err);
    /* Open a communicator of all ranks, as cst_comm_open does. The store's close() closes it if the
     * caller has not. NULL: the ranks of this store are threads. */
    int (*comm_open)(struct gpt_store *store, struct cst_comm **out, struct cst_err *err);
    /* Units, as cst_next does them, and the arrays that pass between stages, as cst_put and
     * cst_take do that. Edge i goes from stage i to stage i + 1, and edge stages - 1 + i back; a
     * pipeline has more (pipeline.h). NULL: this store has no stages. */
    int (*next)(struct gpt_store *store, double loss, struct cst_unit *unit, struct cst_err *err);
    int (*put)(struct gpt_store *store, uint32_t edge, uint32_t number, const void *data,
               uint64_t bytes, struct cst_err *err);
    int (*take)(struct gpt_store *store, uint32_t edge, uint32_t number, void *data, uint64_t bytes,
                struct cst_err *err);
    int (*accumulate)(struct gpt_store *store, struct cst_err *err);
    /* NULL: no update begins before the end of the step. */
    int (*prepare)(struct gpt_store *store, const struct cst_hyper_params *params,
                   struct cst_err *err);
    int (*step)(struct gpt_store *store, const struct cst_hyper_params *params,
                struct cst_step_result *result, struct cst_err *err);
    int (*read)(struct gpt_store *store, uint32_t tensor, enum cst_state state, uint64_t first,
                uint64_t n_elems, void *data, struct cst_err *err);
    int (*write)(struct gpt_store *store, uint32_t tensor, enum cst_state state, uint64_t first,
                 uint64_t n_elems, const void *data, struct cst_err *err);
    /* Write the states of the checkpoint at @path. NULL: this store has no checkpoints. */
    int (*load)(struct gpt_store *store, const char *path, struct cst_load_result *result,
                struct cst_err *err);
    /* Write the weights of the model in the directory @dir, except adapters. NULL: this store has
     * no such function. */
    int (*init)(struct gpt_store *store, const char *dir, struct cst_err *err);
    int (*stat)(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err);
    /* Leave after the last step, which lasts then if the job is durable; a failure says why not.
     * NULL: there is nothing to leave. */
    int (*leave)(struct gpt_store *store, struct cst_err *err);
    /* Remove the job, which has no weights yet, so that the name is free. NULL: there is no job. */
    int (*discard)(struct gpt_store *store, struct cst_err *err);
    /* Close the handle. @good: leave properly. Otherwise leave as if the worker had died, so that
     * other ranks do not wait for it. */
    void (*close)(struct gpt_store *store, bool good);
};

/* First member of the struct of each implementation. */
struct gpt_store {
    const struct gpt_store_ops *ops;
    /* Chunks and blocks. The local store sets n_params and arena_bytes only. */
    struct cst_plan plan;
};

struct gpt_device;

/* Connect to the daemon, open the job as --rank on --device, call @device's join, declare @model
 * and commit. @model and @device are borrowed until the store is closed. The statuses are those of
 * cst_connect, cst_job_open, the device's join and cst_commit. */
int gpt_store_daemon_open(struct gpt_store **out, const struct gpt_options *options,
                          const struct gpt_model *model, struct gpt_device *device,
                          struct cst_err *err);

/* Open a read-only store for forward passes through the operators of @model, with weights that are
 * read from the tensors of @from. It takes part in no step and needs no other rank. @from and
 * @model are borrowed until the store is closed. CST_ENOMEM. */
int gpt_store_read_open(struct gpt_store **out, struct gpt_store *from,
                        const struct gpt_model *model, struct cst_err *err);

/* Bytes of the buffer of gpt_store_read_open: the weights of the largest operator, each tensor
 * aligned. */
size_t gpt_store_read_bytes(const struct gpt_model *model);

/* The states of all ranks of one process. */
struct gpt_local;

struct gpt_local_config {
    uint32_t world;
    uint32_t micro_batches;  /* micro-batches per step, at least 1 */
    uint32_t engine_threads; /* threads that reduce and update; 0: one per usable core */
    enum cst_optimizer optimizer;
    enum cst_masters masters;
    enum cst_moments moments;
    enum cst_rounding rounding; /* rounding of moments that are not fp32 */
    uint64_t seed;              /* seed of stochastic rounding */
    enum cst_overlap overlap;   /* EARLY has the results of COMMIT and is treated as COMMIT */
    uint64_t delay_from;        /* with DELAYED: the first delayed step */
};

/* Allocate the states of @model for all ranks. @model is borrowed. Call gpt_local_close after the
 * stores of all ranks are closed. CST_ENOMEM. */
int gpt_local_open(struct gpt_local **out, const struct gpt_model *model,
                   const struct gpt_local_config *config, struct cst_err *err);
void gpt_local_close(struct gpt_local *local);

/* End all waits of the ranks, now and later, with CST_ECANCELLED, because a rank will not come. Any
 * thread may call it. */
void gpt_local_break(struct gpt_local *local);

/* Open the store of one rank. CST_EBUSY: the store of this rank is open already. */
int gpt_store_local_open(struct gpt_store **out, struct gpt_local *local, uint32_t rank,
                         struct cst_err *err);

#endif

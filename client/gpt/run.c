/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/run.h"

#include "client/gpt/checkpoint.h"
#include "client/gpt/data.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/model.h"
#include "client/gpt/output.h"
#include "client/gpt/standby.h"
#include "client/gpt/stop.h"
#include "client/gpt/store.h"
#include "client/gpt/train.h"
#include "proto/size.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct worker {
    const struct gpt_options *options; /* shared by all ranks */
    const struct gpt_model *model;     /* shared by all ranks */
    const struct gpt_texts *texts;     /* shared by all ranks */
    struct gpt_device *device;         /* shared by all ranks */
    struct cst_comm *comm;             /* mixture on ranks that are threads; else NULL */
    uint32_t rank;                     /* rank of this worker */
    struct cst_client *standby;        /* keeps the rank until the job is open; NULL: no standby */
    pthread_t thread;                  /* thread of this rank with the local store */
    int rc;                            /* status at the end */
    struct cst_err err;                /* error text for rc */
};

/* Say where activations are, if they are limited. */
static void tell_activations(const struct worker *w)
{
    const struct gpt_options *o = w->options;
    struct gpt_stash_plan plan;
    char held[CST_SIZE_EXACT], stashed[CST_SIZE_EXACT];

    if (o->activation_memory == 0 ||
        w->device->ops->plan_stash(w->device, w->model, &plan, NULL) != 0) {
        return; /* A limit that is too small has been refused. */
    }
    (void)printf(
        "cistern-gpt: each rank holds %s of activations; those of %u of %u blocks wait in %s "
        "of the daemon's memory\n",
        cst_size_exact(plan.held_bytes, held), plan.n_stashed, w->model->layers,
        cst_size_exact(plan.n_stashed * plan.block_bytes, stashed));
}

static void announce(const struct worker *w, const struct gpt_store *store)
{
    const struct gpt_options *o = w->options;
    char words[GPT_DEVICE_WORDS];

    if (o->quiet || w->rank != 0) {
        return;
    }
    w->device->ops->describe(w->device, words);
    (void)printf("cistern-gpt: %.2f M parameters in %u layers of width %u, %u heads; %u ranks x "
                 "%s, store %s",
                 (double)w->model->n_params / 1e6, o->layers, o->width, o->heads, o->job.world,
                 words, store->ops->name);
    if (store->plan.n_blocks > 0) {
        (void)printf("; %u chunks of %llu B, pool of %u blocks (at least %u): %.1f %% of weights",
                     store->plan.n_chunks, (unsigned long long)store->plan.block_bytes,
                     store->plan.n_blocks, store->plan.min_blocks,
                     100.0 * (double)store->plan.pool_bytes / (2.0 * (double)w->model->n_params));
    }
    (void)printf("\n");
    tell_activations(w);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct gpt_store *store;

    w->rc = w->options->store == GPT_STORE_LOCAL
                ? w->device->ops->open_store(w->device, w->rank, &store, &w->err)
                : gpt_store_daemon_open(&store, w->options, w->model, w->device, &w->err);
    cst_disconnect(w->standby);
    if (w->rc == 0) {
        announce(w, store);
        w->rc =
            gpt_train(w->options, w->model, w->texts, w->device, store, w->comm, w->rank, &w->err);
        if (w->rc == 0 && store->ops->leave != NULL) {
            w->rc = store->ops->leave(store, &w->err);
        }
        /* A stop that a signal requested is a proper end. */
        store->ops->close(store, w->rc == 0 || gpt_stop_asked() != 0);
    }
    cst_comm_close(w->comm);
    return NULL;
}

/* The first cause: a rank that failed only because another rank failed has CST_ECANCELLED. */
static int worst(const struct worker *workers, uint32_t n, struct cst_err *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (workers[i].rc != 0 && (rc == 0 || rc == CST_ECANCELLED)) {
            rc = workers[i].rc;
            *err = workers[i].err;
            if (n > 1) {
                (void)cst_err_prefix(err, "rank %u", i);
            }
        }
    }
    return rc;
}

/* Run a thread for each rank. @comms: one per rank, which their threads close. */
static int run_threads(struct worker *workers, const struct worker *like, struct cst_comm **comms,
                       struct cst_err *err)
{
    const uint32_t world = like->options->job.world;
    uint32_t n_started = 0;
    int rc = 0;

    for (; n_started < world; n_started++) {
        struct worker *w = &workers[n_started];

        *w = *like;
        w->rank = n_started;
        w->comm = comms[n_started];
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            like->device->ops->break_states(like->device);
            rc = cst_err_set(err, CST_ENOMEM, "cannot start the thread of rank %u", n_started);
            break;
        }
    }
    /* No other rank waits for those that have no thread. */
    for (uint32_t i = n_started; i < world; i++) {
        cst_comm_close(comms[i]);
    }
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    return rc == 0 ? worst(workers, world, err) : rc;
}

/* Run all ranks as threads of this process. */
static int run_local(const struct worker *like, struct cst_err *err)
{
    const uint32_t world = like->options->job.world;
    struct worker *workers = calloc(world, sizeof *workers);
    struct cst_comm *comms[CST_COMM_MAX_THREADS] = {NULL};
    int rc;

    if (workers == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    rc = like->device->ops->open_states(like->device, like->model, err);
    if (rc == 0 && like->model->experts > 0 && world > 1) {
        rc = cst_comm_open_threads(comms, world, err);
    }
    if (rc == 0) {
        rc = run_threads(workers, like, comms, err);
    }
    free(workers);
    return rc;
}

static void close_texts(struct gpt_texts *texts)
{
    gpt_data_close(&texts->validation);
    gpt_data_close(&texts->train);
}

/* Open the training text and, if it is asked for, the text for validation. */
static int open_texts(struct gpt_texts *texts, const struct gpt_options *o, struct cst_err *err)
{
    double percent;
    int rc;

    *texts = (struct gpt_texts){0};
    rc = gpt_data_open(&texts->train, o->data, o->tokens, o->vocab, o->context, err);
    if (rc != 0) {
        return cst_err_prefix(err, "--data");
    }
    if (o->validate != NULL && cst_size_percent(o->validate, &percent)) {
        rc = gpt_data_split(&texts->train, percent, o->context, &texts->validation, err);
    } else if (o->validate != NULL) {
        rc = gpt_data_open(&texts->validation, o->validate, o->tokens, o->vocab, o->context, err);
        rc = rc == 0 ? 0 : cst_err_prefix(err, "--validate");
    }
    if (rc != 0) {
        close_texts(texts);
    }
    return rc;
}

/* Check the files and the directory that the run writes. */
static int check_outputs(const struct gpt_options *o, struct cst_err *err)
{
    const struct {
        const char *what, *path;
    } files[] = {{"--log-json", o->log_json},
                 {"--loss-file", o->loss_file},
                 {"--dump-weights", o->dump_weights},
                 {"--dump-logits", o->dump_logits},
                 {"--dump-grads", o->dump_grads}};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof files / sizeof *files; i++) {
        rc = files[i].path != NULL ? gpt_output_check(files[i].path, files[i].what, err) : 0;
    }
    return rc == 0 && o->save_every > 0 ? gpt_output_check_directory(o->save_dir, "--save-dir", err)
                                        : rc;
}

/* Work as one rank. A standby gets its number first; if the job ends before, the run is over. */
static int run_rank(struct worker *w, struct gpt_options *options, struct cst_err *err)
{
    if (options->standby) {
        const int rc = gpt_standby(options, &w->standby, err);

        if (rc == CST_ECANCELLED && gpt_stop_asked() == 0) {
            (void)printf("cistern-gpt: %s\n", err->text);
            return CST_OK;
        }
        if (rc != CST_OK) {
            return rc;
        }
        w->rank = options->job.rank;
    }
    (void)worker_main(w);
    *err = w->err;
    return w->rc;
}

int gpt_run(const struct gpt_options *given, struct cst_err *err)
{
    struct gpt_options own = *given; /* A standby does not know its rank yet. */
    const struct gpt_options *options = &own;
    struct gpt_model model;
    struct gpt_texts texts;
    struct worker w = {
        .options = options, .model = &model, .texts = &texts, .rank = options->job.rank};
    int rc = check_outputs(options, err);

    rc = rc == 0 ? open_texts(&texts, options, err) : rc;
    if (rc != 0) {
        return rc;
    }
    if (options->job.rank == 0 && !options->standby) {
        rc = gpt_checkpoint_check_job(options, err);
    }
    if (rc != 0) {
        goto out_data;
    }
    rc = gpt_model_init(&model, options, err);
    if (rc != 0) {
        goto out_data;
    }
    rc = gpt_device_open(&w.device, options, err);
    if (rc != 0) {
        goto out_model;
    }
    if (options->store == GPT_STORE_LOCAL) {
        rc = run_local(&w, err);
    } else {
        rc = run_rank(&w, &own, err);
    }
    w.device->ops->close(w.device);
out_model:
    gpt_model_close(&model);
out_data:
    close_texts(&texts);
    return rc;
}

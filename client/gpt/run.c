/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/run.h"

#include "client/gpt/checkpoint.h"
#include "client/gpt/data.h"
#include "client/gpt/device.h"
#include "client/gpt/exchange.h"
#include "client/gpt/host_stash.h"
#include "client/gpt/model.h"
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
    struct gpt_exchange_hub *hub;      /* mixture with the local store; else NULL */
    uint32_t rank;                     /* rank of this worker */
    pthread_t thread;                  /* thread of this rank with the local store */
    int rc;                            /* status at the end */
    struct cst_err err;                /* error text for rc */
};

/* Say where activations are, if they are limited. */
static void tell_activations(const struct worker *w)
{
    const struct gpt_options *o = w->options;
    struct gpt_host_plan plan;
    char held[CST_SIZE_EXACT], stashed[CST_SIZE_EXACT];

    if (o->activation_memory == 0 ||
        gpt_host_plan(w->model, o->batch / o->micro_batches, gpt_device_bf16(o),
                      o->activation_memory, &plan, NULL) != 0) {
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
                 (double)w->model->n_params / 1e6, o->layers, o->width, o->heads, o->world, words,
                 store->ops->name);
    if (store->plan.n_blocks > 0) {
        (void)printf("; %u chunks of %llu B, pool of %u blocks (at least %u): %.1f %% of weights",
                     store->plan.n_chunks, (unsigned long long)store->plan.block_bytes,
                     store->plan.n_blocks, store->plan.min_blocks,
                     100.0 * (double)store->plan.pool_bytes / (2.0 * (double)w->model->n_params));
    }
    (void)printf("\n");
    tell_activations(w);
}

/* True if ranks exchange the tokens of a mixture. */
static bool needs_exchange(const struct worker *w)
{
    return w->model->experts > 0 && w->options->world > 1;
}

static size_t region_bytes(const struct worker *w)
{
    return w->device->ops->region_bytes(w->device, w->model);
}

/* A name that is unique to the processes of the job: it contains user, daemon and job. */
static void exchange_name(const struct gpt_options *o, char *out, size_t size)
{
    const char *given = o->socket != NULL ? o->socket : getenv("CISTERN_SOCKET");
    const char *path = given != NULL ? given : CST_DEFAULT_SOCKET;
    char *real = realpath(path, NULL);
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */

    for (const char *p = real != NULL ? real : path; *p != '\0'; p++) {
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3ull;
    }
    (void)snprintf(out, size, "cistern-gpt/%u/%016llx/%s", (unsigned)geteuid(),
                   (unsigned long long)hash, o->job);
    free(real);
}

static int open_exchange(const struct worker *w, struct gpt_exchange **out, struct cst_err *err)
{
    char name[128];

    *out = NULL;
    if (!needs_exchange(w)) {
        return 0;
    }
    if (w->hub != NULL) {
        return gpt_exchange_open_thread(out, w->hub, w->rank, err);
    }
    exchange_name(w->options, name, sizeof name);
    return gpt_exchange_open_process(out, name, w->rank, w->options->world, region_bytes(w), err);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct gpt_exchange *exchange = NULL;
    struct gpt_store *store;

    w->rc = w->options->store == GPT_STORE_LOCAL
                ? w->device->ops->open_store(w->device, w->rank, &store, &w->err)
                : gpt_store_daemon_open(&store, w->options, w->model, w->device, &w->err);
    if (w->rc == 0) {
        announce(w, store);
        w->rc = open_exchange(w, &exchange, &w->err);
        if (w->rc == 0) {
            w->rc = gpt_train(w->options, w->model, w->texts, w->device, store, exchange, w->rank,
                              &w->err);
        }
        gpt_exchange_close(exchange);
        /* A stop that a signal requested is a proper end. */
        store->ops->close(store, w->rc == 0 || gpt_stop_asked() != 0);
    }
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

/* Tell all ranks of this process that one rank will not come. */
static void give_up(const struct worker *like)
{
    like->device->ops->break_states(like->device);
    if (like->hub != NULL) {
        gpt_exchange_hub_break(like->hub);
    }
}

static int run_threads(struct worker *workers, const struct worker *like, struct cst_err *err)
{
    const uint32_t world = like->options->world;
    uint32_t n_started = 0;
    int rc = 0;

    for (; n_started < world; n_started++) {
        struct worker *w = &workers[n_started];

        *w = *like;
        w->rank = n_started;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            give_up(like);
            rc = cst_err_set(err, CST_ENOMEM, "cannot start the thread of rank %u", n_started);
            break;
        }
    }
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    return rc == 0 ? worst(workers, world, err) : rc;
}

/* Run all ranks as threads of this process. */
static int run_local(struct worker *like, struct cst_err *err)
{
    const uint32_t world = like->options->world;
    struct worker *workers = calloc(world, sizeof *workers);
    int rc;

    if (workers == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    rc = like->device->ops->open_states(like->device, like->model, err);
    if (rc == 0 && needs_exchange(like)) {
        rc = gpt_exchange_hub_open(&like->hub, world, region_bytes(like), err);
    }
    if (rc == 0) {
        rc = run_threads(workers, like, err);
    }
    gpt_exchange_hub_close(like->hub);
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
    if (rc == 0 && o->validate != NULL && cst_size_percent(o->validate, &percent)) {
        rc = gpt_data_split(&texts->train, percent, o->context, &texts->validation, err);
    } else if (rc == 0 && o->validate != NULL) {
        rc = gpt_data_open(&texts->validation, o->validate, o->tokens, o->vocab, o->context, err);
    }
    if (rc != 0) {
        close_texts(texts);
    }
    return rc;
}

int gpt_run(const struct gpt_options *options, struct cst_err *err)
{
    struct gpt_model model;
    struct gpt_texts texts;
    struct worker w = {.options = options, .model = &model, .texts = &texts, .rank = options->rank};
    int rc = open_texts(&texts, options, err);

    if (rc != 0) {
        return rc;
    }
    if (options->rank == 0) {
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
        (void)worker_main(&w);
        rc = w.rc;
        *err = w.err;
    }
    w.device->ops->close(w.device);
out_model:
    gpt_model_close(&model);
out_data:
    close_texts(&texts);
    return rc;
}

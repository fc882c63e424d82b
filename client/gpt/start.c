/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/start.h"

#include "client/gpt/checkpoint.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/gpt2.h"
#include "client/gpt/hyper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_ELEMS (1 << 20) /* initial weights that are written at a time */

struct start {
    const struct gpt_options *options;
    const struct gpt_model *model;
    struct gpt_store *store;
    uint32_t n_passes; /* passes per batch */
};

/* True if tensor @i has its weights already: from the base job, or from the model in --init. */
static bool has_weights(const struct start *s, uint32_t i)
{
    const struct gpt_tensor *tensor = &s->model->tensors[i];

    return s->options->job.model.base != NULL
               ? tensor->pattern == CST_PATTERN_FROZEN
               : s->options->init != NULL && !gpt_gpt2_is_adapter(tensor->name);
}

static int write_initial(const struct start *s, struct cst_err *err)
{
    float *slice = malloc(WRITE_ELEMS * sizeof *slice);
    int rc = 0;

    if (slice == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    if (s->options->init != NULL) {
        rc = s->store->ops->init(s->store, s->options->init, err);
    }
    for (uint32_t i = 0; rc == 0 && i < s->model->n_tensors; i++) {
        const uint64_t n = has_weights(s, i) ? 0 : s->model->tensors[i].n_elems;

        for (uint64_t at = 0; rc == 0 && at < n; at += WRITE_ELEMS) {
            const uint64_t now = n - at < WRITE_ELEMS ? n - at : WRITE_ELEMS;

            gpt_model_initial(s->model, s->options->job.states.seed, i, at, now,
                              gpt_device_threads(s->options), slice);
            rc = s->store->ops->write(s->store, i, CST_STATE_MASTER, at, now, slice, err);
        }
    }
    free(slice);
    return rc;
}

/* Warn if a parameter of the last step before the checkpoint, @was, is another one now. */
static void compare_param(const char *name, double was, double now)
{
    if (fabs(was - now) > 1e-6 * fabs(now)) {
        (void)fprintf(stderr,
                      "cistern-gpt: warning: %s was %g in the checkpoint's last step, now "
                      "it would be %g\n",
                      name, was, now);
    }
}

/* Tell what was loaded from @path, and what is other than in the saved job. */
static void tell_loaded(const struct start *s, const struct cst_load_result *loaded,
                        const char *path)
{
    const struct cst_hyper_params *was = &loaded->params;
    struct cst_hyper_params now;

    if (!s->options->quiet) {
        (void)printf("loaded step %llu from %s%s\n", (unsigned long long)loaded->step, path,
                     loaded->converted
                         ? ": the moments were converted, so that the next steps have "
                           "other bits than without interruption"
                         : "");
    }
    if (loaded->warning[0] != '\0') {
        (void)fprintf(stderr, "cistern-gpt: warning: %s: %s\n", path, loaded->warning);
    }
    if (loaded->step == 0 || was->grad_scale == 0) {
        return;
    }
    now = gpt_hyper_params(s->options, s->n_passes, loaded->step - 1);
    compare_param("the learning rate", was->lr, now.lr);
    compare_param("beta1", was->beta1, now.beta1 > 0 ? now.beta1 : was->beta1);
    compare_param("beta2", was->beta2, now.beta2);
    compare_param("weight decay", was->weight_decay, now.weight_decay);
    compare_param("the largest norm of gradients", was->clip_norm, now.clip_norm);
}

/* Give a new job its states: those of a checkpoint, or initial weights. */
static int initialise(const struct start *s, struct cst_err *err)
{
    const struct gpt_options *o = s->options;
    const bool automatic = o->resume != NULL && strcmp(o->resume, "auto") == 0;
    const char *path = automatic ? o->save_dir : o->resume;
    struct cst_load_result loaded;
    int rc;

    if (o->resume == NULL) {
        return write_initial(s, err);
    }
    rc = gpt_checkpoint_check_model(path, s->model, err);
    if (rc == 0) {
        rc = s->store->ops->load(s->store, path, &loaded, err);
    }
    if (rc == CST_ENOTFOUND && automatic) {
        return write_initial(s, err);
    }
    if (rc == 0) {
        tell_loaded(s, &loaded, path);
    }
    return rc;
}

/* Remove the new job, which has got no weights: what is started next with its name may have another
 * model. */
static void discard(const struct start *s)
{
    struct cst_err err = {0};

    if (s->store->ops->discard == NULL) {
        return;
    }
    if (s->store->ops->discard(s->store, &err) != 0) {
        (void)fprintf(stderr, "cistern-gpt: warning: job '%s' remains, without weights: %s\n",
                      s->options->job.name, err.text);
    }
}

int gpt_start(const struct gpt_options *options, const struct gpt_model *model, uint32_t n_passes,
              struct gpt_store *store, struct cst_err *err)
{
    const struct start start = {options, model, store, n_passes};
    const char *resume = options->resume;
    int rc = 0;

    if (!store->ops->initialised(store)) {
        rc = initialise(&start, err);
        /* Otherwise the same command can go on with the job. A file is not read better then. */
        if (rc != 0 && (rc == CST_EIO || !cst_status_retryable(rc))) {
            discard(&start);
        }
    } else if (resume != NULL && strcmp(resume, "auto") != 0 && !options->quiet) {
        (void)printf("job '%s' exists and goes on after step %llu: --resume is not used\n",
                     options->job.name, (unsigned long long)store->ops->steps(store));
    }
    if (rc == 0) {
        gpt_checkpoint_warn(options, store->ops->steps(store));
    }
    return rc;
}

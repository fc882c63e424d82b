/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/checkpoint.h"

#include "cistern/checkpoint.h"
#include "client/gpt/gpt2.h"
#include "proto/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- before the first step -------------------------------------------------------------------- */

/* List the checkpoints in @dir. A directory that cannot be read has none: a save or a load reports
 * the reason. */
static int list(const char *dir, struct cst_checkpoint **all, uint32_t *n, struct cst_err *err)
{
    int rc = cst_checkpoints(dir, false, all, n, err);

    if (rc == CST_ENOMEM) {
        return rc;
    }
    if (rc != 0) {
        *all = NULL;
        *n = 0;
    }
    return 0;
}

int gpt_checkpoint_check_job(const struct gpt_options *o, struct cst_err *err)
{
    struct cst_checkpoint *all;
    uint32_t n;
    int rc;

    if (o->save_dir == NULL) {
        return 0;
    }
    rc = list(o->save_dir, &all, &n, err);
    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        if (all[i].job[0] != '\0' && strcmp(all[i].job, o->job.name) != 0) {
            rc = cst_err_set(err, CST_EMISMATCH,
                             "--save-dir %.128s has checkpoints of job '%s': job '%s' needs a "
                             "directory of its own",
                             o->save_dir, all[i].job, o->job.name);
        }
    }
    free(all);
    return rc;
}

int gpt_checkpoint_check_model(const char *path, const struct gpt_model *model, struct cst_err *err)
{
    struct gpt_gpt2_sizes sizes;
    struct cst_checkpoint *all;
    char *dir = NULL;
    uint32_t n;
    int rc = list(path, &all, &n, err), made;

    if (rc != 0) {
        return rc;
    }
    while (n > 0 && !all[n - 1].whole) {
        n--;
    }
    made = n > 0 ? asprintf(&dir, "%s/%s", path, all[n - 1].name) : asprintf(&dir, "%s", path);
    free(all);
    if (made < 0) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    /* A mixture of experts has no config.json. */
    if (gpt_gpt2_read(dir, &sizes, NULL) == 0 && sizes.heads != model->heads) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "the checkpoint %.128s is of a model with %u heads, --heads is %u", dir,
                         sizes.heads, model->heads);
    }
    free(dir);
    return rc;
}

void gpt_checkpoint_warn(const struct gpt_options *o, uint64_t step)
{
    struct cst_checkpoint *all;
    uint32_t n;

    if (o->save_every == 0 || list(o->save_dir, &all, &n, NULL) != 0) {
        return;
    }
    while (n > 0 && !all[n - 1].whole) {
        n--;
    }
    if (n > 0 && all[n - 1].step > step) {
        (void)fprintf(stderr,
                      "cistern-gpt: warning: %s has checkpoints of later steps, up to %s, and the "
                      "job stands at step %llu: --resume auto would take the latest, and a step "
                      "that has a checkpoint is not saved again\n",
                      o->save_dir, all[n - 1].name, (unsigned long long)step);
    }
    free(all);
}

/* -- saves ------------------------------------------------------------------------------------ */

static void report(const struct gpt_options *o, const struct cst_save_result *result)
{
    char size[CST_SIZE_TEXT];

    if (!o->quiet) {
        (void)printf("saved step %llu to %s: %s in %.2f s\n", (unsigned long long)result->step,
                     o->save_dir, cst_size_text(result->bytes, size), result->seconds);
        (void)fflush(stdout);
    }
}

static void on_begun(void *arg, uint64_t step)
{
    struct gpt_checkpoint *checkpoint = arg;

    (void)step;
    (void)sem_post(&checkpoint->begun);
}

/* The thread has a connection of its own, because a connection belongs to one thread. */
static void *save(void *arg)
{
    struct gpt_checkpoint *checkpoint = arg;
    const struct gpt_options *o = checkpoint->options;
    const struct cst_save_spec spec = {
        .dir = o->save_dir, .keep = o->keep, .on_begun = on_begun, .arg = checkpoint};
    struct cst_save_result result = {0};
    struct cst_client *client = NULL;
    struct cst_err err = {0};
    int rc = cst_connect(&client, o->socket, &err);

    if (rc == 0) {
        rc = cst_save(client, o->job.name, &spec, &result, &err);
    }
    cst_disconnect(client);
    if (result.bytes > 0) {
        report(o, &result);
    }
    if (rc != 0 && result.bytes > 0) {
        (void)fprintf(stderr, "cistern-gpt: %s\n", err.text);
    } else if (rc != 0) {
        (void)fprintf(stderr, "cistern-gpt: job '%s' was not saved after step %llu: %s\n",
                      o->job.name, (unsigned long long)checkpoint->step, err.text);
    }
    /* A checkpoint of the step that exists already is one. */
    checkpoint->failed = rc != 0 && rc != CST_EEXIST && result.bytes == 0;
    atomic_store(&checkpoint->finished, true);
    (void)sem_post(&checkpoint->begun);
    return NULL;
}

static void join(struct gpt_checkpoint *checkpoint)
{
    if (checkpoint->running) {
        (void)pthread_join(checkpoint->thread, NULL);
        (void)sem_destroy(&checkpoint->begun);
        checkpoint->running = false;
    }
}

void gpt_checkpoint_step(struct gpt_checkpoint *checkpoint, uint64_t step)
{
    const struct gpt_options *o = checkpoint->options;
    int error;

    if (o->save_every == 0 || step % o->save_every != 0) {
        return;
    }
    /* The last step is saved in any case: gpt_checkpoint_close waits for the save before it. */
    if (checkpoint->running && !atomic_load(&checkpoint->finished) && step < o->steps) {
        (void)fprintf(stderr,
                      "cistern-gpt: step %llu is not saved, because the save after step %llu is "
                      "still under way\n",
                      (unsigned long long)step, (unsigned long long)checkpoint->step);
        return;
    }
    join(checkpoint);
    atomic_store(&checkpoint->finished, false);
    checkpoint->failed = false;
    (void)sem_init(&checkpoint->begun, 0, 0);
    checkpoint->step = step;
    error = pthread_create(&checkpoint->thread, NULL, save, checkpoint);
    checkpoint->running = error == 0;
    if (error != 0) {
        checkpoint->failed = true;
        (void)fprintf(stderr, "cistern-gpt: step %llu is not saved: %s\n", (unsigned long long)step,
                      strerror(error));
        return;
    }
    while (sem_wait(&checkpoint->begun) != 0) {
        /* A signal came. */
    }
}

int gpt_checkpoint_close(struct gpt_checkpoint *checkpoint, struct cst_err *err)
{
    const struct gpt_options *o = checkpoint->options;

    join(checkpoint);
    return !checkpoint->failed
               ? 0
               : cst_err_set(err, CST_EIO,
                             "the last checkpoint, after step %llu, is missing. Job '%s' keeps its "
                             "states: save them with 'cistern save %s DIR'",
                             (unsigned long long)checkpoint->step, o->job.name, o->job.name);
}

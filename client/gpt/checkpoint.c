/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/checkpoint.h"

#include "cistern/checkpoint.h"
#include "proto/size.h"

#include <stdio.h>
#include <string.h>

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
        rc = cst_save(client, o->job, &spec, &result, &err);
    }
    cst_disconnect(client);
    if (result.bytes > 0) {
        report(o, &result);
    }
    if (rc != 0 && result.bytes > 0) {
        (void)fprintf(stderr, "cistern-gpt: %s\n", err.text);
    } else if (rc != 0) {
        (void)fprintf(stderr, "cistern-gpt: job '%s' was not saved after step %llu: %s\n", o->job,
                      (unsigned long long)checkpoint->step, err.text);
    }
    atomic_store(&checkpoint->finished, true);
    (void)sem_post(&checkpoint->begun);
    return NULL;
}

void gpt_checkpoint_step(struct gpt_checkpoint *checkpoint, uint64_t step)
{
    const struct gpt_options *o = checkpoint->options;
    int error;

    if (o->save_every == 0 || step % o->save_every != 0) {
        return;
    }
    if (checkpoint->running && !atomic_load(&checkpoint->finished)) {
        (void)fprintf(stderr,
                      "cistern-gpt: step %llu is not saved, because the save after step %llu is "
                      "still under way\n",
                      (unsigned long long)step, (unsigned long long)checkpoint->step);
        return;
    }
    gpt_checkpoint_close(checkpoint);
    atomic_store(&checkpoint->finished, false);
    (void)sem_init(&checkpoint->begun, 0, 0);
    checkpoint->step = step;
    error = pthread_create(&checkpoint->thread, NULL, save, checkpoint);
    checkpoint->running = error == 0;
    if (error != 0) {
        (void)fprintf(stderr, "cistern-gpt: step %llu is not saved: %s\n", (unsigned long long)step,
                      strerror(error));
        return;
    }
    while (sem_wait(&checkpoint->begun) != 0) {
        /* A signal came. */
    }
}

void gpt_checkpoint_close(struct gpt_checkpoint *checkpoint)
{
    if (checkpoint->running) {
        (void)pthread_join(checkpoint->thread, NULL);
        (void)sem_destroy(&checkpoint->begun);
        checkpoint->running = false;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/train.h"

#include "client/gpt/checkpoint.h"
#include "client/gpt/dump.h"
#include "client/gpt/exchange.h"
#include "client/gpt/hyper.h"
#include "client/gpt/output.h"
#include "client/gpt/pass.h"
#include "client/gpt/pipeline.h"
#include "client/gpt/progress.h"
#include "client/gpt/sample.h"
#include "client/gpt/start.h"
#include "client/gpt/stop.h"
#include "client/gpt/validate.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

struct train {
    const struct gpt_options *options; /* borrowed */
    const struct gpt_model *model;     /* borrowed */
    const struct gpt_texts *texts;     /* borrowed */
    struct gpt_store *store;           /* borrowed */
    uint32_t rank;                     /* this rank */
    struct gpt_device *device;         /* borrowed; computes the model */
    struct gpt_pass *pass;             /* activations of this rank */
    uint32_t n_passes;                 /* passes per batch */
    struct gpt_pipeline_run pipeline;  /* of --parallel pipeline */
    uint64_t step;                     /* that the pipeline does */
    bool joins;                        /* opens the communicators of pass at each sync */
    struct gpt_progress progress;      /* progress reports */
    struct gpt_checkpoint checkpoint;  /* of rank 0 */
    FILE *losses;                      /* file of --loss-file, if this rank writes it; else NULL */
};

static bool is_void(int rc)
{
    return rc == CST_EPEERDIED || rc == CST_ESTALE;
}

/* Open the communicators for the rows of a mixture, and check that all ranks send them in one
 * form. */
static int join(struct train *t, struct cst_err *err)
{
    struct gpt_exchange_comms *comms = &t->pass->comms;
    char words[GPT_EXCHANGE_WORDS];
    int rc = t->store->ops->comm_open(t->store, &comms->host, err);

    comms->rows = comms->host;
    if (rc == 0) {
        t->device->ops->describe_rows(t->device, words);
        rc = gpt_exchange_agree(comms->host, words, err);
    }
    if (rc == 0 && t->device->ops->open_rows != NULL) {
        rc = t->device->ops->open_rows(t->device, &comms->rows, err);
    }
    return rc;
}

/* Close what join has opened. A stream then waits for no other rank any more. */
static void part(struct train *t)
{
    struct gpt_exchange_comms *comms = &t->pass->comms;

    if (!t->joins) {
        return;
    }
    if (comms->rows != comms->host) {
        cst_comm_close(comms->rows);
    }
    cst_comm_close(comms->host);
    *comms = (struct gpt_exchange_comms){0};
}

/* Wait until all ranks are present. *step is the step to do next. Each further round of the loop is
 * due to the death of a peer. */
static int sync_all(struct train *t, uint64_t *step, struct cst_err *err)
{
    int rc;

    do {
        if (gpt_stop_asked() != 0) {
            return cst_err_set(err, CST_ECANCELLED, "stopped");
        }
        part(t);
        rc = t->store->ops->sync(t->store, step, err);
        if (rc == 0 && t->joins) {
            rc = join(t, err);
        }
    } while (is_void(rc));
    return rc;
}

/* Forward and backward pass over part @number of this rank's sequences of the step. *loss is the
 * mean loss. The sequences of a step are numbered rank after rank. */
static int one_pass(struct train *t, uint64_t step, uint32_t number, double *loss,
                    struct cst_err *err)
{
    const struct gpt_options *o = t->options;
    const size_t n_seqs = o->batch / t->n_passes;
    int rc;

    rc = gpt_data_batch(&t->texts->train, o->job.states.seed,
                        (step * gpt_hyper_batches(o) + gpt_hyper_first_batch(o) + t->rank) *
                                o->batch +
                            number * n_seqs,
                        n_seqs, o->context, t->pass->tokens, t->pass->targets, err);
    if (rc == 0) {
        rc = t->pass->ops->forward(t->pass, t->store, n_seqs, true, err);
    }
    if (rc == 0) {
        rc = t->pass->ops->backward(t->pass, t->store, err);
    }
    return rc == 0 ? t->pass->ops->loss(t->pass, loss, err) : rc;
}

/* Return whether @unit ends with the loss of its micro-batch. */
static bool has_loss(const struct train *t, const struct cst_unit *unit)
{
    return unit->kind == CST_UNIT_BACKWARD && unit->stage + 1 == t->model->stages;
}

/* Give the pass the sequences of micro-batch @micro of the step on this node. The batches of a step
 * are numbered node after node. */
static int load_micro(const struct train *t, uint64_t step, uint32_t micro, struct cst_err *err)
{
    const struct gpt_options *o = t->options;
    const size_t n_seqs = o->batch / t->n_passes;
    const uint64_t batch = step * gpt_hyper_batches(o) + gpt_hyper_first_batch(o);

    return gpt_data_batch(&t->texts->train, o->job.states.seed, batch * o->batch + micro * n_seqs,
                          n_seqs, o->context, t->pass->tokens, t->pass->targets, err);
}

static int run_unit(struct train *t, const struct cst_unit *unit, struct cst_err *err)
{
    const struct gpt_unit run = {
        .stage = unit->stage,
        .micro_batch = unit->micro_batch,
        .n_seqs = t->options->batch / t->n_passes,
        .kept = unit->stage - 1,
        .embed = GPT_UNIT_NO_EDGE,
    };
    int rc;

    if (unit->kind == CST_UNIT_FORWARD) {
        return gpt_unit_forward(t->pass, t->store, &run, err);
    }
    rc = gpt_unit_restore(t->pass, t->store, &run, err);
    return rc == 0 ? gpt_unit_backward(t->pass, t->store, &run, err) : rc;
}

/* Run one unit after the other until the step has no more. */
static int run_units(struct train *t, uint64_t step, struct cst_err *err)
{
    struct cst_unit unit;
    double loss = 0;
    int rc = t->store->ops->next(t->store, loss, &unit, err);

    while (rc == 0 && unit.kind != CST_UNIT_STEP) {
        rc = load_micro(t, step, unit.micro_batch, err);
        if (rc == 0) {
            rc = run_unit(t, &unit, err);
        }
        if (rc == 0 && has_loss(t, &unit)) {
            rc = t->pass->ops->loss(t->pass, &loss, err);
        }
        if (rc == 0) {
            rc = t->store->ops->next(t->store, loss, &unit, err);
        }
    }
    return rc;
}

static int load_of_step(void *arg, uint32_t micro, struct cst_err *err)
{
    const struct train *t = arg;

    return load_micro(t, t->step, micro, err);
}

/* Run all passes and commit the step. The gradients of a pass are those of its mean loss.
 * grad_scale turns their sum into the mean over passes and ranks. */
static int one_step(struct train *t, uint64_t step, struct cst_step_result *result,
                    struct cst_err *err)
{
    struct cst_hyper_params params = gpt_hyper_params(t->options, t->n_passes, step);
    const struct gpt_store_ops *ops = t->store->ops;
    double loss;
    int rc;

    params.tokens = t->progress.step_tokens;
    if (t->options->parallel == GPT_PARALLEL_PIPELINE) {
        t->step = step;
        rc = gpt_pipeline_step(&t->pipeline, err);
        params.loss = t->pipeline.loss;
        return rc == 0 ? ops->step(t->store, &params, result, err) : rc;
    }
    if (t->options->parallel == GPT_PARALLEL_DISPATCH) {
        rc = run_units(t, step, err);
        return rc == 0 ? ops->step(t->store, &params, result, err) : rc;
    }
    rc = ops->prepare != NULL ? ops->prepare(t->store, &params, err) : 0;
    for (uint32_t i = 0; rc == 0 && i < t->n_passes; i++) {
        rc = one_pass(t, step, i, &loss, err);
        if (rc == 0) {
            params.loss += loss / t->n_passes;
        }
        if (rc == 0 && i + 1 < t->n_passes) {
            rc = ops->accumulate(t->store, err);
        }
    }
    return rc == 0 ? ops->step(t->store, &params, result, err) : rc;
}

/* Everything that follows a commit. A repeated attempt does not reach this function. */
static int tell_step(struct train *t, const struct cst_step_result *result, double lr,
                     struct cst_err *err)
{
    struct gpt_progress_step told = {
        .result = result, .lr = lr, .pipeline = t->pipeline.done != NULL ? &t->pipeline : NULL};
    struct cst_rank_stat stat;
    int rc = 0;

    if (t->losses != NULL && fprintf(t->losses, "%a\n", result->loss) < 0) {
        return cst_err_errno(err, CST_EIO, errno, "--loss-file '%s'", t->options->loss_file);
    }
    if (t->options->dump_grads != NULL && result->step == 1 && t->rank == t->options->job.rank) {
        rc = gpt_dump_grads(t->options->dump_grads, t->model, t->store, err);
    }
    if (rc == 0 && gpt_progress_wants_stat(&t->progress, result->step)) {
        rc = t->store->ops->stat(t->store, &stat, err);
        told.stat = &stat;
    }
    if (rc == 0) {
        rc = gpt_progress_step(&t->progress, &told, err);
    }
    return rc;
}

/* Print the loss on the text for validation. The weights are read from the store, so that no other
 * rank takes part. */
static int validate(struct train *t, uint64_t step, struct cst_err *err)
{
    struct gpt_store *weights;
    double loss;
    int rc = t->device->ops->open_view(t->device, t->store, t->model, &weights, err);

    if (rc == 0) {
        rc = gpt_validate(t->pass, weights, &t->texts->validation, &loss, err);
        weights->ops->close(weights, rc == 0);
    }
    return rc == 0 ? gpt_progress_validation(&t->progress, step, loss, err) : rc;
}

/* True if rank 0 validates after step @step, which is not the last one. */
static bool is_validated(const struct train *t, uint64_t step)
{
    const struct gpt_options *o = t->options;

    return t->rank == 0 && o->validate_every > 0 && step % o->validate_every == 0 &&
           step < o->steps;
}

/* A step is void, or its result was lost with the daemon: wait for all ranks. *step is the step to
 * do next. If it is a later one, the last one is committed, and its loss is not known. */
static int sync_again(struct train *t, uint64_t *step, struct cst_err *err)
{
    const uint64_t begun = *step;
    int rc = sync_all(t, step, err);

    if (rc != 0 || *step == begun) {
        return rc;
    }
    if (t->rank == 0) {
        gpt_checkpoint_step(&t->checkpoint, *step);
    }
    return t->losses == NULL || fputs("nan\n", t->losses) >= 0
               ? 0
               : cst_err_errno(err, CST_EIO, errno, "--loss-file '%s'", t->options->loss_file);
}

static int run_steps(struct train *t, uint64_t step, struct cst_err *err)
{
    int rc = 0;

    while (rc == 0 && step < t->options->steps) {
        struct cst_step_result result;

        if (gpt_stop_asked() != 0) {
            return cst_err_set(err, CST_ECANCELLED, "stopped");
        }
        rc = one_step(t, step, &result, err);
        /* A peer died, and the step is void for all ranks: sync and repeat it. */
        if (is_void(rc)) {
            rc = sync_again(t, &step, err);
        } else if (rc == 0) {
            if (t->rank == 0) {
                gpt_checkpoint_step(&t->checkpoint, result.step);
            }
            rc = tell_step(t, &result, gpt_hyper_lr(t->options, step), err);
            step = result.step;
            if (rc == 0 && is_validated(t, step)) {
                rc = validate(t, step, err);
            }
            if (is_void(rc)) {
                rc = sync_all(t, &step, err);
            }
        }
    }
    if (rc == 0 && t->rank == 0 && t->options->validate != NULL) {
        rc = validate(t, step, err);
    }
    return rc;
}

/* Print the sample. It does not wait for other ranks, which may have ended. */
static int print_sample(struct train *t, struct cst_err *err)
{
    const struct gpt_options *o = t->options;
    char *text = malloc(o->sample + 1);
    struct gpt_store *weights;
    int rc;

    if (text == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: a sample of %llu bytes",
                           (unsigned long long)o->sample);
    }
    rc = t->device->ops->open_view(t->device, t->store, t->model, &weights, err);
    if (rc == 0) {
        rc = gpt_sample(t->pass, weights, o->prompt, o->job.states.seed, o->temperature, o->sample,
                        text, err);
        weights->ops->close(weights, rc == 0);
    }
    if (rc == 0) {
        (void)printf("sample:\n%s", o->prompt);
        /* Control characters are replaced, because a terminal would execute them. */
        for (uint64_t i = 0; i < o->sample; i++) {
            const bool text_byte =
                text[i] == '\n' || text[i] == '\t' || !iscntrl((unsigned char)text[i]);

            (void)putchar(text_byte ? text[i] : '.');
        }
        (void)printf("\n");
    }
    free(text);
    return rc;
}

static int dump_logits(struct train *t, struct cst_err *err)
{
    struct gpt_store *weights;
    int rc = t->device->ops->open_view(t->device, t->store, t->model, &weights, err);

    if (rc == 0) {
        rc = gpt_dump_logits(t->options->dump_logits, t->pass, weights, &t->texts->train, err);
        weights->ops->close(weights, rc == 0);
    }
    return rc;
}

/* Write what is asked for at the end. */
static int write_end(struct train *t, struct cst_err *err)
{
    const struct gpt_options *o = t->options;
    int rc = 0;

    if (t->rank == o->job.rank && o->dump_weights != NULL) {
        rc = gpt_dump_weights(o->dump_weights, t->model, t->store, err);
    }
    if (rc == 0 && t->rank == 0 && o->dump_logits != NULL) {
        rc = dump_logits(t, err);
    }
    if (rc == 0 && t->rank == 0 && o->sample > 0) {
        rc = print_sample(t, err);
    }
    return rc;
}

/* Open the files that one rank of a process writes: the process's own rank, or rank 0 if the
 * process runs all ranks. */
static int open_files(struct train *t, uint64_t step, struct cst_err *err)
{
    const struct gpt_options *o = t->options;
    const bool mine = t->rank == o->job.rank;
    int rc = gpt_progress_open(&t->progress, o->quiet || t->rank != 0, mine ? o->log_json : NULL,
                               step > 0, step, o->steps,
                               (uint64_t)o->batch * o->context * gpt_hyper_batches(o), err);

    t->progress.step_flops = gpt_model_token_flops(t->model) * (double)t->progress.step_tokens;
    if (rc == 0 && mine && o->loss_file != NULL) {
        rc = gpt_output_open(&t->losses, o->loss_file, step > 0, "--loss-file", err);
    }
    return rc;
}

static int close_files(struct train *t, struct cst_err *err)
{
    struct cst_rank_stat stat;
    int rc = t->store->ops->stat(t->store, &stat, err);

    if (rc == 0) {
        rc = gpt_progress_close(&t->progress, &stat, t->model->n_params, err);
    }
    if (t->losses != NULL && fclose(t->losses) != 0 && rc == 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "--loss-file '%s'", t->options->loss_file);
    }
    t->losses = NULL;
    return rc;
}

/* Replace the error text "stopped" for a job that was left before its last step: say how to
 * continue or remove it. */
static void tell_stopped(const struct train *t, struct cst_err *err)
{
    const struct gpt_options *o = t->options;

    (void)cst_err_set(err, CST_ECANCELLED,
                      "stopped after step %llu of %llu; job '%s' keeps its states: the same "
                      "command continues it, 'cistern rm %s' removes it",
                      (unsigned long long)t->store->ops->steps(t->store),
                      (unsigned long long)o->steps, o->job.name, o->job.name);
}

/* Say that all steps were done before this process started. */
static void tell_finished(const struct train *t, uint64_t step)
{
    const struct gpt_options *o = t->options;

    if (!o->quiet) {
        (void)printf("cistern-gpt: job '%s' is finished: %llu of %llu steps are done. To continue: "
                     "--steps %llu or more; to start again: cistern rm %s\n",
                     o->job.name, (unsigned long long)step, (unsigned long long)o->steps,
                     (unsigned long long)(2 * step), o->job.name);
    }
}

static int open_pipeline(struct train *t, struct cst_err *err)
{
    const struct cst_schedule *schedule = &t->model->pipeline->schedule;
    const size_t n = schedule->first[t->rank + 1] - schedule->first[t->rank];

    t->pipeline = (struct gpt_pipeline_run){
        .pass = t->pass,
        .store = t->store,
        .rank = t->rank,
        .n_seqs = t->options->batch / t->n_passes,
        .load = load_of_step,
        .arg = t,
        .done = malloc(n * sizeof *t->pipeline.done),
    };
    return t->pipeline.done != NULL ? 0 : cst_err_set(err, CST_ENOMEM, "out of memory");
}

int gpt_train(const struct gpt_options *options, const struct gpt_model *model,
              const struct gpt_texts *texts, struct gpt_device *device, struct gpt_store *store,
              struct cst_comm *comm, uint32_t rank, struct cst_err *err)
{
    struct train t = {.options = options, .model = model, .texts = texts, .store = store};
    uint64_t step;
    bool opened;
    int rc, saved;
    struct cst_err unsaved = {0};

    t.rank = rank;
    t.checkpoint.options = options;
    t.device = device;
    t.n_passes = device->ops->passes(device);
    t.joins = comm == NULL && model->experts > 0 && options->job.world > 1;
    rc = device->ops->open_pass(device, model, &t.pass, err);
    if (rc != 0) {
        return rc;
    }
    t.pass->comms = (struct gpt_exchange_comms){.host = comm, .rows = comm};
    if (model->pipeline != NULL) {
        rc = open_pipeline(&t, err);
    }
    /* All ranks know these steps. Those of a checkpoint that rank 0 loads are told by the sync. */
    step = store->ops->steps(store);
    if (rc == 0 && rank == 0) {
        rc = gpt_start(options, model, t.n_passes, store, err);
    }
    if (rc == 0 && step < options->steps) {
        rc = sync_all(&t, &step, err);
    }
    if (rc == 0 && step > 0 && step >= options->steps) {
        tell_finished(&t, step);
    }
    if (rc == 0) {
        rc = open_files(&t, step, err);
    }
    opened = rc == 0;
    if (rc == 0) {
        rc = run_steps(&t, step, err);
    }
    saved = gpt_checkpoint_close(&t.checkpoint, &unsaved);
    if (rc == CST_ECANCELLED && gpt_stop_asked() != 0) {
        tell_stopped(&t, err);
        (void)close_files(&t, NULL);
    } else if (opened) {
        struct cst_err second; /* the first error is the one to tell */
        int closed = close_files(&t, rc == 0 ? err : &second);

        rc = rc == 0 ? closed : rc;
    }
    if (rc == 0) {
        rc = write_end(&t, err);
    }
    if (rc == 0 && saved != 0) {
        rc = saved;
        *err = unsaved;
    }
    part(&t);
    free(t.pipeline.done);
    t.pass->ops->close(t.pass);
    return rc;
}

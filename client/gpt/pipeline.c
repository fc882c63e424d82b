/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/pipeline.h"

#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"
#include "proto/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- schedules -------------------------------------------------------------------------------- */

/* Read the schedule of the file @path. */
static int read_file(struct cst_schedule *out, const char *path, struct cst_err *err)
{
    char *text;
    size_t n;
    int rc = cst_json_read(&text, &n, path, err);

    if (rc == CST_OK) {
        rc = cst_schedule_read(out, text, n, err);
        free(text);
    }
    return rc;
}

static int check_size(const struct cst_schedule *schedule, const struct gpt_options *o,
                      struct cst_err *err)
{
    const uint32_t stages = o->stages > 0 ? o->stages : schedule->n_stages;

    if (schedule->n_ranks != o->job.world || schedule->n_stages != stages ||
        schedule->n_micro != o->job.updates.micro_batches) {
        return cst_err_set(err, CST_EINVAL,
                           "it is for --world %u, --stages %u and --micro-batches %u, not for %u, "
                           "%u and %u",
                           schedule->n_ranks, schedule->n_stages, schedule->n_micro, o->job.world,
                           stages, o->job.updates.micro_batches);
    }
    if (schedule->n_stages > o->layers || schedule->n_stages > GPT_MAX_STAGES) {
        return cst_err_set(
            err, CST_EINVAL,
            "it has %u stages, and --layers %u: a stage has a block or more. At most %d "
            "stages are possible: give fewer ranks or stages, or more layers",
            schedule->n_stages, o->layers, GPT_MAX_STAGES);
    }
    return CST_OK;
}

/* Check the place of action @i, which is one of a rank's list that begins with action @first.
 * @backward: for each stage, the next micro-batch whose backward pass may come. */
static int check_action(const struct cst_schedule *schedule, uint32_t first, uint32_t i,
                        uint32_t *backward, struct cst_err *err)
{
    const struct cst_stage_action action = schedule->actions[i];
    const struct cst_stage_action *before = i > first ? &schedule->actions[i - 1] : NULL;
    char words[CST_STAGE_ACTION_WORDS], other[CST_STAGE_ACTION_WORDS];

    (void)cst_stage_action_words(action, words);
    if (action.kind == CST_STAGE_BACKWARD_INPUT || action.kind == CST_STAGE_BACKWARD_WEIGHT) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: this worker does not split backward passes (I and W); what it can "
                           "run are gpipe, 1f1b, interleaved, early, shifted, and files with F "
                           "and B",
                           words);
    }
    if (before != NULL && before->kind == CST_STAGE_RECOMPUTE &&
        (action.kind != CST_STAGE_BACKWARD || action.stage != before->stage ||
         action.micro != before->micro)) {
        return cst_err_set(err, CST_EINVAL,
                           "%s comes between the recompute action %s and its backward pass: this "
                           "worker has memory for the activations of one micro-batch",
                           words, cst_stage_action_words(*before, other));
    }
    if (action.kind == CST_STAGE_BACKWARD && action.micro != backward[action.stage]++) {
        return cst_err_set(err, CST_EINVAL,
                           "%s comes too early or too late: gradients are summed in the order of "
                           "micro-batches, so that backward passes of a stage have this order",
                           words);
    }
    return CST_OK;
}

/* Check that this worker can run the schedule, and count the backward passes of the ranks. */
static int check_lists(struct gpt_pipeline *p, struct cst_err *err)
{
    const struct cst_schedule *schedule = &p->schedule;
    uint32_t *backward = calloc(schedule->n_stages, sizeof *backward);
    int rc = backward != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "out of memory");

    for (uint32_t rank = 0; rc == CST_OK && rank < schedule->n_ranks; rank++) {
        const uint32_t first = schedule->first[rank];
        uint32_t n = 0;

        for (uint32_t i = first; rc == CST_OK && i < schedule->first[rank + 1]; i++) {
            rc = check_action(schedule, first, i, backward, err);
            n += schedule->actions[i].kind == CST_STAGE_BACKWARD;
        }
        p->n_units = n > p->n_units ? n : p->n_units;
    }
    free(backward);
    return rc;
}

/* Without --stages, each rank has one stage; with kinds that interleave, two. */
static int make(struct cst_schedule *out, const struct cst_schedule_kind *kind,
                const struct gpt_options *o, struct cst_err *err)
{
    const struct cst_schedule_size size = {
        .n_ranks = o->job.world,
        .n_stages =
            o->stages > 0 ? o->stages : o->job.world << (kind->interleaves && !kind->splits),
        .n_micro = o->job.updates.micro_batches};

    return cst_schedule_make(out, kind, &size, err);
}

/* Make the schedule of the kind --schedule, or read it from the file. */
static int find(struct cst_schedule *out, const struct gpt_options *o, struct cst_err *err)
{
    const struct cst_schedule_kind *kind;
    struct cst_err kinds;
    int rc = cst_schedule_find(&kind, o->schedule, &kinds);

    if (rc == CST_OK) {
        return make(out, kind, o, err);
    }
    rc = read_file(out, o->schedule, err);
    return rc == CST_ENOTFOUND
               ? cst_err_set(err, CST_EINVAL, "%.255s, and no such file", kinds.text)
               : rc;
}

int gpt_pipeline_open(struct gpt_pipeline *out, const struct gpt_options *options,
                      struct cst_err *err)
{
    struct gpt_pipeline p = {.embeds_later = options->lora == 0};
    int rc = find(&p.schedule, options, err);

    rc = rc == CST_OK ? check_size(&p.schedule, options, err) : rc;
    rc = rc == CST_OK ? cst_schedule_check(&p.schedule, err) : rc;
    rc = rc == CST_OK ? check_lists(&p, err) : rc;
    if (rc == CST_OK) {
        p.in_flight = calloc(p.schedule.n_stages, sizeof *p.in_flight);
        rc = p.in_flight != NULL ? cst_schedule_in_flight(&p.schedule, p.in_flight, NULL, err)
                                 : cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    if (rc != CST_OK) {
        gpt_pipeline_close(&p);
        return cst_err_prefix(err, "--schedule %.255s", options->schedule);
    }
    *out = p;
    return CST_OK;
}

void gpt_pipeline_close(struct gpt_pipeline *pipeline)
{
    cst_schedule_close(&pipeline->schedule);
    free(pipeline->in_flight);
    *pipeline = (struct gpt_pipeline){0};
}

uint32_t gpt_pipeline_micro_batches(const struct gpt_pipeline *p)
{
    return p->embeds_later ? 2 * p->n_units + p->schedule.n_micro : p->n_units;
}

/* -- edges ------------------------------------------------------------------------------------ */

/* Edge in which the input of @stage waits for the backward pass. */
static uint32_t kept_edge(const struct gpt_pipeline *p, uint32_t stage)
{
    return 2 * (p->schedule.n_stages - 1) + stage - 1;
}

static uint32_t embed_edge(const struct gpt_pipeline *p)
{
    return 3 * (p->schedule.n_stages - 1);
}

uint32_t gpt_pipeline_n_edges(const struct gpt_pipeline *p)
{
    return embed_edge(p) + p->embeds_later;
}

struct cst_edge_spec gpt_pipeline_edge(const struct gpt_pipeline *p, uint32_t edge, uint64_t bytes,
                                       char name[GPT_PIPELINE_NAME_BYTES])
{
    static const char *const kinds[] = {"output of", "gradient for", "input of", "embedding of"};
    const uint32_t n = p->schedule.n_stages - 1, kind = n > 0 ? edge / n : 3;
    const uint32_t stage = kind == 3 ? 0 : edge % n + (kind == 2);
    const uint32_t *ranks = p->schedule.rank_of;

    (void)snprintf(name, GPT_PIPELINE_NAME_BYTES, "%s stage %u", kinds[kind], stage);
    return (struct cst_edge_spec){
        .name = name,
        .from = ranks[kind == 1 ? stage + 1 : stage],
        .to = ranks[kind == 0 ? stage + 1 : stage],
        .slot_bytes = bytes,
        .n_slots = kind == 3 ? p->schedule.n_micro : p->in_flight[stage],
    };
}

/* -- steps ------------------------------------------------------------------------------------ */

struct step {
    struct gpt_pipeline_run *run;
    const struct gpt_pipeline *p;
    uint32_t n_ended;  /* Micro-batches of the job that have ended. */
    uint32_t n_losses; /* Whose loss is in run->loss. */
    bool is_restored;  /* The pass has the activations of the action before. */
};

/* End a micro-batch of the job. The step ends the last one. */
static int end_micro(struct step *s, struct cst_err *err)
{
    return ++s->n_ended < gpt_pipeline_micro_batches(s->p)
               ? s->run->store->ops->accumulate(s->run->store, err)
               : CST_OK;
}

static struct gpt_unit unit_of(const struct step *s, uint32_t stage, uint32_t micro)
{
    return (struct gpt_unit){
        .stage = stage,
        .micro_batch = micro,
        .n_seqs = s->run->n_seqs,
        .kept = stage > 0 ? kept_edge(s->p, stage) : GPT_UNIT_NO_EDGE,
        .embed = s->p->embeds_later ? embed_edge(s->p) : GPT_UNIT_NO_EDGE,
    };
}

static int run_backward(struct step *s, const struct gpt_unit *unit, struct cst_err *err)
{
    struct gpt_pipeline_run *run = s->run;
    double loss;
    int rc = s->is_restored ? CST_OK : gpt_unit_restore(run->pass, run->store, unit, err);

    rc = rc == CST_OK ? gpt_unit_backward(run->pass, run->store, unit, err) : rc;
    if (rc == CST_OK && unit->stage + 1 == s->p->schedule.n_stages) {
        rc = run->pass->ops->loss(run->pass, &loss, err);
        if (rc == CST_OK) {
            run->loss += loss;
            s->n_losses++;
        }
    }
    return rc == CST_OK ? end_micro(s, err) : rc;
}

static int run_action(struct step *s, const struct cst_stage_action *action, struct cst_err *err)
{
    struct gpt_pipeline_run *run = s->run;
    const struct gpt_unit unit = unit_of(s, action->stage, action->micro);
    int rc = run->load(run->arg, action->micro, err);

    if (rc == CST_OK && action->kind == CST_STAGE_FORWARD) {
        rc = gpt_unit_forward(run->pass, run->store, &unit, err);
    } else if (rc == CST_OK && action->kind == CST_STAGE_RECOMPUTE) {
        rc = gpt_unit_restore(run->pass, run->store, &unit, err);
    } else if (rc == CST_OK) {
        rc = run_backward(s, &unit, err);
    }
    s->is_restored = action->kind == CST_STAGE_RECOMPUTE;
    return rc;
}

/* Run the embedding backward for all micro-batches. */
static int run_embedding(struct step *s, struct cst_err *err)
{
    struct gpt_pipeline_run *run = s->run;
    int rc = CST_OK;

    for (uint32_t m = 0; rc == CST_OK && m < s->p->schedule.n_micro; m++) {
        const struct gpt_unit unit = unit_of(s, 0, m);

        rc = run->load(run->arg, m, err);
        rc = rc == CST_OK ? gpt_unit_embed(run->pass, run->store, &unit, err) : rc;
        rc = rc == CST_OK ? end_micro(s, err) : rc;
    }
    return rc;
}

int gpt_pipeline_step(struct gpt_pipeline_run *run, struct cst_err *err)
{
    struct step s = {.run = run, .p = run->pass->model->pipeline};
    const struct cst_schedule *schedule = &s.p->schedule;
    const bool embeds = s.p->embeds_later && schedule->rank_of[0] == run->rank;
    int rc = CST_OK;

    run->loss = 0;
    run->n_done = 0;
    for (uint32_t i = 0; rc == CST_OK && embeds && i < s.p->n_units; i++) {
        rc = end_micro(&s, err);
    }
    for (uint32_t i = schedule->first[run->rank];
         rc == CST_OK && i < schedule->first[run->rank + 1]; i++) {
        rc = run_action(&s, &schedule->actions[i], err);
        run->done[run->n_done++] = schedule->actions[i];
    }
    rc = rc == CST_OK && embeds ? run_embedding(&s, err) : rc;
    run->loss = s.n_losses > 0 ? run->loss / s.n_losses : 0;
    return rc;
}

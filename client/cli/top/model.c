/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/model.h"

#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the node --------------------------------------------------------------------------------- */

/* Set a place of the node. Those without any memory do not exist. */
static void set_place(struct cli_top_model *model, const char *name, double used, double size)
{
    struct cli_top_place *places;
    unsigned i = 0;

    if (used <= 0 && size <= 0) {
        return;
    }
    while (i < model->n_places && strcmp(model->places[i].name, name) != 0) {
        i++;
    }
    if (i == model->n_places) {
        places = realloc(model->places, (i + 1) * sizeof *places);
        if (places == NULL) {
            model->failed = true;
            return;
        }
        model->places = places;
        places[i] = (struct cli_top_place){0};
        (void)snprintf(places[i].name, sizeof places[i].name, "%s", name);
        model->n_places++;
    }
    model->places[i].used = used;
    model->places[i].size = size;
    cli_spark_history_add(&model->places[i].history, used);
}

static void set_places(struct cli_top_model *model, const Cistern__StatReply *stat)
{
    char name[64];

    set_place(model, "host", (double)stat->host_used, (double)stat->host_budget);
    set_place(model, "pools", (double)stat->pool_used, (double)stat->pool_budget);
    for (size_t i = 0; i < stat->n_gpus; i++) {
        const Cistern__GpuInfo *gpu = stat->gpus[i];
        const char *kind = strncmp(gpu->uuid, "paced:", 6) == 0 ? "paced" : "cuda";

        (void)snprintf(name, sizeof name, "%s:%u", kind, gpu->index);
        set_place(model, name, (double)gpu->pool_used, (double)gpu->pool_budget);
    }
    for (size_t i = 0; i < stat->n_drives; i++) {
        set_place(model, stat->drives[i]->name, (double)stat->drives[i]->used, 0);
    }
}

void cli_top_model_begin(struct cli_top_model *model, const Cistern__StatReply *stat, double now_s)
{
    const bool same = model->n_samples > 0 && model->epoch == stat->epoch;

    if (!same) {
        model->n_places = 0;
    }
    (void)snprintf(model->version, sizeof model->version, "%s", stat->version);
    (void)snprintf(model->host, sizeof model->host, "%s", stat->host);
    model->uptime_s = stat->uptime_s;
    model->n_sessions = stat->n_sessions;
    model->epoch = stat->epoch;
    model->before_s = model->now_s;
    model->now_s = now_s;
    model->n_samples++;
    for (unsigned i = 0; i < model->n_jobs; i++) {
        model->jobs[i]->seen = false;
        model->jobs[i]->before = model->jobs[i]->counts;
        model->jobs[i]->has_before = same;
    }
    set_places(model, stat);
}

/* -- jobs ------------------------------------------------------------------------------------- */

struct cli_top_job *cli_top_model_find(const struct cli_top_model *model, const char *name,
                                       uint32_t uid)
{
    for (unsigned i = 0; i < model->n_jobs; i++) {
        if (model->jobs[i]->uid == uid && strcmp(model->jobs[i]->name, name) == 0) {
            return model->jobs[i];
        }
    }
    return NULL;
}

/* Return the first letter that no job has. */
static char free_mark(const struct cli_top_model *model)
{
    for (char mark = 'a'; mark <= 'z'; mark++) {
        unsigned i = 0;

        while (i < model->n_jobs && model->jobs[i]->mark != mark) {
            i++;
        }
        if (i == model->n_jobs) {
            return mark;
        }
    }
    return CLI_TOP_NO_MARK;
}

/* Add a job that was in no sample yet. NULL: out of memory. */
static struct cli_top_job *make_job(struct cli_top_model *model, const Cistern__JobInfo *info)
{
    struct cli_top_job **jobs = realloc(model->jobs, (model->n_jobs + 1) * sizeof *jobs);
    struct cli_top_job *job = calloc(1, sizeof *job);
    const struct passwd *pw = getpwuid(info->uid);

    model->jobs = jobs != NULL ? jobs : model->jobs;
    if (jobs == NULL || job == NULL) {
        free(job);
        model->failed = true;
        return NULL;
    }
    (void)snprintf(job->name, sizeof job->name, "%s", info->name);
    job->uid = info->uid;
    if (pw != NULL) {
        (void)snprintf(job->user, sizeof job->user, "%s", pw->pw_name);
    } else {
        (void)snprintf(job->user, sizeof job->user, "%u", info->uid);
    }
    job->mark = free_mark(model);
    jobs[model->n_jobs++] = job;
    return job;
}

static bool is_drive(const Cistern__JobMemory *memory)
{
    return strcmp(memory->place, "host") != 0 && strcmp(memory->place, "pools") != 0 &&
           strncmp(memory->place, "cuda:", 5) != 0 && strncmp(memory->place, "paced:", 6) != 0;
}

static void set_memory(struct cli_top_job *job, const Cistern__JobInfo *info)
{
    job->bytes = 0;
    job->n_uses = 0;
    for (size_t i = 0; i < info->n_memory && i < sizeof job->uses / sizeof *job->uses; i++) {
        struct cli_top_use *use = &job->uses[job->n_uses++];

        (void)snprintf(use->place, sizeof use->place, "%s", info->memory[i]->place);
        use->bytes = (double)info->memory[i]->bytes;
        job->bytes += is_drive(info->memory[i]) ? 0 : use->bytes;
    }
    cli_spark_history_add(&job->sizes, job->bytes);
}

static void set_counts(struct cli_top_job *job, const Cistern__JobInfo *info)
{
    const double per_update =
        info->n_chunks > 0 ? (double)info->n_params / (double)info->n_chunks : 0;

    job->counts = (struct cli_top_counts){
        .hits = (double)info->hits,
        .fetches = (double)(info->hits + info->late + info->misses),
        .wait_s = info->weight_wait_seconds,
        .updates = (double)info->n_updates * per_update,
        .link = (double)(info->bytes_up + info->bytes_down + info->bytes_peer),
        .read = (double)info->drive_read_bytes,
        .written = (double)info->drive_written_bytes,
    };
}

void cli_top_model_add(struct cli_top_model *model, const Cistern__JobInfo *info)
{
    struct cli_top_job *job = cli_top_model_find(model, info->name, info->uid);

    job = job != NULL ? job : make_job(model, info);
    if (job == NULL) {
        return;
    }
    if (info->has_last_loss && (!job->has_loss || info->step != job->step)) {
        cli_spark_history_add(&job->losses, info->last_loss);
    }
    job->seen = true;
    (void)snprintf(job->state, sizeof job->state, "%s", info->state);
    job->world = info->world;
    (void)snprintf(job->node_wait, sizeof job->node_wait, "%s",
                   info->node_wait != NULL ? info->node_wait : "");
    cli_pause_words(info, job->pause, sizeof job->pause);
    job->step = info->step;
    job->step_s = info->step_seconds;
    job->has_loss = info->has_last_loss;
    job->loss = info->last_loss;
    set_memory(job, info);
    set_counts(job, info);
}

void cli_top_model_end(struct cli_top_model *model)
{
    unsigned n = 0;

    for (unsigned i = 0; i < model->n_jobs; i++) {
        if (model->jobs[i]->seen) {
            model->jobs[n++] = model->jobs[i];
        } else {
            free(model->jobs[i]);
        }
    }
    model->n_jobs = n;
}

void cli_top_model_free(struct cli_top_model *model)
{
    for (unsigned i = 0; i < model->n_jobs; i++) {
        free(model->jobs[i]);
    }
    free(model->jobs);
    free(model->places);
    *model = (struct cli_top_model){0};
}

double cli_top_job_use(const struct cli_top_job *job, const char *place)
{
    for (unsigned i = 0; i < job->n_uses; i++) {
        if (strcmp(job->uses[i].place, place) == 0) {
            return job->uses[i].bytes;
        }
    }
    return 0;
}

/* -- rates ------------------------------------------------------------------------------------ */

/* Return the growth per second. Counts of a job that was made again begin at 0. */
static double growth(const struct cli_top_model *model, const struct cli_top_job *job, double now,
                     double before)
{
    const double seconds = model->now_s - model->before_s;

    return job->has_before && seconds > 0 && now >= before ? (now - before) / seconds : NAN;
}

double cli_top_rate_get(const struct cli_top_model *model, const struct cli_top_job *job,
                        enum cli_top_rate rate)
{
    const struct cli_top_counts *now = &job->counts, *before = &job->before;
    const double values[][2] = {
        [CLI_TOP_UPDATES] = {now->updates, before->updates},
        [CLI_TOP_LINK] = {now->link, before->link},
        [CLI_TOP_READ] = {now->read, before->read},
        [CLI_TOP_WRITE] = {now->written, before->written},
    };

    return growth(model, job, values[rate][0], values[rate][1]);
}

double cli_top_hit_rate(const struct cli_top_job *job)
{
    const double fetches = job->counts.fetches - job->before.fetches;

    if (job->has_before && fetches > 0) {
        return (job->counts.hits - job->before.hits) / fetches;
    }
    return job->counts.fetches > 0 ? job->counts.hits / job->counts.fetches : NAN;
}

double cli_top_wait_rate(const struct cli_top_model *model, const struct cli_top_job *job)
{
    const double rate = growth(model, job, job->counts.wait_s, job->before.wait_s);

    return job->world > 0 ? rate / job->world : NAN;
}

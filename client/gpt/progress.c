/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/progress.h"

#include "client/gpt/output.h"
#include "client/gpt/pipeline.h"
#include "offload/parallel/schedule_check.h"
#include "proto/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define DRAW_SECONDS 0.1 /* shortest time between two drawings */
#define PLAIN_STEPS 10   /* steps between two plain lines */
#define LINE_BYTES 512

int gpt_progress_open(struct gpt_progress *progress, bool quiet, const char *json_path, bool append,
                      uint64_t first_step, uint64_t last_step, uint64_t step_tokens,
                      struct cst_err *err)
{
    struct gpt_progress p = {.quiet = quiet, .last_step = last_step, .step_tokens = step_tokens};

    if (json_path != NULL) {
        int rc = gpt_output_open(&p.json, json_path, append, "--log-json", err);

        if (rc != 0) {
            return rc;
        }
    }
    p.terminal = isatty(STDOUT_FILENO) != 0;
    p.first_done = first_step;
    p.begun = p.stepped = cst_clock_s();
    *progress = p;
    return 0;
}

bool gpt_progress_wants_stat(const struct gpt_progress *progress, uint64_t step)
{
    if (progress->json != NULL) {
        return true;
    }
    if (progress->quiet) {
        return false;
    }
    return progress->terminal ? cst_clock_s() - progress->drawn >= DRAW_SECONDS
                              : step % PLAIN_STEPS == 0;
}

#define HITS_BYTES 64

/* Describe the fetches of weights, for example "71.3 %, late 20.0 %, waited 3.4 s"; "-": there is
 * no pool. */
static void hit_rate(const struct cst_rank_stat *stat, char out[HITS_BYTES])
{
    const uint64_t asked = stat == NULL ? 0 : stat->hits + stat->late + stat->misses;

    if (asked == 0) {
        (void)snprintf(out, HITS_BYTES, "-");
    } else {
        (void)snprintf(out, HITS_BYTES, "%.1f %%, late %.1f %%, waited %.1f s",
                       100.0 * (double)stat->hits / (double)asked,
                       100.0 * (double)stat->late / (double)asked, stat->weight_wait_seconds);
    }
}

/* Number of characters that a line may have. A terminal redraws the line; the beginning of a line
 * that wraps would stay on the screen. */
static int line_room(const struct gpt_progress *p)
{
    struct winsize size;

    if (!p->terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) {
        return LINE_BYTES;
    }
    return size.ws_col - 1;
}

/* What happened in a step whose gradient norm is not finite or is too large. */
static const char *overflow_words(const struct cst_step_result *r)
{
    return r->skipped ? "  SKIPPED" : r->overflow ? "  OVERFLOW" : "";
}

static void print_line(struct gpt_progress *p, const struct gpt_progress_step *s)
{
    const struct cst_step_result *r = s->result;
    const uint64_t left = p->last_step > r->step ? p->last_step - r->step : 0;
    char hits[HITS_BYTES], line[LINE_BYTES];

    hit_rate(s->stat, hits);
    (void)snprintf(line, sizeof line,
                   "step %" PRIu64 "/%" PRIu64 "  loss %.4f  norm %.2f  %.0f tokens/s  hits %s  "
                   "eta %.0f s%s",
                   r->step, p->last_step, r->loss, r->grad_norm,
                   p->pace > 0 ? (double)p->step_tokens / p->pace : 0.0, hits,
                   p->pace * (double)left, overflow_words(r));
    (void)printf("%s%.*s%s", p->terminal ? "\r" : "", line_room(p), line,
                 p->terminal ? "\033[K" : "\n");
    (void)fflush(stdout);
    p->drawn = cst_clock_s();
}

/* JSON has no NaN and no infinity: they become null. */
static void json_number(FILE *f, const char *name, double value)
{
    if (isfinite(value)) {
        (void)fprintf(f, ", \"%s\": %.9g", name, value);
    } else {
        (void)fprintf(f, ", \"%s\": null", name);
    }
}

static void json_actions(FILE *f, const struct gpt_pipeline_run *run)
{
    char words[CST_STAGE_ACTION_WORDS];

    (void)fprintf(f, ", \"actions\": [");
    for (uint32_t i = 0; i < run->n_done; i++) {
        (void)fprintf(f, "%s\"%s\"", i == 0 ? "" : ", ",
                      cst_stage_action_words(run->done[i], words));
    }
    (void)fprintf(f, "]");
}

static void json_step(struct gpt_progress *p, const struct gpt_progress_step *s, double seconds)
{
    const struct cst_step_result *r = s->result;

    (void)fprintf(p->json, "{\"step\": %" PRIu64, r->step);
    json_number(p->json, "loss", r->loss);
    json_number(p->json, "lr", s->lr);
    json_number(p->json, "grad_norm", r->grad_norm);
    json_number(p->json, "clip", (double)r->clip);
    json_number(p->json, "seconds", seconds);
    json_number(p->json, "tokens_per_s", (double)p->step_tokens / seconds);
    if (p->step_flops > 0) {
        json_number(p->json, "model_flops_per_s", p->step_flops / seconds);
    }
    if (s->stat != NULL) {
        (void)fprintf(p->json,
                      ", \"hits\": %" PRIu64 ", \"late\": %" PRIu64 ", \"misses\": %" PRIu64
                      ", \"bytes_up\": %" PRIu64 ", \"bytes_down\": %" PRIu64
                      ", \"pool_bytes\": %" PRIu64,
                      s->stat->hits, s->stat->late, s->stat->misses, s->stat->bytes_up,
                      s->stat->bytes_down, s->stat->pool_bytes);
        json_number(p->json, "weight_wait_seconds", s->stat->weight_wait_seconds);
    }
    if (s->pipeline != NULL) {
        json_actions(p->json, s->pipeline);
    }
    (void)fprintf(p->json, ", \"skipped\": %s, \"overflow\": %s}\n", r->skipped ? "true" : "false",
                  r->overflow ? "true" : "false");
    /* Other programs can follow the file during training. */
    (void)fflush(p->json);
}

int gpt_progress_step(struct gpt_progress *p, const struct gpt_progress_step *step,
                      struct cst_err *err)
{
    const double t = cst_clock_s(), seconds = t - p->stepped;

    p->stepped = t;
    p->last_loss = step->result->loss;
    if (p->n_steps++ == 0) {
        p->first_loss = step->result->loss;
    }
    /* The first step includes the compilation of the products. It is ignored as soon as there is a
     * second step. */
    p->pace = p->n_steps <= 2 ? seconds : 0.9 * p->pace + 0.1 * seconds;
    if (!p->quiet &&
        (p->terminal ? t - p->drawn >= DRAW_SECONDS || step->result->step == p->last_step
                     : p->n_steps == 1 || step->result->step % PLAIN_STEPS == 0)) {
        print_line(p, step);
    }
    if (p->json != NULL) {
        json_step(p, step, seconds);
        if (ferror(p->json)) {
            return cst_err_set(err, CST_EIO, "--log-json: cannot write");
        }
    }
    return 0;
}

int gpt_progress_validation(struct gpt_progress *p, uint64_t step, double loss, struct cst_err *err)
{
    if (!p->quiet) {
        (void)printf("%sstep %" PRIu64 "/%" PRIu64 "  validation loss %.4f\n",
                     p->terminal ? "\n" : "", step, p->last_step, loss);
        (void)fflush(stdout);
    }
    if (p->json != NULL) {
        (void)fprintf(p->json, "{\"step\": %" PRIu64, step);
        json_number(p->json, "validation_loss", loss);
        (void)fprintf(p->json, "}\n");
        (void)fflush(p->json);
        if (ferror(p->json)) {
            return cst_err_set(err, CST_EIO, "--log-json: cannot write");
        }
    }
    return 0;
}

int gpt_progress_close(struct gpt_progress *p, const struct cst_rank_stat *stat, uint64_t n_params,
                       struct cst_err *err)
{
    const double seconds = cst_clock_s() - p->begun;
    int rc = 0;

    if (!p->quiet && p->n_steps > 0) {
        (void)printf("%sdone: %" PRIu64 " steps in %.1f s, loss %.4f -> %.4f, %.0f tokens/s",
                     p->terminal ? "\n" : "", p->n_steps, seconds, p->first_loss, p->last_loss,
                     (double)(p->n_steps * p->step_tokens) / seconds);
        if (stat != NULL && stat->pool_bytes > 0) {
            char hits[HITS_BYTES];

            hit_rate(stat, hits);
            (void)printf(", pool %.1f %% of weights, hits %s",
                         100.0 * (double)stat->pool_bytes / (2.0 * (double)n_params), hits);
        }
        (void)printf("\n");
        (void)fflush(stdout);
    }
    if (p->json != NULL && fclose(p->json) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "--log-json");
    }
    p->json = NULL;
    return rc;
}

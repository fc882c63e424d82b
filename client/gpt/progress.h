/* SPDX-License-Identifier: Apache-2.0 */
/* Progress reports of training. In a terminal one line is redrawn; otherwise every tenth step
 * prints a line. Optionally a file gets one JSON object per step, and one per validation. */
#ifndef GPT_PROGRESS_H
#define GPT_PROGRESS_H

#include "cistern/cistern.h"

#include <stdio.h>

struct gpt_progress {
    bool quiet;           /* print nothing on standard output */
    bool terminal;        /* standard output is a terminal */
    FILE *json;           /* NULL: no JSON file */
    uint64_t last_step;   /* last step of the run, for the estimated time left */
    uint64_t step_tokens; /* tokens of all ranks in one step */
    double step_flops;    /* the model's operations in one step; 0: not reported */
    uint64_t first_done;  /* steps committed when this run began */
    double begun;         /* start of the run in seconds of the monotonic clock */
    double drawn;         /* time when the line was last drawn */
    double stepped;       /* time when the last step ended */
    double pace;          /* moving average of the seconds per step */
    double first_loss;    /* loss of the first step of this run */
    double last_loss;     /* loss of the last step */
    uint64_t n_steps;     /* steps of this run so far */
};

struct gpt_pipeline_run;

/* A committed step. */
struct gpt_progress_step {
    const struct cst_step_result *result;
    const struct cst_rank_stat *stat; /* NULL: not queried for this step */
    double lr;
    /* What this rank did of a pipeline's schedule (pipeline.h); NULL: there is none. */
    const struct gpt_pipeline_run *pipeline;
};

/* Open @progress. @json_path: file for JSON, or NULL. @append: keep the contents of the file. The
 * caller may set step_flops afterwards. CST_EIO: the file cannot be opened. */
int gpt_progress_open(struct gpt_progress *progress, bool quiet, const char *json_path, bool append,
                      uint64_t first_step, uint64_t last_step, uint64_t step_tokens,
                      struct cst_err *err);

/* True where gpt_progress_step would use the rank's statistics now. The caller asks first because
 * the statistics cost a round trip to the daemon. */
bool gpt_progress_wants_stat(const struct gpt_progress *progress, uint64_t step);

/* Report a step. CST_EIO: the JSON file cannot be written. */
int gpt_progress_step(struct gpt_progress *progress, const struct gpt_progress_step *step,
                      struct cst_err *err);

/* Report the loss on the text for validation, after step @step. CST_EIO, as above. */
int gpt_progress_validation(struct gpt_progress *progress, uint64_t step, double loss,
                            struct cst_err *err);

/* Report the end of training and close the JSON file. @stat NULL: there is no pool. CST_EIO. */
int gpt_progress_close(struct gpt_progress *progress, const struct cst_rank_stat *stat,
                       uint64_t n_params, struct cst_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker tells while it trains: in a terminal one line that is drawn again, else a line
 * every ten steps; and a JSON object per step into a file. */
#ifndef GPT_PROGRESS_H
#define GPT_PROGRESS_H

#include "cistern/cistern.h"

#include <stdio.h>

struct gpt_progress {
    bool quiet;           /* nothing on standard output */
    bool terminal;        /* standard output is one */
    FILE *json;           /* NULL: none */
    uint64_t last_step;   /* of the run: for the eta */
    uint64_t step_tokens; /* of all ranks in one step */
    double step_flops;    /* operations of the model in a step; 0: not told */
    double matmul_flops;  /* per second, of a matrix product that was measured; 0: was not */
    uint64_t first_done;  /* steps committed when this run began */
    double begun;         /* seconds, monotonic clock */
    double drawn;         /* when the line was drawn last */
    double stepped;       /* when the last step ended */
    double pace;          /* seconds per step, a moving average */
    double first_loss;    /* of the first step of this run */
    double last_loss;     /* of the last one */
    uint64_t n_steps;     /* of this run */
};

/* One committed step. */
struct gpt_progress_step {
    const struct cst_step_result *result;
    const struct cst_rank_stat *stat; /* NULL: not asked this time */
    double lr;
};

/* @json_path NULL: no JSON; @append: keep what the file holds. step_flops and matmul_flops are the
 * caller's to set afterwards. CST_EIO. */
int gpt_progress_open(struct gpt_progress *progress, bool quiet, const char *json_path, bool append,
                      uint64_t first_step, uint64_t last_step, uint64_t step_tokens,
                      struct cst_err *err);

/* True where gpt_progress_step has a use for the rank's numbers now; asking for them costs a round
 * trip. */
bool gpt_progress_wants_stat(const struct gpt_progress *progress, uint64_t step);

/* Tell one step. CST_EIO: the JSON file cannot be written. */
int gpt_progress_step(struct gpt_progress *progress, const struct gpt_progress_step *step,
                      struct cst_err *err);

/* Tell the end of training. @stat NULL: no pool. CST_EIO. */
int gpt_progress_close(struct gpt_progress *progress, const struct cst_rank_stat *stat,
                       uint64_t n_params, struct cst_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The pictures of `cistern top`. Pure: the same model and state give the same picture. */
#ifndef CLI_TOP_VIEW_H
#define CLI_TOP_VIEW_H

#include "client/cli/top/columns.h"
#include "proto/job_name.h"

enum cli_top_page { CLI_TOP_MAIN, CLI_TOP_JOB, CLI_TOP_QUOTA, CLI_TOP_HELP };

/* What the user sees, and where. */
struct cli_top_view {
    enum cli_top_page page;
    /* The chosen job. */
    char name[CST_JOB_NAME_BYTES];
    uint32_t uid;
    unsigned sort;     /* Column of the order. */
    unsigned first;    /* Number of the first job that is shown. */
    unsigned left;     /* Number of the first column after that of the name. */
    unsigned skip;     /* Rows of the text above the screen. */
    unsigned n_rows;   /* Rows of the text, as last drawn. */
    unsigned n_shown;  /* Rows for jobs or text, as last drawn. */
    const char *text;  /* JOB, QUOTA, HELP: text of the page; NULL: not known yet. Borrowed. */
    bool paused;       /* There are no more samples. */
    double interval_s; /* Time between two samples. */
    const char *note;  /* Why there are no samples; NULL: there are. Borrowed. */
};

/* Choose the job that is @by places after the chosen one, or the first or last one if there are
 * fewer. Without jobs, none is chosen. */
void cli_top_choose(const struct cli_top_model *model, struct cli_top_view *view, int by);

/* Draw the page on the whole grid. The positions in @view are changed so that the chosen job and
 * some of the text can be seen. */
void cli_top_draw(struct cli_grid *grid, const struct cli_top_model *model,
                  struct cli_top_view *view);

#endif

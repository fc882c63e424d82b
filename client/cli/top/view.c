/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/view.h"

#include "client/cli/table.h"
#include "client/cli/top/page.h"

#include <stdio.h>
#include <string.h>

enum {
    NAME_WIDTH = 11,  /* Of the names of places and lines. */
    AMOUNT_WIDTH = 22 /* Of "1000 MiB of 1000 GiB". */
};

/* -- parts of all pages ----------------------------------------------------------------------- */

static void draw_head(struct cli_grid *grid, const struct cli_top_model *model,
                      const struct cli_top_view *view)
{
    char text[CLI_HUMAN_BYTES], right[48];
    unsigned n;

    if (model->n_samples > 0) {
        (void)cli_grid_print(
            grid, 0, 0, CLI_LOOK_BOLD, "cisternd %s on %s, up %s, %u job%s, %u connection%s",
            model->version, model->host, cli_seconds(model->uptime_s, text), model->n_jobs,
            model->n_jobs == 1 ? "" : "s", model->n_sessions, model->n_sessions == 1 ? "" : "s");
    }
    (void)snprintf(right, sizeof right, view->paused ? " paused" : " every %g s", view->interval_s);
    n = cli_grid_width(right);
    if (n < grid->cols) {
        (void)cli_grid_print(grid, 0, grid->cols - n, view->paused ? CLI_LOOK_YELLOW : 0, "%s",
                             right);
    }
}

/* The last row has the keys, or why there are no samples. */
static void draw_foot(struct cli_grid *grid, const struct cli_top_view *view)
{
    static const char *const keys[] = {
        [CLI_TOP_MAIN] = "h help  q quit  s sort  Enter job  u quota  p pause  + - interval",
        [CLI_TOP_JOB] = "Esc back  h help  q quit  p pause  + - interval",
        [CLI_TOP_QUOTA] = "Esc back  h help  q quit  p pause  + - interval",
        [CLI_TOP_HELP] = "Esc back  q quit",
    };
    const unsigned row = grid->rows - 1;

    if (view->note != NULL) {
        (void)cli_grid_field(grid, row, 0, grid->cols, false, CLI_LOOK_RED | CLI_LOOK_REVERSE,
                             view->note);
    } else {
        (void)cli_grid_field(grid, row, 0, grid->cols, false, CLI_LOOK_REVERSE, keys[view->page]);
    }
}

/* Return the look of the mark of a job. */
static unsigned look_of(const struct cli_top_job *job)
{
    static const unsigned colours[] = {2, 3, 4, 5, 6, 1};

    return CLI_LOOK_REVERSE | colours[(unsigned char)job->mark % 6];
}

/* Draw a line with the history of a number, from which @values on are its least and largest. */
static void draw_history(struct cli_grid *grid, unsigned row, const char *name,
                         const struct cli_spark_history *history, const char *values,
                         bool from_zero)
{
    const unsigned n = cli_grid_width(values), col = NAME_WIDTH,
                   width = grid->cols > col + n + 2 ? grid->cols - col - n - 2 : 0;

    (void)cli_grid_field(grid, row, 0, NAME_WIDTH - 1, false, 0, name);
    cli_spark_draw(grid, row, col, width, CLI_LOOK_CYAN, history, from_zero);
    (void)cli_grid_print(grid, row, col + width + 2, 0, "%s", values);
}

/* Draw the loss and the memory of a job over time, in two rows. */
static void draw_job_histories(struct cli_grid *grid, unsigned row, const struct cli_top_job *job)
{
    char text[64] = "no loss yet", bytes[CLI_HUMAN_BYTES];
    double least, most;

    if (job->has_loss && cli_spark_history_range(&job->losses, grid->cols, &least, &most)) {
        (void)snprintf(text, sizeof text, "%.4f, %.4f to %.4f", job->loss, least, most);
    } else if (job->has_loss) {
        (void)snprintf(text, sizeof text, "%f", job->loss);
    }
    draw_history(grid, row, "loss", &job->losses, text, false);
    draw_history(grid, row + 1, "memory", &job->sizes, cli_bytes((uint64_t)job->bytes, bytes),
                 true);
}

/* Draw the row @name with @words, for what a job waits, if there are any. Returns the number of
 * rows, 1 or 0. */
static unsigned draw_wait(struct cli_grid *grid, unsigned row, const char *name, const char *words)
{
    if (words[0] == '\0') {
        return 0;
    }
    (void)cli_grid_field(grid, row, 0, NAME_WIDTH - 1, false, 0, name);
    (void)cli_grid_print(grid, row, NAME_WIDTH, CLI_LOOK_YELLOW, "%s", words);
    return 1;
}

/* -- the main page ---------------------------------------------------------------------------- */

enum { MOST_PARTS = 28 }; /* 26 marks, jobs without one, and the rest. */

/* Add a part before those with later characters, so that no order of the jobs moves the bar. */
static void add_part(struct cli_bar_part *parts, unsigned n, struct cli_bar_part part)
{
    while (n > 0 && parts[n - 1].ch > part.ch) {
        parts[n] = parts[n - 1];
        n--;
    }
    parts[n] = part;
}

/* Find the parts of @place by job; those without a letter are one part, and *more of them have
 * memory there. What no job of the list has is of jobs of others, or of the daemon's own books.
 * Returns the number of parts. */
static unsigned find_parts(const struct cli_top_model *model, const struct cli_top_place *place,
                           struct cli_bar_part parts[MOST_PARTS], unsigned *more)
{
    double rest = place->used, unmarked = 0;
    unsigned n = 0;

    *more = 0;
    for (unsigned i = 0; i < model->n_jobs; i++) {
        const double bytes = cli_top_job_use(model->jobs[i], place->name);

        rest -= bytes;
        if (model->jobs[i]->mark == CLI_TOP_NO_MARK) {
            unmarked += bytes;
            *more += bytes > 0;
        } else if (bytes > 0) {
            add_part(parts, n++,
                     (struct cli_bar_part){.size = bytes,
                                           .ch = (unsigned char)model->jobs[i]->mark,
                                           .look = look_of(model->jobs[i])});
        }
    }
    if (*more > 0) {
        parts[n++] = (struct cli_bar_part){.size = unmarked, .ch = CLI_TOP_NO_MARK};
    }
    if (rest > 0) {
        parts[n++] = (struct cli_bar_part){.size = rest, .ch = '='};
    }
    return n;
}

static void draw_place(struct cli_grid *grid, unsigned row, const struct cli_top_model *model,
                       const struct cli_top_place *place)
{
    const unsigned width = grid->cols / 3;
    struct cli_bar_part parts[MOST_PARTS];
    char amount[64], a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];
    unsigned more, n = find_parts(model, place, parts, &more), col = NAME_WIDTH;

    (void)cli_grid_field(grid, row, 0, NAME_WIDTH - 1, false, 0, place->name);
    cli_bar_draw(grid, row, col, width, parts, n, place->size > 0 ? place->size : place->used);
    (void)snprintf(amount, sizeof amount, place->size > 0 ? "%s of %s" : "%s",
                   cli_bytes((uint64_t)place->used, a), cli_bytes((uint64_t)place->size, b));
    col = cli_grid_field(grid, row, col + width + 1, AMOUNT_WIDTH, false, 0, amount) + 1;
    if (more > 0) {
        col = cli_grid_print(grid, row, col, 0, "+%u more", more) + 1;
    }
    if (col < grid->cols) {
        cli_spark_draw(grid, row, col, grid->cols - col, CLI_LOOK_CYAN, &place->history, true);
    }
}

/* Draw the places in at most half of the rows. Returns the row after them. */
static unsigned draw_places(struct cli_grid *grid, const struct cli_top_model *model)
{
    const unsigned most = grid->rows / 2 > 4 ? grid->rows / 2 - 3 : 1;
    unsigned row = 1;

    for (unsigned i = 0; i < model->n_places; i++) {
        if (row == most && i + 1 < model->n_places) {
            (void)cli_grid_print(grid, row, 0, 0, "and %u more", model->n_places - i);
            return row + 1;
        }
        draw_place(grid, row++, model, &model->places[i]);
    }
    return row;
}

/* Return the number of the chosen job in the order of the table; n_jobs: none is chosen. */
static unsigned find_chosen(const struct cli_top_model *model, const struct cli_top_view *view)
{
    unsigned i = 0;

    while (i < model->n_jobs &&
           (model->jobs[i]->uid != view->uid || strcmp(model->jobs[i]->name, view->name) != 0)) {
        i++;
    }
    return i;
}

void cli_top_choose(const struct cli_top_model *model, struct cli_top_view *view, int by)
{
    const unsigned chosen = find_chosen(model, view);
    long to = chosen < model->n_jobs ? (long)chosen + by : 0;

    if (model->n_jobs == 0) {
        return;
    }
    to = to < 0 ? 0 : to >= (long)model->n_jobs ? (long)model->n_jobs - 1 : to;
    (void)snprintf(view->name, sizeof view->name, "%s", model->jobs[to]->name);
    view->uid = model->jobs[to]->uid;
}

/* Draw a cell of column @c, or its title if @job is NULL. Returns the column after it. */
static unsigned draw_cell(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                          unsigned c, unsigned look, const struct cli_top_model *model,
                          const struct cli_top_job *job)
{
    char text[CLI_TOP_CELL];

    if (job == NULL) {
        (void)snprintf(text, sizeof text, "%s", cli_top_columns[c].title);
    } else {
        cli_top_columns[c].cell(model, job, text);
    }
    (void)cli_grid_field(grid, row, col, width, cli_top_columns[c].right, look, text);
    return col + width + 1;
}

/* True if the job makes no steps because it waits for a node. */
static bool is_stopped(const struct cli_top_job *job)
{
    return strncmp(job->node_wait, "waits", 5) == 0;
}

/* Draw a row of the table: the name, and columns from view->left on as far as they fit. A job that
 * waits for a node has the words about that in the place of the columns about steps. */
static void draw_row(struct cli_grid *grid, unsigned row, unsigned look,
                     const struct cli_top_model *model, const struct cli_top_view *view,
                     const struct cli_top_job *job)
{
    unsigned widths[CLI_TOP_COLUMNS], col = 2;

    cli_top_widths(grid->cols - col, widths);
    for (unsigned c = 0; c < CLI_TOP_COLUMNS; c++) {
        const bool sorted = job == NULL && c == view->sort;

        if (job != NULL && is_stopped(job) && c >= CLI_TOP_FIRST_OF_STEP && c >= view->left) {
            (void)cli_grid_field(grid, row, col, col < grid->cols ? grid->cols - col : 0, false,
                                 look, job->node_wait);
            return;
        }
        if ((c == 0 || c >= view->left) && col + widths[c] <= grid->cols) {
            col = draw_cell(grid, row, col, widths[c], c, look | (sorted ? CLI_LOOK_REVERSE : 0),
                            model, job);
        }
    }
}

static unsigned state_look(const struct cli_top_job *job)
{
    static const char *const bad[] = {"failed", "interrupted", "closing"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (strcmp(job->state, bad[i]) == 0) {
            return CLI_LOOK_RED;
        }
    }
    if (is_stopped(job) || strcmp(job->state, "paused") == 0) {
        return CLI_LOOK_YELLOW;
    }
    return strcmp(job->state, "training") == 0 ? CLI_LOOK_GREEN : 0;
}

static void draw_jobs(struct cli_grid *grid, unsigned row, const struct cli_top_model *model,
                      struct cli_top_view *view)
{
    const unsigned chosen = find_chosen(model, view), rows = grid->rows - 1 - row;

    view->n_shown = rows;
    if (chosen < model->n_jobs && chosen < view->first) {
        view->first = chosen;
    } else if (chosen < model->n_jobs && chosen >= view->first + rows) {
        view->first = chosen + 1 - rows;
    }
    view->first = view->first < model->n_jobs ? view->first : 0;
    for (unsigned i = view->first; i < model->n_jobs && i < view->first + rows; i++) {
        const struct cli_top_job *job = model->jobs[i];
        const unsigned look = state_look(job) | (i == chosen ? CLI_LOOK_REVERSE : 0);

        cli_grid_put(grid, row + i - view->first, 0, look_of(job), (unsigned char)job->mark);
        draw_row(grid, row + i - view->first, look, model, view, job);
    }
}

static void draw_main(struct cli_grid *grid, const struct cli_top_model *model,
                      struct cli_top_view *view)
{
    unsigned row = draw_places(grid, model), chosen;

    cli_top_choose(model, view, 0);
    chosen = find_chosen(model, view);
    if (chosen < model->n_jobs && grid->rows > row + 5) {
        draw_job_histories(grid, row, model->jobs[chosen]);
        row += 2;
        row += draw_wait(grid, row, "nodes", model->jobs[chosen]->node_wait);
        row += draw_wait(grid, row, "pause", model->jobs[chosen]->pause);
    }
    if (model->n_samples > 0 && model->n_jobs == 0) {
        (void)cli_grid_print(grid, row + 1, 0, 0, "no jobs");
    } else if (model->n_jobs > 0 && row + 1 < grid->rows) {
        draw_row(grid, row, CLI_LOOK_BOLD, model, view, NULL);
        draw_jobs(grid, row + 1, model, view);
    }
}

/* -- pages of text ---------------------------------------------------------------------------- */

static void draw_text(struct cli_grid *grid, const struct cli_top_model *model,
                      struct cli_top_view *view)
{
    const struct cli_top_job *job = cli_top_model_find(model, view->name, view->uid);
    unsigned row = 1;

    if (view->page == CLI_TOP_JOB && job != NULL && grid->rows > 8) {
        draw_job_histories(grid, row, job);
        row += 2;
    }
    view->n_shown = grid->rows - 1 - row;
    view->n_rows = cli_page_draw(grid, row, 0, 0, view->text);
    if (view->skip + view->n_shown > view->n_rows) {
        view->skip = view->n_rows > view->n_shown ? view->n_rows - view->n_shown : 0;
    }
    (void)cli_page_draw(grid, row, view->n_shown, view->skip, view->text);
}

void cli_top_draw(struct cli_grid *grid, const struct cli_top_model *model,
                  struct cli_top_view *view)
{
    if (grid->rows < 4 || grid->cols < 20) {
        (void)cli_grid_print(grid, 0, 0, 0, "too small");
        return;
    }
    draw_head(grid, model, view);
    if (view->page == CLI_TOP_MAIN) {
        draw_main(grid, model, view);
    } else if (view->text != NULL) {
        draw_text(grid, model, view);
    }
    draw_foot(grid, view);
}

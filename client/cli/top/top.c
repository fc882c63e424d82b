/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern top`: samples of the node and its jobs, drawn on the whole terminal until
 * the user quits. One request is under way at a time:
 *
 *   IDLE --due--> STAT --> JOBS --> JOB or QUOTA, if their page is shown --> IDLE
 *
 * JOBS, JOB and QUOTA take as many requests as their replies have pages.
 *
 * Keys are read meanwhile. If the connection ends, it is made again when the next sample is due. */
#include "client/cli/cli.h"
#include "client/cli/job_ranks.h"
#include "client/cli/table.h"
#include "client/cli/top/screen.h"
#include "client/cli/top/view.h"
#include "proto/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_S = 2, LONG_S = 3600 };

enum state { IDLE, STAT, JOBS, JOB, QUOTA };

struct top {
    struct cli *cli;
    struct cli_top_model model;
    struct cli_top_view view;
    enum cli_top_page before_help; /* The page to which help returns. */
    enum state state;
    struct cstc_call call;      /* The request under way. */
    uint32_t n_items;           /* Items of the list in the pages so far. */
    struct cli_table table;     /* QUOTA: the table so far. */
    Cistern__JobInfo *job;      /* JOB: with the ranks so far; NULL: none yet. In job_reply. */
    struct cstc_call job_reply; /* JOB: the first page. Owned. */
    double due_s;               /* Time of the next sample. */
    double asked_s;             /* Time at which the request under way was made. */
    char *text;                 /* Text of the page. Owned. */
    struct cst_err lost;        /* Why there are no samples; status 0: there are. */
};

static const char help[] =
    "Up, Down  choose a job, or move the text, as Page Up, Page Down, Home, End\n"
    "Left      show columns further left, and Right those further right\n"
    "s         sort by the next column; its title is marked\n"
    "Enter     show the chosen job: ranks, chunks, updates, drives\n"
    "u         show the limits of users, and what they use\n"
    "Esc       go back\n"
    "p         pause, and go on\n"
    "+, -      longer or shorter time between samples\n"
    "h         show this help\n"
    "q         quit\n"
    "\n"
    "bars      Memory that is used, by job. The letter of a job is in front of its name; + is the "
    "memory of jobs without a letter, = that of others. \"pools\" are pools in host memory.\n"
    "HITS      Part of the weights that were in a pool before a rank waited for them.\n"
    "WAIT      Part of the time for which ranks waited for weights.\n"
    "PARAMS/s  Parameters updated.\n"
    "LINK/s    Bytes to and from pools.\n"
    "READ/s    Bytes from drives, and WRITE/s to them.\n"
    "\n"
    "Rates are those since the last sample. cistern(1) says more.\n";

/* -- requests --------------------------------------------------------------------------------- */

static void forget_job(struct top *top)
{
    cstc_call_reset(&top->job_reply);
    top->job = NULL;
}

/* The sample has failed. The next one is due after a while. */
static void lose(struct top *top, const struct cst_err *err)
{
    cli_table_free(&top->table);
    forget_job(top);
    top->lost = *err;
    top->state = IDLE;
    top->due_s = cst_clock_s() + (top->view.interval_s < 1 ? top->view.interval_s : 1);
}

/* Start a request in @state. */
static void request(struct top *top, enum state state, uint16_t type, const ProtobufCMessage *body,
                    uint16_t reply_type, const ProtobufCMessageDescriptor *form)
{
    struct cst_err err = {0};

    top->state = state;
    top->asked_s = cst_clock_s();
    if (cstc_call_start(top->cli->client, &top->call, type, body, reply_type, form, &err) !=
        CST_OK) {
        lose(top, &err);
    }
}

static void request_list(struct top *top, enum state state, const struct cli_list *list)
{
    Cistern__JobListGet msg = CISTERN__JOB_LIST_GET__INIT;

    msg.first = top->n_items;
    request(top, state, list->get, &msg.base, list->part, list->form);
}

static void request_job(struct top *top, const Cistern__JobName *msg)
{
    request(top, JOB, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg->base,
            CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor);
}

static void request_chosen(struct top *top)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;

    msg.name = top->view.name;
    msg.has_uid = true;
    msg.uid = top->view.uid;
    request_job(top, &msg);
}

/* Begin a sample, with a new connection if the last one has ended. */
static void begin(struct top *top)
{
    struct cst_err err = {0};

    if (cstc_client_check(top->cli->client, &err) != CST_OK &&
        cstc_client_reopen(top->cli->client, &err) != CST_OK) {
        lose(top, &err);
        return;
    }
    request(top, STAT, CISTERN__MSG_TYPE__MSG_STAT, NULL, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
            &cistern__stat_reply__descriptor);
}

/* True if the page shows a text, and has none yet. */
static bool wants_text(const struct top *top)
{
    return top->view.page != CLI_TOP_MAIN && top->text == NULL;
}

static void end(struct top *top)
{
    top->state = IDLE;
    top->lost = (struct cst_err){0};
    /* The page was turned after the sample had begun. */
    top->due_s = wants_text(top) ? 0 : cst_clock_s() + top->view.interval_s;
}

/* Take @text, which is owned now, as that of the page. NULL: out of memory. */
static void set_text(struct top *top, char *text)
{
    free(top->text);
    top->text = text;
}

/* Write the text of @page with @print, which is given @arg. Another page may be shown by now. */
static void print_text(struct top *top, enum cli_top_page page, bool (*print)(void *arg, FILE *out),
                       void *arg)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    bool good = out != NULL && print(arg, out);

    good = out != NULL && fclose(out) == 0 && good;
    if (top->view.page == page) {
        set_text(top, good ? text : strdup("out of memory"));
    }
    if (top->text != text) {
        free(text);
    }
}

static bool print_job(void *arg, FILE *out)
{
    return cli_job_print(arg, out);
}

static bool print_table(void *arg, FILE *out)
{
    return cli_table_print(arg, out);
}

/* Go on after the list of jobs, which all samples have. */
static void on_jobs(struct top *top)
{
    cli_top_model_end(&top->model);
    cli_top_sort(&top->model, top->view.sort);
    top->n_items = 0;
    if (top->view.page == CLI_TOP_JOB) {
        request_chosen(top);
    } else if (top->view.page == CLI_TOP_QUOTA) {
        cli_table_init(&top->table, cli_quota_list.titles);
        request_list(top, QUOTA, &cli_quota_list);
    } else {
        end(top);
    }
}

/* Take a page of @list. Returns whether it was the last one; else the next one is requested. */
static bool take_page(struct top *top, const struct cli_list *list, ProtobufCMessage *reply)
{
    ProtobufCMessage **items;
    bool more;
    size_t n = list->items(reply, &items, &more);

    for (size_t i = 0; i < n; i++) {
        if (top->state == JOBS) {
            cli_top_model_add(&top->model, (const Cistern__JobInfo *)items[i]);
        } else {
            list->add(&top->table, items[i]);
        }
    }
    top->n_items += (uint32_t)n;
    if (more && n > 0) {
        request_list(top, top->state, list);
        return false;
    }
    return true;
}

/* Take a page of a job. Once there are no more, the text is that of all ranks, unless another job
 * was chosen meanwhile. */
static void take_job(struct top *top, struct cstc_call *done)
{
    Cistern__JobInfo *page = ((Cistern__JobInfoReply *)done->reply)->job;
    Cistern__JobName next;
    struct cst_err err = {0};
    bool more;

    if (top->job == NULL) {
        top->job = page;
        top->job_reply = *done;
        *done = (struct cstc_call){0};
        more = cli_job_ranks_next(top->job, &next);
    } else if (cli_job_ranks_join(top->job, page, &more, &err) != CST_OK) {
        lose(top, &err);
        return;
    }
    if (more) {
        (void)cli_job_ranks_next(top->job, &next);
        request_job(top, &next);
        return;
    }
    if (strcmp(top->job->name, top->view.name) == 0 && top->job->uid == top->view.uid) {
        print_text(top, CLI_TOP_JOB, print_job, top->job);
    }
    forget_job(top);
    end(top);
}

static void take(struct top *top, struct cstc_call *done)
{
    ProtobufCMessage *reply = done->reply;

    switch (top->state) {
    case IDLE:
        break;
    case STAT:
        cli_top_model_begin(&top->model, (const Cistern__StatReply *)reply, cst_clock_s());
        top->n_items = 0;
        request_list(top, JOBS, &cli_jobs_list);
        break;
    case JOBS:
        if (take_page(top, &cli_jobs_list, reply)) {
            on_jobs(top);
        }
        break;
    case JOB:
        take_job(top, done);
        break;
    case QUOTA:
        if (take_page(top, &cli_quota_list, reply)) {
            print_text(top, CLI_TOP_QUOTA, print_table, &top->table);
            end(top);
        }
        break;
    }
}

/* The request under way has failed. That a job is gone concerns its page alone. */
static void fail(struct top *top, const struct cst_err *err)
{
    struct cst_err unused;

    if (top->state == JOB && cstc_client_check(top->cli->client, &unused) == CST_OK) {
        if (top->view.page == CLI_TOP_JOB) {
            set_text(top, strdup(err->text));
        }
        forget_job(top);
        end(top);
    } else {
        lose(top, err);
    }
}

/* Receive what the daemon has sent. */
static void receive(struct top *top)
{
    struct cst_err err = {0};
    struct cstc_call done;

    if (cstc_call_pump(top->cli->client, &err) != CST_OK && top->state == IDLE) {
        lose(top, &err);
    }
    if (top->state == IDLE || cstc_call_result(&top->call, &err) == CST_EAGAIN) {
        return;
    }
    done = top->call; /* The next request may begin before the reply is freed. */
    top->call = (struct cstc_call){0};
    if (done.status == CST_OK) {
        take(top, &done);
    } else {
        fail(top, &err);
    }
    cstc_call_reset(&done);
}

/* -- keys ------------------------------------------------------------------------------------- */

/* Show another page, of which a sample is taken at once. */
static void turn_to(struct top *top, enum cli_top_page page)
{
    if (page == CLI_TOP_HELP && top->view.page != CLI_TOP_HELP) {
        top->before_help = top->view.page;
    }
    top->view.page = page;
    top->view.skip = 0;
    set_text(top, page == CLI_TOP_HELP ? strdup(help) : NULL);
    if (page == CLI_TOP_JOB || page == CLI_TOP_QUOTA) {
        top->due_s = 0;
    }
}

static void go_back(struct top *top)
{
    turn_to(top, top->view.page == CLI_TOP_HELP ? top->before_help : CLI_TOP_MAIN);
}

static void move(struct top *top, int by)
{
    if (top->view.page == CLI_TOP_MAIN) {
        cli_top_choose(&top->model, &top->view, by);
    } else if (by < 0) {
        top->view.skip -= (unsigned)-by < top->view.skip ? (unsigned)-by : top->view.skip;
    } else {
        /* More than the text has is corrected when it is drawn. */
        top->view.skip =
            (unsigned)by < top->view.n_rows ? top->view.skip + (unsigned)by : top->view.n_rows;
    }
}

/* Take the next longer or shorter time between samples. */
static void set_interval(struct top *top, bool longer)
{
    static const double steps[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
    const unsigned n = sizeof steps / sizeof *steps;
    double *interval_s = &top->view.interval_s, now = *interval_s;

    for (unsigned i = 0; i < n; i++) {
        if (longer ? steps[i] > now : steps[n - 1 - i] < now) {
            *interval_s = longer ? steps[i] : steps[n - 1 - i];
            top->due_s += *interval_s - now;
            return;
        }
    }
}

static void scroll_columns(struct top *top, bool right)
{
    unsigned *left = &top->view.left;

    if (right) {
        *left += *left == 0 ? 2 : *left + 1 < CLI_TOP_COLUMNS; /* Column 1 is the first. */
    } else {
        *left -= *left > 1;
    }
}

/* Obey a key. False: quit. */
static bool obey(struct top *top, int key)
{
    struct cli_top_view *view = &top->view;

    switch (key) {
    case 'q':
        return false;
    case 'h':
    case '?':
        turn_to(top, CLI_TOP_HELP);
        break;
    case 'u':
        turn_to(top, CLI_TOP_QUOTA);
        break;
    case 's':
        view->sort = (view->sort + 1) % CLI_TOP_COLUMNS;
        cli_top_sort(&top->model, view->sort);
        break;
    case 'p':
        view->paused = !view->paused;
        break;
    case '+':
    case '-':
        set_interval(top, key == '+');
        break;
    case CLI_KEY_UP:
    case CLI_KEY_DOWN:
        move(top, key == CLI_KEY_UP ? -1 : 1);
        break;
    case CLI_KEY_PAGE_UP:
    case CLI_KEY_PAGE_DOWN:
        move(top, key == CLI_KEY_PAGE_UP ? -(int)view->n_shown : (int)view->n_shown);
        break;
    case CLI_KEY_HOME:
    case CLI_KEY_END:
        move(top, key == CLI_KEY_HOME ? -1000000 : 1000000);
        break;
    case CLI_KEY_LEFT:
    case CLI_KEY_RIGHT:
        scroll_columns(top, key == CLI_KEY_RIGHT);
        break;
    case CLI_KEY_ENTER:
        if (view->page == CLI_TOP_MAIN && top->model.n_jobs > 0) {
            turn_to(top, CLI_TOP_JOB);
        }
        break;
    case CLI_KEY_ESCAPE:
        go_back(top);
        break;
    default:
        break;
    }
    return true;
}

/* -- the command ------------------------------------------------------------------------------ */

/* Draw what is known. */
static void draw(struct top *top)
{
    const double waited_s = top->state != IDLE ? cst_clock_s() - top->asked_s : 0;
    struct cli_grid *grid = cli_screen_grid();
    char waits[64];

    (void)snprintf(waits, sizeof waits, "the daemon has not answered for %.0f s", waited_s);
    top->view.text = top->text;
    top->view.note = top->lost.status != CST_OK ? top->lost.text
                     : waited_s > PATIENCE_S    ? waits
                                                : NULL;
    cli_top_draw(grid, &top->model, &top->view);
    cli_screen_show();
}

/* Return the time at which something has to be done, unless something happens: the next sample is
 * due, or the user should be told that the daemon does not answer. */
static double next_due(const struct top *top)
{
    if (top->state != IDLE) {
        return cst_clock_s() + PATIENCE_S;
    }
    /* A page without text gets one also during a pause. */
    return top->view.paused && top->model.n_samples > 0 && !wants_text(top) ? cst_clock_s() + LONG_S
                                                                            : top->due_s;
}

/* Wait for the next event and handle it. *changed: there is something to be drawn. False: the
 * end. */
static bool go_on(struct top *top, bool *changed)
{
    const int fd = cst_client_fd(top->cli->client);
    int key;

    *changed = true;
    switch (cli_screen_wait(fd >= 0 ? fd : -1, next_due(top), &key)) {
    case CLI_SCREEN_KEY:
        return obey(top, key);
    case CLI_SCREEN_READY:
        receive(top);
        /* In the middle of a sample, the jobs are those of two times. */
        *changed = top->state == IDLE;
        break;
    case CLI_SCREEN_DUE:
        if (top->state == IDLE && next_due(top) <= cst_clock_s()) {
            begin(top);
            *changed = top->state == IDLE;
        }
        break;
    case CLI_SCREEN_RESIZED:
        break;
    case CLI_SCREEN_END:
        return false;
    }
    return true;
}

static void loop(struct top *top)
{
    bool changed = true;

    do {
        if (changed) {
            draw(top);
        }
    } while (go_on(top, &changed));
}

int cli_top(struct cli *cli)
{
    const char *no_color = getenv("NO_COLOR");
    const bool colour = !cli->no_color && (no_color == NULL || no_color[0] == '\0');
    struct cst_err err = {0};
    struct top *top;

    if (!cli_screen_is_possible()) {
        return cli_fail(&(struct cst_err){
            .text = "top draws on a terminal, in the foreground: 'cistern stat' prints anywhere"});
    }
    top = calloc(1, sizeof *top);
    if (top == NULL) {
        return cli_fail(&(struct cst_err){.text = "out of memory"});
    }
    if (cli_screen_open(colour, &err) != CST_OK) {
        free(top);
        return cli_fail(&err);
    }
    top->cli = cli;
    top->view.interval_s = cli->watch_seconds > 0 ? cli->watch_seconds : 2;
    loop(top);
    cli_screen_close();
    cst_disconnect(cli->client); /* Also ends the request under way, which is in top. */
    cli->client = NULL;
    cli_top_model_free(&top->model);
    cli_table_free(&top->table);
    forget_job(top);
    free(top->text);
    free(top);
    return CLI_EXIT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern run`.
 *
 *   TRAINING --a signal, or a rank fails for good--> ENDING
 *   ENDING --a second signal, or the time of --grace is over--> KILLING
 *
 * In TRAINING, ranks that die may be started again. In ENDING, all ranks have got a signal and are
 * waited for. In KILLING, what is left is killed. In all states the program ends when no rank is
 * running or waiting for its restart. */
#include "client/cli/options.h"
#include "client/cli/processors.h"
#include "client/cli/rank.h"
#include "client/cli/restarts.h"
#include "client/cli/run_environment.h"
#include "proto/program.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum state { TRAINING, ENDING, KILLING };

static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_CAUGHT = sizeof caught / sizeof *caught };

/* A rank, and its restarts. */
struct member {
    struct cli_rank rank;
    struct cli_restarts restarts;
    uv_timer_t pause; /* Time before the next restart. */
    bool is_left;     /* The rank runs, or waits for its restart. */
};

struct run {
    const struct cli *cli; /* Options, borrowed. */
    struct cli_processors processors;
    bool pins;              /* Ranks are pinned to their processors. */
    char program[PATH_MAX]; /* Path of cistern-rank. */
    char **argv;            /* Arguments of cistern-rank. Owned; the words are borrowed. */
    struct cli_run_environment environment;
    uv_loop_t loop;
    struct cli_sink out, err; /* Standard output and standard error. */
    struct member *members;   /* Per rank. Owned. */
    unsigned n, n_left;       /* Ranks, and those with is_left. */
    enum state state;
    int status; /* 0, or the exit status of the rank that failed first. */
    uv_signal_t signals[N_CAUGHT];
    uv_timer_t grace; /* Time from ENDING to KILLING. */
};

/* Print a message of this program between the lines of the ranks. */
__attribute__((format(printf, 2, 3))) static void say(struct run *run, const char *format, ...)
{
    char words[1024];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (n > 0) {
        cli_sink_line(&run->err, "cistern: ", words, strlen(words));
    }
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Describe how a rank ended: "ended with status 1". */
static const char *how(const struct cli_rank *rank, char words[80])
{
    if (rank->signal != 0) {
        (void)snprintf(words, 80, "was killed by signal %d (%s)", rank->signal,
                       strsignal(rank->signal));
    } else {
        (void)snprintf(words, 80, "ended with status %d", (int)rank->status);
    }
    return words;
}

static void close_handle(void *handle)
{
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* The rank will not run again. The loop ends when there is none left, and all output is written. */
static void leave(struct run *run, struct member *member)
{
    member->is_left = false;
    close_handle(&member->pause);
    run->n_left--;
    if (run->n_left == 0) {
        close_handle(&run->grace);
        /* A signal must still be noticed while output is written, but nothing waits for one. */
        for (int i = 0; i < N_CAUGHT; i++) {
            uv_unref((uv_handle_t *)&run->signals[i]);
        }
    }
}

static void kill_all(struct run *run)
{
    run->state = KILLING;
    for (unsigned i = 0; i < run->n; i++) {
        cli_rank_kill(&run->members[i].rank);
    }
    /* A reader that does not read must not keep the ranks from ending. */
    cli_sink_give_up(&run->out);
    cli_sink_give_up(&run->err);
}

static void on_grace(uv_timer_t *timer)
{
    struct run *run = timer->data;

    say(run, "%u rank%s did not end within %u s and %s killed (--grace)", run->n_left,
        run->n_left == 1 ? "" : "s", run->cli->grace, run->n_left == 1 ? "is" : "are");
    kill_all(run);
}

/* Send all ranks the signal @number, and wait for them. */
static void end_all(struct run *run, int number)
{
    run->state = ENDING;
    (void)uv_timer_start(&run->grace, on_grace, 1000 * (uint64_t)run->cli->grace, 0);
    for (unsigned i = 0; i < run->n; i++) {
        struct member *member = &run->members[i];

        cli_rank_signal(&member->rank, number);
        if (member->is_left && !cli_rank_is_running(&member->rank)) {
            leave(run, member); /* It waited for its restart. */
        }
    }
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct run *run = handle->data;

    if (run->state == TRAINING && run->n_left > 0) {
        say(run, "%s: waiting up to %u s for %u rank%s to end; a second signal kills them",
            strsignal(number), run->cli->grace, run->n_left, run->n_left == 1 ? "" : "s");
        end_all(run, number);
    } else {
        kill_all(run);
    }
}

/* -- ranks ------------------------------------------------------------------------------------ */

static void start(struct run *run, struct member *member)
{
    const unsigned number = member->rank.number;
    struct cst_err err = {0};

    cli_run_environment_set(&run->environment, number, member->restarts.total,
                            cli_processors_share(&run->processors, number));
    /* The process inherits the processors. */
    if (run->pins && cli_processors_enter(&run->processors, number, &err) != CST_OK) {
        run->pins = false;
        say(run, "ranks are not pinned: %s", err.text);
    }
    if (cli_rank_start(&member->rank, run->argv, &err) != CST_OK) {
        say(run, "%s", err.text);
    }
    if (run->pins) {
        cli_processors_leave(&run->processors);
    }
}

static void on_pause_over(uv_timer_t *timer)
{
    struct member *member = timer->data;

    start(member->rank.data, member);
}

/* Return whether the rank ended by itself before any rank had made a step. Its data, its options or
 * the daemon are then not what it needs, and they would not be the next time. */
static bool failed_at_start(const struct run *run, const struct cli_rank *rank)
{
    return rank->signal == 0 && cli_restarts_wanted(rank->status, 0) &&
           !cli_run_environment_has_stepped(&run->environment);
}

/* Start the rank again after a pause, if that is wanted. */
static bool restart(struct run *run, struct member *member)
{
    const unsigned limit = run->cli->restart;
    const struct cli_rank *rank = &member->rank;
    uint64_t pause_ms;
    char words[80];

    if (run->state != TRAINING || limit == 0 || !cli_restarts_wanted(rank->status, rank->signal) ||
        failed_at_start(run, rank)) {
        return false;
    }
    if (!cli_restarts_next(&member->restarts, limit, uv_now(&run->loop), &pause_ms)) {
        say(run,
            "rank %u %s, and was started again %u time%s within %u s: it is given up (--restart)",
            rank->number, how(rank, words), limit, limit == 1 ? "" : "s", CLI_RESTARTS_WINDOW_S);
        return false;
    }
    say(run, "rank %u %s: it is started again in %u s (restart %u of at most %u within %u s)",
        rank->number, how(rank, words), (unsigned)(pause_ms / 1000), member->restarts.n, limit,
        CLI_RESTARTS_WINDOW_S);
    (void)uv_timer_start(&member->pause, on_pause_over, pause_ms, 0);
    return true;
}

static void on_ended(struct cli_rank *rank)
{
    struct run *run = rank->data;
    struct member *member = &run->members[rank->number];
    const int status = rank->signal != 0 ? 128 + rank->signal : (int)rank->status;
    char words[80];

    if (restart(run, member)) {
        return;
    }
    leave(run, member);
    if (status == 0) {
        return;
    }
    run->status = run->status == 0 ? status : run->status;
    if (run->state == TRAINING) {
        say(run, "rank %u %s%s%s", rank->number, how(rank, words),
            run->cli->restart > 0 && failed_at_start(run, rank)
                ? " before the first step, and is not started again"
                : "",
            run->n_left > 0 ? ": the other ranks are asked to end" : "");
    }
    if (run->state == TRAINING && run->n_left > 0) {
        end_all(run, SIGTERM);
    }
}

static void on_drained(struct cli_sink *sink)
{
    struct run *run = sink->data;

    for (unsigned i = 0; i < run->n; i++) {
        cli_rank_resume(&run->members[i].rank, sink);
    }
}

/* -- the beginning ---------------------------------------------------------------------------- */

/* Find the processors of the ranks, and tell if ranks cannot have any of their own. */
static int divide_processors(struct run *run, struct cst_err *err)
{
    int rc = cli_processors_open(&run->processors, run->n, err);

    run->pins = rc == CST_OK && !run->cli->no_pin && run->processors.sets != NULL;
    if (rc == CST_OK && !run->cli->no_pin && !run->pins) {
        (void)fprintf(stderr, "cistern: %u ranks share %u processor%s: they are not pinned\n",
                      run->n, run->processors.n_processors,
                      run->processors.n_processors == 1 ? "" : "s");
    }
    return rc;
}

/* Catch a signal, unless it is ignored, as with nohup. */
static void catch_signal(struct run *run, int i)
{
    struct sigaction before;

    (void)uv_signal_init(&run->loop, &run->signals[i]);
    run->signals[i].data = run;
    if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        (void)uv_signal_start(&run->signals[i], on_signal, caught[i]);
    }
}

static void open_handles(struct run *run)
{
    for (int i = 0; i < N_CAUGHT; i++) {
        catch_signal(run, i);
    }
    (void)uv_timer_init(&run->loop, &run->grace);
    run->grace.data = run;
    cli_sink_open(&run->out, &run->loop, STDOUT_FILENO);
    cli_sink_open(&run->err, &run->loop, STDERR_FILENO);
    run->out.data = run->err.data = run;
    run->out.drained = run->err.drained = on_drained;
    for (unsigned i = 0; i < run->n; i++) {
        struct member *member = &run->members[i];

        cli_rank_init(&member->rank, i, &run->loop, &run->out, &run->err);
        member->rank.ended = on_ended;
        member->rank.data = run;
        (void)uv_timer_init(&run->loop, &member->pause);
        member->pause.data = member;
        member->is_left = true;
    }
    run->n_left = run->n;
}

/* Start all ranks, and return when all have ended and their output is written. */
static int train(struct run *run)
{
    int lost;

    open_handles(run);
    for (unsigned i = 0; i < run->n; i++) {
        start(run, &run->members[i]);
    }
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
    for (int i = 0; i < N_CAUGHT; i++) {
        close_handle(&run->signals[i]);
    }
    lost = run->out.error != 0 ? run->out.error : run->err.error;
    cli_sink_close(&run->out);
    cli_sink_close(&run->err);
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
    if (lost != 0) {
        (void)fprintf(stderr, "cistern: output of ranks is lost: %s\n", strerror(lost));
    }
    return run->status == 0 && lost != 0 ? CLI_EXIT_FAILURE : run->status;
}

/* Have the arguments of cistern-rank: its path, and the program's words. */
static int make_arguments(struct run *run, struct cst_err *err)
{
    const struct cli *cli = run->cli;
    int rc = cst_program_find("cistern-rank", NULL, "CISTERN_RANK_PROGRAM", run->program,
                              sizeof run->program, err);

    run->argv = calloc((size_t)cli->n_args + 2, sizeof *run->argv);
    run->members = calloc(run->n, sizeof *run->members);
    if (rc == CST_OK && (run->argv == NULL || run->members == NULL)) {
        rc =
            cst_err_set(err, CST_ENOMEM, "no memory for %u rank%s", run->n, run->n == 1 ? "" : "s");
    }
    if (rc == CST_OK) {
        run->argv[0] = run->program;
        memcpy(run->argv + 1, cli->args, (size_t)cli->n_args * sizeof *run->argv);
    }
    return rc;
}

int cli_run(struct cli *cli)
{
    struct run run = {.cli = cli, .n = (unsigned)cli->plan.ranks};
    struct cst_err err = {0};
    int rc, status;

    if (run.n == 0) {
        return cli_usage("run needs the number of ranks: -n N", "");
    }
    if (cli->args[0][0] == '\0') {
        return cli_usage("the name of the program to run is empty", "");
    }
    (void)signal(SIGPIPE, SIG_IGN); /* Ranks go on if nobody reads their output. */
    rc = make_arguments(&run, &err);
    if (rc == CST_OK) {
        rc = divide_processors(&run, &err);
    }
    if (rc == CST_OK) {
        rc = cli_run_environment_init(&run.environment, run.n, cli->socket, &err);
    }
    if (rc == CST_OK && uv_loop_init(&run.loop) != 0) {
        rc = cst_err_set(&err, CST_EINTERNAL, "no event loop");
    }
    status = rc == CST_OK ? train(&run) : cli_fail(&err);
    if (rc == CST_OK) {
        (void)uv_loop_close(&run.loop);
    }
    cli_processors_close(&run.processors);
    free(run.argv);
    free(run.members);
    return status;
}

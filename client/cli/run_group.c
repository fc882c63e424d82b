/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/run_group.h"

#include "client/cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int caught[CLI_GROUP_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

void cli_group_say(struct cli_group *group, const char *format, ...)
{
    char words[1024];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (n > 0) {
        cli_sink_line(&group->err, "cistern: ", words, strlen(words));
    }
}

const char *cli_group_how(const struct cli_rank *rank, char words[CLI_GROUP_HOW])
{
    if (rank->signal != 0) {
        (void)snprintf(words, CLI_GROUP_HOW, "was killed by signal %d (%s)", rank->signal,
                       strsignal(rank->signal));
    } else {
        (void)snprintf(words, CLI_GROUP_HOW, "ended with status %d", (int)rank->status);
    }
    return words;
}

static const char *words_for(const struct cli_group *group, unsigned n)
{
    return n == 1 ? group->kind->one : group->kind->many;
}

/* -- the end ---------------------------------------------------------------------------------- */

static void close_handle(void *handle)
{
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* The member will not run again. The loop ends when there is none left, and all output is
 * written. */
static void leave(struct cli_group *group, struct cli_member *member)
{
    member->is_left = false;
    close_handle(&member->pause);
    group->n_left--;
    if (group->n_left == 0) {
        close_handle(&group->grace);
        /* A signal must still be noticed while output is written, but nothing waits for one. */
        for (int i = 0; i < CLI_GROUP_SIGNALS; i++) {
            uv_unref((uv_handle_t *)&group->signals[i]);
        }
    }
    cli_group_look(group);
}

/* What runs has not ended although it was killed. */
static void on_force(uv_timer_t *timer)
{
    struct cli_group *group = timer->data;

    for (unsigned i = 0; i < group->n; i++) {
        struct cli_rank *rank = &group->members[i].rank;

        if (cli_rank_is_running(rank)) {
            cli_group_say(group, "%s does not end within %u s, and is left: look for its processes",
                          rank->name, group->kind->force_s);
            cli_rank_signal(rank, SIGKILL);
        }
    }
}

static void kill_all(struct cli_group *group)
{
    group->state = CLI_GROUP_KILLING;
    for (unsigned i = 0; i < group->n; i++) {
        cli_rank_kill(&group->members[i].rank);
    }
    /* A reader that does not read must not keep the members from ending. */
    cli_sink_give_up(&group->out);
    cli_sink_give_up(&group->err);
    if (group->kind->force_s > 0 && group->n_left > 0) {
        (void)uv_timer_start(&group->grace, on_force, 1000 * (uint64_t)group->kind->force_s, 0);
    }
}

static void on_grace(uv_timer_t *timer)
{
    struct cli_group *group = timer->data;

    cli_group_say(group, "%u %s did not end within %u s and %s killed (--grace)", group->n_left,
                  words_for(group, group->n_left), group->grace_s,
                  group->n_left == 1 ? "is" : "are");
    kill_all(group);
}

/* Send all members the signal @number, and wait for them. */
static void end_all(struct cli_group *group, int number)
{
    group->state = CLI_GROUP_ENDING;
    (void)uv_timer_start(&group->grace, on_grace, 1000 * (uint64_t)group->grace_s, 0);
    for (unsigned i = 0; i < group->n; i++) {
        struct cli_member *member = &group->members[i];

        group->kind->pass(member, number);
        if (member->is_left && !cli_rank_is_running(&member->rank)) {
            leave(group, member); /* It waited for its restart. */
        }
    }
}

void cli_group_look(struct cli_group *group)
{
    if (group->state == CLI_GROUP_TRAINING && group->n_left > 0 && group->kind->is_over != NULL &&
        group->kind->is_over(group)) {
        end_all(group, SIGTERM);
    }
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct cli_group *group = handle->data;

    if (group->state == CLI_GROUP_TRAINING && group->n_left > 0) {
        cli_group_say(group, "%s: waiting up to %u s for %u %s to end; a second signal kills them",
                      strsignal(number), group->grace_s, group->n_left,
                      words_for(group, group->n_left));
        end_all(group, number);
    } else {
        kill_all(group);
    }
}

/* Read what the standard input says. */
static void on_input(uv_poll_t *poll, int status, int events)
{
    struct cli_group *group = poll->data;
    unsigned char byte = 0;
    ssize_t n = 1;

    (void)events;
    if (status == 0) {
        n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
            return;
        }
    }
    if (status != 0 || n <= 0) {
        close_handle(poll);
        kill_all(group);
    } else if (group->state == CLI_GROUP_TRAINING && group->n_left > 0) {
        end_all(group, byte);
    } else {
        kill_all(group);
    }
}

/* -- members ---------------------------------------------------------------------------------- */

static void on_pause_over(uv_timer_t *timer)
{
    struct cli_member *member = timer->data;
    struct cli_group *group = member->rank.data;

    group->kind->start(group, member);
}

static void on_ended(struct cli_rank *rank)
{
    struct cli_group *group = rank->data;
    struct cli_member *member = &group->members[rank->number];
    const int status = rank->signal != 0 ? 128 + rank->signal : (int)rank->status;
    char words[CLI_GROUP_HOW];
    uint64_t pause_ms;

    if (group->state == CLI_GROUP_TRAINING && group->kind->again(group, member, &pause_ms)) {
        (void)uv_timer_start(&member->pause, on_pause_over, pause_ms, 0);
        return;
    }
    leave(group, member);
    if (status == 0 || (group->kind->counts != NULL && !group->kind->counts(group, member))) {
        return;
    }
    group->status = group->status == 0 ? status : group->status;
    if (group->state == CLI_GROUP_TRAINING) {
        cli_group_say(group, "%s %s%s%s%s%s", rank->name, cli_group_how(rank, words),
                      group->kind->remark(group, member), group->n_left > 0 ? ": the other " : "",
                      group->n_left > 0 ? group->kind->many : "",
                      group->n_left > 0 ? " are asked to end" : "");
    }
    if (group->state == CLI_GROUP_TRAINING && group->n_left > 0) {
        end_all(group, SIGTERM);
    }
}

static void on_drained(struct cli_sink *sink)
{
    struct cli_group *group = sink->data;

    for (unsigned i = 0; i < group->n; i++) {
        cli_rank_resume(&group->members[i].rank, sink);
    }
}

/* -- the beginning ---------------------------------------------------------------------------- */

/* Catch a signal, unless it is ignored, as with nohup. */
static void catch_signal(struct cli_group *group, int i)
{
    struct sigaction before;

    (void)uv_signal_init(&group->loop, &group->signals[i]);
    group->signals[i].data = group;
    if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        (void)uv_signal_start(&group->signals[i], on_signal, caught[i]);
    }
}

/* Begin to follow the standard input. CST_EINVAL: it is neither a pipe nor a socket. */
static int follow_input(struct cli_group *group, struct cst_err *err)
{
    int rc = uv_poll_init(&group->loop, &group->input, STDIN_FILENO);

    if (rc == 0) {
        group->input.data = group;
        rc = uv_poll_start(&group->input, UV_READABLE, on_input);
        uv_unref((uv_handle_t *)&group->input); /* Nothing waits for it. */
    } else {
        group->follows = false;
    }
    return rc == 0 ? CST_OK
                   : cst_err_set(err, CST_EINVAL,
                                 "--follow: the standard input is not a pipe: %s; leave --follow "
                                 "out, which is for 'cistern run --nodes'",
                                 uv_strerror(rc));
}

static void open_handles(struct cli_group *group)
{
    for (int i = 0; i < CLI_GROUP_SIGNALS; i++) {
        catch_signal(group, i);
    }
    (void)uv_timer_init(&group->loop, &group->grace);
    group->grace.data = group;
    cli_sink_open(&group->out, &group->loop, STDOUT_FILENO);
    cli_sink_open(&group->err, &group->loop, STDERR_FILENO);
    group->out.data = group->err.data = group;
    group->out.drained = group->err.drained = on_drained;
    for (unsigned i = 0; i < group->n; i++) {
        struct cli_member *member = &group->members[i];

        member->rank.ended = on_ended;
        member->rank.data = group;
        (void)uv_timer_init(&group->loop, &member->pause);
        member->pause.data = member;
        member->is_left = true;
    }
    group->n_left = group->n;
}

/* Start all members, unless the standard input cannot be followed, and run the loop. */
static int run_loop(struct cli_group *group)
{
    struct cst_err err = {0};
    int lost, rc;

    open_handles(group);
    if (group->kind->open != NULL) {
        group->kind->open(group);
    }
    rc = group->follows ? follow_input(group, &err) : CST_OK;
    for (unsigned i = 0; i < group->n; i++) {
        if (rc == CST_OK) {
            group->kind->start(group, &group->members[i]);
        } else {
            leave(group, &group->members[i]);
        }
    }
    (void)uv_run(&group->loop, UV_RUN_DEFAULT);
    for (int i = 0; i < CLI_GROUP_SIGNALS; i++) {
        close_handle(&group->signals[i]);
    }
    if (group->follows) {
        close_handle(&group->input);
    }
    if (group->kind->close != NULL) {
        group->kind->close(group);
    }
    lost = group->out.error != 0 ? group->out.error : group->err.error;
    cli_sink_close(&group->out);
    cli_sink_close(&group->err);
    (void)uv_run(&group->loop, UV_RUN_DEFAULT);
    if (rc != CST_OK) {
        return cli_fail(&err);
    }
    if (lost != 0) {
        (void)fprintf(stderr, "cistern: output of %s is lost: %s\n", group->kind->many,
                      strerror(lost));
    }
    return group->status == 0 && lost != 0 ? CLI_EXIT_FAILURE : group->status;
}

int cli_group_run(struct cli_group *group)
{
    int status;

    (void)signal(SIGPIPE, SIG_IGN); /* Members go on if nobody reads their output. */
    if (uv_loop_init(&group->loop) != 0) {
        return cli_fail(&(struct cst_err){.status = CST_EINTERNAL, .text = "no event loop"});
    }
    status = run_loop(group);
    (void)uv_loop_close(&group->loop);
    return status;
}

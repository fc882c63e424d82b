/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern run`: the ranks of one node. run_nodes.c has those of several. */
#include "client/cli/options.h"
#include "client/cli/processors.h"
#include "client/cli/restarts.h"
#include "client/cli/run_environment.h"
#include "client/cli/run_group.h"
#include "client/cli/run_nodes.h"
#include "client/cli/run_standbys.h"
#include "proto/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const struct cli *cli; /* Options, borrowed. */
    struct cli_processors processors;
    bool pins;              /* Ranks are pinned to their processors. */
    char program[PATH_MAX]; /* Path of cistern-rank. */
    char **argv;            /* Arguments of cistern-rank. Owned; the words are borrowed. */
    struct cli_run_environment environment;
    struct cli_group group;        /* The ranks and standbys. Its members are owned. */
    struct cli_standbys standbys;  /* Which member is which rank. */
    struct cli_restarts *restarts; /* Per rank, and one of all standbys together. Owned. */
    unsigned limit;                /* Of restarts; 0: none. */
    int status;                    /* Exit status of the rank that died last; 0: none. */
};

enum { DEFAULT_RESTARTS = 10 }; /* With --standby. */

/* -- ranks ------------------------------------------------------------------------------------ */

static void start(struct cli_group *group, struct cli_member *member)
{
    struct run *run = group->data;
    struct cli_place *place = cli_standbys_place(&run->standbys, member);
    const unsigned number = place->rank;
    struct cst_err err = {0};

    cli_standbys_set(&run->standbys, member);
    place->has_committed = false;
    if (place->is_standby) {
        cli_run_environment_set_standby(&run->environment,
                                        cli_processors_share(&run->processors, 0));
    } else {
        cli_run_environment_set(&run->environment, number, run->restarts[number].total,
                                cli_processors_share(&run->processors, number));
    }
    /* The process inherits the processors. A standby may run on all. */
    if (run->pins && !place->is_standby &&
        cli_processors_enter(&run->processors, number, &err) != CST_OK) {
        run->pins = false;
        cli_group_say(group, "ranks are not pinned: %s", err.text);
    }
    if (cli_rank_start(&member->rank, run->argv, &err) != CST_OK) {
        cli_group_say(group, "%s", err.text);
    }
    if (run->pins) {
        cli_processors_leave(&run->processors);
    }
}

/* Return whether the rank ended by itself before any rank had made a step. Its data, its options or
 * the daemon are then not what it needs, and they would not be the next time. */
static bool failed_at_start(const struct run *run, const struct cli_rank *rank)
{
    return rank->signal == 0 && cli_restarts_wanted(rank->status, 0) &&
           !cli_run_environment_has_stepped(&run->environment);
}

/* Count a restart of @what, and say that it is over if there were too many. */
static bool may_restart(struct cli_group *group, struct cli_restarts *restarts,
                        const struct cli_rank *rank, uint64_t *pause_ms)
{
    const struct run *run = group->data;
    char words[CLI_GROUP_HOW];

    if (cli_restarts_next(restarts, run->limit, uv_now(&group->loop), pause_ms)) {
        return true;
    }
    cli_group_say(group,
                  "%s %s, and was started again %u time%s within %u s: it is given up (--restart)",
                  rank->name, cli_group_how(rank, words), run->limit, run->limit == 1 ? "" : "s",
                  CLI_RESTARTS_WINDOW_S);
    return false;
}

/* Start another standby after a pause, if that is wanted. */
static bool standby_again(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms)
{
    struct run *run = group->data;
    const struct cli_rank *rank = &member->rank;
    char words[CLI_GROUP_HOW];

    if (!cli_restarts_wanted(rank->status, rank->signal) ||
        !may_restart(group, &run->restarts[run->standbys.n_ranks], rank, pause_ms)) {
        return false;
    }
    cli_group_say(group, "%s %s: it is started again in %u s", rank->name,
                  cli_group_how(rank, words), (unsigned)(*pause_ms / 1000));
    return true;
}

/* Start the rank again after a pause, if that is wanted. */
static bool rank_again(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms)
{
    struct run *run = group->data;
    const struct cli_rank *rank = &member->rank;
    struct cli_restarts *restarts =
        &run->restarts[cli_standbys_place(&run->standbys, member)->rank];
    char words[CLI_GROUP_HOW], name[CLI_RANK_NAME];

    if (run->limit == 0 || run->standbys.has_ended ||
        !cli_restarts_wanted(rank->status, rank->signal) || failed_at_start(run, rank) ||
        !may_restart(group, restarts, rank, pause_ms)) {
        return false;
    }
    (void)snprintf(name, sizeof name, "%s", rank->name);
    (void)cli_group_how(rank, words);
    if (cli_standbys_replace(&run->standbys, member)) {
        cli_group_say(group,
                      "%s %s: a standby takes its place, and another one is started in %u s "
                      "(restart %u of at most %u within %u s)",
                      name, words, (unsigned)(*pause_ms / 1000), restarts->n, run->limit,
                      CLI_RESTARTS_WINDOW_S);
    } else {
        cli_group_say(group,
                      "%s %s: it is started again in %u s (restart %u of at most %u within %u s)",
                      name, words, (unsigned)(*pause_ms / 1000), restarts->n, run->limit,
                      CLI_RESTARTS_WINDOW_S);
    }
    return true;
}

static bool again(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms)
{
    struct run *run = group->data;
    struct cli_place *place = cli_standbys_place(&run->standbys, member);

    if (place->is_double) {
        *place = (struct cli_place){.is_standby = true};
        cli_standbys_name(&run->standbys, member->rank.number);
        *pause_ms = 0;
        return true;
    }
    if (place->is_standby) {
        return standby_again(group, member, pause_ms);
    }
    if (member->rank.status == 0 && member->rank.signal == 0) {
        run->standbys.n_done++;
    } else {
        run->status =
            member->rank.signal != 0 ? 128 + member->rank.signal : (int)member->rank.status;
    }
    return rank_again(group, member, pause_ms);
}

static void pass(struct cli_member *member, int number)
{
    cli_rank_signal(&member->rank, number);
}

static void open_pipe(struct cli_group *group)
{
    cli_standbys_listen(&((struct run *)group->data)->standbys);
}

static void close_pipe(struct cli_group *group)
{
    cli_standbys_stop(&((struct run *)group->data)->standbys);
}

static bool is_over(const struct cli_group *group)
{
    return cli_standbys_is_over(&((const struct run *)group->data)->standbys);
}

static bool counts(const struct cli_group *group, const struct cli_member *member)
{
    return !cli_standbys_place(&((const struct run *)group->data)->standbys, member)->is_standby;
}

static const char *remark(const struct cli_group *group, const struct cli_member *member)
{
    const struct run *run = group->data;

    return run->limit > 0 && failed_at_start(run, &member->rank)
               ? " before the first step, and is not started again"
               : "";
}

static const struct cli_group_kind ranks = {.one = "rank",
                                            .many = "ranks",
                                            .start = start,
                                            .again = again,
                                            .pass = pass,
                                            .remark = remark,
                                            .open = open_pipe,
                                            .close = close_pipe,
                                            .is_over = is_over,
                                            .counts = counts};

/* -- the beginning ---------------------------------------------------------------------------- */

/* Find the processors of the ranks, and tell if ranks cannot have any of their own. */
static int divide_processors(struct run *run, struct cst_err *err)
{
    const unsigned n = run->standbys.n_ranks;
    int rc = cli_processors_open(&run->processors, n, err);

    run->pins = rc == CST_OK && !run->cli->no_pin && run->processors.sets != NULL;
    if (rc == CST_OK && !run->cli->no_pin && !run->pins) {
        (void)fprintf(stderr, "cistern: %u ranks share %u processor%s: they are not pinned\n", n,
                      run->processors.n_processors, run->processors.n_processors == 1 ? "" : "s");
    }
    return rc;
}

/* Have the ranks, and the arguments of cistern-rank: its path, and the program's words. */
static int make_ranks(struct run *run, struct cst_err *err)
{
    const struct cli *cli = run->cli;
    struct cli_group *group = &run->group;
    int rc = cst_program_find("cistern-rank", NULL, "CISTERN_RANK_PROGRAM", run->program,
                              sizeof run->program, err);

    run->argv = calloc((size_t)cli->n_args + 2, sizeof *run->argv);
    run->restarts = calloc(group->n + 1, sizeof *run->restarts);
    group->members = calloc(group->n, sizeof *group->members);
    if (rc == CST_OK && (run->argv == NULL || run->restarts == NULL || group->members == NULL)) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %u rank%s", group->n,
                         group->n == 1 ? "" : "s");
    }
    if (rc == CST_OK) {
        rc = cli_standbys_init(&run->standbys, group, (unsigned)cli->plan.ranks, cli->first_rank,
                               err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    run->argv[0] = run->program;
    memcpy(run->argv + 1, cli->args, (size_t)cli->n_args * sizeof *run->argv);
    for (unsigned i = 0; i < group->n; i++) {
        cli_rank_init(&group->members[i].rank, i, "", "", &group->loop, &group->out, &group->err);
        cli_standbys_name(&run->standbys, i);
    }
    return CST_OK;
}

/* Check the options. CST_EINVAL: some do not belong together. */
static int check(const struct cli *cli, struct cst_err *err)
{
    const unsigned n = (unsigned)cli->plan.ranks, all = cli->all_ranks;

    if (cli->args[0][0] == '\0') {
        return cst_err_set(err, CST_EINVAL, "the name of the program to run is empty");
    }
    if (cli->nodes != NULL) {
        return CST_OK; /* run_nodes.c checks what there is with --nodes. */
    }
    if (cli->ranks_per_node > 0 || cli->rsh != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "--%s is for ranks on several nodes: name them with --nodes A,B",
                           cli->rsh != NULL ? "rsh" : "ranks-per-node");
    }
    if (n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "run needs the number of ranks: -n N, or --nodes A,B for several nodes");
    }
    if (all == 0 && cli->first_rank > 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--first-rank %u needs the number of ranks on all nodes: --all-ranks %u "
                           "or more",
                           cli->first_rank, cli->first_rank + n);
    }
    if (all > 0 && cli->first_rank + n > all) {
        return cst_err_set(
            err, CST_EINVAL,
            "--first-rank %u and -n %u: the ranks on this node would be %u to %u, of "
            "%u: --all-ranks %u or more",
            cli->first_rank, n, cli->first_rank, cli->first_rank + n - 1, all, cli->first_rank + n);
    }
    return CST_OK;
}

int cli_run(struct cli *cli)
{
    struct run run = {.cli = cli};
    struct cst_err err = {0};
    int rc, status;

    if (check(cli, &err) != CST_OK) {
        return cli_usage(err.text, "");
    }
    if (cli->nodes != NULL) {
        return cli_run_nodes(cli);
    }
    run.group = (struct cli_group){.kind = &ranks,
                                   .grace_s = cli->grace,
                                   .follows = cli->follow,
                                   .n = (unsigned)cli->plan.ranks + cli->standby,
                                   .data = &run};
    run.limit = cli->restart > 0 || cli->standby == 0 ? cli->restart : DEFAULT_RESTARTS;
    rc = make_ranks(&run, &err);
    if (rc == CST_OK) {
        rc = divide_processors(&run, &err);
    }
    if (rc == CST_OK) {
        const struct cli_run_ranks numbers = {
            .n = run.standbys.n_ranks, .first = cli->first_rank, .all = cli->all_ranks};

        rc = cli_run_environment_init(&run.environment, &numbers, cli->socket, &err);
    }
    status = rc == CST_OK ? cli_group_run(&run.group) : cli_fail(&err);
    if (status == 0 && cli_standbys_misses_rank(&run.standbys)) {
        status = run.status;
    }
    cli_standbys_close(&run.standbys);
    cli_processors_close(&run.processors);
    free(run.argv);
    free(run.restarts);
    free(run.group.members);
    return status;
}

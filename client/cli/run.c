/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern run`: the ranks of one node. run_nodes.c has those of several. */
#include "client/cli/options.h"
#include "client/cli/processors.h"
#include "client/cli/restarts.h"
#include "client/cli/run_environment.h"
#include "client/cli/run_group.h"
#include "client/cli/run_nodes.h"
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
    struct cli_group group;        /* The ranks. Its members are owned. */
    struct cli_restarts *restarts; /* Per rank. Owned. */
};

/* -- ranks ------------------------------------------------------------------------------------ */

static void start(struct cli_group *group, struct cli_member *member)
{
    struct run *run = group->data;
    const unsigned number = member->rank.number;
    struct cst_err err = {0};

    cli_run_environment_set(&run->environment, number, run->restarts[number].total,
                            cli_processors_share(&run->processors, number));
    /* The process inherits the processors. */
    if (run->pins && cli_processors_enter(&run->processors, number, &err) != CST_OK) {
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

/* Start the rank again after a pause, if that is wanted. */
static bool again(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms)
{
    struct run *run = group->data;
    const unsigned limit = run->cli->restart;
    const struct cli_rank *rank = &member->rank;
    struct cli_restarts *restarts = &run->restarts[rank->number];
    char words[CLI_GROUP_HOW];

    if (limit == 0 || !cli_restarts_wanted(rank->status, rank->signal) ||
        failed_at_start(run, rank)) {
        return false;
    }
    if (!cli_restarts_next(restarts, limit, uv_now(&group->loop), pause_ms)) {
        cli_group_say(
            group, "%s %s, and was started again %u time%s within %u s: it is given up (--restart)",
            rank->name, cli_group_how(rank, words), limit, limit == 1 ? "" : "s",
            CLI_RESTARTS_WINDOW_S);
        return false;
    }
    cli_group_say(group,
                  "%s %s: it is started again in %u s (restart %u of at most %u within %u s)",
                  rank->name, cli_group_how(rank, words), (unsigned)(*pause_ms / 1000), restarts->n,
                  limit, CLI_RESTARTS_WINDOW_S);
    return true;
}

static void pass(struct cli_member *member, int number)
{
    cli_rank_signal(&member->rank, number);
}

static const char *remark(const struct cli_group *group, const struct cli_member *member)
{
    const struct run *run = group->data;

    return run->cli->restart > 0 && failed_at_start(run, &member->rank)
               ? " before the first step, and is not started again"
               : "";
}

static const struct cli_group_kind ranks = {
    .one = "rank", .many = "ranks", .start = start, .again = again, .pass = pass, .remark = remark};

/* -- the beginning ---------------------------------------------------------------------------- */

/* Find the processors of the ranks, and tell if ranks cannot have any of their own. */
static int divide_processors(struct run *run, struct cst_err *err)
{
    const unsigned n = run->group.n;
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
    run->restarts = calloc(group->n, sizeof *run->restarts);
    group->members = calloc(group->n, sizeof *group->members);
    if (rc == CST_OK && (run->argv == NULL || run->restarts == NULL || group->members == NULL)) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %u rank%s", group->n,
                         group->n == 1 ? "" : "s");
    }
    if (rc != CST_OK) {
        return rc;
    }
    run->argv[0] = run->program;
    memcpy(run->argv + 1, cli->args, (size_t)cli->n_args * sizeof *run->argv);
    for (unsigned i = 0; i < group->n; i++) {
        char name[CLI_RANK_NAME], prefix[CLI_RANK_NAME];

        (void)snprintf(name, sizeof name, "rank %u", cli->first_rank + i);
        (void)snprintf(prefix, sizeof prefix, "[%u] ", cli->first_rank + i);
        cli_rank_init(&group->members[i].rank, i, name, prefix, &group->loop, &group->out,
                      &group->err);
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
                                   .n = (unsigned)cli->plan.ranks,
                                   .data = &run};
    rc = make_ranks(&run, &err);
    if (rc == CST_OK) {
        rc = divide_processors(&run, &err);
    }
    if (rc == CST_OK) {
        const struct cli_run_ranks numbers = {
            .n = run.group.n, .first = cli->first_rank, .all = cli->all_ranks};

        rc = cli_run_environment_init(&run.environment, &numbers, cli->socket, &err);
    }
    status = rc == CST_OK ? cli_group_run(&run.group) : cli_fail(&err);
    cli_processors_close(&run.processors);
    free(run.argv);
    free(run.restarts);
    free(run.group.members);
    return status;
}

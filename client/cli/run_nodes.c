/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/run_nodes.h"

#include "client/cli/run_group.h"
#include "proto/job_options.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_NODES = CST_JOB_MAX_ALL_RANKS / CST_JOB_MAX_WORLD,
    MORE_GRACE_S = 10, /* For the connection, after the ranks' own time has ended. */
    FORCE_S = 10,      /* Until connections that do not end are left. */
    SSH_FAILED = 255,
    NOT_FOUND = 127,
};

static const char default_port[] = "29500"; /* That of torchrun. */

struct run {
    struct cli *cli;           /* Options, borrowed. */
    char *text;                /* Copy of --nodes, with zeros between the names. Owned. */
    char *names[MAX_NODES];    /* Of the nodes; in @text. */
    char *rsh;                 /* Copy of --rsh, with zeros between its words. Owned. */
    char **argv;               /* The words of --rsh, the node, the command, NULL. Owned. */
    int n_rsh;                 /* Words of --rsh in argv. */
    char *commands[MAX_NODES]; /* What is run on each node, for its shell. Owned. */
    char program[PATH_MAX];    /* This program. */
    struct cli_group group;    /* The connections. Its members are owned. */
};

/* -- options ---------------------------------------------------------------------------------- */

/* Add a node. CST_EINVAL: it has no such name, or is there already. */
static int add_node(struct run *run, char *name, struct cst_err *err)
{
    struct cli_group *group = &run->group;

    if (name[0] == '\0' || name[0] == '-' || strlen(name) > CLI_RANK_NAME - 16) {
        return cst_err_set(
            err, CST_EINVAL,
            "--nodes %.200s: '%.80s' is not the name of a node: 1 to %d characters, of "
            "which the first is not -",
            run->cli->nodes, name, CLI_RANK_NAME - 16);
    }
    if (group->n == MAX_NODES) {
        return cst_err_set(err, CST_EINVAL, "--nodes %.80s...: a job has at most %d nodes",
                           run->cli->nodes, MAX_NODES);
    }
    for (unsigned i = 0; i < group->n; i++) {
        if (strcmp(run->names[i], name) == 0) {
            return cst_err_set(err, CST_EINVAL,
                               "--nodes %.200s: '%s' is there twice: for more ranks on each node, "
                               "--ranks-per-node 2",
                               run->cli->nodes, name);
        }
    }
    run->names[group->n++] = name;
    return CST_OK;
}

static int read_nodes(struct run *run, struct cst_err *err)
{
    char *rest, *name;
    int rc = CST_OK;

    run->text = strdup(run->cli->nodes);
    if (run->text == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for --nodes");
    }
    rest = run->text;
    while (rc == CST_OK && (name = strsep(&rest, ",")) != NULL) {
        rc = add_node(run, name, err);
    }
    return rc;
}

/* Divide --rsh into words, at spaces. */
static int read_rsh(struct run *run, struct cst_err *err)
{
    char *rest, *word;
    size_t n = 0;

    run->rsh = strdup(run->cli->rsh != NULL ? run->cli->rsh : "ssh");
    run->argv = run->rsh != NULL ? calloc(strlen(run->rsh) + 3, sizeof *run->argv) : NULL;
    if (run->argv == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for --rsh");
    }
    rest = run->rsh;
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0') {
            run->argv[n++] = word;
        }
    }
    run->n_rsh = (int)n;
    return n > 0 ? CST_OK
                 : cst_err_set(err, CST_EINVAL, "--rsh is empty: name a program, such as ssh");
}

static int check(const struct cli *cli, struct cst_err *err)
{
    const bool given[] = {cli->plan.ranks > 0, cli->first_rank > 0, cli->all_ranks > 0,
                          cli->follow};
    static const char *const names[] = {"-n", "--first-rank", "--all-ranks", "--follow"};

    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (given[i]) {
            return cst_err_set(err, CST_EINVAL,
                               "%s cannot be combined with --nodes, which counts the ranks: "
                               "--ranks-per-node N is how many each node has",
                               names[i]);
        }
    }
    return CST_OK;
}

/* -- the command for a node ------------------------------------------------------------------- */

/* Write @word so that a shell reads it as one word. */
static void quote(FILE *out, const char *word)
{
    (void)fputs(" '", out);
    for (; *word != '\0'; word++) {
        (void)(*word == '\'' ? fputs("'\\''", out) : fputc(*word, out));
    }
    (void)fputc('\'', out);
}

/* Write a variable that ranks need to connect to each other. */
static void write_variable(FILE *out, const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    char word[4096];

    (void)snprintf(word, sizeof word, "%s=%s", name, value != NULL ? value : otherwise);
    quote(out, word);
}

/* Write the options of `cistern run` on node @i. */
static void write_options(FILE *out, const struct run *run, unsigned i)
{
    const struct cli *cli = run->cli;
    const unsigned n = cli->ranks_per_node > 0 ? cli->ranks_per_node : 1;

    (void)fprintf(out, " run --follow -n %u --first-rank %u --all-ranks %u --grace %u", n, i * n,
                  run->group.n * n, cli->grace);
    if (cli->restart > 0) {
        (void)fprintf(out, " --restart=%u", cli->restart);
    }
    if (cli->standby > 0) {
        (void)fprintf(out, " --standby %u", cli->standby);
    }
    if (cli->no_pin) {
        (void)fputs(" --no-pin", out);
    }
    if (cli->socket != NULL) {
        (void)fputs(" --socket", out);
        quote(out, cli->socket);
    }
    (void)fputs(" --", out);
    for (int j = 0; j < cli->n_args; j++) {
        quote(out, cli->args[j]);
    }
}

/* Have the command that a shell runs on node @i, in @folder. */
static int make_command(struct run *run, unsigned i, const char *folder, struct cst_err *err)
{
    const char *at = strrchr(run->names[0], '@'); /* USER@HOST */
    size_t size;
    FILE *out = open_memstream(&run->commands[i], &size);

    if (out != NULL) {
        (void)fputs("cd", out);
        quote(out, folder);
        (void)fputs(" && exec env", out);
        write_variable(out, "MASTER_ADDR", at != NULL ? at + 1 : run->names[0]);
        write_variable(out, "MASTER_PORT", default_port);
        quote(out, run->program);
        write_options(out, run, i);
    }
    return out != NULL && fclose(out) == 0
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for the command of node %s",
                             run->names[i]);
}

static int make_commands(struct run *run, struct cst_err *err)
{
    const ssize_t n = readlink("/proc/self/exe", run->program, sizeof run->program - 1);
    char *folder = get_current_dir_name();
    int rc = folder != NULL && n > 0
                 ? CST_OK
                 : cst_err_set(err, CST_EINTERNAL,
                               "the path of this program or of the working directory is not known");

    for (unsigned i = 0; rc == CST_OK && i < run->group.n; i++) {
        rc = make_command(run, i, folder, err);
    }
    free(folder);
    return rc;
}

/* -- the connections -------------------------------------------------------------------------- */

static void start(struct cli_group *group, struct cli_member *member)
{
    struct run *run = group->data;
    struct cst_err err = {0};

    run->argv[run->n_rsh] = run->names[member->rank.number];
    run->argv[run->n_rsh + 1] = run->commands[member->rank.number];
    if (cli_rank_start(&member->rank, run->argv, &err) != CST_OK) {
        cli_group_say(group, "%s; name a program that runs a command on a node with --rsh",
                      err.text);
    }
}

/* The ranks are started again on their node. */
static bool again(struct cli_group *group, struct cli_member *member, uint64_t *pause_ms)
{
    (void)group;
    (void)member;
    (void)pause_ms;
    return false;
}

static void pass(struct cli_member *member, int number)
{
    cli_rank_tell(&member->rank, (unsigned char)number);
}

static const char *remark(const struct cli_group *group, const struct cli_member *member)
{
    const struct run *run = group->data;

    if (member->rank.signal != 0) {
        return "";
    }
    if (member->rank.status == SSH_FAILED && run->cli->rsh == NULL) {
        return " (ssh has no connection, or has lost it: 'ssh NODE true' must work without a "
               "question)";
    }
    return member->rank.status == NOT_FOUND ? " (the node does not have cistern at the path that "
                                              "it has here, or not the program)"
                                            : "";
}

static const struct cli_group_kind nodes = {.one = "node",
                                            .many = "nodes",
                                            .start = start,
                                            .again = again,
                                            .pass = pass,
                                            .remark = remark,
                                            .force_s = FORCE_S};

static int make_members(struct run *run, struct cst_err *err)
{
    struct cli_group *group = &run->group;

    group->members = calloc(group->n, sizeof *group->members);
    if (group->members == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u nodes", group->n);
    }
    for (unsigned i = 0; i < group->n; i++) {
        char name[CLI_RANK_NAME], prefix[CLI_RANK_NAME];

        (void)snprintf(name, sizeof name, "node %s", run->names[i]);
        (void)snprintf(prefix, sizeof prefix, "[%s] ", run->names[i]);
        cli_rank_init(&group->members[i].rank, i, name, prefix, &group->loop, &group->out,
                      &group->err);
    }
    return CST_OK;
}

int cli_run_nodes(struct cli *cli)
{
    struct run run = {.cli = cli};
    struct cst_err err = {0};
    int rc, status;

    run.group =
        (struct cli_group){.kind = &nodes, .grace_s = cli->grace + MORE_GRACE_S, .data = &run};
    rc = check(cli, &err);
    rc = rc == CST_OK ? read_nodes(&run, &err) : rc;
    rc = rc == CST_OK ? read_rsh(&run, &err) : rc;
    rc = rc == CST_OK ? make_commands(&run, &err) : rc;
    rc = rc == CST_OK ? make_members(&run, &err) : rc;
    if (rc == CST_OK) {
        status = cli_group_run(&run.group);
    } else {
        status = rc == CST_EINVAL ? cli_usage(err.text, "") : cli_fail(&err);
    }
    for (unsigned i = 0; i < run.group.n; i++) {
        free(run.commands[i]);
    }
    free(run.group.members);
    free(run.argv);
    free(run.rsh);
    free(run.text);
    return status;
}

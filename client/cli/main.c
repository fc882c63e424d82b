/* SPDX-License-Identifier: Apache-2.0 */
/* The program `cistern`, which shows and manages the daemon from the command line. */
#include "client/cli/options.h"
#include "offload/plan/plan.h"
#include "proto/program.h"
#include "proto/usage.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a command needs a connection to the daemon: at any socket, or at that of managers. */
enum wants { DAEMON, MANAGER, DAEMON_IF_THERE, NO_DAEMON };

enum { ANY_NUMBER = 1 << 20 }; /* Of arguments. */

struct command {
    const char *name;            /* One or two words on the command line. */
    const char *args;            /* Arguments, for the help. */
    const char *help;            /* One line of help. */
    int n_args;                  /* Number of required arguments. */
    int n_more;                  /* Number of optional arguments after them. */
    unsigned uses;               /* Options of the command: CLI_USES_ bits. */
    enum wants wants;            /* Need of a connection. */
    int (*run)(struct cli *cli); /* Returns the exit status. */
};

static int version(struct cli *cli);
static int help(struct cli *cli);

static const struct command commands[] = {
    {"stat", "", "show the node: memory, engines, pools, jobs, rates", 0, 0,
     CLI_USES_JSON | CLI_USES_WATCH, DAEMON, cli_stat},
    {"top", "", "show the node and its jobs on the whole terminal, over time", 0, 0,
     CLI_USES_WATCH | CLI_USES_TOP, DAEMON, cli_top},
    {"jobs", "", "show all jobs, one per line", 0, 0, CLI_USES_JSON | CLI_USES_WATCH, DAEMON,
     cli_jobs},
    {"job", "NAME", "show one job: ranks, step, chunks by state, hit rate", 1, 0,
     CLI_USES_JSON | CLI_USES_UID | CLI_USES_WATCH, DAEMON, cli_job},
    {"tensors", "JOB", "list a job's tensors: shapes, types, bytes, where states lie", 1, 0,
     CLI_USES_JSON | CLI_USES_UID, DAEMON, cli_tensors},
    {"explain", "JOB TENSOR", "show where a tensor is stored, and why", 2, 0,
     CLI_USES_JSON | CLI_USES_UID, DAEMON, cli_explain},
    {"trace", "JOB", "write what a job did recently, for Perfetto", 1, 0,
     CLI_USES_UID | CLI_USES_OUTPUT, DAEMON, cli_trace},
    {"report", "JOB", "write a page about a job's run: loss, speed, time, memory", 1, 0,
     CLI_USES_UID | CLI_USES_OUTPUT, DAEMON, cli_report},
    {"reader", "JOB", "read a job's weights while it trains, and print a digest of each version", 1,
     0, CLI_USES_JSON | CLI_USES_READER, NO_DAEMON, cli_reader},
    {"save", "JOB DIR", "write a job's states to a checkpoint in DIR", 2, 0,
     CLI_USES_JSON | CLI_USES_SAVE, DAEMON, cli_save},
    {"load", "DIR [JOB]", "make a job from a checkpoint, which workers then join", 1, 1,
     CLI_USES_JSON | CLI_USES_LOAD, DAEMON, cli_load},
    {"clone", "JOB DIR..", "copy a durable job's files, which share blocks (on XFS)", 2, ANY_NUMBER,
     CLI_USES_JSON, DAEMON, cli_clone},
    {"adopt", "FILE.. DIR", "make a checkpoint in DIR of the files of a durable job", 2, ANY_NUMBER,
     CLI_USES_JSON, NO_DAEMON, cli_adopt},
    {"checkpoints", "DIR", "list the checkpoints in DIR: step, size, whole or torn", 1, 0,
     CLI_USES_JSON | CLI_USES_CHECK, NO_DAEMON, cli_checkpoints},
    {"drain", "", "end the daemon and its jobs, which can end or be saved first", 0, 0,
     CLI_USES_JSON | CLI_USES_DRAIN, MANAGER, cli_drain},
    {"pause", "JOB", "let a job's workers wait after the step, also without its pools", 1, 0,
     CLI_USES_JSON | CLI_USES_UID | CLI_USES_PAUSE, DAEMON, cli_pause},
    {"resume", "JOB", "let a job that is paused go on", 1, 0,
     CLI_USES_JSON | CLI_USES_UID | CLI_USES_RESUME, DAEMON, cli_resume},
    {"rm", "NAME", "remove a job and free its memory", 1, 0,
     CLI_USES_JSON | CLI_USES_UID | CLI_USES_FORCE, DAEMON, cli_remove},
    {"quota", "", "show your limits and use (--manager-socket: all users)", 0, 0,
     CLI_USES_JSON | CLI_USES_WATCH, DAEMON, cli_quota},
    {"node key", "[DIR]", "make this node's key and certificate, and print what others need", 0, 1,
     CLI_USES_JSON, NO_DAEMON, cli_node_key},
    {"node add", "NAME ADDRESS FINGERPRINT", "trust another node, and connect to it", 3, 0, 0,
     MANAGER, cli_node_add},
    {"node list", "", "show this node and the links to others", 0, 0,
     CLI_USES_JSON | CLI_USES_WATCH, DAEMON, cli_node_list},
    {"node drop", "NAME", "trust another node no more, and end the link to it", 1, 0, 0, MANAGER,
     cli_node_drop},
    {"node drain", "NAME", "let the link to a node end when no job uses it", 1, 0, 0, MANAGER,
     cli_node_drain},
    {"ping", "", "measure round trips to the daemon: p50 and p99", 0, 0,
     CLI_USES_JSON | CLI_USES_COUNT, DAEMON, cli_ping},
    {"metrics", "", "print metrics for Prometheus, or answer scrapes", 0, 0,
     CLI_USES_OUTPUT | CLI_USES_LISTEN, NO_DAEMON, cli_metrics},
    {"plan", "MODEL", "plan a model: a JSON file, or preset:NAME", 1, 0,
     CLI_USES_JSON | CLI_USES_PLAN, NO_DAEMON, cli_plan},
    {"schedule", "NAME|check FILE", "make a pipeline schedule, or verify one in a file", 1, 1,
     CLI_USES_JSON | CLI_USES_OUTPUT | CLI_USES_SCHEDULE, NO_DAEMON, cli_schedule},
    {"meshes", "M N K", "show how ranks can divide a linear layer, and what they receive", 3, 0,
     CLI_USES_JSON | CLI_USES_MESHES, NO_DAEMON, cli_meshes},
    {"probe", "", "measure this machine, for plans", 0, 0,
     CLI_USES_JSON | CLI_USES_OUTPUT | CLI_USES_DISK, DAEMON_IF_THERE, cli_probe},
    {"run", "-- PROGRAM..",
     "start the ranks of a job: cistern run -n N|--nodes A,B.. -- PROGRAM ARGUMENT...", 1,
     ANY_NUMBER, CLI_USES_RUN, NO_DAEMON, cli_run},
    {"version", "", "print the versions of this program and the daemon", 0, 0, 0, DAEMON_IF_THERE,
     version},
    {"help", "[COMMAND]", "print this text, or the options of a command", 0, 2, 0, NO_DAEMON, help},
};

static int print_help(const struct command *command)
{
    if (command != NULL) {
        (void)printf("Usage: cistern [OPTION]... %s%s%s\n%s\n", command->name,
                     command->args[0] != '\0' ? " " : "", command->args, command->help);
        cst_options_print(cli_options, command->uses, stdout);
        return CLI_EXIT_OK;
    }
    (void)printf("Usage: cistern [OPTION]... COMMAND [ARGUMENT]...\n"
                 "Show and manage the cistern memory daemon of this machine.\n\nCommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        (void)printf("  %-12s%-11s %s\n", commands[i].name, commands[i].args, commands[i].help);
    }
    cst_options_print(cli_options, 0, stdout);
    (void)printf("\nOptions of a command: cistern help COMMAND, or cistern COMMAND --help\n");
    return CLI_EXIT_OK;
}

/* Whether @name is the first word of @command, and @rest the second one, if it has two. */
static bool is_named(const struct command *command, const char *name, const char *rest)
{
    const size_t n = strlen(name);

    return strncmp(command->name, name, n) == 0 &&
           (command->name[n] == '\0' ||
            (command->name[n] == ' ' && rest != NULL && strcmp(command->name + n + 1, rest) == 0));
}

/* Find the command that the @n words begin with; NULL: there is none. *n_words: how many are its
 * name. */
static const struct command *find_command(char **words, int n, int *n_words)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (is_named(&commands[i], words[0], n > 1 ? words[1] : NULL)) {
            *n_words = strchr(commands[i].name, ' ') != NULL ? 2 : 1;
            return &commands[i];
        }
    }
    return NULL;
}

/* Print the help of all commands whose first word is @name. False: there is none with a second. */
static bool print_group(const char *name)
{
    const size_t n = strlen(name);
    bool any = false;

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strncmp(commands[i].name, name, n) == 0 && commands[i].name[n] == ' ') {
            (void)printf("%s", any ? "\n" : "");
            (void)print_help(&commands[i]);
            any = true;
        }
    }
    return any;
}

/* List the commands whose first word is @name. False: there is none with a second. */
static bool list_group(const char *name, char *out, size_t size)
{
    const size_t n = strlen(name);
    size_t used = 0;

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strncmp(commands[i].name, name, n) == 0 && commands[i].name[n] == ' ' && used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s",
                                     used > 0 ? ", " : "name one of ", commands[i].name);
        }
    }
    return used > 0;
}

/* Make the error for the @n words, which begin with no command. */
static int no_such_command(char **given, int n)
{
    unsigned best = CST_USAGE_FAR;
    const char *nearest = NULL;
    char name[64], words[192];

    (void)snprintf(name, sizeof name, "%s%s%s", given[0], n > 1 ? " " : "", n > 1 ? given[1] : "");

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const bool is_two = strchr(commands[i].name, ' ') != NULL;

        if (cst_usage_nearer(is_two ? name : given[0], commands[i].name, &best)) {
            nearest = commands[i].name;
        }
    }
    if (nearest == NULL && list_group(given[0], words, sizeof words)) {
        return cli_usage(words, "");
    }
    if (nearest == NULL) {
        return cli_usage("no such command", given[0]);
    }
    (void)snprintf(words, sizeof words, "there is no command %.40s: did you mean %s?",
                   strchr(nearest, ' ') != NULL ? name : given[0], nearest);
    return cli_usage(words, "");
}

/* Return the path of the socket that the user has named, or the default. */
static const char *given_socket(const struct cli *cli)
{
    const char *path = cli->socket;

    if (path == NULL || path[0] == '\0') {
        path = getenv("CISTERN_SOCKET");
    }
    return path != NULL && path[0] != '\0' ? path : CST_DEFAULT_SOCKET;
}

/* Return the path of the socket to connect to, which the caller frees; NULL: out of memory. Only
 * the manager's socket allows requests about jobs of other owners, and those that @manager_only
 * says are for managers. */
static char *choose_socket(const struct cli *cli, bool manager_only)
{
    const char *path = given_socket(cli);
    char *copy, *manager;

    if (cli->uid == CLI_NO_UID && cli->manager_socket == NULL && !manager_only) {
        return strdup(path);
    }
    if (cli->manager_socket != NULL) {
        return strdup(cli->manager_socket);
    }
    copy = strdup(path);
    if (copy == NULL || asprintf(&manager, "%s/manager.sock", dirname(copy)) < 0) {
        manager = NULL;
    }
    free(copy);
    return manager;
}

/* Connect to @path. If no daemon listens at the manager socket that belongs to the socket which the
 * user has named, nor at that one, the error is about the latter. */
static int connect_to(struct cli *cli, const char *path, struct cst_err *err)
{
    struct cst_client *other = NULL;
    struct cst_err why = {0};
    int rc = cst_connect(&cli->client, path, err);

    if (rc == CST_ECONN && cli->manager_socket == NULL) {
        if (cst_connect(&other, given_socket(cli), &why) == CST_ECONN) {
            *err = why;
        }
        cst_disconnect(other);
    }
    return rc;
}

static int run(struct cli *cli, const struct command *command)
{
    struct cst_err err = {0};
    char *path = choose_socket(cli, command->wants == MANAGER);
    int rc;

    if (path == NULL) {
        return cli_fail(&(struct cst_err){.text = "out of memory"});
    }
    cli->path = path;
    rc = command->wants == NO_DAEMON ? CST_OK : connect_to(cli, path, &err);
    if (rc == CST_OK || command->wants == DAEMON_IF_THERE) {
        rc = command->run(cli);
        cst_disconnect(cli->client);
    } else {
        rc = cli_fail(&err);
    }
    free(path);
    return rc;
}

static int version(struct cli *cli)
{
    (void)printf("cistern %s\n", cst_version());
    if (cli->client != NULL) {
        (void)printf("daemon at %s: %s\n", cli->client->path, cli->client->build);
    }
    return CLI_EXIT_OK;
}

static int help(struct cli *cli)
{
    const struct command *command;
    int n_words;

    if (cli->n_args == 0) {
        return print_help(NULL);
    }
    command = find_command(cli->args, cli->n_args, &n_words);
    if (command != NULL) {
        return print_help(command);
    }
    return cli->n_args == 1 && print_group(cli->args[0]) ? CLI_EXIT_OK
                                                         : no_such_command(cli->args, cli->n_args);
}

/* Return the name of an option that was given and that @command does not take; NULL: there is
 * none. */
static const char *find_strange(const struct command *command,
                                const struct cst_options_given *given)
{
    for (size_t i = 0; cli_options[i].help != NULL; i++) {
        if (given->rows[i] && !cst_options_is_taken(&cli_options[i], command->uses)) {
            return cli_options[i].name;
        }
    }
    return NULL;
}

static int run_command(struct cli *cli, const struct command *command, const char *strange)
{
    char words[128];

    /* Help is given whatever else is wrong. */
    if (cli->help) {
        return print_help(command);
    }
    if (cli->n_args < command->n_args || cli->n_args > command->n_args + command->n_more) {
        (void)snprintf(words, sizeof words, "%d argument%s given, %s takes %s", cli->n_args,
                       cli->n_args == 1 ? "" : "s", command->name,
                       command->args[0] != '\0' ? command->args : "none");
        return cli_usage(words, "");
    }
    if (strange != NULL) {
        (void)snprintf(words, sizeof words, "%s does not take --%s (see 'cistern help %s')",
                       command->name, strange, command->name);
        return cli_usage(words, "");
    }
    return run(cli, command);
}

static int run_command_line(int argc, char **argv)
{
    struct cli cli = cli_options_none();
    const struct command *command = NULL;
    struct cst_options_given given;
    struct cst_err err = {0};
    int n_words = 1;

    if (cst_options_read(cli_options, &cli, argc, argv, &given, &err) != CST_OK) {
        return cli_usage(err.text, "");
    }
    if (cli.version) {
        (void)printf("cistern %s\n", cst_version());
        return CLI_EXIT_OK;
    }
    if (given.first == argc) {
        return cli.help ? print_help(NULL) : cli_usage("no command", "");
    }
    command = find_command(argv + given.first, argc - given.first, &n_words);
    if (command == NULL) {
        return cli.help && print_group(argv[given.first])
                   ? CLI_EXIT_OK
                   : no_such_command(argv + given.first, argc - given.first);
    }
    if (cli.plan.config != NULL && (command->uses & CLI_USES_PLAN) != 0) {
        const int rc = cli_plan_config(&cli, &err);

        if (rc != CST_OK) {
            (void)cli_fail(&err);
            return rc == CST_EINVAL ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE; /* As cistern-gpt. */
        }
        /* The command line overrides the file. */
        (void)cst_options_read(cli_options, &cli, argc, argv, &given, &err);
    }
    cli.args = argv + given.first + n_words;
    cli.n_args = argc - given.first - n_words;
    return run_command(&cli, command, find_strange(command, &given));
}

int main(int argc, char **argv)
{
    struct cst_err err = {0};
    int rc = cst_program_open_standard_files(&err) == CST_OK ? run_command_line(argc, argv)
                                                             : cli_fail(&err);

    /* Output that is lost (a full disk, a closed pipe) must not look like a success. */
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        (void)fprintf(stderr, "cistern: cannot write: %s\n", strerror(errno));
        rc = CLI_EXIT_FAILURE;
    }
    return rc;
}

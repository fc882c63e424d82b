/* cistern: a look at the daemon from the command line. */
#include "client/cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_MANAGER = 256, OPT_UID, OPT_WATCH, OPT_JSON };

enum { USES_JSON = 1, USES_WATCH = 2, USES_UID = 4, USES_COUNT = 8 };

struct command {
    const char *name;            /* as typed */
    const char *args;            /* as in the help */
    const char *help;            /* one line */
    int n_args;                  /* that must be there */
    unsigned uses;               /* options that it takes beside the common ones */
    int (*run)(struct cli *cli); /* returns an enum cli_exit */
};

static int version(struct cli *cli);

static const struct command commands[] = {
    {"stat", "", "the node: memory, engines, pools, jobs, rates", 0, USES_JSON | USES_WATCH,
     cli_stat},
    {"jobs", "", "all jobs, one a line", 0, USES_JSON, cli_jobs},
    {"job", "NAME", "one job: ranks, step, chunks by state, hit rate", 1, USES_JSON | USES_UID,
     cli_job},
    {"explain", "JOB TENSOR", "where a tensor's chunk is, and why", 2, USES_JSON | USES_UID,
     cli_explain},
    {"rm", "NAME", "remove a job and its memory", 1, USES_UID, cli_remove},
    {"ping", "", "round trips to the daemon: p50 and p99", 0, USES_JSON | USES_COUNT, cli_ping},
    {"version", "", "versions of this program and of the daemon", 0, 0, version},
};

static const struct option options[] = {
    {"socket", required_argument, NULL, 's'},
    {"manager-socket", required_argument, NULL, OPT_MANAGER},
    {"json", no_argument, NULL, OPT_JSON},
    {"watch", optional_argument, NULL, OPT_WATCH},
    {"uid", required_argument, NULL, OPT_UID},
    {"count", required_argument, NULL, 'c'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static void print_help(FILE *out)
{
    (void)fprintf(out,
                  "Usage: cistern [OPTION]... COMMAND [ARGUMENT]...\n"
                  "Look at and manage the cistern memory daemon of this machine.\n\nCommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        (void)fprintf(out, "  %-8s%-12s %s\n", commands[i].name, commands[i].args,
                      commands[i].help);
    }
    (void)fprintf(
        out, "\nOptions:\n"
             "  -s, --socket PATH          the daemon's socket (default: $CISTERN_SOCKET or\n"
             "                             " CST_DEFAULT_SOCKET ")\n"
             "      --manager-socket PATH  socket for other people's jobs (default: manager.sock\n"
             "                             in the same directory)\n"
             "      --json                 stat, jobs, job, explain, ping: print JSON\n"
             "      --watch[=SECONDS]      stat: draw again every 2 or so many seconds\n"
             "      --uid UID              job, explain, rm: a job of this owner\n"
             "  -c, --count N              ping: round trips (default: 1000)\n"
             "  -h, --help                 this text\n"
             "  -V, --version              version of this program\n");
}

int cli_fail(const struct cst_err *err)
{
    (void)fprintf(stderr, "cistern: %s\n", err->text);
    return CLI_EXIT_FAILURE;
}

static int usage(const char *what, const char *which)
{
    (void)fprintf(stderr, "cistern: %s%s%s\nTry 'cistern --help'.\n", what, which[0] ? ": " : "",
                  which);
    return CLI_EXIT_USAGE;
}

static bool parse_number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    unsigned long long value;

    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value > most) {
        return false;
    }
    *out = value;
    return true;
}

static bool parse_seconds(const char *text, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value < 0.01 || value > 86400) {
        return false;
    }
    *out = value;
    return true;
}

/* The optional argument of --watch may also stand behind a blank, as people type it. */
static int parse_watch(struct cli *cli, int argc, char **argv)
{
    cli->watch = true;
    cli->watch_seconds = 2;
    if (optarg == NULL && optind < argc && strspn(argv[optind], "0123456789.") > 0) {
        optarg = argv[optind++];
    }
    if (optarg != NULL && !parse_seconds(optarg, &cli->watch_seconds)) {
        return usage("--watch takes 0.01 to 86400 seconds", optarg);
    }
    return CLI_EXIT_OK;
}

/* One option; *uses collects what only some commands take. -1: the program has ended well. */
static int parse_option(struct cli *cli, int c, int argc, char **argv, unsigned *uses)
{
    uint64_t number;

    switch (c) {
    case 's':
        cli->socket = optarg;
        return CLI_EXIT_OK;
    case OPT_MANAGER:
        cli->manager_socket = optarg;
        return CLI_EXIT_OK;
    case OPT_JSON:
        cli->json = true;
        *uses |= USES_JSON;
        return CLI_EXIT_OK;
    case OPT_WATCH:
        *uses |= USES_WATCH;
        return parse_watch(cli, argc, argv);
    case OPT_UID:
        if (!parse_number(optarg, UINT32_MAX - 1, &number)) {
            return usage("--uid takes a number", optarg);
        }
        cli->has_uid = true;
        cli->uid = (uint32_t)number;
        *uses |= USES_UID;
        return CLI_EXIT_OK;
    case 'c':
        if (!parse_number(optarg, 10000000, &number) || number == 0) {
            return usage("--count takes 1 to 10000000", optarg);
        }
        cli->count = number;
        *uses |= USES_COUNT;
        return CLI_EXIT_OK;
    case 'h':
        print_help(stdout);
        return -1;
    case 'V':
        (void)printf("cistern %s\n", cst_version());
        return -1;
    default:
        (void)fprintf(stderr, "Try 'cistern --help'.\n");
        return CLI_EXIT_USAGE;
    }
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* Which socket the command talks to: what concerns another owner goes to the manager's. NULL: out
 * of memory. */
static char *choose_socket(const struct cli *cli)
{
    const char *path = cli->socket;
    char *copy, *manager;

    if (path == NULL || path[0] == '\0') {
        path = getenv("CISTERN_SOCKET");
    }
    if (path == NULL || path[0] == '\0') {
        path = CST_DEFAULT_SOCKET;
    }
    if (!cli->has_uid && cli->manager_socket == NULL) {
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

static int run(struct cli *cli, const struct command *command)
{
    struct cst_err err = {0};
    char *path = choose_socket(cli);
    int rc;

    if (path == NULL) {
        return cli_fail(&(struct cst_err){.text = "out of memory"});
    }
    rc = cst_connect(&cli->client, path, &err);
    if (rc == CST_OK) {
        rc = command->run(cli);
        cst_disconnect(cli->client);
    } else if (command->run == version) {
        rc = version(cli);
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

bool cli_ask(struct cli *cli, struct cst_call *call, uint16_t type, const ProtobufCMessage *body,
             uint16_t reply_type, const ProtobufCMessageDescriptor *reply_form)
{
    struct cst_err err = {0};

    if (cst_call_sync(cli->client, call, type, body, reply_type, reply_form, &err) != CST_OK) {
        (void)cli_fail(&err);
        return false;
    }
    return true;
}

static int run_command_line(int argc, char **argv)
{
    struct cli cli = {.count = 1000};
    const struct command *command;
    unsigned uses = 0;
    int c, rc;

    while ((c = getopt_long(argc, argv, "s:c:hV", options, NULL)) != -1) {
        rc = parse_option(&cli, c, argc, argv, &uses);
        if (rc != CLI_EXIT_OK) {
            return rc < 0 ? CLI_EXIT_OK : rc;
        }
    }
    if (optind == argc) {
        return usage("no command", "");
    }
    command = find_command(argv[optind]);
    if (command == NULL) {
        return usage("no such command", argv[optind]);
    }
    cli.args = argv + optind + 1;
    if (argc - optind - 1 != command->n_args) {
        return usage(command->n_args == 0 ? "this command takes no arguments" : "arguments wanted",
                     command->n_args == 0 ? command->name : command->args);
    }
    if ((uses & ~command->uses) != 0) {
        return usage("an option that this command does not take", command->name);
    }
    return run(&cli, command);
}

int main(int argc, char **argv)
{
    int rc = run_command_line(argc, argv);

    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        (void)fprintf(stderr, "cistern: cannot write: %s\n", strerror(errno));
        rc = CLI_EXIT_FAILURE;
    }
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/options.h"

#include "offload/plan/plan.h"
#include "proto/optimizers.h"
#include "proto/size.h"
#include "proto/usage.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HELP_INDENT "                             " /* Indents a second line of help. */

enum {
    OPT_MANAGER = 256,
    OPT_UID,
    OPT_WATCH,
    OPT_JSON,
    OPT_DISK,
    OPT_DEVICE,
    OPT_HOST,
    OPT_RANKS,
    OPT_MICRO_BATCHES,
    OPT_RATES,
    OPT_TIMELINE,
    OPT_SHARE,
    OPT_RECOMPUTE,
    OPT_SIMULATE,
    OPT_WHAT_IF,
    OPT_SAVE,
    OPT_BATCH,
    OPT_CONTEXT,
    OPT_FLOPS,
    OPT_ON,
    OPT_OPTIMIZER,
    OPT_MOMENTS,
    OPT_OVERLAP,
    OPT_DEVICE_UPDATE,
    OPT_DEVICE_STATES,
    OPT_GRAD_OVER_WEIGHT,
};

enum { NO = no_argument, YES = required_argument, MAY = optional_argument };

/* All options, in the order of the help. */
static const struct row {
    const char *name; /* Name without the dashes. */
    int val;          /* Result of getopt_long: the short option's letter, or an OPT_ number. */
    int value;        /* Whether it has a value: NO, YES or MAY. */
    unsigned uses;    /* CLI_USES_ bit of the commands that take it; 0: all commands. */
    const char *word; /* Name of the value in the help; NULL: no value. */
    const char *help; /* Description in the help. */
} rows[] = {
    {"json", OPT_JSON, NO, CLI_USES_JSON, NULL, "print JSON instead of text"},
    {"watch", OPT_WATCH, MAY, CLI_USES_WATCH, "SECONDS",
     "refresh every SECONDS (default: 2); q quits"},
    {"uid", OPT_UID, YES, CLI_USES_UID, "UID", "the job of this owner"},
    {"count", 'c', YES, CLI_USES_COUNT, "N", "number of round trips (default: 1000)"},
    {"output", 'o', YES, CLI_USES_OUTPUT, "FILE", "write to FILE"},
    {"disk", OPT_DISK, YES, CLI_USES_DISK, "DIR|SIZE",
     "probe: measure the disk of DIR; plan: use SIZE"},
    {"device", OPT_DEVICE, YES, CLI_USES_PLAN, "SIZE", "memory of each rank's device"},
    {"host", OPT_HOST, YES, CLI_USES_PLAN, "SIZE", "memory of the node for states"},
    {"ranks", OPT_RANKS, YES, CLI_USES_PLAN, "N",
     "ranks on this node (default: as the model says)"},
    {"micro-batches", OPT_MICRO_BATCHES, YES, CLI_USES_PLAN, "N",
     "micro-batches of a step (default: 1)"},
    {"batch", OPT_BATCH, YES, CLI_USES_PLAN, "N",
     "preset: sequences of a micro-batch (default: 1)"},
    {"context", OPT_CONTEXT, YES, CLI_USES_PLAN, "N", "preset: tokens of a sequence"},
    {"optimizer", OPT_OPTIMIZER, YES, CLI_USES_PLAN, "NAME", "adamw (default), adam, lion, sgd"},
    {"moments", OPT_MOMENTS, YES, CLI_USES_PLAN, "FORMAT", "fp32 (default), bf16, mx8"},
    {"overlap", OPT_OVERLAP, YES, CLI_USES_PLAN, "WHEN", "commit (default), early, delayed"},
    {"device-update", OPT_DEVICE_UPDATE, YES, CLI_USES_PLAN, "SIZE",
     "device memory for updates; auto: if steps are shorter"},
    {"device-states", OPT_DEVICE_STATES, YES, CLI_USES_PLAN, "SIZE",
     "device memory for states that stay there; or auto"},
    {"grad-over-weight", OPT_GRAD_OVER_WEIGHT, NO, CLI_USES_PLAN, NULL,
     "gradients take the place of their weights"},
    {"rates", OPT_RATES, YES, CLI_USES_PLAN, "FILE", "rates of a machine; a100: published rates"},
    {"on", OPT_ON, YES, CLI_USES_PLAN, "DEVICE",
     "device of each rank, by its name in the rates (default: the first)"},
    {"flops", OPT_FLOPS, YES, CLI_USES_PLAN, "F", "flop/s of the device, if the rates do not say"},
    {"share", OPT_SHARE, YES, CLI_USES_PLAN, "S",
     "share of the flop/s that the model reaches (default: 1)"},
    {"recompute", OPT_RECOMPUTE, NO, CLI_USES_PLAN, NULL,
     "repeat each forward pass before its backward pass"},
    {"what-if", OPT_WHAT_IF, NO, CLI_USES_PLAN, NULL,
     "plan also with what the daemon cannot do yet"},
    {"save", OPT_SAVE, YES, CLI_USES_PLAN, "FILE", "save the plan for a job"},
    {"simulate", OPT_SIMULATE, NO, CLI_USES_PLAN, NULL,
     "simulate six steps, and compare evictions"},
    {"timeline", OPT_TIMELINE, YES, CLI_USES_PLAN, "FILE",
     "write the steps as a trace for Perfetto"},
    {"socket", 's', YES, 0, "PATH",
     "socket of the daemon (default: $CISTERN_SOCKET or\n" HELP_INDENT CST_DEFAULT_SOCKET ")"},
    {"manager-socket", OPT_MANAGER, YES, 0, "PATH",
     "socket for other users' jobs (default: manager.sock\n" HELP_INDENT "in the same directory)"},
    {"help", 'h', NO, 0, NULL, "print this text, or the options of a command"},
    {"version", 'V', NO, 0, NULL, "print the version of this program"},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

/* Return the row of @val, which must be in the table. */
static const struct row *find_row(int val)
{
    const struct row *row = rows;

    while (row->val != val) {
        row++;
    }
    return row;
}

void cli_options_help(FILE *out, unsigned uses)
{
    (void)fprintf(out, "\nOptions:\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *row = &rows[i];
        char typed[40], letter[5] = "    ";

        if (row->uses != 0 && (row->uses & uses) == 0) {
            continue;
        }
        if (row->val < OPT_MANAGER) {
            (void)snprintf(letter, sizeof letter, "-%c, ", row->val);
        }
        (void)snprintf(typed, sizeof typed, row->value == MAY ? "--%s[=%s]" : "--%s %s", row->name,
                       row->word != NULL ? row->word : "");
        (void)fprintf(out, "  %s%-22s %s\n", letter, typed, row->help);
    }
}

int cli_usage(const char *what, const char *which)
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

static bool parse_real(const char *text, double least, double most, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value < least || value > most) {
        return false;
    }
    *out = value;
    return true;
}

/* People also type the optional value of --watch after a blank, where getopt_long does not look. */
static int parse_watch(struct cli *cli, int argc, char **argv)
{
    cli->watch = true;
    cli->watch_seconds = 2;
    if (optarg == NULL && optind < argc && strspn(argv[optind], "0123456789.") > 0) {
        optarg = argv[optind++];
    }
    if (optarg != NULL && !parse_real(optarg, 0.01, 86400, &cli->watch_seconds)) {
        return cli_usage("--watch takes 0.01 to 86400 seconds", optarg);
    }
    return CLI_EXIT_OK;
}

static int parse_name(const char *const *names, const char *usage, uint32_t *out)
{
    *out = cst_name_find(names, optarg);
    return names[*out] != NULL ? CLI_EXIT_OK : cli_usage(usage, optarg);
}

/* Parse an option of `cistern plan` whose value is a size of memory. */
static int parse_plan_size(struct cli_plan_request *plan, int c)
{
    uint64_t *size = c == OPT_DEVICE          ? &plan->device_bytes
                     : c == OPT_HOST          ? &plan->host_bytes
                     : c == OPT_DEVICE_UPDATE ? &plan->device_update_bytes
                                              : &plan->device_states;

    bool may_be_auto = c == OPT_DEVICE_UPDATE || c == OPT_DEVICE_STATES;
    struct cst_err err = {0};
    int rc = may_be_auto
                 ? cst_size_parse_or(optarg, "auto", CST_PLAN_DEVICE_UPDATE_AUTO, size, &err)
                 : cst_size_parse(optarg, 0, size, &err);

    if (rc != CST_OK) {
        (void)cst_err_prefix(&err, "--%s", find_row(c)->name);
        return cli_usage(err.text, "");
    }
    return CLI_EXIT_OK;
}

/* Parse an option of `cistern plan` whose value is another number. */
static int parse_plan_number(struct cli_plan_request *plan, int c)
{
    switch (c) {
    case OPT_RANKS:
        return parse_number(optarg, 64, &plan->ranks) && plan->ranks > 0
                   ? CLI_EXIT_OK
                   : cli_usage("--ranks takes 1 to 64", optarg);
    case OPT_MICRO_BATCHES:
        return parse_number(optarg, 1024, &plan->micro_batches) && plan->micro_batches > 0
                   ? CLI_EXIT_OK
                   : cli_usage("--micro-batches takes 1 to 1024", optarg);
    case OPT_SHARE:
        return parse_real(optarg, 0.001, 1, &plan->share)
                   ? CLI_EXIT_OK
                   : cli_usage("--share takes 0.001 to 1", optarg);
    case OPT_BATCH:
    case OPT_CONTEXT:
        return parse_number(optarg, 1 << 20, c == OPT_BATCH ? &plan->batch : &plan->context) &&
                       strcmp(optarg, "0") != 0
                   ? CLI_EXIT_OK
                   : cli_usage("not a number from 1 to 1048576", optarg);
    default:
        return parse_real(optarg, 1, 1e18, &plan->flops)
                   ? CLI_EXIT_OK
                   : cli_usage("--flops takes flop/s, as 150e12", optarg);
    }
}

/* Parse an option that only `cistern plan` takes. */
static int parse_plan_option(struct cli_plan_request *plan, int c)
{
    switch (c) {
    case OPT_DEVICE:
    case OPT_HOST:
    case OPT_DEVICE_UPDATE:
    case OPT_DEVICE_STATES:
        return parse_plan_size(plan, c);
    case OPT_RANKS:
    case OPT_MICRO_BATCHES:
    case OPT_SHARE:
    case OPT_BATCH:
    case OPT_CONTEXT:
    case OPT_FLOPS:
        return parse_plan_number(plan, c);
    case OPT_OPTIMIZER:
        return parse_name(cst_optimizer_names, "--optimizer takes adamw, adam, lion or sgd",
                          &plan->optimizer);
    case OPT_MOMENTS:
        return parse_name(cst_moments_names, "--moments takes fp32, bf16 or mx8", &plan->moments);
    case OPT_OVERLAP:
        return parse_name(cst_overlap_names, "--overlap takes commit, early or delayed",
                          &plan->overlap);
    case OPT_ON:
        plan->on = optarg;
        break;
    case OPT_WHAT_IF:
        plan->what_if = true;
        break;
    case OPT_SAVE:
        plan->save = optarg;
        break;
    case OPT_RATES:
        plan->rates = optarg;
        break;
    case OPT_TIMELINE:
        plan->timeline = optarg;
        break;
    case OPT_RECOMPUTE:
        plan->recompute = true;
        break;
    case OPT_GRAD_OVER_WEIGHT:
        plan->grad_over_weight = true;
        break;
    default:
        plan->simulate = true;
        break;
    }
    return CLI_EXIT_OK;
}

/* Parse any other option. */
static int parse_common_option(struct cli *cli, int c, int argc, char **argv)
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
        return CLI_EXIT_OK;
    case OPT_WATCH:
        return parse_watch(cli, argc, argv);
    case OPT_UID:
        if (!parse_number(optarg, UINT32_MAX - 1, &number)) {
            return cli_usage("--uid takes a number", optarg);
        }
        cli->has_uid = true;
        cli->uid = (uint32_t)number;
        return CLI_EXIT_OK;
    case 'c':
        if (!parse_number(optarg, 10000000, &number) || number == 0) {
            return cli_usage("--count takes 1 to 10000000", optarg);
        }
        cli->count = number;
        return CLI_EXIT_OK;
    case 'o':
        cli->output = optarg;
        return CLI_EXIT_OK;
    default:
        cli->disk = optarg;
        return CLI_EXIT_OK;
    }
}

/* Make the tables for getopt_long from all rows. The ":" before the letters makes it return ":" for
 * an option without its value. */
static void make_tables(struct option table[N_ROWS + 1], char letters[2 * N_ROWS + 2])
{
    char *end = letters;

    *end++ = ':';
    for (size_t i = 0; i < N_ROWS; i++) {
        table[i] = (struct option){rows[i].name, rows[i].value, NULL, rows[i].val};
        if (rows[i].val < OPT_MANAGER) {
            *end++ = (char)rows[i].val;
            if (rows[i].value == YES) {
                *end++ = ':';
            }
        }
    }
    *end = '\0';
    table[N_ROWS] = (struct option){0};
}

int cli_options_parse(struct cli *cli, int argc, char **argv, struct cli_given *given)
{
    struct option table[N_ROWS + 1];
    char letters[2 * N_ROWS + 2];
    struct cst_err err = {0};
    int c, rc = CLI_EXIT_OK;

    make_tables(table, letters);
    *given = (struct cli_given){0};
    opterr = 0; /* The messages of this program are better than those of getopt_long. */
    while (rc == CLI_EXIT_OK && (c = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        if (c == '?' || c == ':') {
            (void)cst_usage_refused(c, argv, table, &err);
            return cli_usage(err.text, "");
        }
        given->rows |= UINT64_C(1) << (find_row(c) - rows);
        if (c == 'h') {
            given->help = true;
        } else if (c == 'V') {
            given->version = true;
        } else if (c >= OPT_DEVICE) {
            rc = parse_plan_option(&cli->plan, c);
        } else {
            rc = parse_common_option(cli, c, argc, argv);
        }
    }
    given->first = optind;
    return rc;
}

const char *cli_options_strange(const struct cli_given *given, unsigned uses)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if ((given->rows >> i & 1) != 0 && rows[i].uses != 0 && (rows[i].uses & uses) == 0) {
            return rows[i].name;
        }
    }
    return NULL;
}

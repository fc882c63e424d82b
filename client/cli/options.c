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
    OPT_UPDATE_ROOM,
    OPT_DEVICE_STATES,
    OPT_GRAD_OVER_WEIGHT,
};

static const struct option options[] = {
    {"socket", required_argument, NULL, 's'},
    {"manager-socket", required_argument, NULL, OPT_MANAGER},
    {"json", no_argument, NULL, OPT_JSON},
    {"watch", optional_argument, NULL, OPT_WATCH},
    {"uid", required_argument, NULL, OPT_UID},
    {"count", required_argument, NULL, 'c'},
    {"output", required_argument, NULL, 'o'},
    {"disk", required_argument, NULL, OPT_DISK},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"host", required_argument, NULL, OPT_HOST},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"micro-batches", required_argument, NULL, OPT_MICRO_BATCHES},
    {"rates", required_argument, NULL, OPT_RATES},
    {"timeline", required_argument, NULL, OPT_TIMELINE},
    {"share", required_argument, NULL, OPT_SHARE},
    {"recompute", no_argument, NULL, OPT_RECOMPUTE},
    {"simulate", no_argument, NULL, OPT_SIMULATE},
    {"what-if", no_argument, NULL, OPT_WHAT_IF},
    {"save", required_argument, NULL, OPT_SAVE},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"context", required_argument, NULL, OPT_CONTEXT},
    {"flops", required_argument, NULL, OPT_FLOPS},
    {"on", required_argument, NULL, OPT_ON},
    {"optimizer", required_argument, NULL, OPT_OPTIMIZER},
    {"moments", required_argument, NULL, OPT_MOMENTS},
    {"overlap", required_argument, NULL, OPT_OVERLAP},
    {"update-room", required_argument, NULL, OPT_UPDATE_ROOM},
    {"device-states", required_argument, NULL, OPT_DEVICE_STATES},
    {"grad-over-weight", no_argument, NULL, OPT_GRAD_OVER_WEIGHT},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

void cli_options_help(FILE *out)
{
    (void)fprintf(
        out, "\nOptions:\n"
             "  -s, --socket PATH          the daemon's socket (default: $CISTERN_SOCKET or\n"
             "                             " CST_DEFAULT_SOCKET ")\n"
             "      --manager-socket PATH  socket for other people's jobs (default: manager.sock\n"
             "                             in the same directory)\n"
             "      --json                 stat, jobs, job, explain, ping, probe, plan: JSON\n"
             "      --watch[=SECONDS]      stat: draw again every 2 or so many seconds\n"
             "      --uid UID              job, explain, rm, trace: a job of this owner\n"
             "  -c, --count N              ping: round trips (default: 1000)\n"
             "  -o, --output FILE          probe, trace: write there\n"
             "      --disk DIR | SIZE      probe: measure a disk here; plan: how much of it\n"
             "      --device SIZE          plan: of each rank's device\n"
             "      --host SIZE            plan: of the node's memory\n"
             "      --ranks N              plan: on this node (default: as the model says)\n"
             "      --micro-batches N      plan: per step (default: 1)\n"
             "      --batch N              plan: sequences of a preset's micro-batch (default: 1)\n"
             "      --context N            plan: tokens of them (default: the preset's)\n"
             "      --optimizer NAME       plan: adamw (default), adam, lion, sgd\n"
             "      --moments FORMAT       plan: fp32 (default), bf16, mx8\n"
             "      --overlap WHEN         plan: commit (default), early, delayed\n"
             "      --update-room SIZE     plan: same, for updates alone; auto: where it pays\n"
             "      --device-states SIZE   plan: same, for states that stay there; auto\n"
             "      --grad-over-weight     plan: gradients take the weights' places\n"
             "      --rates FILE           plan: of a machine; a100: of one that was published\n"
             "      --on DEVICE            plan: which of the rates' devices (default: the first)\n"
             "      --flops F              plan: flop/s of it, where the rates do not say\n"
             "      --share F              plan: of them that the model reaches (default: 1)\n"
             "      --recompute            plan: each forward again before its backward\n"
             "      --what-if              plan: also with what the daemon cannot do yet\n"
             "      --save FILE            plan: write it there, for a job to be given\n"
             "      --simulate             plan: play it step by step, with other policies\n"
             "      --timeline FILE        plan: the steps as a trace that Perfetto opens\n"
             "  -h, --help                 this text\n"
             "  -V, --version              version of this program\n");
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

/* The optional argument of --watch may also stand behind a blank, as people type it. */
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

/* The long name of the option with the value @c. */
static const char *option_name(int c)
{
    const struct option *option = options;

    while (option->name != NULL && option->val != c) {
        option++;
    }
    return option->name;
}

/* Memory that `cistern plan` plans with. */
static int parse_plan_size(struct cli_plan_wish *plan, int c)
{
    uint64_t *size = c == OPT_DEVICE        ? &plan->device_bytes
                     : c == OPT_HOST        ? &plan->host_bytes
                     : c == OPT_UPDATE_ROOM ? &plan->update_room
                                            : &plan->device_states;

    bool may_be_auto = c == OPT_UPDATE_ROOM || c == OPT_DEVICE_STATES;
    struct cst_err err = {0};
    int rc = may_be_auto ? cst_size_parse_or(optarg, "auto", CST_PLAN_ROOM_AUTO, size, &err)
                         : cst_size_parse(optarg, 0, size, &err);

    if (rc != CST_OK) {
        (void)cst_err_prefix(&err, "--%s", option_name(c));
        return cli_usage(err.text, "");
    }
    return CLI_EXIT_OK;
}

/* Other numbers that it takes. */
static int parse_plan_number(struct cli_plan_wish *plan, int c)
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

/* What `cistern plan` alone takes. */
static int parse_plan_option(struct cli_plan_wish *plan, int c)
{
    switch (c) {
    case OPT_DEVICE:
    case OPT_HOST:
    case OPT_UPDATE_ROOM:
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

/* What several commands take, and what only one does, but plan. */
static int parse_common_option(struct cli *cli, int c, int argc, char **argv, unsigned *uses)
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
        *uses |= CLI_USES_JSON;
        return CLI_EXIT_OK;
    case OPT_WATCH:
        *uses |= CLI_USES_WATCH;
        return parse_watch(cli, argc, argv);
    case OPT_UID:
        if (!parse_number(optarg, UINT32_MAX - 1, &number)) {
            return cli_usage("--uid takes a number", optarg);
        }
        cli->has_uid = true;
        cli->uid = (uint32_t)number;
        *uses |= CLI_USES_UID;
        return CLI_EXIT_OK;
    case 'c':
        if (!parse_number(optarg, 10000000, &number) || number == 0) {
            return cli_usage("--count takes 1 to 10000000", optarg);
        }
        cli->count = number;
        *uses |= CLI_USES_COUNT;
        return CLI_EXIT_OK;
    case 'o':
        cli->output = optarg;
        *uses |= CLI_USES_OUTPUT;
        return CLI_EXIT_OK;
    default:
        cli->disk = optarg;
        *uses |= CLI_USES_DISK;
        return CLI_EXIT_OK;
    }
}

int cli_options_parse(struct cli *cli, int argc, char **argv, unsigned *uses, int *first,
                      void (*print_help)(FILE *out))
{
    struct cst_err err = {0};
    int c, rc = CLI_EXIT_OK;

    opterr = 0;
    while (rc == CLI_EXIT_OK && (c = getopt_long(argc, argv, ":s:c:o:hV", options, NULL)) != -1) {
        if (c == 'h') {
            print_help(stdout);
            return -1;
        }
        if (c == 'V') {
            (void)printf("cistern %s\n", cst_version());
            return -1;
        }
        if (c == '?' || c == ':') {
            (void)cst_usage_refused(c, argv, options, &err);
            return cli_usage(err.text, "");
        }
        if (c >= OPT_DEVICE) {
            *uses |= CLI_USES_PLAN;
            rc = parse_plan_option(&cli->plan, c);
        } else {
            rc = parse_common_option(cli, c, argc, argv, uses);
        }
    }
    *first = optind;
    return rc;
}

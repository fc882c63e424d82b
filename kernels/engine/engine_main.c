/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "kernels/engine/engine_main.h"

#include "kernels/engine/thread_pool.h"
#include "kernels/engine/engine.h"
#include "kernels/host/host.h"
#include "proto/isa.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The program of this process. */
static const struct cste_engine_program *program;

static void usage(FILE *to)
{
    fprintf(
        to,
        "Usage: %s [--fd N]\n"
        "       %s --rates [OPTIONS]\n"
        "%s for cisternd, which starts this program and talks to it\n"
        "on a SOCK_SEQPACKET socket. Start it by hand only with --rates.\n\n"
        "  --fd N            the socket (default 3)\n"
        "%s%s"
        "  --rates           measure this machine, print the rates as JSON, and exit\n"
        "  --node N          with --rates: NUMA node whose memory is used\n"
        "%s"
        "  --copy-threads N  with --rates: threads that copy in each direction\n"
        "  --help            print this text and exit\n"
        "  --version         print the version and exit\n",
        program->name, program->name, program->what,
        program->probe != NULL ? "  --probe           print the devices as JSON, and exit\n" : "",
        program->paced != NULL
            ? "  --paced RATES     simulate an accelerator with these rates:\n"
              "                    up=N,down=N (bytes per second), update=N (elements), memory=N\n"
              "  --pace RATES      do not exceed these rates: update=N\n"
            : "",
        program->probe != NULL ? "  --device UUID     with --rates: the GPU\n"
                               : "  --threads N       with --rates: threads that compute\n");
}

static void warn(const struct cst_err *what)
{
    fprintf(stderr, "%s: %s\n", program->name, what->text);
}

/* Print the message of @err if @rc is a failure. Returns the exit status. */
static int tell(int rc, const struct cst_err *err)
{
    if (rc != CST_OK) {
        warn(err);
    }
    return rc == CST_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int probe(void)
{
    struct cst_err err;
    int rc = program->probe(stdout, &err);

    return tell(rc, &err);
}

static int rates(const struct cste_engine_rates_options *options)
{
    struct cst_err err;
    int rc = program->rates(options, stdout, &err);

    return tell(rc, &err);
}

/* Returns the number in @text, or -1. */
static int parse_number(const char *text)
{
    char *end;
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || n < 0 || n > 1 << 20 ? -1 : (int)n;
}

/* Returns whether @fd is a socket that keeps message boundaries. */
static bool is_seqpacket(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/* The parsed command line. */
struct options {
    int fd;                           /* Socket. -1: the argument was not a number. */
    bool measure;                     /* --rates was given. */
    bool wrong;                       /* A number was out of range. */
    bool paced;                       /* --paced was given. */
    struct cste_rate_limit_spec pace; /* Argument of --paced or --pace. */
    struct cste_engine_rates_options rates;
};

/* Returns the number in @text. Sets *wrong unless the number is between @least and @most. */
static int parse_within(const char *text, int least, int most, bool *wrong)
{
    int n = parse_number(text);

    *wrong = *wrong || n < least || n > most;
    return n;
}

/* Parse the argument of --paced or --pace. Returns the exit status, or -1 to continue. */
static int read_pace(const char *text, bool paced, struct options *out)
{
    struct cste_rate_limit_spec pace;
    struct cst_err err;
    int rc = cste_rate_limit_parse(text, &pace, &err);

    if (rc != CST_OK) {
        return tell(rc, &err);
    }
    out->pace = pace;
    out->paced = paced;
    return -1;
}

/* Handle one option. Returns the exit status, or -1 to continue. */
static int read_option(int option, struct options *out)
{
    bool *wrong = &out->wrong;

    switch (option) {
    case 'f':
        out->fd = parse_number(optarg);
        return -1;
    case 'r':
        out->measure = true;
        return -1;
    case 'n':
        out->rates.node = parse_within(optarg, 0, 1023, wrong);
        return -1;
    case 't':
        out->rates.threads = (unsigned)parse_within(optarg, 1, CSTE_THREAD_POOL_MAX_THREADS, wrong);
        return -1;
    case 'c':
        out->rates.copy_threads =
            (unsigned)parse_within(optarg, 1, CSTE_THREAD_POOL_MAX_THREADS, wrong);
        return -1;
    case 'd':
        out->rates.device = optarg;
        return -1;
    case 'h':
        usage(stdout);
        return EXIT_SUCCESS;
    case 'V':
        printf("%s (%s) %s\n", program->name, PACKAGE_NAME, PACKAGE_VERSION);
        return EXIT_SUCCESS;
    default:
        if (option == 'p' && program->probe != NULL) {
            return probe();
        }
        if ((option == 'P' || option == 'u') && program->paced != NULL) {
            return read_pace(optarg, option == 'P', out);
        }
        usage(stderr);
        return EXIT_FAILURE;
    }
}

/* Parse the command line into *config. Returns the exit status, or -1 to continue. */
static int read_options(int argc, char **argv, struct cste_engine_config *config)
{
    static const struct option names[] = {
        {"fd", required_argument, NULL, 'f'},      {"probe", no_argument, NULL, 'p'},
        {"rates", no_argument, NULL, 'r'},         {"node", required_argument, NULL, 'n'},
        {"threads", required_argument, NULL, 't'}, {"copy-threads", required_argument, NULL, 'c'},
        {"device", required_argument, NULL, 'd'},  {"paced", required_argument, NULL, 'P'},
        {"pace", required_argument, NULL, 'u'},    {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},       {NULL, 0, NULL, 0},
    };
    struct options options = {.fd = config->sock, .rates.node = -1};
    int option, rc;

    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        rc = read_option(option, &options);
        if (rc >= 0) {
            return rc;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: '%s' is not an option\n", program->name, argv[optind]);
        return EXIT_FAILURE;
    }
    if (options.wrong) {
        fprintf(stderr, "%s: a node is a number from 0, threads are 1 to %d\n", program->name,
                CSTE_THREAD_POOL_MAX_THREADS);
        return EXIT_FAILURE;
    }
    if (options.measure) {
        return rates(&options.rates);
    }
    if (options.fd < 0 || !is_seqpacket(options.fd)) {
        fprintf(stderr, "%s: fd %d is no SOCK_SEQPACKET socket: cisternd starts this program\n",
                program->name, options.fd);
        return EXIT_FAILURE;
    }
    config->sock = options.fd;
    config->ops = options.paced ? program->paced : program->ops;
    config->pace = options.pace;
    return -1;
}

int cste_engine_main(const struct cste_engine_program *which, int argc, char **argv)
{
    struct cste_engine_config config = {.sock = 3, .warn = warn};
    struct cst_err err;
    int rc;

    program = which;
    rc = cst_isa_check(&err);
    if (rc != CST_OK) {
        return tell(rc, &err);
    }
    rc = read_options(argc, argv, &config);
    if (rc >= 0) {
        return rc;
    }
    /* The engine ends with the daemon. Otherwise the engine would keep its memory without having
     * work. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "cst-engine");
    /* Sending to a closed socket fails with a status. */
    (void)signal(SIGPIPE, SIG_IGN);
    rc = cste_engine_run(&config, &err);
    if (rc != CST_OK) {
        fprintf(stderr, "%s: %s: %s\n", program->name, cst_status_name(rc), err.text);
    }
    /* Threads may be changing a tile. The process ends at once; the undo slots hold these tiles. */
    _exit(rc == CST_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

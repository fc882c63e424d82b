#include "config.h"

#include "kernels/engine_main.h"

#include "kernels/engine.h"
#include "kernels/host/host.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* This process's. */
static const struct cst_engine_program *program;

static void usage(FILE *to)
{
    fprintf(to,
            "Usage: %s [--fd N]\n"
            "%s for cisternd, which starts this program and talks to it\n"
            "on a SOCK_SEQPACKET socket. There is no reason to start it by hand.\n\n"
            "  --fd N      the socket (default 3)\n"
            "%s"
            "  --help      print this and exit\n"
            "  --version   print the version and exit\n",
            program->name, program->what,
            program->probe != NULL
                ? "  --probe     print what devices there are, as JSON, and exit\n"
                : "");
}

static void warn(const struct cst_err *what)
{
    fprintf(stderr, "%s: %s\n", program->name, what->text);
}

static int probe(void)
{
    struct cst_err err;
    int rc = program->probe(stdout, &err);

    if (rc != CST_OK) {
        warn(&err);
    }
    return rc == CST_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* The number behind --fd, or -1. */
static int parse_fd(const char *text)
{
    char *end;
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || n < 0 || n > 1 << 20 ? -1 : (int)n;
}

/* Is @fd a socket that keeps message edges? */
static bool is_seqpacket(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/* Exit status, or -1: go on, *fd is the socket. */
static int read_options(int argc, char **argv, int *fd)
{
    static const struct option options[] = {
        {"fd", required_argument, NULL, 'f'},
        {"probe", no_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'f') {
            *fd = parse_fd(optarg);
        } else if (option == 'h') {
            usage(stdout);
            return EXIT_SUCCESS;
        } else if (option == 'V') {
            printf("%s (%s) %s\n", program->name, PACKAGE_NAME, PACKAGE_VERSION);
            return EXIT_SUCCESS;
        } else if (option == 'p' && program->probe != NULL) {
            return probe();
        } else {
            usage(stderr);
            return EXIT_FAILURE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: '%s' is not an option\n", program->name, argv[optind]);
        return EXIT_FAILURE;
    }
    if (*fd < 0 || !is_seqpacket(*fd)) {
        fprintf(stderr, "%s: fd %d is no SOCK_SEQPACKET socket: cisternd starts this program\n",
                program->name, *fd);
        return EXIT_FAILURE;
    }
    return -1;
}

int cst_engine_main(const struct cst_engine_program *which, int argc, char **argv)
{
    struct cst_engine_config config = {.sock = 3, .warn = warn, .ops = which->ops};
    struct cst_err err;
    int rc;

    program = which;
    rc = read_options(argc, argv, &config.sock);

    if (rc >= 0) {
        return rc;
    }
    /* The daemon's other children must not hold an engine's memory; and without a daemon there is
     * nobody to work for. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "cst-engine");
    (void)signal(SIGPIPE, SIG_IGN);
    rc = cst_engine_run(&config, &err);
    if (rc != CST_OK) {
        fprintf(stderr, "%s: %s: %s\n", program->name, cst_status_name(rc), err.text);
    }
    /* Threads may be in the middle of a tile: leave at once, the undo slots hold what they had in
     * hand. */
    _exit(rc == CST_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

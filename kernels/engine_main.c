/* cistern-engine-host: started by cisternd, with a socket to it as fd 3. */
#include "config.h"

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

#define PROGRAM "cistern-engine-host"

static void usage(FILE *to)
{
    fprintf(to,
            "Usage: " PROGRAM " [--fd N]\n"
            "Move and compute on memory for cisternd, which starts this program and talks to it\n"
            "on a SOCK_SEQPACKET socket. There is no reason to start it by hand.\n\n"
            "  --fd N      the socket (default 3)\n"
            "  --help      print this and exit\n"
            "  --version   print the version and exit\n");
}

static void warn(const struct cst_err *what)
{
    fprintf(stderr, PROGRAM ": %s\n", what->text);
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
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'f':
            *fd = parse_fd(optarg);
            break;
        case 'h':
            usage(stdout);
            return EXIT_SUCCESS;
        case 'V':
            puts(PROGRAM " (" PACKAGE_NAME ") " PACKAGE_VERSION);
            return EXIT_SUCCESS;
        default:
            usage(stderr);
            return EXIT_FAILURE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, PROGRAM ": '%s' is not an option\n", argv[optind]);
        return EXIT_FAILURE;
    }
    if (*fd < 0 || !is_seqpacket(*fd)) {
        fprintf(stderr,
                PROGRAM ": fd %d is no SOCK_SEQPACKET socket: cisternd starts this program\n", *fd);
        return EXIT_FAILURE;
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct cst_engine_config config = {.sock = 3, .warn = warn};
    struct cst_err err;
    int rc = read_options(argc, argv, &config.sock);

    if (rc >= 0) {
        return rc;
    }
    /* The daemon's other children must not hold an engine's memory; and without a daemon there is
     * nobody to work for. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "cst-engine");
    (void)signal(SIGPIPE, SIG_IGN);
    config.ops = &cst_host_ops;
    rc = cst_engine_run(&config, &err);
    if (rc != CST_OK) {
        fprintf(stderr, PROGRAM ": %s: %s\n", cst_status_name(rc), err.text);
    }
    /* Threads may be in the middle of a tile: leave at once, the undo slots hold what they had in
     * hand. */
    _exit(rc == CST_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "kernels/engine/engine_main.h"

#include "kernels/engine/thread_pool.h"
#include "kernels/engine/engine.h"
#include "kernels/host/host.h"
#include "proto/isa.h"
#include "proto/options.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The program of this process. */
static const struct cste_engine_program *program;

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

/* Returns whether @fd is a socket that keeps message boundaries. */
static bool is_seqpacket(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/* The options of a program depend on what it can do. */
enum {
    USES_PROBE = 1 << 0,
    USES_PACED = 1 << 1,
    USES_THREADS = 1 << 2,
    USES_DISK = 1 << 3,
    USES_RATES = 1 << 4
};

static unsigned uses(void)
{
    return (program->probe != NULL   ? USES_PROBE
            : program->rates != NULL ? USES_THREADS
                                     : 0) |
           (program->rates != NULL ? USES_RATES : 0) |
           (program->ops[CSTE_ENGINE_PACED] != NULL ? USES_PACED : 0) |
           (program->ops[CSTE_ENGINE_DISK] != NULL ? USES_DISK : 0);
}

/* The parsed command line. */
struct options {
    uint32_t fd;              /* --fd */
    bool probe, measure;      /* --probe, --rates */
    const char *paced, *pace; /* --paced, --pace; NULL: not given. */
    bool disk;                /* --disk */
    uint32_t limit;           /* --limit */
    /* --node, --threads, --copy-threads, --device, --directory, --bytes */
    struct cste_engine_rates_options rates;
    bool help, version; /* --help, --version */
};

#define AT(name) offsetof(struct options, name)
#define ROW(option, bits, argument, help, ...)                                                     \
    CST_OPTION(option, 0, bits, argument, help, __VA_ARGS__)

static const struct cst_option table[] = {
    ROW("fd", 0, "N", "the socket (default: 3)", CST_U32(AT(fd), 0, 1 << 20)),
    ROW("probe", USES_PROBE, NULL, "print the devices as JSON, and exit", CST_FLAG(AT(probe))),
    ROW("paced", USES_PACED, "RATES",
        "simulate an accelerator with these rates: up=N,down=N (bytes per second), update=N "
        "(elements), memory=N",
        CST_TEXT(AT(paced))),
    ROW("disk", USES_DISK, NULL, "copy to and from files that were opened with O_DIRECT",
        CST_FLAG(AT(disk))),
    ROW("limit", USES_DISK, "S",
        "with --disk: end if a drive does not answer for S seconds (default: 0, never)",
        CST_U32(AT(limit), 0, UINT32_MAX)),
    ROW("pace", USES_PACED, "RATES", "do not exceed these rates: update=N", CST_TEXT(AT(pace))),
    ROW("rates", USES_RATES, NULL, "measure this machine, print the rates as JSON, and exit",
        CST_FLAG(AT(measure))),
    ROW("node", USES_RATES, "N", "with --rates: NUMA node whose memory is used",
        CST_U32(AT(rates.node), 0, 1023)),
    ROW("device", USES_PROBE, "UUID", "with --rates: the GPU", CST_TEXT(AT(rates.device))),
    ROW("threads", USES_THREADS, "N", "with --rates: threads that compute",
        CST_U32(AT(rates.threads), 1, CSTE_THREAD_POOL_MAX_THREADS)),
    ROW("directory", USES_DISK, "DIR", "with --rates: measure the drive of DIR, and nothing else",
        CST_TEXT(AT(rates.directory))),
    ROW("bytes", USES_DISK, "SIZE", "with --directory: bytes of the file that is measured",
        CST_SIZE(AT(rates.bytes))),
    ROW("copy-threads", USES_RATES, "N", "with --rates: threads that copy in each direction",
        CST_U32(AT(rates.copy_threads), 1, CSTE_THREAD_POOL_MAX_THREADS)),
    ROW("help", 0, NULL, "print this text", CST_FLAG(AT(help))),
    ROW("version", 0, NULL, "print the version of this program", CST_FLAG(AT(version))),
    CST_OPTION_END,
};

static void print_help(void)
{
    printf("Usage: %s [--fd N]\n", program->name);
    if (program->rates != NULL) {
        printf("       %s --rates [OPTION]...\n", program->name);
    }
    printf("%s for cisternd, which starts this program and talks to it\n"
           "on a SOCK_SEQPACKET socket. %s.\n\n",
           program->what,
           program->rates != NULL ? "Start it by hand only with --rates"
                                  : "It is of no use when started by hand");
    cst_options_print(table, uses(), stdout);
}

/* Parse the command line. CST_EINVAL: it is wrong. */
static int read_options(int argc, char **argv, struct options *out, struct cst_err *err)
{
    struct cst_options_given given;
    int rc = cst_options_read(table, out, argc, argv, &given, err);

    for (size_t i = 0; rc == CST_OK && table[i].help != NULL; i++) {
        if (given.rows[i] && !cst_options_is_taken(&table[i], uses())) {
            rc =
                cst_err_set(err, CST_EINVAL, "there is no option --%s (see --help)", table[i].name);
        }
    }
    if (rc == CST_OK && given.first < argc) {
        rc = cst_err_set(err, CST_EINVAL, "unexpected argument '%s' (see --help)",
                         argv[given.first]);
    }
    return rc;
}

/* Returns the device that the options choose. */
static enum cste_engine_device device_of(const struct options *options)
{
    return options->disk            ? CSTE_ENGINE_DISK
           : options->paced != NULL ? CSTE_ENGINE_PACED
                                    : CSTE_ENGINE_OWN;
}

/* Fill in *config from the options. */
static int configure(const struct options *options, struct cste_engine_config *config,
                     struct cst_err *err)
{
    const char *pace = options->paced != NULL ? options->paced : options->pace;
    int rc = pace != NULL ? cste_rate_limit_parse(pace, &config->pace, err) : CST_OK;

    if (rc == CST_OK && !is_seqpacket((int)options->fd)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "fd %u is no SOCK_SEQPACKET socket: cisternd starts this program",
                         options->fd);
    }
    config->sock = (int)options->fd;
    config->call_limit_s = options->limit;
    if (rc == CST_OK && options->disk && options->paced != NULL) {
        rc = cst_err_set(err, CST_EINVAL, "--disk and --paced exclude each other");
    }
    config->ops = program->ops[device_of(options)];
    return rc;
}

/* Do what the command line asks for, unless it is to run the engine. Returns the exit status, or -1
 * to continue with *config. */
static int obey(int argc, char **argv, struct cste_engine_config *config)
{
    struct options options = {.fd = 3, .rates.node = -1};
    struct cst_err err;
    int rc = read_options(argc, argv, &options, &err);

    if (rc != CST_OK) {
        return tell(rc, &err);
    }
    if (options.help) {
        print_help();
        return EXIT_SUCCESS;
    }
    if (options.version) {
        printf("%s (%s) %s\n", program->name, PACKAGE_NAME, PACKAGE_VERSION);
        return EXIT_SUCCESS;
    }
    if (options.probe) {
        return tell(program->probe(stdout, &err), &err);
    }
    if (options.measure) {
        return tell(program->rates(&options.rates, stdout, &err), &err);
    }
    rc = configure(&options, config, &err);
    return rc == CST_OK ? -1 : tell(rc, &err);
}

int cste_engine_main(const struct cste_engine_program *which, int argc, char **argv)
{
    struct cste_engine_config config = {.warn = warn};
    struct cst_err err;
    int rc;

    program = which;
    rc = cst_isa_check(&err);
    if (rc != CST_OK) {
        return tell(rc, &err);
    }
    rc = obey(argc, argv, &config);
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

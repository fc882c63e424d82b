/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h> /* the build's, not daemon/settings.h */
#endif
#include "daemon/options.h"

#include "daemon/host_memory.h"
#include "dirs.h"
#include "proto/usage.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

/* Options that set a key of the configuration. */
static const struct setting {
    const char *option;
    const char *section;
    const char *key;
} settings[] = {
    {"socket", "daemon", "socket"},          {"manager-socket", "daemon", "manager_socket"},
    {"host-memory", "host", "memory"},       {"pool-memory", "device host", "pool"},
    {"engine-threads", "engine", "threads"}, {"engine", "engine", "program"},
    {"log-level", "daemon", "log_level"},    {"gpus", "gpu", "devices"},
    {"gpu-memory", "gpu", "pool"},           {"engine-cuda", "gpu", "program"},
};

enum {
    N_SETTINGS = sizeof settings / sizeof *settings,
    CONFIG = N_SETTINGS,
    FOREGROUND,
    VERSION_OPTION,
    HELP
};

static const struct option long_options[] = {
    {"socket", required_argument, NULL, 0},
    {"manager-socket", required_argument, NULL, 1},
    {"host-memory", required_argument, NULL, 2},
    {"pool-memory", required_argument, NULL, 3},
    {"engine-threads", required_argument, NULL, 4},
    {"engine", required_argument, NULL, 5},
    {"log-level", required_argument, NULL, 6},
    {"gpus", required_argument, NULL, 7},
    {"gpu-memory", required_argument, NULL, 8},
    {"engine-cuda", required_argument, NULL, 9},
    {"config", required_argument, NULL, CONFIG},
    {"foreground", no_argument, NULL, FOREGROUND},
    {"version", no_argument, NULL, VERSION_OPTION},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "Usage: cisternd [OPTION]...\n"
    "The memory daemon of cistern. It owns the model states of training jobs on this machine.\n"
    "\n"
    "  --config FILE           read FILE (default: " CST_SYSCONFDIR
    "/cistern/cistern.conf, if it is there)\n"
    "  --socket PATH           socket for workers (default: /run/cistern/cistern.sock)\n"
    "  --manager-socket PATH   socket for managers (default: manager.sock in the same directory)\n"
    "  --host-memory SIZE      budget for model states: 24G, 75% (default: 60%)\n"
    "  --pool-memory SIZE      budget for pools in host memory (default: 25%)\n"
    "  --gpus LIST             GPUs to use: all, none, or numbers and UUIDs (default: all)\n"
    "  --gpu-memory SIZE       budget on each GPU for pools, updates and states (default: 90%)\n"
    "  --engine-threads N      compute threads of each engine (default: 0, all cores)\n"
    "  --engine PATH           engine program for NUMA nodes\n"
    "  --engine-cuda PATH      engine program for GPUs\n"
    "  --log-level LEVEL       log this level and above: error, warning, notice, info or debug\n"
    "  --foreground            stay in the foreground (always so)\n"
    "  --version, --help\n";

/* Called twice: first with @config NULL, to find the name of the file, because options override the
 * file and must be applied after it. */
static int scan(int argc, char **argv, struct cstd_settings *config, const char **file,
                enum cstd_options_result *result, struct cst_err *err)
{
    int c;

    optind = 1;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (c == ':' || c == '?') {
            return cst_usage_refused(c, argv, long_options, err);
        }
        if (c == CONFIG) {
            *file = optarg;
        } else if (c == VERSION_OPTION || c == HELP) {
            (void)fputs(c == HELP ? help : "cisternd " PACKAGE_VERSION "\n", stdout);
            *result = CSTD_OPTIONS_EXIT;
            return CST_OK;
        } else if (c < N_SETTINGS && config != NULL) {
            int rc = cstd_settings_set(config, settings[c].section, settings[c].key, optarg, err);

            if (rc != CST_OK) {
                (void)cst_err_prefix(err, "--%s", settings[c].option);
                return rc;
            }
        }
    }
    if (optind < argc) {
        return cst_err_set(err, CST_EINVAL, "unexpected argument '%s' (see --help)", argv[optind]);
    }
    return CST_OK;
}

int cstd_options_read(struct cstd_settings *config, int argc, char **argv,
                      enum cstd_options_result *result, struct cst_err *err)
{
    const char *file = NULL;
    int rc;

    *result = CSTD_OPTIONS_RUN;
    cstd_settings_init(config, cstd_host_memory_memory(""));
    rc = scan(argc, argv, NULL, &file, result, err);
    if (rc != CST_OK || *result == CSTD_OPTIONS_EXIT) {
        return rc;
    }
    rc = cstd_settings_load(config, file != NULL ? file : CST_SYSCONFDIR "/cistern/cistern.conf",
                            file != NULL, err);
    if (rc == CST_OK) {
        rc = scan(argc, argv, config, &file, result, err);
    }
    return rc == CST_OK ? cstd_settings_finish(config, err) : rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h> /* the build's, not daemon/settings/settings.h */
#endif
#include "daemon/settings/options.h"

#include "daemon/budget/host_memory.h"
#include "dirs.h"
#include "proto/options.h"
#include "proto/rates_json.h"

#include <stddef.h>
#include <stdio.h>

/* Options that set a key of the configuration, in the order of the rows of the table. */
static const struct {
    const char *section;
    const char *key;
} keys[] = {
    {"daemon", "socket"},    {"daemon", "manager_socket"}, {"host", "memory"},
    {"device host", "pool"}, {"gpu", "devices"},           {"gpu", "pool"},
    {"engine", "threads"},   {"engine", "program"},        {"gpu", "program"},
    {"daemon", "log_level"},
};

enum { N_KEYS = sizeof keys / sizeof *keys };

struct command_line {
    const char *values[N_KEYS]; /* Per entry of keys: the value; NULL: not given. */
    const char *config;         /* --config; NULL: the default file. */
    bool handover;              /* --handover */
    bool check;                 /* --check-config */
    bool help, version;         /* --help, --version */
};

#define AT(name) offsetof(struct command_line, name)
#define ROW(option, argument, help, ...) CST_OPTION(option, 0, 0, argument, help, __VA_ARGS__)
#define KEY(number, option, argument, help)                                                        \
    ROW(option, argument, help, CST_TEXT(AT(values[0]) + (number) * sizeof(const char *)))

static const struct cst_option table[] = {
    KEY(0, "socket", "PATH", "socket for workers (default: /run/cistern/cistern.sock)"),
    KEY(1, "manager-socket", "PATH",
        "socket for other users' jobs (default: manager.sock in the same directory)"),
    KEY(2, "host-memory", "SIZE", "budget for model states: 24G, 75% (default: 60%)"),
    KEY(3, "pool-memory", "SIZE", "budget for pools in host memory (default: 25%)"),
    KEY(4, "gpus", "LIST", "GPUs to use: all, none, or numbers and UUIDs (default: all)"),
    KEY(5, "gpu-memory", "SIZE",
        "budget on each GPU for pools, updates and states (default: what contexts and workers "
        "leave)"),
    KEY(6, "engine-threads", "N", "compute threads of each engine (default: 0, all cores)"),
    KEY(7, "engine", "PATH", "engine program for NUMA nodes"),
    KEY(8, "engine-cuda", "PATH", "engine program for GPUs"),
    KEY(9, "log-level", "LEVEL", "log this level and above: error, warning, notice, info or debug"),
    ROW("config", "FILE",
        "read FILE (default: " CST_SYSCONFDIR "/cistern/cistern.conf, if it is there)",
        CST_TEXT(AT(config))),
    ROW("check-config", NULL,
        "print all errors of the options and the configuration file (--config, or FILE after this "
        "option), and exit",
        CST_FLAG(AT(check))),
    ROW("handover", NULL, "take over all jobs from the daemon that listens at these sockets",
        CST_FLAG(AT(handover))),
    ROW("help", NULL, "print this text", CST_FLAG(AT(help))),
    ROW("version", NULL, "print the version of this program", CST_FLAG(AT(version))),
    CST_OPTION_END,
};

static void print_help(void)
{
    (void)printf("Usage: cisternd [OPTION]...\n"
                 "The memory daemon of cistern. It owns the model states of training jobs on this "
                 "machine.\n\n");
    cst_options_print(table, 0, stdout);
}

/* Apply the options that set keys. */
static int set_keys(struct cstd_settings *config, const struct command_line *line,
                    struct cst_err *err)
{
    int rc = CST_OK;

    for (size_t i = 0; i < N_KEYS && rc == CST_OK; i++) {
        if (line->values[i] != NULL && cstd_settings_set(config, keys[i].section, keys[i].key,
                                                         line->values[i], err) != CST_OK) {
            rc = cst_err_prefix(err, "--%s", table[i].name);
        }
    }
    return rc;
}

/* Print an error that --check-config finds. */
static void report(const struct cst_err *err)
{
    (void)fprintf(stderr, "cisternd: %s\n", err->text);
}

/* Check the files that the configuration names, and agreement of the settings. */
static int check_others(struct cstd_settings *config, struct cst_err *err)
{
    struct cst_rates rates;
    int rc = cstd_settings_finish(config, err);

    if (rc == CST_OK && config->rates[0] != '\0' &&
        cst_rates_read(&rates, config->rates, err) != CST_OK) {
        rc = cst_err_prefix(err, "[plan] rates");
    }
    return rc == CST_OK ? cstd_links_config_check(&config->node, err) : rc;
}

/* --check-config: print all errors of the file, and what the options and the file together have. */
static int check(struct cstd_settings *config, const struct command_line *line,
                 enum cstd_options_result *result, struct cst_err *err)
{
    const unsigned n = cstd_settings_check(config, report);
    char file[CSTD_SETTINGS_PATH_BYTES];
    int rc;

    *result = CSTD_OPTIONS_EXIT;
    if (n > CSTD_SETTINGS_MAX_ERRORS) {
        return cst_err_set(err, CST_EINVAL, "%s: more than %d errors, of which these are the first",
                           config->file, CSTD_SETTINGS_MAX_ERRORS);
    }
    if (n > 0) {
        return cst_err_set(err, CST_EINVAL, "%s: %u error%s", config->file, n, n == 1 ? "" : "s");
    }
    (void)snprintf(file, sizeof file, "%s", config->file);
    rc = cstd_settings_load(config, file, config->file_required, err);
    rc = rc == CST_OK ? set_keys(config, line, err) : rc;
    return rc == CST_OK ? check_others(config, err) : rc;
}

int cstd_options_read(struct cstd_settings *config, int argc, char **argv,
                      enum cstd_options_result *result, struct cst_err *err)
{
    struct command_line line = {.config = NULL};
    struct cst_options_given given;
    const char *file;
    int rc = cst_options_read(table, &line, argc, argv, &given, err);

    *result = CSTD_OPTIONS_WRONG;
    if (rc == CST_OK && (line.help || line.version)) {
        *result = CSTD_OPTIONS_EXIT;
        if (line.help) {
            print_help();
        } else {
            (void)printf("cisternd " PACKAGE_VERSION "\n");
        }
        return CST_OK;
    }
    if (rc == CST_OK && line.check && line.config == NULL && given.first + 1 == argc) {
        line.config = argv[given.first++];
    }
    if (rc == CST_OK && given.first < argc) {
        rc = cst_err_set(err, CST_EINVAL, "unexpected argument '%s' (see --help)",
                         argv[given.first]);
    }
    if (rc != CST_OK) {
        return rc;
    }
    *result = CSTD_OPTIONS_RUN;
    cstd_settings_init(config, cstd_host_memory_memory(""));
    file = line.config != NULL ? line.config : CST_SYSCONFDIR "/cistern/cistern.conf";
    if (line.check) {
        (void)snprintf(config->file, sizeof config->file, "%s", file);
        config->file_required = line.config != NULL;
        return check(config, &line, result, err);
    }
    rc = cstd_settings_load(config, file, line.config != NULL, err);
    config->handover = line.handover;
    if (rc == CST_OK) {
        rc = set_keys(config, &line, err);
        *result = rc == CST_OK ? CSTD_OPTIONS_RUN : CSTD_OPTIONS_WRONG;
    }
    return rc == CST_OK ? cstd_settings_finish(config, err) : rc;
}

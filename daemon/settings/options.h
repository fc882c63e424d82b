/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cisternd. */
#ifndef CSTD_OPTIONS_H
#define CSTD_OPTIONS_H

#include "daemon/settings/settings.h"

enum cstd_options_result {
    CSTD_OPTIONS_RUN,
    /* --help, --version or all errors of --check-config were printed: the program has nothing else
     * to do. */
    CSTD_OPTIONS_EXIT,
    /* The command line is wrong. */
    CSTD_OPTIONS_WRONG
};

/* Build @config from the defaults, the file and @argv; later ones override earlier ones. --help and
 * --version are printed to stdout and set *result. CST_EINVAL with CSTD_OPTIONS_WRONG:
 * unknown option or bad value; the words say what is allowed. Other errors are those of
 * cstd_settings_load and cstd_settings_finish, with CSTD_OPTIONS_RUN, or with CSTD_OPTIONS_EXIT if
 * --check-config found them. */
int cstd_options_read(struct cstd_settings *config, int argc, char **argv,
                      enum cstd_options_result *result, struct cst_err *err);

#endif

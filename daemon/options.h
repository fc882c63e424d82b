/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cisternd. */
#ifndef CST_OPTIONS_H
#define CST_OPTIONS_H

#include "daemon/config.h"

enum cst_options_result {
    CST_OPTIONS_RUN,
    CST_OPTIONS_EXIT
}; /* EXIT: --help or --version was printed */

/* Build @config from defaults, file and @argv, in this order. Prints --help and --version to stdout
 * and sets *result. CST_EINVAL: unknown option or bad value, with what is allowed; else as
 * cst_config_load and cst_config_finish. */
int cst_options_read(struct cst_config *config, int argc, char **argv,
                     enum cst_options_result *result, struct cst_err *err);

#endif

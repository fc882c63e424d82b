/* SPDX-License-Identifier: Apache-2.0 */
/* The options of all commands of `cistern`. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "client/cli/cli.h"
#include "proto/options.h"

/* An option has one of these bits, or none. A command takes the options whose bit is in its `uses`,
 * and all options without a bit. */
enum {
    CLI_USES_JSON = 1 << 0,
    CLI_USES_WATCH = 1 << 1,
    CLI_USES_UID = 1 << 2,
    CLI_USES_COUNT = 1 << 3,
    CLI_USES_OUTPUT = 1 << 4,
    CLI_USES_DISK = 1 << 5,
    CLI_USES_PLAN = 1 << 6,
    CLI_USES_SAVE = 1 << 7,
    CLI_USES_CHECK = 1 << 8,
    CLI_USES_LOAD = 1 << 9,
    CLI_USES_DRAIN = 1 << 10,
    CLI_USES_RUN = 1 << 11,
    CLI_USES_FORCE = 1 << 12,
    CLI_USES_SCHEDULE = 1 << 13,
    CLI_USES_MESHES = 1 << 14,
    CLI_USES_TOP = 1 << 15,
    CLI_USES_LISTEN = 1 << 16,
    CLI_USES_READER = 1 << 17,
    CLI_USES_PAUSE = 1 << 18,
    CLI_USES_RESUME = 1 << 19,
};

/* All options, in the order of the help. They set fields of struct cli. */
extern const struct cst_option cli_options[];

/* A command line without options. */
struct cli cli_options_none(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* cisternd: the memory daemon. Errors at the start are reported in one line. The exit status is
 * then 2 if the command line is wrong, and 1 otherwise. */
#include "daemon/daemon.h"
#include "daemon/base/log.h"
#include "daemon/settings/options.h"
#include "proto/isa.h"
#include "proto/program.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    static struct cstd_settings config;
    static struct cstd_daemon daemon;
    struct cst_err err = {0};
    enum cstd_options_result result;
    int rc;

    rc = cst_program_open_standard_files(&err);
    cstd_log_init(CSTD_LOG_INFO);
    if (rc != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "%s", err.text);
        return EXIT_FAILURE;
    }
    if (cstd_options_read(&config, argc, argv, &result, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "%s", err.text);
        return result == CSTD_OPTIONS_WRONG ? 2 : EXIT_FAILURE;
    }
    if (result == CSTD_OPTIONS_EXIT) {
        return EXIT_SUCCESS;
    }
    cstd_log_init((enum cstd_log_level)config.log_level);
    if (cst_isa_check(&err) != CST_OK || cstd_daemon_open(&daemon, &config, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "%s", err.text);
        return EXIT_FAILURE;
    }
    cstd_daemon_run(&daemon);
    if (daemon.leaving) { /* Nothing may be taken apart that the next process goes on with. */
        cstd_log(CSTD_LOG_NOTICE, "stopped; jobs are kept");
        return EXIT_SUCCESS;
    }
    cstd_daemon_close(&daemon);
    return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* cisternd: the memory daemon. Errors at the start are reported in one line, with exit status 1. */
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/options.h"
#include "proto/isa.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    static struct cst_config config;
    static struct cst_daemon daemon;
    struct cst_err err = {0};
    enum cst_options_result result;

    cst_log_init(CST_LOG_INFO);
    if (cst_options_read(&config, argc, argv, &result, &err) != CST_OK) {
        cst_log(CST_LOG_ERROR, "%s", err.text);
        return EXIT_FAILURE;
    }
    if (result == CST_OPTIONS_EXIT) {
        return EXIT_SUCCESS;
    }
    cst_log_init((enum cst_log_level)config.log_level);
    if (cst_isa_check(&err) != CST_OK || cst_daemon_open(&daemon, &config, &err) != CST_OK) {
        cst_log(CST_LOG_ERROR, "%s", err.text);
        return EXIT_FAILURE;
    }
    cst_daemon_run(&daemon);
    cst_daemon_close(&daemon);
    return EXIT_SUCCESS;
}

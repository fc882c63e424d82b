/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that depend on others. */
#include "daemon/settings/settings.h"

#include "proto/size.h"

#include <stdio.h>
#include <string.h>

static int finish_manager_socket(struct cstd_settings *config, struct cst_err *err)
{
    /* Not NULL, because only absolute paths are accepted. */
    const char *slash = strrchr(config->socket, '/');
    int dir = (int)(slash - config->socket);

    if (config->manager_socket[0] != '\0') {
        return CST_OK;
    }
    if ((size_t)dir + sizeof "/manager.sock" > sizeof config->manager_socket) {
        return cst_err_set(
            err, CST_EINVAL,
            "the path of 'manager.sock' in the directory of '%s' is too long: set manager_socket",
            config->socket);
    }
    (void)snprintf(config->manager_socket, sizeof config->manager_socket, "%.*s/manager.sock", dir,
                   config->socket);
    return CST_OK;
}

/* Check the sum of the budgets. Budgets that were not set are reduced in favour of those that were
 * set and of simulated accelerators. */
static int finish_budgets(struct cstd_settings *config, struct cst_err *err)
{
    uint64_t paced = config->n_paced * config->paced_memory, left = config->memory_bytes;
    char host[CST_SIZE_TEXT], pool[CST_SIZE_TEXT], machine[CST_SIZE_TEXT], each[CST_SIZE_TEXT];

    (void)cst_size_text(config->memory_bytes, machine);
    /* Divided, because the product above may have wrapped. */
    if (config->n_paced > 0 && config->paced_memory > left / config->n_paced) {
        return cst_err_set(
            err, CST_EBUDGET,
            "%u simulated accelerators of %s exceed the machine's memory of %s: lower 'memory' "
            "or 'devices' in [paced]",
            config->n_paced, cst_size_text(config->paced_memory, each), machine);
    }
    left -= paced;
    /* Checked first, for a message that names only the setting that is wrong. */
    if (config->host_bytes > config->memory_bytes) {
        return cst_err_set(
            err, CST_EBUDGET,
            "host memory of %s exceeds the machine's memory of %s: lower 'memory' in [host] or "
            "--host-memory",
            cst_size_text(config->host_bytes, host), machine);
    }
    if (!cstd_settings_was_given(config, &config->pool_bytes) && config->host_bytes <= left &&
        config->pool_bytes > left - config->host_bytes) {
        config->pool_bytes = left - config->host_bytes;
    }
    if (!cstd_settings_was_given(config, &config->host_bytes) && config->pool_bytes <= left &&
        config->host_bytes > left - config->pool_bytes) {
        config->host_bytes = left - config->pool_bytes;
    }
    if (config->host_bytes > left || config->pool_bytes > left - config->host_bytes) {
        return cst_err_set(err, CST_EBUDGET,
                           "host memory of %s and pools of %s exceed the machine's memory of %s, "
                           "of which simulated accelerators have %s: lower 'memory' in [host] or "
                           "'pool' in [device host]",
                           cst_size_text(config->host_bytes, host),
                           cst_size_text(config->pool_bytes, pool), machine,
                           cst_size_text(paced, each));
    }
    return CST_OK;
}

int cstd_settings_finish(struct cstd_settings *config, struct cst_err *err)
{
    int rc = finish_manager_socket(config, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (strcmp(config->socket, config->manager_socket) == 0) {
        return cst_err_set(err, CST_EINVAL, "socket and manager_socket are both '%s'",
                           config->socket);
    }
    rc = cstd_links_config_finish(&config->node, err);
    return rc == CST_OK ? finish_budgets(config, err) : rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/links/links_config.h"

#include "daemon/links/machine_list.h"
#include "daemon/links/tls.h"
#include "dirs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NODES_FILE "/var/lib/cistern/nodes"

void cstd_links_config_init(struct cstd_links_config *config)
{
    *config = (struct cstd_links_config){
        .key = CST_SYSCONFDIR "/cistern/" CST_NODE_KEY_NAME,
        .certificate = CST_SYSCONFDIR "/cistern/" CST_NODE_CERTIFICATE_NAME,
        .trusted = NODES_FILE,
        .wait_s = 30,
    };
}

int cstd_links_config_finish(struct cstd_links_config *config, struct cst_err *err)
{
    struct cstd_machine_address address;
    char host[256] = "";
    int rc;

    if (config->listen[0] == '\0') {
        return CST_OK;
    }
    rc = cstd_machine_address_read(&address, config->listen, err);
    if (rc != CST_OK) {
        return cst_err_prefix(err, "[node] listen");
    }
    if (config->network == CSTD_NETWORK_UNSAID) {
        return cst_err_set(
            err, CST_EINVAL,
            "[node] listen is set, and 'network' is not: write network = trusted if "
            "nobody else can reach or read the network that joins the nodes, or else "
            "network = encrypted");
    }
    if (config->name[0] == '\0' && gethostname(host, sizeof host - 1) == 0) {
        (void)snprintf(config->name, sizeof config->name, "%.*s",
                       (int)(sizeof config->name - 1 < strcspn(host, ".") ? sizeof config->name - 1
                                                                          : strcspn(host, ".")),
                       host);
    }
    return cst_job_name_is_valid(config->name)
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "'%.63s' cannot be the name of this node: set 'name' in [node] "
                             "to " CST_JOB_NAME_RULE,
                             config->name);
}

int cstd_links_config_check(const struct cstd_links_config *config, struct cst_err *err)
{
    struct cstd_machine_address address;
    struct cstd_tls_context *context = NULL;
    struct sockaddr_storage at;
    struct cstd_machine_list list;
    int rc;

    if (config->listen[0] == '\0') {
        return CST_OK;
    }
    rc = cstd_machine_address_read(&address, config->listen, err);
    rc = rc == CST_OK ? cstd_machine_address_own(&address, &at, err) : rc;
    if (rc != CST_OK) {
        return cst_err_prefix(err, "[node] listen");
    }
    rc =
        cstd_tls_context_open(&context, config->key, config->certificate, config->authorities, err);
    cstd_tls_context_close(context);
    rc = rc == CST_OK ? cstd_machine_list_read(&list, config->trusted, err) : rc;
    return rc == CST_OK ? CST_OK : cst_err_prefix(err, "[node]");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* [node] of the configuration: what a daemon needs for its links to other machines. */
#ifndef CSTD_LINKS_CONFIG_H
#define CSTD_LINKS_CONFIG_H

#include "daemon/links/machine_address.h"
#include "proto/job_name.h"

#include <stdint.h>

#define CSTD_LINKS_PATH_BYTES 256

/* What the administrator says of the network that joins the machines: it is his alone, or what
 * crosses it must be encrypted. Links are always encrypted; this is about the engines that move
 * gradients and weights. */
enum cstd_network { CSTD_NETWORK_UNSAID, CSTD_NETWORK_TRUSTED, CSTD_NETWORK_ENCRYPTED };

struct cstd_links_config {
    char name[CST_JOB_NAME_BYTES];           /* Name of this machine; "": that of the host. */
    char listen[CSTD_MACHINE_ADDRESS_BYTES]; /* Where to listen; "": there are no links. */
    char key[CSTD_LINKS_PATH_BYTES];         /* This machine's key, a PEM file. */
    char certificate[CSTD_LINKS_PATH_BYTES]; /* Its certificate, a PEM file. */
    char trusted[CSTD_LINKS_PATH_BYTES];     /* The list of machines (machine_list.h). */
    char authorities[CSTD_LINKS_PATH_BYTES]; /* Certificates of the site's authorities; "": none. */
    enum cstd_network network;
    uint32_t wait_s; /* How long a job waits for a machine that is down to come back, s. */
};

struct cst_err;

/* Set the defaults. */
void cstd_links_config_init(struct cstd_links_config *config);

/* Derive the name of this machine, if there is a place to listen, and check that everything is
 * said. CST_EINVAL: something is missing or wrong. */
int cstd_links_config_finish(struct cstd_links_config *config, struct cst_err *err);

/* Read the files that @config names, and check the place to listen, without listening. Without a
 * place to listen there is nothing to check. Statuses of cstd_tls_context_open,
 * cstd_machine_list_read and cstd_machine_address_own. */
int cstd_links_config_check(const struct cstd_links_config *config, struct cst_err *err);

#endif

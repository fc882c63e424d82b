/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon was told: defaults, then the configuration file (INI), then the command line. A
 * value that makes no sense is refused with the file, the line and what is allowed; so is an
 * unknown or repeated key. */
#ifndef CST_CONFIG_H
#define CST_CONFIG_H

#include "daemon/access.h"
#include "daemon/quota_rules.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_CONFIG_PATH_BYTES 256
#define CST_CONFIG_SOCKET_BYTES 108 /* sun_path, with the NUL */
#define CST_CONFIG_MAX_NODES 8      /* NUMA nodes that get an engine */
#define CST_CONFIG_MAX_PACED 8      /* paced accelerators */
#define CST_CONFIG_INTERLEAVE_AUTO UINT32_MAX

enum cst_config_lock { CST_LOCK_NO, CST_LOCK_TRY, CST_LOCK_YES };
enum cst_config_copies { CST_COPIES_ENGINE, CST_COPIES_WORKER };

struct cst_config {
    char file[CST_CONFIG_PATH_BYTES];             /* that was read; empty: none was named */
    bool file_required;                           /* it must be there */
    uint64_t memory_bytes;                        /* of the machine; not a setting */
    char socket[CST_CONFIG_SOCKET_BYTES];         /* [daemon] socket */
    char manager_socket[CST_CONFIG_SOCKET_BYTES]; /* [daemon] manager_socket; empty: manager.sock
                                                     beside socket */
    int log_level;                                /* [daemon] log_level: enum cst_log_level */
    struct cst_access access;                     /* [daemon] access */
    uint64_t host_bytes;                  /* [host] memory: budget for arenas, tables, staging */
    enum cst_config_lock lock;            /* [host] lock: mlock of arenas */
    unsigned nodes[CST_CONFIG_MAX_NODES]; /* [host] nodes: NUMA nodes to use (OS numbers) */
    unsigned n_nodes;                     /* 0: all */
    uint64_t pool_bytes;                  /* [device host] pool: budget for all pools together */
    uint32_t threads;                     /* [engine] threads per engine; 0: all usable cores */
    uint32_t copy_threads;                /* [engine] copy_threads; 0: chosen */
    float copy_share;                     /* [engine] copy_share: 0..0.9, see cistern.conf(5) */
    uint64_t update_rate;               /* [engine] update_rate of a node's, elements/s; 0: none */
    char engine[CST_CONFIG_PATH_BYTES]; /* [engine] program; empty: looked for */
    uint32_t n_paced;                   /* [paced] devices */
    uint64_t paced_up, paced_down;      /* [paced] up, down: bytes/s each; 0: no rate is kept */
    uint64_t paced_update;              /* [paced] update: elements/s each; same */
    uint64_t paced_memory;              /* [paced] memory: of each, bytes */
    char gpu_devices[512];              /* [gpu] devices: "all", "none", or a list */
    char gpu_pool[32];                  /* [gpu] pool: budget for pools on each, a size */
    uint32_t gpu_idle_s;                /* [gpu] idle: an engine without a job ends after it */
    enum cst_config_copies gpu_copies;  /* [gpu] copies: of weights into their pools */
    uint64_t gpu_gather; /* [gpu] gather: smallest piece that GPUs exchange, bytes; 0: none */
    char gpu_engine[CST_CONFIG_PATH_BYTES]; /* [gpu] program; empty: looked for */
    char rates[CST_CONFIG_PATH_BYTES]; /* [plan] rates; empty: the usual file, if it is there */
    uint32_t interleave;               /* [plan] interleave: k of all jobs with rooms, 0: none;
                                          CST_CONFIG_INTERLEAVE_AUTO: chosen */
    bool plan_search;                  /* [plan] search: for jobs that leave the choice */
    uint32_t search_time_s;            /* [plan] search_time: longest that a search runs, s */
    uint32_t ttl_s;                    /* [job] ttl: a job without worker is removed after it; s */
    uint32_t timeout_s;                /* [job] timeout: longest wait for other ranks; s */
    uint32_t max_jobs;                 /* [job] max_jobs */
    uint32_t max_sessions;             /* [job] max_sessions */
    uint32_t credits;                  /* [job] credits: requests in flight per connection */
    struct cst_quota_rules quota;      /* [quota], [quota uid:N] ...: read anew by SIGHUP */
    uint64_t given;                    /* keys that were set, bit by row of the table in config.c */
};

/* Defaults for a machine of @memory_bytes. */
void cst_config_init(struct cst_config *config, uint64_t memory_bytes);

/* Read @path into @config. A file that is not there is fine unless @required. CST_EINVAL:
 * "FILE:LINE: ..."; CST_ENOTFOUND; CST_EIO. */
int cst_config_load(struct cst_config *config, const char *path, bool required,
                    struct cst_err *err);

/* Read @config's file anew, all of it, and give the limits of users and groups that it has now: the
 * only settings that can change while the daemon runs. As cst_config_load; *out is untouched on
 * failure. */
int cst_config_reload(const struct cst_config *config, struct cst_quota_rules *out,
                      struct cst_err *err);

/* Set one key as the file would, but more than once if need be: for the command line. CST_EINVAL
 * with what is allowed. */
int cst_config_set(struct cst_config *config, const char *section, const char *key,
                   const char *value, struct cst_err *err);

/* Fill in what follows from other settings and refuse what cannot be: budgets beyond the machine's
 * memory (CST_EBUDGET, with both numbers). After everything has been read. */
int cst_config_finish(struct cst_config *config, struct cst_err *err);

#endif

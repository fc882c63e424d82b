/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's configuration: defaults, replaced by the configuration file (INI), replaced by the
 * command line. An invalid value is refused with the file, the line and the allowed values. An
 * unknown or repeated key is refused as well. See cistern.conf(5). */
#ifndef CSTD_SETTINGS_H
#define CSTD_SETTINGS_H

#include "daemon/base/access.h"
#include "daemon/budget/quota_rules.h"
#include "daemon/links/links_config.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CSTD_SETTINGS_PATH_BYTES 256
#define CSTD_SETTINGS_SOCKET_BYTES 108 /* Size of sun_path, including the terminating NUL. */
#define CSTD_SETTINGS_MAX_NODES 8      /* Most NUMA nodes that get an engine. */
#define CSTD_SETTINGS_MAX_PACED 8      /* Most simulated accelerators. */
#define CSTD_SETTINGS_INTERLEAVE_AUTO UINT32_MAX
#define CSTD_SETTINGS_MAX_ERRORS 32 /* Most errors of a file that are reported. */

/* Locking of arenas in memory. CSTD_LOCK_TRY: a failure is a warning. CSTD_LOCK_YES: a failure
 * fails the job. */
enum cstd_settings_lock { CSTD_LOCK_TRY, CSTD_LOCK_YES, CSTD_LOCK_NO };
/* Who copies weights from host memory into pools on GPUs: the GPU's engine, or each worker. */
enum cstd_settings_copies { CSTD_COPIES_ENGINE, CSTD_COPIES_WORKER };

struct cstd_settings {
    /* The configuration file that was read; empty: no file was named. */
    char file[CSTD_SETTINGS_PATH_BYTES];
    bool file_required;    /* The file must exist. */
    bool handover;         /* Take over from the daemon at manager_socket; not a setting. */
    uint64_t memory_bytes; /* Memory of the machine in bytes; not a setting. */
    char socket[CSTD_SETTINGS_SOCKET_BYTES]; /* [daemon] socket. */
    /* [daemon] manager_socket; empty: manager.sock in the directory of socket. */
    char manager_socket[CSTD_SETTINGS_SOCKET_BYTES];
    int log_level;             /* [daemon] log_level, an enum cstd_log_level. */
    struct cstd_access access; /* [daemon] access. */
    uint64_t host_bytes; /* [host] memory: budget for arenas, job tables and staging, in bytes. */
    enum cstd_settings_lock lock;            /* [host] lock: whether arenas are locked in memory. */
    unsigned nodes[CSTD_SETTINGS_MAX_NODES]; /* [host] nodes: NUMA nodes to use (OS numbers). */
    unsigned n_nodes;                        /* Number of nodes in [host] nodes; 0: all. */
    /* [device host] pool: budget for all pools in host memory together, in bytes. */
    uint64_t pool_bytes;
    uint32_t threads;      /* [engine] threads of each engine; 0: all usable cores. */
    uint32_t copy_threads; /* [engine] copy_threads of each engine; 0: chosen by the engine. */
    double copy_share;     /* [engine] copy_share, 0 to 0.9: see cistern.conf(5). */
    /* [engine] update_rate of each node's engine, elements/s; 0: not limited. */
    uint64_t update_rate;
    /* [engine] program; empty: searched for in the usual places. */
    char engine[CSTD_SETTINGS_PATH_BYTES];
    uint32_t n_paced; /* [paced] devices: number of simulated accelerators. */
    /* [paced] up, down: bytes/s of each simulated accelerator; 0: not limited. */
    uint64_t paced_up, paced_down;
    /* [paced] update: elements/s of each simulated accelerator; 0: not limited. */
    uint64_t paced_update;
    uint32_t disk_timeout_s; /* [disk] timeout: longest time of a read or write of a drive, s. */
    uint64_t paced_memory;   /* [paced] memory: bytes of each simulated accelerator. */
    char gpu_devices[512];   /* [gpu] devices: "all", "none", or a list. */
    char gpu_pool[32]; /* [gpu] pool: budget on each GPU, as text: a size, a percentage or auto. */
    uint32_t gpu_idle_s; /* [gpu] idle: time in seconds after which an engine without a job ends. */
    enum cstd_settings_copies gpu_copies; /* [gpu] copies: who copies weights into pools on GPUs. */
    /* [gpu] gather: smallest piece of weights in bytes that GPUs obtain from each other; 0: they do
     * not. */
    uint64_t gpu_gather;
    bool gpu_peers; /* [gpu] peers: GPUs access each other's memory where the driver allows it. */
    /* [gpu] program; empty: searched for in the usual places. */
    char gpu_engine[CSTD_SETTINGS_PATH_BYTES];
    /* [plan] rates: file of the machine's rates; empty: the default file, if it exists. */
    char rates[CSTD_SETTINGS_PATH_BYTES];
    /* [plan] interleave: k of all jobs with device updates; 0: no device updates;
     * CSTD_SETTINGS_INTERLEAVE_AUTO: chosen for each job. */
    uint32_t interleave;
    /* [plan] search: search a plan for each job that leaves the choice to the daemon. */
    bool plan_search;
    uint32_t search_time_s; /* [plan] search_time: longest duration of a search, s. */
    uint32_t ttl_s;         /* [job] ttl: time after which a job without a worker is removed, s. */
    uint32_t timeout_s;     /* [job] timeout: longest wait for other ranks, s. */
    uint32_t max_jobs;      /* [job] max_jobs. */
    uint32_t max_sessions;  /* [job] max_sessions. */
    uint32_t credits;       /* [job] credits: most requests in flight per connection. */
    struct cstd_links_config node; /* [node]: links to other nodes. */
    /* [quota], [quota uid:N] and similar sections; SIGHUP reads them again. */
    struct cstd_quota_rules quota;
    uint64_t given; /* Keys that were set; bit i belongs to row i of the table in settings.c. */
};

/* Set the defaults for a machine of @memory_bytes. */
void cstd_settings_init(struct cstd_settings *config, uint64_t memory_bytes);

/* Read the file @path into @config. A missing file is an error only if @required. CST_EINVAL: a
 * line is invalid, "FILE:LINE: ..."; CST_ENOTFOUND: a required file is missing; CST_EIO: the file
 * cannot be read. */
int cstd_settings_load(struct cstd_settings *config, const char *path, bool required,
                       struct cst_err *err);

/* Read the file of @config, as cstd_settings_load did, and pass each error in it to @report, of the
 * first CSTD_SETTINGS_MAX_ERRORS lines that have one. Returns the number of errors, or
 * CSTD_SETTINGS_MAX_ERRORS + 1 if there are more. @config itself stays as it is. */
unsigned cstd_settings_check(const struct cstd_settings *config,
                             void (*report)(const struct cst_err *err));

/* Read @config's file again and store the limits of users and groups in *out. These limits are the
 * only settings that can change while the daemon runs, but the whole file must be valid. On failure
 * (statuses of cstd_settings_load) *out is unchanged. */
int cstd_settings_reload(const struct cstd_settings *config, struct cstd_quota_rules *out,
                         struct cst_err *err);

/* Set one key as the file would; used for the command line. A key may be set repeatedly.
 * CST_EINVAL: unknown key or invalid value; @err has what is allowed. */
int cstd_settings_set(struct cstd_settings *config, const char *section, const char *key,
                      const char *value, struct cst_err *err);

/* Return whether the file or the command line has set @field of @config, a row of the table. */
bool cstd_settings_was_given(const struct cstd_settings *config, const void *field);

/* Derive settings that depend on others, and check that settings agree. Called after file and
 * command line were read. CST_EBUDGET: the budgets exceed the machine's memory; CST_EINVAL: the
 * sockets' paths do not fit or are equal, or [node] is incomplete. */
int cstd_settings_finish(struct cstd_settings *config, struct cst_err *err);

#endif

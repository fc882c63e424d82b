/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of `cistern` share: the options, the connection, a request, and how a failure
 * is told. */
#ifndef CLI_H
#define CLI_H

#include "client/call.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

enum cli_exit { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2 };

/* What `cistern plan` was asked for; 0 and NULL: not given. */
struct cli_plan_wish {
    uint64_t device_bytes;  /* --device, of one rank; CST_PLAN_NO_LIMIT: not given */
    uint64_t host_bytes;    /* --host, of the node; same */
    uint64_t ranks;         /* --ranks */
    uint64_t micro_batches; /* --micro-batches, per step */
    double share;           /* --share, of the device's flops */
    const char *rates;      /* --rates: a file, or "a100" */
    const char *timeline;   /* --timeline: a file */
    bool recompute;         /* --recompute */
    bool simulate;          /* --simulate */
    bool what_if;           /* --what-if: also what the daemon cannot do yet */
    const char *save;       /* --save: a file */
    uint64_t batch;         /* --batch: of a preset, sequences */
    uint64_t context;       /* --context: of a preset, tokens */
    double flops;           /* --flops, of the device */
    const char *on;         /* --on: a device of the rates */
    uint32_t optimizer;     /* --optimizer, enum cst_optimizer */
    uint32_t moments;       /* --moments, enum cst_moments */
    uint32_t overlap;       /* --overlap, enum cst_overlap */
    uint64_t update_room;   /* --update-room, of each rank's device; CST_PLAN_ROOM_AUTO */
    uint64_t device_states; /* --device-states, same; so it may be */
    bool grad_over_weight;  /* --grad-over-weight */
};

struct cli {
    const char *socket;         /* NULL: $CISTERN_SOCKET or the default */
    const char *manager_socket; /* NULL: manager.sock beside the socket */
    bool json;                  /* --json */
    bool watch;                 /* --watch */
    double watch_seconds;       /* between two drawings */
    bool has_uid;               /* --uid: a job of another owner */
    uint32_t uid;               /* valid with has_uid */
    uint64_t count;             /* --count: pings */
    const char *output;         /* -o */
    const char *disk;           /* --disk: a directory or a size */
    struct cli_plan_wish plan;  /* of plan alone */
    char **args;                /* behind the command's name */
    int n_args;                 /* entries in args */
    struct cst_client *client;  /* connected before a command runs; NULL: it needs none, or wants
                                   one only if it is there */
};

/* Say "cistern: words" on stderr; returns CLI_EXIT_FAILURE, so that a command can end with it. */
int cli_fail(const struct cst_err *err);

/* Ask and wait; the reply is in @call, to reset. False: said on stderr, nothing to reset. */
bool cli_ask(struct cli *cli, struct cst_call *call, uint16_t type, const ProtobufCMessage *body,
             uint16_t reply_type, const ProtobufCMessageDescriptor *reply_form);

/* Take a page of the list of jobs; false stops. */
typedef bool (*cli_jobs_fn)(const Cistern__JobListPart *part, void *arg);

/* Ask for all jobs, page by page. False: said on stderr. */
bool cli_each_jobs(struct cli *cli, cli_jobs_fn fn, void *arg);

/* For a table of jobs: see jobs.c. */
struct cli_table;
void cli_jobs_begin(struct cli_table *table);
bool cli_jobs_rows(const Cistern__JobListPart *part, void *table);
bool cli_jobs_json(const Cistern__JobListPart *part, void *array);

/* The commands. Each returns an enum cli_exit. */
int cli_stat(struct cli *cli);
int cli_jobs(struct cli *cli);
int cli_job(struct cli *cli);
int cli_explain(struct cli *cli);
int cli_remove(struct cli *cli);
int cli_quota(struct cli *cli);
int cli_ping(struct cli *cli);
int cli_trace(struct cli *cli);
int cli_probe(struct cli *cli);
int cli_plan(struct cli *cli);

#endif

/* What the commands of `cistern` share: the options, the connection, a request, and how a failure
 * is told. */
#ifndef CLI_H
#define CLI_H

#include "client/call.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

enum cli_exit { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2 };

struct cli {
    const char *socket;         /* NULL: $CISTERN_SOCKET or the default */
    const char *manager_socket; /* NULL: manager.sock beside the socket */
    bool json;                  /* --json */
    bool watch;                 /* --watch */
    double watch_seconds;       /* between two drawings */
    bool has_uid;               /* --uid: a job of another owner */
    uint32_t uid;               /* valid with has_uid */
    uint64_t count;             /* --count: pings */
    char **args;                /* behind the command's name */
    struct cst_client *client;  /* connected before a command runs */
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
int cli_ping(struct cli *cli);

#endif

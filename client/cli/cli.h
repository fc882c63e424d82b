/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the commands of `cistern`: the options, the connection, a request to the daemon, and
 * the report of a failure. The program has one thread. */
#ifndef CLI_H
#define CLI_H

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_NO_UID UINT32_MAX

enum cli_exit { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2 };

#define CLI_PLAN_MICRO_BATCHES 1024 /* Most micro-batches of a plan's step. */

/* Options of `cistern plan`. 0 and NULL: not given, unless the comment says otherwise. */
struct cli_plan_request {
    uint64_t device_bytes; /* --device, of one rank; CST_PLAN_NO_LIMIT: not given. */
    uint64_t host_bytes;   /* --host, of the node; CST_PLAN_NO_LIMIT: not given. */
    uint64_t ranks;        /* --ranks; run: the number of ranks to start. */
    double share;          /* --share, of the device's flops. */
    const char *rates;     /* --rates: a file, or "a100". */
    const char *timeline;  /* --timeline: a file. */
    bool simulate;         /* --simulate */
    const char *save;      /* --save: a file; drain: a directory. */
    uint64_t batch;        /* --batch: sequences per micro-batch of a preset. */
    uint64_t context;      /* --context: tokens per sequence of a preset. */
    double flops;          /* --flops: flop/s of the device. */
    const char *on;        /* --on: name of a device in the rates. */
    /* The options of the job that a plan depends on. 0: not given. */
    struct cst_job_spec job;
    const char *config;  /* --config: a file with options of cistern-gpt. */
    uint32_t n_drives;   /* The number of directories for states in that file. */
    uint32_t n_machines; /* --nodes: machines that train one model. */
    uint32_t copies;     /* --copies: machines that have the states of a chunk. */
    double link;         /* --link: gigabits per second. */
    double tbw;          /* --tbw: terabytes that may be written to each drive. */
    /* --parallel: what the plan chooses. */
    enum { CLI_PARALLEL_NONE, CLI_PARALLEL_AUTO } parallel;
    const char *schedule; /* --schedule: a file. */
    const char *kind;     /* --kind: name of a kind of schedule. */
    /* --dp, --tp, --pp: degrees of data, tensor and pipeline parallelism. */
    uint64_t dp, tp, pp;
};

/* A command line. Strings are borrowed from argv. */
struct cli {
    const char *socket; /* --socket; NULL: $CISTERN_SOCKET or the default. */
    /* --manager-socket; NULL: manager.sock in the directory of the socket. */
    const char *manager_socket;
    const char *path;     /* The daemon's socket, which the options and the environment choose. */
    bool json;            /* --json */
    bool no_color;        /* --no-color */
    double watch_seconds; /* --watch: time between two drawings; 0: draw once. */
    uint32_t uid;         /* --uid: owner of the job; CLI_NO_UID: this user. */
    uint64_t count;       /* --count: number of pings. */
    const char *output;   /* --output: a file. */
    uint64_t every;       /* --every: steps between saves; 0: save once. */
    uint64_t keep;        /* --keep: checkpoints that remain; 0: all. */
    bool frozen;          /* --frozen: load the weights alone. */
    bool force;           /* --force: remove a job that has workers. */
    bool release_pools;   /* --release-pools: give the memory of a paused job's pools back. */
    bool wait;            /* --wait: drain when all jobs are done; resume when there is memory. */
    /* --weights: format of model files. */
    enum { CLI_WEIGHTS_BF16, CLI_WEIGHTS_FP32 } weights;
    uint32_t restart;             /* --restart: limit of restarts; 0: none. */
    uint32_t standby;             /* --standby: processes that wait for a rank to die. */
    uint32_t grace;               /* --grace: seconds for ranks to end, or for a save to begin. */
    bool no_pin;                  /* --no-pin: ranks run on any processor. */
    const char *nodes;            /* --nodes: names; plan: a number. */
    uint32_t ranks_per_node;      /* --ranks-per-node; 0: not given. */
    const char *rsh;              /* --rsh: a program and its arguments; NULL: not given. */
    uint32_t first_rank;          /* --first-rank: number in the job of the first rank here. */
    uint32_t all_ranks;           /* --all-ranks: ranks on all nodes; 0: those here. */
    bool follow;                  /* --follow: standard input has signals. */
    uint64_t steps;               /* --steps: versions to read. */
    bool keep_version;            /* --keep-version: steps wait for the reader. */
    bool check;                   /* --check: compare checksums. */
    const char *disk;             /* --disk: a directory; plan: directories or a number. */
    uint64_t bytes;               /* --bytes: size of a file; 0: not given. */
    const char *listen;           /* --listen: address of a port, or a path. */
    bool own_jobs;                /* --own-jobs: metrics of this user's jobs on a port. */
    uint64_t stages;              /* --stages: of a pipeline schedule; 0: not given. */
    struct cli_plan_request plan; /* Options of plan alone. */
    bool help, version;           /* --help, --version */
    char **args;                  /* Arguments after the command's name. */
    int n_args;                   /* Number of entries in args. */
    /* Connected before the command runs. NULL: the command needs no daemon, or it can use one but
     * there is none. */
    struct cst_client *client;
};

/* Give the terminal back if a screen has it (top/screen.h), and print "cistern: " and the error to
 * stderr. Returns CLI_EXIT_FAILURE, so that a command can end
 * with `return cli_fail(&err)`. */
int cli_fail(const struct cst_err *err);

/* Print to stderr that the command line is wrong: "@what: @which", or "@what" if @which is empty.
 * Returns CLI_EXIT_USAGE. */
int cli_usage(const char *what, const char *which);

/* Make a request and wait for the reply, which is then in @call; the caller resets @call. False: it
 * failed; the error was printed to stderr, and @call is reset. */
bool cli_ask(struct cli *cli, struct cstc_call *call, uint16_t type, const ProtobufCMessage *body,
             uint16_t reply_type, const ProtobufCMessageDescriptor *reply_form);

/* Make a request about the job that the command's first argument names, with a JobName as its body.
 * A JobRemove is one of a job without workers, unless --force is given. Returns as cli_ask. */
bool cli_ask_about(struct cli *cli, struct cstc_call *call, uint16_t type, uint16_t reply_type,
                   const ProtobufCMessageDescriptor *reply_form);

/* Ask for the JobInfo of the job that the command's first argument names, with all of its ranks.
 * Returns as cli_ask: the reply in @call is a JobInfoReply. */
bool cli_ask_job(struct cli *cli, struct cstc_call *call);

#define CLI_PAUSE_WORDS 96

/* Write to @out since when a job is paused; "": it is not. */
void cli_pause_words(const Cistern__JobInfo *job, char *out, size_t size);

struct cli_table;
struct cst_save_result;
struct json_t;

/* Print what was saved: @job, in the directory @dir. False: it cannot be printed as JSON; the error
 * was printed to stderr. */
bool cli_saved_print(const struct cli *cli, const struct cst_save_result *result, const char *job,
                     const char *dir);

/* A list that the daemon sends in pages. */
struct cli_list {
    uint16_t get, part;                     /* Types of the request and of a page. */
    const ProtobufCMessageDescriptor *form; /* Of a page. */
    const char *const *titles;              /* Of the table; see cli_table_init. */
    const char *none;                       /* What is printed for an empty list. */
    /* Get the items of a page. *more: another page follows. Returns the number of the items. */
    size_t (*items)(const ProtobufCMessage *page, ProtobufCMessage ***items, bool *more);
    /* Add the rows of an item to the table. */
    void (*add)(struct cli_table *table, const void *item);
};

/* Request a list and print it, as a table to @out or as a JSON array to stdout. False: it failed;
 * the error was printed to stderr. */
bool cli_list_print(struct cli *cli, const struct cli_list *list, FILE *out);

/* Request a list and append its items to the JSON array @array. False: as above. */
bool cli_list_append(struct cli *cli, const struct cli_list *list, struct json_t *array);

/* The lists of all jobs, and of what users may use. */
extern const struct cli_list cli_jobs_list, cli_quota_list;

/* Print all that is known of a job. False: out of memory; the error was printed to stderr. */
bool cli_job_print(const Cistern__JobInfo *job, FILE *out);

/* The commands. Each returns an enum cli_exit; cli_run also returns statuses of ranks. */
int cli_stat(struct cli *cli);
int cli_top(struct cli *cli);
int cli_jobs(struct cli *cli);
int cli_job(struct cli *cli);
int cli_tensors(struct cli *cli);
int cli_explain(struct cli *cli);
int cli_reader(struct cli *cli);
int cli_pause(struct cli *cli);
int cli_resume(struct cli *cli);
int cli_remove(struct cli *cli);
int cli_quota(struct cli *cli);
int cli_node_key(struct cli *cli);
int cli_node_add(struct cli *cli);
int cli_node_list(struct cli *cli);
int cli_node_drop(struct cli *cli);
int cli_node_drain(struct cli *cli);
int cli_ping(struct cli *cli);
int cli_metrics(struct cli *cli);
int cli_trace(struct cli *cli);
int cli_report(struct cli *cli);
int cli_save(struct cli *cli);
int cli_clone(struct cli *cli);
int cli_adopt(struct cli *cli);
int cli_load(struct cli *cli);
int cli_checkpoints(struct cli *cli);
int cli_drain(struct cli *cli);
int cli_probe(struct cli *cli);
int cli_plan(struct cli *cli);
int cli_run(struct cli *cli);
int cli_schedule(struct cli *cli);
int cli_meshes(struct cli *cli);

/* Set options of plan from the file of --config. The options that the command line has must be read
 * again afterwards. The statuses of cst_options_load. */
int cli_plan_config(struct cli *cli, struct cst_err *err);

#endif

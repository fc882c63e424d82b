/* SPDX-License-Identifier: Apache-2.0 */
/* What `cistern top` knows: the node and its jobs as of the last sample, rates since the sample
 * before it, and a history. A sample is a reply about the node and the list of all jobs. Does no
 * I/O except that the name of a user is looked up once for each job. */
#ifndef CLI_TOP_MODEL_H
#define CLI_TOP_MODEL_H

#include "client/cli/cli.h"
#include "client/cli/top/chart.h"
#include "proto/cistern.pb-c.h"
#include "proto/job_name.h"

#define CLI_TOP_NO_MARK '+' /* Mark of the jobs after the 26th. */

/* Memory of one kind: "host" for arenas, "pools" for pools in host memory, a device, a drive. */
struct cli_top_place {
    char name[64];
    double used;                      /* Bytes. */
    double size;                      /* Bytes for jobs; 0: not limited by the daemon. */
    struct cli_spark_history history; /* Of used. */
};

/* Memory of a job in one place. */
struct cli_top_use {
    char place[64];
    double bytes;
};

/* Numbers of a job that only grow, while one daemon has it. */
struct cli_top_counts {
    double hits, fetches; /* Fetches of weights. */
    double wait_s;        /* Time for which the ranks waited for weights, in all. */
    double updates;       /* Parameters that were updated. */
    double link;          /* Bytes to and from the ranks' pools. */
    double read, written; /* Bytes from and to drives. */
};

struct cli_top_job {
    char name[CST_JOB_NAME_BYTES];
    uint32_t uid;
    char user[33];               /* Name of the owner, or the uid. */
    char state[24];              /* A word of proto/job_states.h. */
    char mark;                   /* Letter of the job in bars. */
    uint32_t world;              /* Number of ranks. */
    char node_wait[160];         /* For which node it waits; "": for none. */
    char pause[CLI_PAUSE_WORDS]; /* Since when it is paused; "": it is not. */
    uint64_t step;               /* Number of steps. */
    double step_s;               /* Time of the last step, s; 0: there was none. */
    bool has_loss;               /* A step has given a loss. */
    double loss;                 /* Of the last step; may be NaN. */
    double bytes;                /* Memory in all places but drives. */
    struct cli_top_use uses[50]; /* Memory by place. */
    unsigned n_uses;
    struct cli_top_counts counts, before; /* Of the last sample and of the one before it. */
    bool has_before;                      /* The same daemon has sent `before`. */
    struct cli_spark_history losses;      /* One value for each sample with a new step. */
    struct cli_spark_history sizes;       /* Of bytes, one value for each sample. */
    bool seen;                            /* It was in the sample that is being taken. */
};

struct cli_top_model {
    char version[32], host[64];   /* Of the daemon. */
    double uptime_s;              /* Of the daemon. */
    uint32_t n_sessions;          /* Connections to the daemon. */
    uint64_t epoch;               /* Differs between starts of the daemon. */
    double now_s, before_s;       /* Times of the last sample and of the one before it, s. */
    unsigned n_samples;           /* Number of samples taken. */
    struct cli_top_place *places; /* Owned. */
    unsigned n_places;
    struct cli_top_job **jobs; /* Owned, in any order; see columns.h. */
    unsigned n_jobs;
    bool failed; /* Memory was short: something is missing. */
};

/* Begin a sample with the reply about the node, which arrived at @now_s. All 0 is a model before
 * the first sample. */
void cli_top_model_begin(struct cli_top_model *model, const Cistern__StatReply *stat, double now_s);

/* Add a job to the sample. */
void cli_top_model_add(struct cli_top_model *model, const Cistern__JobInfo *info);

/* End the sample: jobs that were not in it are forgotten. */
void cli_top_model_end(struct cli_top_model *model);

void cli_top_model_free(struct cli_top_model *model);

/* Return the job; NULL: it was not in the last sample. */
struct cli_top_job *cli_top_model_find(const struct cli_top_model *model, const char *name,
                                       uint32_t uid);

/* Return the bytes of @job in @place. */
double cli_top_job_use(const struct cli_top_job *job, const char *place);

/* Rates per second between the last two samples; NaN: not known. */
enum cli_top_rate {
    CLI_TOP_UPDATES, /* Updated parameters. */
    CLI_TOP_LINK,    /* Bytes to and from pools. */
    CLI_TOP_READ,    /* Bytes from drives. */
    CLI_TOP_WRITE,   /* Bytes to drives. */
};
double cli_top_rate_get(const struct cli_top_model *model, const struct cli_top_job *job,
                        enum cli_top_rate rate);

/* Return the part of fetches that were hits: between the last two samples or, if there were none,
 * since the job began. NaN: there were none at all. */
double cli_top_hit_rate(const struct cli_top_job *job);

/* Return the part of the time between the last two samples for which a rank waited for weights, as
 * the mean of all ranks. NaN: not known. */
double cli_top_wait_rate(const struct cli_top_model *model, const struct cli_top_job *job);

#endif

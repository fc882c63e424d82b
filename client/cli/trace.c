/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern trace`: writes the recent intervals of a job to a file for Perfetto. */
#include "client/cli/cli.h"
#include "client/cli/intervals.h"
#include "client/cli/timeline.h"

#include <stdio.h>
#include <string.h>

/* Per kind of interval: its name, and the lane of its engine on which it is drawn. */
static const struct {
    const char *name, *lane;
} kinds[] = {
    {"?", "other"},
    {"load", CLI_LANE_UP},
    {"stage", CLI_LANE_DOWN},
    {"reduce", CLI_LANE_SUMS},
    {"norm", CLI_LANE_SUMS},
    {"update", CLI_LANE_UPDATES},
    {"fill", CLI_LANE_UP},
    {"convert", "reads and writes"},
    {"read", "reads and writes"},
    {"write", "reads and writes"},
    {"wait", "wait"},
    {"step", "step"},
    {"states up", CLI_LANE_UP},
    {"states down", CLI_LANE_DOWN},
    {"compute", "compute"},
    {"commit", "wait"},
};

#define N_KINDS (sizeof kinds / sizeof *kinds)

/* What copies of states are at a drive. They have the kinds of copies of states to the place where
 * they are updated, and back. */
static const char *const drive_names[N_KINDS] = {
    [CISTERN__TRACE_INTERVAL__KIND__STATES_UP] = "read",
    [CISTERN__TRACE_INTERVAL__KIND__STATES_DOWN] = "write"};
static const char *const drive_lanes[N_KINDS] = {
    [CISTERN__TRACE_INTERVAL__KIND__STATES_UP] = "reads",
    [CISTERN__TRACE_INTERVAL__KIND__STATES_DOWN] = "writes"};

struct engines {
    char names[64][CLI_TIMELINE_NAME_BYTES]; /* Per engine: "node 0", "cuda:0". */
    bool drives[64];                         /* Per engine: it is that of a drive. */
    size_t n;
};

static void name_engine(const Cistern__StatReply *stat, const Cistern__EngineInfo *engine,
                        char out[CLI_TIMELINE_NAME_BYTES])
{
    if (engine->device == NULL) {
        (void)snprintf(out, CLI_TIMELINE_NAME_BYTES, "node %u", engine->node);
        return;
    }
    (void)snprintf(out, CLI_TIMELINE_NAME_BYTES, "%s", engine->device);
    for (size_t i = 0; i < stat->n_gpus; i++) {
        if (strcmp(engine->kind, "cuda") == 0 && strcmp(stat->gpus[i]->uuid, engine->device) == 0) {
            (void)snprintf(out, CLI_TIMELINE_NAME_BYTES, "cuda:%u, %.40s", stat->gpus[i]->index,
                           stat->gpus[i]->name);
        }
    }
}

static bool get_engines(struct cli *cli, struct engines *out)
{
    const Cistern__StatReply *stat;
    struct cstc_call call = {0};

    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_STAT, NULL, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                 &cistern__stat_reply__descriptor)) {
        return false;
    }
    stat = (const Cistern__StatReply *)call.reply;
    for (out->n = 0; out->n < stat->n_engines && out->n < 64; out->n++) {
        name_engine(stat, stat->engines[out->n], out->names[out->n]);
        out->drives[out->n] = strcmp(stat->engines[out->n]->kind, "disk") == 0;
    }
    cstc_call_reset(&call);
    return true;
}

static unsigned kind_of(const Cistern__TraceInterval *interval)
{
    unsigned kind = (unsigned)interval->kind;

    return kind < N_KINDS ? kind : 0;
}

/* Return whether the engine of the interval is that of a drive. */
static bool is_of_drive(const struct engines *engines, const Cistern__TraceInterval *interval)
{
    return drive_names[kind_of(interval)] != NULL && interval->number < engines->n &&
           engines->drives[interval->number];
}

static const char *name_of(const struct engines *engines, const Cistern__TraceInterval *interval)
{
    unsigned kind = kind_of(interval);

    return is_of_drive(engines, interval) ? drive_names[kind] : kinds[kind].name;
}

/* Make all lanes of an engine at its first interval, so that they have the same order for every
 * engine. */
static void make_lanes(struct cli_timeline *timeline, const char *engine, bool drive)
{
    static const char *const lanes[] = {CLI_LANE_UP, CLI_LANE_DOWN, CLI_LANE_SUMS,
                                        CLI_LANE_UPDATES};

    for (size_t i = 0; !drive && i < sizeof lanes / sizeof *lanes; i++) {
        (void)cli_timeline_lane(timeline, engine, lanes[i]);
    }
    for (unsigned kind = 0; drive && kind < N_KINDS; kind++) {
        if (drive_lanes[kind] != NULL) {
            (void)cli_timeline_lane(timeline, engine, drive_lanes[kind]);
        }
    }
}

/* Return whether the interval is of a rank, not of an engine. */
static bool is_of_rank(const Cistern__TraceInterval *interval)
{
    return interval->kind == CISTERN__TRACE_INTERVAL__KIND__WAIT ||
           interval->kind == CISTERN__TRACE_INTERVAL__KIND__LEASE ||
           interval->kind == CISTERN__TRACE_INTERVAL__KIND__COMMIT;
}

static const char *rank_name(const Cistern__TraceInterval *interval,
                             char out[CLI_TIMELINE_NAME_BYTES])
{
    (void)snprintf(out, CLI_TIMELINE_NAME_BYTES, "rank %u", interval->number);
    return out;
}

/* Return the lane of an interval. A step belongs to the job @job, waits and computation to a rank,
 * everything else to an engine. */
static uint32_t lane_of(struct cli_timeline *timeline, const struct engines *engines,
                        const char *job, const Cistern__TraceInterval *interval)
{
    const char *lane = kinds[kind_of(interval)].lane, *engine = "engine";
    bool drive = false;
    char rank[CLI_TIMELINE_NAME_BYTES];

    if (is_of_rank(interval)) {
        return cli_timeline_lane(timeline, rank_name(interval, rank),
                                 interval->ahead ? "fetch ahead" : lane);
    }
    if (interval->kind == CISTERN__TRACE_INTERVAL__KIND__STEP) {
        return cli_timeline_lane(timeline, job, lane);
    }
    if (interval->number < engines->n) {
        engine = engines->names[interval->number];
        drive = engines->drives[interval->number];
    }
    make_lanes(timeline, engine, drive);
    lane = is_of_drive(engines, interval) ? drive_lanes[kind_of(interval)] : lane;
    return cli_timeline_lane(timeline, engine, lane);
}

static void add(struct cli_timeline *timeline, const struct engines *engines, const char *job,
                const Cistern__TraceInterval *interval)
{
    struct cli_span span = {
        .lane = lane_of(timeline, engines, job, interval),
        .kind = name_of(engines, interval),
        .begin = interval->began_ns,
        .end = interval->began_ns + interval->ns,
        /* The step that was under way, from 1, as in the names of steps. */
        .step = interval->step + (interval->kind != CISTERN__TRACE_INTERVAL__KIND__STEP),
        .chunk = interval->has_chunk ? interval->chunk : CLI_TIMELINE_NONE,
        .bytes = interval->has_bytes ? interval->bytes : CLI_TIMELINE_NONE,
        .queued_ns = interval->has_queued_ns ? interval->queued_ns : CLI_TIMELINE_NONE,
    };

    if (interval->kind == CISTERN__TRACE_INTERVAL__KIND__STEP) {
        (void)snprintf(span.name, sizeof span.name, "step %llu",
                       (unsigned long long)interval->step);
    } else if (interval->has_chunk) {
        (void)snprintf(span.name, sizeof span.name, "%s %u%s", name_of(engines, interval),
                       interval->chunk, interval->grad ? " grad" : "");
    } else {
        (void)snprintf(span.name, sizeof span.name, "%s", name_of(engines, interval));
    }
    cli_timeline_add(timeline, &span);
}

/* Count the commands of an engine that wait for it, and those that it works on. */
static void count_commands(struct cli_timeline *timeline, const char *engine,
                           const Cistern__TraceInterval *interval)
{
    const uint64_t began = interval->began_ns, ended = began + interval->ns;

    if (interval->has_queued_ns) {
        cli_timeline_count(timeline, engine, "commands that wait", began - interval->queued_ns, 1);
        cli_timeline_count(timeline, engine, "commands that wait", began, -1);
    }
    cli_timeline_count(timeline, engine, "commands at work", began, 1);
    cli_timeline_count(timeline, engine, "commands at work", ended, -1);
}

/* Count the bytes of the blocks that a rank uses. */
static void count_lease(struct cli_timeline *timeline, const char *rank,
                        const Cistern__TraceInterval *interval)
{
    const int64_t bytes = (int64_t)interval->bytes;

    cli_timeline_count(timeline, rank, "bytes in use", interval->began_ns, bytes);
    cli_timeline_count(timeline, rank, "bytes in use", interval->began_ns + interval->ns, -bytes);
}

static void count(struct cli_timeline *timeline, const struct engines *engines,
                  const Cistern__TraceInterval *interval)
{
    char rank[CLI_TIMELINE_NAME_BYTES];

    if (interval->kind == CISTERN__TRACE_INTERVAL__KIND__LEASE) {
        count_lease(timeline, rank_name(interval, rank), interval);
    } else if (!is_of_rank(interval) && interval->kind != CISTERN__TRACE_INTERVAL__KIND__STEP &&
               interval->number < engines->n) {
        count_commands(timeline, engines->names[interval->number], interval);
    }
}

int cli_trace(struct cli *cli)
{
    struct cli_intervals intervals = {.v = NULL};
    struct cli_timeline timeline;
    struct engines engines;
    struct cst_err err = {0};
    char job[CLI_TIMELINE_NAME_BYTES];
    int rc = CLI_EXIT_FAILURE;

    cli_timeline_init(&timeline);
    (void)snprintf(job, sizeof job, "%s", cli->args[0]);
    (void)cli_timeline_lane(&timeline, job, "step"); /* Is drawn first. */
    if (get_engines(cli, &engines) && cli_intervals_get(cli, &intervals)) {
        for (size_t i = 0; i < intervals.n; i++) {
            add(&timeline, &engines, job, &intervals.v[i]);
            count(&timeline, &engines, &intervals.v[i]);
        }
        rc = cli_timeline_save(&timeline, cli->output, &err) == CST_OK ? CLI_EXIT_OK
                                                                       : cli_fail(&err);
    }
    cli_intervals_close(&intervals);
    cli_timeline_close(&timeline);
    return rc;
}

/* cistern trace: what a job did lately, as a file for Perfetto. */
#include "client/cli/cli.h"
#include "client/cli/timeline.h"

#include <stdio.h>
#include <string.h>

/* By number. */
static const char *const kind_names[] = {"?",    "load",    "stage", "reduce", "norm", "update",
                                         "fill", "convert", "read",  "write",  "wait", "step"};

struct engines {
    char names[64][CLI_TIMELINE_NAME_BYTES]; /* "host 0", by number */
    size_t n;
};

/* Names of the engines, as `cistern stat` has them. */
static bool get_engines(struct cli *cli, struct engines *out)
{
    const Cistern__StatReply *stat;
    struct cst_call call = {0};

    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_STAT, NULL, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                 &cistern__stat_reply__descriptor)) {
        return false;
    }
    stat = (const Cistern__StatReply *)call.reply;
    for (out->n = 0; out->n < stat->n_engines && out->n < 64; out->n++) {
        const Cistern__EngineInfo *engine = stat->engines[out->n];

        (void)snprintf(out->names[out->n], sizeof out->names[0], "engine %zu, %s", out->n,
                       engine->device != NULL ? engine->device : engine->kind);
    }
    cst_call_reset(&call);
    return true;
}

static const char *kind_name(const Cistern__TraceInterval *interval)
{
    unsigned kind = (unsigned)interval->kind;

    return kind < sizeof kind_names / sizeof *kind_names ? kind_names[kind] : kind_names[0];
}

/* Steps and waits are ranks' and the job's; all else an engine's, a lane for each kind. */
static uint32_t lane_of(struct cli_timeline *timeline, const struct engines *engines,
                        const Cistern__TraceInterval *interval)
{
    char process[CLI_TIMELINE_NAME_BYTES] = "job";
    const char *lane = kind_name(interval);

    if (interval->kind == CISTERN__TRACE_INTERVAL__KIND__WAIT) {
        (void)snprintf(process, sizeof process, "rank %u", interval->number);
        lane = interval->ahead ? "fetch ahead" : "wait";
    } else if (interval->kind != CISTERN__TRACE_INTERVAL__KIND__STEP) {
        (void)snprintf(process, sizeof process, "%s",
                       interval->number < engines->n ? engines->names[interval->number] : "engine");
    }
    return cli_timeline_lane(timeline, process, lane);
}

static void add(struct cli_timeline *timeline, const struct engines *engines,
                const Cistern__TraceInterval *interval)
{
    struct cli_span span = {
        .lane = lane_of(timeline, engines, interval),
        .begin = interval->began_ns,
        .end = interval->began_ns + interval->ns,
        .step = interval->step,
        .chunk = interval->has_chunk ? interval->chunk : CLI_TIMELINE_NONE,
        .bytes = interval->has_bytes ? interval->bytes : CLI_TIMELINE_NONE,
        .queued_ns = interval->has_queued_ns ? interval->queued_ns : CLI_TIMELINE_NONE,
    };

    if (interval->kind == CISTERN__TRACE_INTERVAL__KIND__STEP) {
        (void)snprintf(span.name, sizeof span.name, "step %llu",
                       (unsigned long long)interval->step);
    } else if (interval->has_chunk) {
        (void)snprintf(span.name, sizeof span.name, "%s %u%s", kind_name(interval), interval->chunk,
                       interval->grad ? " grad" : "");
    } else {
        (void)snprintf(span.name, sizeof span.name, "%s", kind_name(interval));
    }
    cli_timeline_add(timeline, &span);
}

/* All that there is now, page by page; what comes meanwhile is left. */
static bool get_intervals(struct cli *cli, struct cli_timeline *timeline,
                          const struct engines *engines)
{
    Cistern__TraceGet msg = CISTERN__TRACE_GET__INIT;
    uint64_t end = UINT64_MAX;

    msg.name = cli->args[0];
    msg.has_uid = cli->has_uid;
    msg.uid = cli->uid;
    while (msg.first < end) {
        const Cistern__TracePart *part;
        struct cst_call call = {0};

        if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_TRACE, &msg.base,
                     CISTERN__MSG_TYPE__MSG_TRACE_PART, &cistern__trace_part__descriptor)) {
            return false;
        }
        part = (const Cistern__TracePart *)call.reply;
        end = end == UINT64_MAX ? part->end : end;
        for (size_t i = 0; i < part->n_intervals; i++) {
            add(timeline, engines, part->intervals[i]);
        }
        msg.first = part->n_intervals > 0 ? part->first + part->n_intervals : end;
        cst_call_reset(&call);
    }
    return true;
}

int cli_trace(struct cli *cli)
{
    struct cli_timeline timeline;
    struct engines engines;
    struct cst_err err = {0};
    int rc = CLI_EXIT_FAILURE;

    cli_timeline_init(&timeline);
    (void)cli_timeline_lane(&timeline, "job", "step"); /* comes first */
    if (get_engines(cli, &engines) && get_intervals(cli, &timeline, &engines)) {
        rc = cli_timeline_save(&timeline, cli->output, &err) == CST_OK ? CLI_EXIT_OK
                                                                       : cli_fail(&err);
    }
    cli_timeline_close(&timeline);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/timeline.h"
#include "proto/new_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Largest number of lanes that are drawn for one lane whose intervals overlap. */
enum { MAX_BESIDE = 64 };

struct cli_timeline_lane {
    char process[CLI_TIMELINE_NAME_BYTES];
    char name[CLI_TIMELINE_NAME_BYTES];
    uint32_t pid;              /* Number of the process, from 1. */
    bool counts;               /* It is a counter, not a lane. */
    uint32_t n_beside;         /* Number of lanes that are drawn for it. */
    uint64_t free[MAX_BESIDE]; /* Per drawn lane: end of its last interval, in ns. */
};

/* A change of a counter. */
struct cli_change {
    uint32_t lane;  /* Number of the counter among the lanes. */
    uint64_t at;    /* In ns. */
    int64_t change; /* What is added. */
};

void cli_timeline_init(struct cli_timeline *timeline)
{
    *timeline = (struct cli_timeline){.lanes = NULL};
}

void cli_timeline_close(struct cli_timeline *timeline)
{
    free(timeline->lanes);
    free(timeline->spans);
    free(timeline->changes);
}

static uint32_t add_lane(struct cli_timeline *timeline, const char *process, const char *name)
{
    uint32_t n = timeline->n_lanes, pid = 1;
    struct cli_timeline_lane *lane;

    if (n == timeline->lanes_capacity) {
        uint32_t capacity = n == 0 ? 16 : 2 * n;
        struct cli_timeline_lane *moved = realloc(timeline->lanes, capacity * sizeof *moved);

        if (moved == NULL) {
            timeline->status = CST_ENOMEM;
            return 0;
        }
        timeline->lanes = moved;
        timeline->lanes_capacity = capacity;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(timeline->lanes[i].process, process) == 0) {
            pid = timeline->lanes[i].pid;
            break;
        }
        pid = timeline->lanes[i].pid >= pid ? timeline->lanes[i].pid + 1 : pid;
    }
    lane = &timeline->lanes[timeline->n_lanes++];
    *lane = (struct cli_timeline_lane){.pid = pid};
    (void)snprintf(lane->process, sizeof lane->process, "%s", process);
    (void)snprintf(lane->name, sizeof lane->name, "%s", name);
    return n;
}

static uint32_t find_lane(struct cli_timeline *timeline, const char *process, const char *name,
                          bool counts)
{
    uint32_t i = 0;

    while (i < timeline->n_lanes && (timeline->lanes[i].counts != counts ||
                                     strcmp(timeline->lanes[i].process, process) != 0 ||
                                     strcmp(timeline->lanes[i].name, name) != 0)) {
        i++;
    }
    if (i == timeline->n_lanes) {
        i = add_lane(timeline, process, name);
        if (timeline->status == CST_OK) {
            timeline->lanes[i].counts = counts;
        }
    }
    return i;
}

uint32_t cli_timeline_lane(struct cli_timeline *timeline, const char *process, const char *name)
{
    return find_lane(timeline, process, name, false);
}

void cli_timeline_count(struct cli_timeline *timeline, const char *process, const char *name,
                        uint64_t at, int64_t change)
{
    const uint32_t lane = find_lane(timeline, process, name, true);

    if (timeline->n_changes == timeline->changes_capacity) {
        size_t capacity = timeline->n_changes == 0 ? 1024 : 2 * timeline->n_changes;
        struct cli_change *moved = realloc(timeline->changes, capacity * sizeof *moved);

        if (moved == NULL) {
            timeline->status = CST_ENOMEM;
            return;
        }
        timeline->changes = moved;
        timeline->changes_capacity = capacity;
    }
    timeline->changes[timeline->n_changes++] =
        (struct cli_change){.lane = lane, .at = at, .change = change};
}

void cli_timeline_add(struct cli_timeline *timeline, const struct cli_span *span)
{
    if (timeline->n_spans == timeline->spans_capacity) {
        size_t capacity = timeline->n_spans == 0 ? 1024 : 2 * timeline->n_spans;
        struct cli_span *moved = realloc(timeline->spans, capacity * sizeof *moved);

        if (moved == NULL) {
            timeline->status = CST_ENOMEM;
            return;
        }
        timeline->spans = moved;
        timeline->spans_capacity = capacity;
    }
    timeline->spans[timeline->n_spans++] = *span;
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Compare by the begin; of two intervals with the same begin, the longer one comes first. */
static int compare(const void *a, const void *b)
{
    const struct cli_span *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end > y->end ? -1 : x->end < y->end;
}

/* The output file, and the separator before the next event. */
struct out {
    FILE *to;
    const char *comma;
};

static FILE *next_event(struct out *out)
{
    (void)fputs(out->comma, out->to);
    out->comma = ",\n";
    return out->to;
}

static void write_text(FILE *to, const char *text)
{
    (void)fputc('"', to);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            (void)fputc('\\', to);
        }
        if (c < 0x20) {
            (void)fprintf(to, "\\u%04x", c);
        } else {
            (void)fputc(c, to);
        }
    }
    (void)fputc('"', to);
}

/* Write a time in microseconds, the unit of the format, without rounding. */
static void write_us(FILE *to, const char *key, uint64_t ns)
{
    (void)fprintf(to, "\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

/* Return the thread number of drawn lane @beside of @lane. */
static uint32_t tid_of(uint32_t lane, uint32_t beside)
{
    return lane * MAX_BESIDE + beside + 1;
}

static uint32_t find_free(struct cli_timeline_lane *lane, const struct cli_span *span)
{
    uint32_t i = 0;

    /* If all MAX_BESIDE lanes are busy, the intervals overlap on the last one. */
    while (i < lane->n_beside && lane->free[i] > span->begin && i + 1 < MAX_BESIDE) {
        i++;
    }
    lane->n_beside = i + 1 > lane->n_beside ? i + 1 : lane->n_beside;
    lane->free[i] = span->end > lane->free[i] ? span->end : lane->free[i];
    return i;
}

static void write_span(struct out *out, struct cli_timeline *timeline, const struct cli_span *span,
                       uint64_t zero)
{
    static const char *const keys[] = {"step", "chunk", "bytes", "queued_ns"};
    const uint64_t values[] = {span->step, span->chunk, span->bytes, span->queued_ns};
    struct cli_timeline_lane *lane = &timeline->lanes[span->lane];
    uint32_t beside = find_free(lane, span);
    const char *comma = "";
    FILE *to = next_event(out);

    (void)fputs("{\"ph\":\"X\",\"name\":", to);
    write_text(to, span->name);
    (void)fputs(",\"cat\":", to);
    write_text(to, span->kind != NULL ? span->kind : lane->name);
    (void)fprintf(to, ",\"pid\":%u,\"tid\":%u,", lane->pid, tid_of(span->lane, beside));
    write_us(to, "ts", span->begin - zero);
    (void)fputc(',', to);
    write_us(to, "dur", span->end - span->begin);
    (void)fputs(",\"args\":{", to);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (values[i] != CLI_TIMELINE_NONE) {
            (void)fprintf(to, "%s\"%s\":%" PRIu64, comma, keys[i], values[i]);
            comma = ",";
        }
    }
    (void)fputs("}}", to);
}

/* By counter, then by time. */
static int compare_changes(const void *a, const void *b)
{
    const struct cli_change *x = a, *y = b;

    if (x->lane != y->lane) {
        return x->lane < y->lane ? -1 : 1;
    }
    return x->at < y->at ? -1 : x->at > y->at;
}

static void write_counter(struct out *out, const struct cli_timeline_lane *lane, uint64_t at,
                          int64_t value)
{
    FILE *to = next_event(out);

    (void)fputs("{\"ph\":\"C\",\"name\":", to);
    write_text(to, lane->name);
    (void)fprintf(to, ",\"pid\":%u,", lane->pid);
    write_us(to, "ts", at);
    (void)fprintf(to, ",\"args\":{\"value\":%" PRId64 "}}", value);
}

/* Write the value of each counter after all its changes at one time. */
static void write_counters(struct out *out, struct cli_timeline *timeline, uint64_t zero)
{
    const struct cli_change *changes = timeline->changes;
    int64_t value = 0;

    if (timeline->n_changes > 0) {
        qsort(timeline->changes, timeline->n_changes, sizeof *changes, compare_changes);
    }
    for (size_t i = 0; i < timeline->n_changes; i++) {
        const bool last = i + 1 == timeline->n_changes;

        value += changes[i].change;
        if (last || compare_changes(&changes[i], &changes[i + 1]) != 0) {
            write_counter(out, &timeline->lanes[changes[i].lane], changes[i].at - zero, value);
        }
        value = last || changes[i].lane == changes[i + 1].lane ? value : 0;
    }
}

/* The earliest time of an interval, which are sorted, or of a change. */
static uint64_t earliest(const struct cli_timeline *timeline)
{
    uint64_t first = timeline->n_spans > 0 ? timeline->spans[0].begin : UINT64_MAX;

    for (size_t i = 0; i < timeline->n_changes; i++) {
        first = timeline->changes[i].at < first ? timeline->changes[i].at : first;
    }
    return first;
}

static void write_metadata(struct out *out, const char *what, uint32_t pid, uint32_t tid,
                           const char *key, const char *text, uint32_t number)
{
    FILE *to = next_event(out);

    (void)fprintf(to, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"%s\":", what,
                  pid, tid, key);
    if (text != NULL) {
        write_text(to, text);
    } else {
        (void)fprintf(to, "%u", number);
    }
    (void)fputs("}}", to);
}

/* Write the names and the order of processes and lanes. Called after the intervals are written,
 * because only then the number of drawn lanes is known. */
static void write_names(struct out *out, const struct cli_timeline *timeline)
{
    uint32_t named = 0;

    for (uint32_t i = 0; i < timeline->n_lanes; i++) {
        const struct cli_timeline_lane *lane = &timeline->lanes[i];

        if (lane->pid > named) {
            named = lane->pid;
            write_metadata(out, "process_name", lane->pid, 0, "name", lane->process, 0);
            write_metadata(out, "process_sort_index", lane->pid, 0, "sort_index", NULL, lane->pid);
        }
        for (uint32_t b = 0; b < lane->n_beside; b++) {
            write_metadata(out, "thread_name", lane->pid, tid_of(i, b), "name", lane->name, 0);
            write_metadata(out, "thread_sort_index", lane->pid, tid_of(i, b), "sort_index", NULL,
                           tid_of(i, b));
        }
    }
}

int cli_timeline_write(struct cli_timeline *timeline, FILE *to, struct cst_err *err)
{
    struct out out = {.to = to, .comma = ""};
    uint64_t zero;

    if (timeline->status != CST_OK) {
        return cst_err_set(err, timeline->status, "no memory for the timeline");
    }
    if (timeline->n_spans > 0) {
        qsort(timeline->spans, timeline->n_spans, sizeof *timeline->spans, compare);
    }
    zero = earliest(timeline);
    for (uint32_t i = 0; i < timeline->n_lanes; i++) {
        timeline->lanes[i].n_beside = 0;
        memset(timeline->lanes[i].free, 0, sizeof timeline->lanes[i].free);
    }
    (void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", to);
    for (size_t i = 0; i < timeline->n_spans; i++) {
        write_span(&out, timeline, &timeline->spans[i], zero);
    }
    write_counters(&out, timeline, zero);
    write_names(&out, timeline);
    (void)fputs("\n]}\n", to);
    if (fflush(to) != 0 || ferror(to) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "the timeline could not be written");
    }
    return CST_OK;
}

int cli_timeline_save(struct cli_timeline *timeline, const char *path, struct cst_err *err)
{
    struct cst_new_file file;
    int rc;

    if (path == NULL || strcmp(path, "-") == 0) {
        return cli_timeline_write(timeline, stdout, err);
    }
    rc = cst_new_file_open(&file, path, err);
    return rc == CST_OK ? cst_new_file_close(&file, cli_timeline_write(timeline, file.to, err), err)
                        : rc;
}

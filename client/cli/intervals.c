/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/intervals.h"

#include <stdlib.h>

void cli_intervals_close(struct cli_intervals *intervals)
{
    free(intervals->v);
    *intervals = (struct cli_intervals){.v = NULL};
}

static bool reserve(struct cli_intervals *intervals, size_t n)
{
    size_t capacity = intervals->capacity == 0 ? 1024 : intervals->capacity;
    Cistern__TraceInterval *more;

    while (capacity < intervals->n + n) {
        capacity *= 2;
    }
    if (capacity == intervals->capacity) {
        return true;
    }
    more = realloc(intervals->v, capacity * sizeof *more);
    if (more == NULL) {
        (void)cli_fail(&(struct cst_err){.text = "no memory for the job's intervals"});
        return false;
    }
    intervals->v = more;
    intervals->capacity = capacity;
    return true;
}

/* Append the intervals of a page that were there when the first page was sent: those before *end.
 * *first becomes the number of the interval after the page. */
static bool append(struct cli_intervals *out, const Cistern__TracePart *part, uint64_t *first,
                   uint64_t *end)
{
    *end = *end == UINT64_MAX ? part->end : *end;
    if (!reserve(out, part->n_intervals)) {
        return false;
    }
    for (size_t i = 0; i < part->n_intervals; i++) {
        out->v[out->n++] = *part->intervals[i];
    }
    /* part->first can be later than requested, because old intervals are overwritten. */
    out->lost = out->lost || part->first > *first;
    *first = part->n_intervals > 0 ? part->first + part->n_intervals : *end;
    return true;
}

bool cli_intervals_get(struct cli *cli, struct cli_intervals *out)
{
    Cistern__TraceGet msg = CISTERN__TRACE_GET__INIT;
    uint64_t end = UINT64_MAX;
    bool good = true;

    *out = (struct cli_intervals){.v = NULL};
    msg.name = cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    while (good && msg.first < end) {
        struct cstc_call call = {0};

        good = cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_TRACE, &msg.base,
                       CISTERN__MSG_TYPE__MSG_TRACE_PART, &cistern__trace_part__descriptor) &&
               append(out, (const Cistern__TracePart *)call.reply, &msg.first, &end);
        cstc_call_reset(&call);
    }
    if (!good) {
        cli_intervals_close(out);
    }
    return good;
}

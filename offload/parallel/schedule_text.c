/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/schedule_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {[CST_STAGE_FORWARD] = "F",
                                    [CST_STAGE_BACKWARD] = "B",
                                    [CST_STAGE_BACKWARD_INPUT] = "I",
                                    [CST_STAGE_BACKWARD_WEIGHT] = "W",
                                    [CST_STAGE_RECOMPUTE] = "UNSHARD"};

/* Actions that PyTorch adds to this form. */
static const char *const added[] = {"UNSHARD",     "RESHARD",         "SEND_F",      "RECV_F",
                                    "SEND_B",      "RECV_B",          "WAIT_SEND_F", "WAIT_SEND_B",
                                    "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

enum {
    MOST_ACTIONS = 4 * CST_SCHEDULE_MAX_UNITS,
    CELL_BYTES = 24, /* Of an action, including what separates it: "1023UNSHARD16383,". */
    SHOWN_BYTES = 40 /* Of a cell in an error. */
};

/* -- reading ---------------------------------------------------------------------------------- */

struct reading {
    struct cst_stage_action *actions; /* Owned. */
    uint32_t *ranks;                  /* The rank of each action. Owned. */
    size_t n, capacity;
    uint32_t row, cell; /* Where the reader is, from 0 on. */
    struct cst_schedule_size size;
};

static int refuse(const struct reading *r, const char *cell, size_t n, const char *words,
                  struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "row %" PRIu32 ", cell %" PRIu32 ": '%.*s%s': %s",
                       r->row + 1, r->cell + 1, (int)(n < SHOWN_BYTES ? n : SHOWN_BYTES), cell,
                       n > SHOWN_BYTES ? "..." : "", words);
}

/* Read the digits at *at, and move it behind them. False: there are none, or the number is not
 * below
 * @limit. */
static bool read_number(const char **at, const char *end, uint32_t limit, uint32_t *out)
{
    const char *from = *at;
    uint32_t number = 0;

    for (; *at < end && **at >= '0' && **at <= '9' && number < limit; (*at)++) {
        number = 10 * number + (uint32_t)(**at - '0');
    }
    *out = number;
    return *at > from && number < limit;
}

static bool is_name(const char *name, const char *at, size_t n)
{
    return strlen(name) == n && strncmp(name, at, n) == 0;
}

static bool is_added(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        if (is_name(added[i], name, n)) {
            return true;
        }
    }
    return false;
}

static int add(struct reading *r, struct cst_stage_action action, struct cst_err *err)
{
    if (r->n == r->capacity) {
        const size_t capacity = r->capacity > 0 ? 2 * r->capacity : 256;
        void *actions = realloc(r->actions, capacity * sizeof *r->actions);
        void *ranks = NULL;

        if (actions != NULL) {
            r->actions = actions;
            ranks = realloc(r->ranks, capacity * sizeof *r->ranks);
        }
        if (ranks == NULL) {
            return cst_err_set(err, CST_ENOMEM, "a schedule of more than %zu actions", r->n);
        }
        r->ranks = ranks;
        r->capacity = capacity;
    }
    r->actions[r->n] = action;
    r->ranks[r->n++] = r->row;
    if (action.stage >= r->size.n_stages) {
        r->size.n_stages = action.stage + 1U;
    }
    if (action.micro >= r->size.n_micro) {
        r->size.n_micro = action.micro + 1;
    }
    return CST_OK;
}

/* Read one action, without spaces around it. */
static int read_action(struct reading *r, const char *cell, size_t n, struct cst_err *err)
{
    const char *at = cell, *end = cell + n, *name;
    struct cst_stage_action action = {.kind = CST_STAGE_ACTION_COUNT};
    uint32_t stage;

    if (!read_number(&at, end, CST_SCHEDULE_MAX_STAGES, &stage)) {
        return refuse(r, cell, n, "wanted an action such as 2F0: stage, F, B, I or W, micro-batch",
                      err);
    }
    for (name = at; at < end && (*at < '0' || *at > '9');) {
        at++;
    }
    for (uint16_t kind = 0; kind < CST_STAGE_ACTION_COUNT; kind++) {
        if (is_name(names[kind], name, (size_t)(at - name))) {
            action.kind = kind;
        }
    }
    if (is_added(name, (size_t)(at - name)) &&
        (action.kind == CST_STAGE_ACTION_COUNT || at == end)) {
        return refuse(r, cell, n,
                      "PyTorch adds this action itself: wanted the compute-only form, which has "
                      "F, B, I and W",
                      err);
    }
    action.stage = (uint16_t)stage;
    if (action.kind == CST_STAGE_ACTION_COUNT ||
        !read_number(&at, end, CST_SCHEDULE_MAX_MICRO, &action.micro) || at != end) {
        return refuse(r, cell, n, "wanted an action such as 2F0: stage, F, B, I or W, micro-batch",
                      err);
    }
    return r->n < MOST_ACTIONS ? add(r, action, err)
                               : refuse(r, cell, n, "there are too many actions", err);
}

static void trim(const char **from, const char **end)
{
    while (*from < *end && isspace((unsigned char)**from)) {
        (*from)++;
    }
    while (*from < *end && isspace((unsigned char)(*end)[-1])) {
        (*end)--;
    }
}

/* Read the actions from @from to @end, which semicolons separate. */
static int read_actions(struct reading *r, const char *from, const char *end, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && from < end) {
        const char *next = memchr(from, ';', (size_t)(end - from));
        const char *a = from, *b = next != NULL ? next : end;

        trim(&a, &b);
        rc = read_action(r, a, (size_t)(b - a), err);
        from = next != NULL ? next + 1 : end;
    }
    return rc;
}

static int read_cell(struct reading *r, const char *from, const char *end, struct cst_err *err)
{
    static const char overlap[] = "OVERLAP_F_B";
    const char *close;

    trim(&from, &end);
    if (from == end) {
        return CST_OK;
    }
    if (*from != '(') {
        return read_action(r, from, (size_t)(end - from), err);
    }
    close = memchr(from, ')', (size_t)(end - from));
    if (close == NULL || !is_name(overlap, close + 1, (size_t)(end - close - 1))) {
        return refuse(r, from, (size_t)(end - from), "wanted (ACTION;ACTION)OVERLAP_F_B", err);
    }
    return read_actions(r, from + 1, close, err);
}

static int read_row(struct reading *r, const char *from, const char *end, struct cst_err *err)
{
    int rc = CST_OK;

    for (r->cell = 0; rc == CST_OK && from < end; r->cell++) {
        const char *comma = memchr(from, ',', (size_t)(end - from));

        rc = read_cell(r, from, comma != NULL ? comma : end, err);
        from = comma != NULL ? comma + 1 : end;
    }
    return rc;
}

static int read_rows(struct reading *r, const char *text, size_t n, struct cst_err *err)
{
    const char *end = text + n;
    int rc = CST_OK;

    for (; rc == CST_OK && text < end; r->row++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));

        if (r->row >= CST_SCHEDULE_MAX_STAGES) {
            return cst_err_set(err, CST_EINVAL, "more than %d rows: there is one for each rank",
                               CST_SCHEDULE_MAX_STAGES);
        }
        rc = read_row(r, text, newline != NULL ? newline : end, err);
        text = newline != NULL ? newline + 1 : end;
    }
    r->size.n_ranks = r->row;
    return rc;
}

/* Fill in the lists of *out, which is open, from what was read. */
static void fill(struct cst_schedule *out, const struct reading *r)
{
    uint32_t rank = 0;

    for (size_t i = r->n; i-- > 0;) { /* Backward, so that the first list with a stage is left. */
        out->rank_of[r->actions[i].stage] = r->ranks[i];
    }
    for (size_t i = 0; i < r->n; i++) {
        out->actions[i] = r->actions[i];
        while (rank < r->ranks[i]) {
            out->first[++rank] = (uint32_t)i;
        }
        if (r->actions[i].kind == CST_STAGE_RECOMPUTE) {
            out->recomputes[r->actions[i].stage] = true;
        }
    }
    while (rank < out->n_ranks) {
        out->first[++rank] = (uint32_t)r->n;
    }
}

int cst_schedule_read(struct cst_schedule *out, const char *text, size_t n, struct cst_err *err)
{
    struct reading r = {0};
    int rc = read_rows(&r, text, n, err);

    if (rc == CST_OK && r.n == 0) {
        rc = cst_err_set(err, CST_EINVAL, "there are no actions");
    }
    if (rc == CST_OK) {
        rc = cst_schedule_open(out, &r.size, r.n, err);
    }
    if (rc == CST_OK) {
        fill(out, &r);
    }
    free(r.actions);
    free(r.ranks);
    return rc;
}

/* -- writing ---------------------------------------------------------------------------------- */

int cst_schedule_write(char **text, size_t *n, const struct cst_schedule *schedule, bool recompute,
                       struct cst_err *err)
{
    const size_t most =
        (size_t)schedule->first[schedule->n_ranks] * CELL_BYTES + schedule->n_ranks + 1;
    char *out = malloc(most);
    size_t used = 0;

    if (out == NULL) {
        return cst_err_set(err, CST_ENOMEM, "the text of a schedule");
    }
    out[0] = '\0';
    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const char *separator = "";

        for (uint32_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
            const struct cst_stage_action action = schedule->actions[i];

            if (recompute || action.kind != CST_STAGE_RECOMPUTE) {
                used += (size_t)snprintf(out + used, most - used, "%s%u%s%" PRIu32, separator,
                                         (unsigned)action.stage, names[action.kind], action.micro);
                separator = ",";
            }
        }
        used += (size_t)snprintf(out + used, most - used, "\n");
    }
    *text = out;
    *n = used;
    return CST_OK;
}

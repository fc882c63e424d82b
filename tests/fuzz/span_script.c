/* SPDX-License-Identifier: Apache-2.0 */
/* The scripts of the span target: a job of two nodes that trains two steps, as node 0 and as node
 * 1, and a part that takes the place of a lost one. The seed has the first one as an input. */
#include "proto/span.pb-c.h"
#include "tests/fuzz/fake_links.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/span.h"

/* The other node tells a message of @type with the bytes of @fields. */
static void tell_fields(unsigned type, unsigned how, const unsigned *fields, unsigned n)
{
    script_put(SPAN_TELL);
    script_put(0);
    script_put(type - FAKE_FIRST_TYPE);
    script_put(how);
    script_put(n);
    script_put(0);
    for (unsigned i = 0; i < n; i++) {
        script_put(fields[i]);
    }
}

static void tell(unsigned type, unsigned how)
{
    tell_fields(type, how, NULL, 0);
    script_engine();
}

static void link_up(void)
{
    script_put(SPAN_LINK);
    script_put(0);
    script_put(1);
}

/* -- a worker ------------------------------------------------------------------------------- */

/* A job of two ranks on two nodes, of which this one has rank @first. */
static void open_job(unsigned first)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    char *options[] = {(char *)(uintptr_t) "all_ranks=2", (char *)(uintptr_t) "copies=2",
                       (char *)(uintptr_t) "first_rank=1"};

    open.world = 1;
    open.options = options;
    open.n_options = first > 0 ? 3 : 2;
    script_open_job(0, &open);
}

/* -- the other node ------------------------------------------------------------------------- */

/* The other node tells a message of its core of kind @kind about @attempt and @chunk. */
static void core(unsigned kind, unsigned attempt, unsigned chunk)
{
    const unsigned step = attempt > 0 ? attempt - 1 : 0;
    /* kind, attempt, step and chunk. */
    const unsigned fields[] = {2 << 3, kind, 4 << 3, attempt, 5 << 3, step, 6 << 3, chunk};
    const bool decides = kind == CST_MESSAGE_READY || kind == CST_MESSAGE_COMMIT;

    tell_fields(SPAN__MSG_TYPE__SPAN_CORE, SPAN_VALID | SPAN_KEY | (decides ? SPAN_DECIDES : 0),
                fields, sizeof fields / sizeof *fields);
    script_engine();
}

static void meet(void)
{
    link_up();
    tell(SPAN__MSG_TYPE__SPAN_HERE, SPAN_VALID | SPAN_KEY);
}

static void join(void)
{
    script_engine();
    script_engine();
    tell(SPAN__MSG_TYPE__SPAN_NET, SPAN_VALID | SPAN_KEY);
    tell(SPAN__MSG_TYPE__SPAN_MEMBERS, SPAN_VALID | SPAN_KEY);
    for (unsigned i = 0; i < 2; i++) {
        tell(SPAN__MSG_TYPE__SPAN_MEMBERS, SPAN_MIRROR | SPAN_KEY);
    }
    core(CST_MESSAGE_RECORD, 0, 0);
}

static void train(uint64_t attempt, uint64_t *generation)
{
    const unsigned n = (unsigned)attempt;

    script_ask(0, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    core(CST_MESSAGE_SYNCED, n - 1, 0);
    core(CST_MESSAGE_START, n, 0);
    for (uint32_t c = 0; c < SCRIPT_CHUNKS; c++) {
        script_train(0, attempt, c, generation);
        core(CST_MESSAGE_PARTIAL, n, c);
        core(CST_MESSAGE_SUMMED, n, c);
    }
    script_ask_step(0, attempt);
    script_engine();
    core(CST_MESSAGE_READY, n, 0);
    core(CST_MESSAGE_COMMIT, n, 0);
    core(CST_MESSAGE_RECORDED, n, 0);
    for (uint32_t c = 0; c < SCRIPT_CHUNKS; c++) {
        core(CST_MESSAGE_WRITTEN, n, c);
    }
}

/* -- scripts -------------------------------------------------------------------------------- */

static void first(void)
{
    uint64_t generation = 0;

    open_job(0);
    meet();
    script_engine();
    join();
    script_engine();
    train(1, &generation);
    tell(SPAN__MSG_TYPE__SPAN_ROW_ASK, SPAN_VALID | SPAN_KEY);
}

static void second(void)
{
    uint64_t generation = 0;

    open_job(1);
    meet();
    tell(SPAN__MSG_TYPE__SPAN_CHUNKS, SPAN_VALID | SPAN_KEY);
    join();
    train(1, &generation);
}

static void replaces(void)
{
    const unsigned goes_on[] = {8 << 3, 1};

    open_job(1);
    link_up();
    tell_fields(SPAN__MSG_TYPE__SPAN_HERE, SPAN_VALID | SPAN_KEY, goes_on, 2);
    tell(SPAN__MSG_TYPE__SPAN_CHUNKS, SPAN_VALID | SPAN_KEY);
    tell(SPAN__MSG_TYPE__SPAN_NET, SPAN_VALID | SPAN_KEY);
    script_engine();
    tell(SPAN__MSG_TYPE__SPAN_STATE, SPAN_VALID | SPAN_KEY);
    for (unsigned number = 1; number < 12; number++) {
        const unsigned fields[] = {2 << 3, number};

        tell_fields(SPAN__MSG_TYPE__SPAN_ROW_HERE, SPAN_VALID | SPAN_KEY, fields, 2);
        script_engine();
    }
}

size_t span_script(unsigned world, uint8_t *out, size_t max)
{
    script_begin(out, max);
    switch (world) {
    case SPAN_FIRST:
        first();
        break;
    case SPAN_SECOND:
        second();
        break;
    case SPAN_REPLACES:
        replaces();
        break;
    default:
        break;
    }
    return script_end();
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    out[0] = SPAN_NONE;
    return 1 + span_script(SPAN_FIRST, out + 1, max - 1);
}

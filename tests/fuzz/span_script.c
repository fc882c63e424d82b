/* SPDX-License-Identifier: Apache-2.0 */
/* The scripts of the span target: a job of two nodes that trains two steps, as node 0 and as node
 * 1, and a part that takes the place of a lost one. The seed has the first one as an input. */
#include "proto/cistern.pb-c.h"
#include "proto/span.pb-c.h"
#include "tests/fuzz/fake_links.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/span.h"

#include <stdio.h>
#include <string.h>

enum { N_CHUNKS = 3, ELEMS = 4096 };

static uint8_t *script;
static size_t n_script, max_script;

/* -- writing -------------------------------------------------------------------------------- */

static void put(unsigned byte)
{
    fuzz_must(n_script < max_script, "room for a script");
    script[n_script++] = (uint8_t)byte;
}

static void put_message(const ProtobufCMessage *message)
{
    const size_t n = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;

    put((unsigned)n & 0xff);
    put((unsigned)n >> 8);
    fuzz_must(n <= max_script - n_script, "room for a script");
    if (message != NULL) {
        n_script += protobuf_c_message_pack(message, script + n_script);
    }
}

static void ask(unsigned type, const ProtobufCMessage *message)
{
    put(RIG_FRAME);
    put(0);
    put(type);
    put_message(message);
}

static void engine(void)
{
    put(RIG_ENGINE);
    put(0);
}

static void tell(unsigned node, unsigned type, unsigned how)
{
    put(SPAN_TELL);
    put(node);
    put(type - FAKE_FIRST_TYPE);
    put(how);
    put_message(NULL);
    engine();
}

static void link_up(unsigned node)
{
    put(SPAN_LINK);
    put(node);
    put(1);
}

/* -- a worker ------------------------------------------------------------------------------- */

static void declare(void)
{
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    Cistern__TensorDecl tensors[N_CHUNKS], *tensor_pointers[N_CHUNKS];
    Cistern__OperatorDecl operators[N_CHUNKS], *operator_pointers[N_CHUNKS];
    char names[N_CHUNKS][4];
    uint32_t used[N_CHUNKS];
    int64_t shape = ELEMS;

    for (unsigned i = 0; i < N_CHUNKS; i++) {
        (void)snprintf(names[i], sizeof names[i], "t%u", i);
        used[i] = i;
        cistern__tensor_decl__init(&tensors[i]);
        tensors[i].name = names[i];
        tensors[i].dtype = 1;
        tensors[i].n_shape = 1;
        tensors[i].shape = &shape;
        cistern__operator_decl__init(&operators[i]);
        operators[i].name = names[i];
        operators[i].n_tensors = 1;
        operators[i].tensors = &used[i];
        tensor_pointers[i] = &tensors[i];
        operator_pointers[i] = &operators[i];
    }
    declare.n_tensors = declare.n_operators = N_CHUNKS;
    declare.tensors = tensor_pointers;
    declare.operators = operator_pointers;
    ask(CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

/* A job of two ranks on two nodes, of which this one has rank @first. */
static void open_job(unsigned first)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    Cistern__Commit commit = CISTERN__COMMIT__INIT;
    char *options[] = {(char *)(uintptr_t) "all_ranks=2", (char *)(uintptr_t) "copies=2",
                       (char *)(uintptr_t) "first_rank=1"};

    hello.min_version = hello.max_version = 1;
    ask(CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
    open.name = (char *)(uintptr_t) "j";
    open.world = 1;
    open.has_chunk_elems = open.has_pool_bytes = 1;
    open.chunk_elems = ELEMS;
    open.pool_bytes = 4 * 2 * ELEMS;
    open.options = options;
    open.n_options = first > 0 ? 3 : 2;
    ask(CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base);
    declare();
    commit.n_tensors = commit.n_operators = N_CHUNKS;
    ask(CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base);
}

static void batch(uint64_t attempt, Cistern__BatchItem__Kind kind, uint32_t chunk,
                  uint64_t generation)
{
    Cistern__Batch message = CISTERN__BATCH__INIT;
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *pointer = &item;

    item.kind = kind;
    item.chunk = chunk;
    item.has_generation = generation != 0;
    item.generation = generation;
    message.attempt = attempt;
    message.n_items = 1;
    message.items = &pointer;
    ask(CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    engine();
}

static void ask_step(uint64_t attempt)
{
    Cistern__Step message = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;

    hyper.lr = hyper.grad_scale = 1.0f;
    hyper.eps = 1e-8f;
    message.attempt = attempt;
    message.hyper = &hyper;
    ask(CISTERN__MSG_TYPE__MSG_STEP, &message.base);
    engine();
}

/* -- the other node ------------------------------------------------------------------------- */

/* The other node tells a message of its core of kind @kind about @attempt and @chunk. */
static void core(unsigned kind, unsigned attempt, unsigned chunk)
{
    const unsigned step = attempt > 0 ? attempt - 1 : 0;
    /* kind, attempt, step and chunk. */
    const unsigned fields[] = {2 << 3, kind, 4 << 3, attempt, 5 << 3, step, 6 << 3, chunk};
    const bool decides = kind == CST_MESSAGE_READY || kind == CST_MESSAGE_COMMIT;

    put(SPAN_TELL);
    put(0);
    put(SPAN__MSG_TYPE__SPAN_CORE - FAKE_FIRST_TYPE);
    put(SPAN_VALID | SPAN_KEY | (decides ? SPAN_DECIDES : 0));
    put(sizeof fields / sizeof *fields);
    put(0);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        put(fields[i]);
    }
    engine();
}

static void meet(void)
{
    link_up(0);
    tell(0, SPAN__MSG_TYPE__SPAN_HERE, SPAN_VALID | SPAN_KEY);
}

static void join(void)
{
    engine();
    engine();
    tell(0, SPAN__MSG_TYPE__SPAN_NET, SPAN_VALID | SPAN_KEY);
    tell(0, SPAN__MSG_TYPE__SPAN_MEMBERS, SPAN_VALID | SPAN_KEY);
    for (unsigned i = 0; i < 2; i++) {
        tell(0, SPAN__MSG_TYPE__SPAN_MEMBERS, SPAN_MIRROR | SPAN_KEY);
    }
    core(CST_MESSAGE_RECORD, 0, 0);
}

static void train(uint64_t attempt, uint64_t *generation)
{
    const unsigned n = (unsigned)attempt;

    ask(CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    core(CST_MESSAGE_SYNCED, n - 1, 0);
    core(CST_MESSAGE_START, n, 0);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        batch(attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, c, 0);
        batch(attempt, CISTERN__BATCH_ITEM__KIND__FETCH_GRAD, c, 0);
        batch(attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, c, ++*generation);
        batch(attempt, CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER, c, ++*generation);
        core(CST_MESSAGE_PARTIAL, n, c);
        core(CST_MESSAGE_SUMMED, n, c);
    }
    ask_step(attempt);
    core(CST_MESSAGE_READY, n, 0);
    core(CST_MESSAGE_COMMIT, n, 0);
    core(CST_MESSAGE_RECORDED, n, 0);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        core(CST_MESSAGE_WRITTEN, n, c);
    }
}

/* -- scripts -------------------------------------------------------------------------------- */

static void first(void)
{
    uint64_t generation = 0;

    open_job(0);
    meet();
    engine();
    join();
    engine();
    train(1, &generation);
    tell(0, SPAN__MSG_TYPE__SPAN_ROW_ASK, SPAN_VALID | SPAN_KEY);
}

static void second(void)
{
    uint64_t generation = 0;

    open_job(1);
    meet();
    tell(0, SPAN__MSG_TYPE__SPAN_CHUNKS, SPAN_VALID | SPAN_KEY);
    join();
    train(1, &generation);
}

static void replaces(void)
{
    const uint8_t goes_on[] = {8 << 3, 1};

    open_job(1);
    link_up(0);
    put(SPAN_TELL);
    put(0);
    put(SPAN__MSG_TYPE__SPAN_HERE - FAKE_FIRST_TYPE);
    put(SPAN_VALID | SPAN_KEY);
    put(sizeof goes_on);
    put(0);
    put(goes_on[0]);
    put(goes_on[1]);
    tell(0, SPAN__MSG_TYPE__SPAN_CHUNKS, SPAN_VALID | SPAN_KEY);
    tell(0, SPAN__MSG_TYPE__SPAN_NET, SPAN_VALID | SPAN_KEY);
    engine();
    tell(0, SPAN__MSG_TYPE__SPAN_STATE, SPAN_VALID | SPAN_KEY);
    for (unsigned number = 1; number < 12; number++) {
        put(SPAN_TELL);
        put(0);
        put(SPAN__MSG_TYPE__SPAN_ROW_HERE - FAKE_FIRST_TYPE);
        put(SPAN_VALID | SPAN_KEY);
        put(2);
        put(0);
        put(2 << 3);
        put(number);
        engine();
    }
}

size_t span_script(unsigned world, uint8_t *out, size_t max)
{
    script = out;
    max_script = max;
    n_script = 0;
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
    return n_script;
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    out[0] = SPAN_NONE;
    return 1 + span_script(SPAN_FIRST, out + 1, max - 1);
}

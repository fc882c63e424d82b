/* SPDX-License-Identifier: Apache-2.0 */
/* The seed of the session target: a whole training session of two ranks. */
#include "proto/cistern.pb-c.h"
#include "proto/frame.h"
#include "tests/fuzz/daemon_rig.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

enum { N_CHUNKS = 3, ELEMS = 4096 };

static uint8_t script[1 << 16];
static size_t n_script;

/* -- writing -------------------------------------------------------------------------------- */

static void put(unsigned byte)
{
    script[n_script++] = (uint8_t)byte;
}

static void step(enum rig_op op)
{
    put(op);
}

static void ask(unsigned session, unsigned type, const ProtobufCMessage *message)
{
    size_t n = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;

    step(RIG_FRAME);
    put(session);
    put(type);
    put((unsigned)n & 0xff);
    put((unsigned)n >> 8);
    if (message != NULL) {
        n_script += protobuf_c_message_pack(message, script + n_script);
    }
}

static void engine(void)
{
    step(RIG_ENGINE);
    put(0);
}

static void declare(unsigned session)
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
    ask(session, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

static void open_job(unsigned session)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    Cistern__Commit commit = CISTERN__COMMIT__INIT;

    hello.min_version = hello.max_version = 1;
    ask(session, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
    open.name = (char *)(uintptr_t) "j";
    open.rank = session;
    open.world = 2;
    open.has_chunk_elems = open.has_pool_bytes = 1;
    open.chunk_elems = ELEMS;
    open.pool_bytes = 4 * 2 * ELEMS;
    ask(session, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base);
    declare(session);
    commit.n_tensors = commit.n_operators = N_CHUNKS;
    ask(session, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base);
}

static void batch(unsigned session, uint64_t attempt, Cistern__BatchItem__Kind kind, uint32_t chunk,
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
    ask(session, CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    engine();
}

static void ask_step(unsigned session, uint64_t attempt)
{
    Cistern__Step message = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;

    hyper.lr = hyper.grad_scale = 1.0f;
    hyper.eps = 1e-8f;
    message.attempt = attempt;
    message.hyper = &hyper;
    ask(session, CISTERN__MSG_TYPE__MSG_STEP, &message.base);
}

static void use_tensors(unsigned session)
{
    Cistern__LayoutGet layout = CISTERN__LAYOUT_GET__INIT;
    Cistern__PoolGet pool = CISTERN__POOL_GET__INIT;
    Cistern__StagingGet staging = CISTERN__STAGING_GET__INIT;
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;

    ask(session, CISTERN__MSG_TYPE__MSG_LAYOUT, &layout.base);
    ask(session, CISTERN__MSG_TYPE__MSG_POOL, &pool.base);
    staging.bytes = 65536;
    ask(session, CISTERN__MSG_TYPE__MSG_STAGING, &staging.base);
    engine();
    io.row = CISTERN__TENSOR_IO__ROW__MASTER;
    io.n_elems = ELEMS;
    ask(session, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, &io.base);
    ask(session, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base);
    engine();
}

/* Generations count up over all ranks: two for each chunk and rank. */
static void train(uint64_t attempt, uint64_t *generation)
{
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        for (unsigned s = 0; s < 2; s++) {
            batch(s, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, c, 0);
            batch(s, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_GRAD, c, 0);
            batch(s, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, c, ++*generation);
            batch(s, attempt, CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER, c, ++*generation);
        }
    }
    ask_step(0, attempt);
    ask_step(1, attempt);
    engine();
}

static void look(void)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    Cistern__Explain explain = CISTERN__EXPLAIN__INIT;
    Cistern__JobListGet list = CISTERN__JOB_LIST_GET__INIT;
    Cistern__TensorsGet tensors = CISTERN__TENSORS_GET__INIT;
    Cistern__Saved saved = CISTERN__SAVED__INIT;

    name.name = explain.job = tensors.job = saved.name = (char *)(uintptr_t) "j";
    explain.tensor = (char *)(uintptr_t) "t1";
    ask(0, CISTERN__MSG_TYPE__MSG_STAT, NULL);
    ask(0, CISTERN__MSG_TYPE__MSG_JOB_LIST, &list.base);
    ask(0, CISTERN__MSG_TYPE__MSG_JOB_INFO, &name.base);
    ask(0, CISTERN__MSG_TYPE__MSG_EXPLAIN, &explain.base);
    ask(0, CISTERN__MSG_TYPE__MSG_TENSORS, &tensors.base);
    ask(0, CISTERN__MSG_TYPE__MSG_SAVED, &saved.base);
    ask(0, CISTERN__MSG_TYPE__MSG_DRAIN, NULL);
}

static void write_session(void)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    uint64_t generation = 0;

    open_job(0);
    open_job(1);
    engine();
    use_tensors(0);
    ask(0, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    ask(1, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    engine();
    train(1, &generation);
    step(RIG_KILL);
    engine();
    train(1, &generation);
    look();
    step(RIG_CLOSE);
    put(1);
    open_job(1);
    ask(0, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    cancel.request = 60;
    ask(0, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ask(1, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    train(2, &generation);
    ask(0, CISTERN__MSG_TYPE__MSG_LEAVE, NULL);
    name.name = (char *)(uintptr_t) "j";
    ask(1, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base);
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    n_script = 0;
    write_session();
    fuzz_must(n_script <= max, "room for the seed");
    memcpy(out, script, n_script);
    return n_script;
}

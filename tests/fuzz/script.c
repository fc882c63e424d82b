/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/script.h"

#include "tests/fuzz/daemon_rig.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>

static uint8_t *script;
static size_t n_script, max_script;

void script_begin(uint8_t *out, size_t max)
{
    script = out;
    max_script = max;
    n_script = 0;
}

size_t script_end(void)
{
    return n_script;
}

void script_put(unsigned byte)
{
    fuzz_must(n_script < max_script, "room for a script");
    script[n_script++] = (uint8_t)byte;
}

void script_put_message(const ProtobufCMessage *message)
{
    const size_t n = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;

    script_put((unsigned)n & 0xff);
    script_put((unsigned)n >> 8);
    fuzz_must(n <= max_script - n_script, "room for a script");
    if (message != NULL) {
        n_script += protobuf_c_message_pack(message, script + n_script);
    }
}

void script_ask(unsigned session, unsigned type, const ProtobufCMessage *message)
{
    script_put(RIG_FRAME);
    script_put(session);
    script_put(type);
    script_put_message(message);
}

void script_engine(void)
{
    script_put(RIG_ENGINE);
    script_put(0);
}

static void declare(unsigned session)
{
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    Cistern__TensorDecl tensors[SCRIPT_CHUNKS], *tensor_pointers[SCRIPT_CHUNKS];
    Cistern__OperatorDecl operators[SCRIPT_CHUNKS], *operator_pointers[SCRIPT_CHUNKS];
    char names[SCRIPT_CHUNKS][4];
    uint32_t used[SCRIPT_CHUNKS];
    int64_t shape = SCRIPT_ELEMS;

    for (unsigned i = 0; i < SCRIPT_CHUNKS; i++) {
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
    declare.n_tensors = declare.n_operators = SCRIPT_CHUNKS;
    declare.tensors = tensor_pointers;
    declare.operators = operator_pointers;
    script_ask(session, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

void script_open_job(unsigned session, Cistern__JobOpen *open)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__Commit commit = CISTERN__COMMIT__INIT;

    hello.min_version = hello.max_version = 1;
    script_ask(session, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
    open->name = (char *)(uintptr_t) "j";
    open->has_chunk_elems = open->has_pool_bytes = 1;
    open->chunk_elems = SCRIPT_ELEMS;
    open->pool_bytes = 4 * 2 * SCRIPT_ELEMS;
    script_ask(session, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open->base);
    declare(session);
    commit.n_tensors = commit.n_operators = SCRIPT_CHUNKS;
    script_ask(session, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base);
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
    script_ask(session, CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    script_engine();
}

void script_train(unsigned session, uint64_t attempt, uint32_t chunk, uint64_t *generation)
{
    batch(session, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, chunk, 0);
    batch(session, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_GRAD, chunk, 0);
    batch(session, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, chunk, ++*generation);
    batch(session, attempt, CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER, chunk, ++*generation);
}

void script_ask_step(unsigned session, uint64_t attempt)
{
    Cistern__Step message = CISTERN__STEP__INIT;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;

    hyper.lr = hyper.grad_scale = 1.0f;
    hyper.eps = 1e-8f;
    message.attempt = attempt;
    message.hyper = &hyper;
    script_ask(session, CISTERN__MSG_TYPE__MSG_STEP, &message.base);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The seed of the session target: a whole training session of two ranks. */
#include "tests/fuzz/daemon_rig.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/script.h"

static void open_job(unsigned session)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open.rank = session;
    open.world = 2;
    script_open_job(session, &open);
}

static void use_tensors(unsigned session)
{
    Cistern__LayoutGet layout = CISTERN__LAYOUT_GET__INIT;
    Cistern__PoolGet pool = CISTERN__POOL_GET__INIT;
    Cistern__StagingGet staging = CISTERN__STAGING_GET__INIT;
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;

    script_ask(session, CISTERN__MSG_TYPE__MSG_LAYOUT, &layout.base);
    script_ask(session, CISTERN__MSG_TYPE__MSG_POOL, &pool.base);
    staging.bytes = 65536;
    script_ask(session, CISTERN__MSG_TYPE__MSG_STAGING, &staging.base);
    script_engine();
    io.row = CISTERN__TENSOR_IO__ROW__MASTER;
    io.n_elems = SCRIPT_ELEMS;
    script_ask(session, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, &io.base);
    script_ask(session, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base);
    script_engine();
}

/* Generations count up over all ranks: two for each chunk and rank. */
static void train(uint64_t attempt, uint64_t *generation)
{
    for (uint32_t c = 0; c < SCRIPT_CHUNKS; c++) {
        for (unsigned s = 0; s < 2; s++) {
            script_train(s, attempt, c, generation);
        }
    }
    script_ask_step(0, attempt);
    script_ask_step(1, attempt);
    script_engine();
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
    script_ask(0, CISTERN__MSG_TYPE__MSG_STAT, NULL);
    script_ask(0, CISTERN__MSG_TYPE__MSG_JOB_LIST, &list.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_JOB_INFO, &name.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_EXPLAIN, &explain.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_TENSORS, &tensors.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_SAVED, &saved.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_DRAIN, NULL);
}

/* Two versions are held by session 0, which is a rank, too; the second one is kept. */
static void begin_reading(void)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    Cistern__ArenaGet arena = CISTERN__ARENA_GET__INIT;
    Cistern__ReaderNext next = CISTERN__READER_NEXT__INIT;

    name.name = (char *)(uintptr_t) "j";
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_OPEN, &name.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_ARENA, &arena.base);
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_NEXT, &next.base);
    next.keep = 1;
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_NEXT, &next.base);
}

/* The step that waits for the reader goes on. */
static void end_reading(void)
{
    Cistern__ReaderHold hold = CISTERN__READER_HOLD__INIT;

    hold.version = 1;
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_CHECK, &hold.base);
    hold.version = 2;
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_RELEASE, &hold.base);
    script_engine();
    hold.version = 1;
    script_ask(0, CISTERN__MSG_TYPE__MSG_READER_CHECK, &hold.base);
}

static void write_session(void)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    uint64_t generation = 0;

    open_job(0);
    open_job(1);
    script_engine();
    use_tensors(0);
    script_ask(0, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    script_ask(1, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    script_engine();
    train(1, &generation);
    script_put(RIG_KILL);
    script_engine();
    begin_reading();
    train(1, &generation);
    end_reading();
    look();
    script_put(RIG_CLOSE);
    script_put(1);
    open_job(1);
    script_ask(0, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    cancel.request = 60;
    script_ask(0, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    script_ask(1, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    train(2, &generation);
    script_ask(0, CISTERN__MSG_TYPE__MSG_LEAVE, NULL);
    name.name = (char *)(uintptr_t) "j";
    script_ask(1, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base);
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    script_begin(out, max);
    write_session();
    return script_end();
}

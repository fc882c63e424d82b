/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/victim.h"

#include "tests/bench/timing.h"
#include "tests/lib/user.h"

#include <check.h>

enum { CHUNK_ELEMS = 65536 };

void victim_open(struct raw_client *client, const char *socket)
{
    user_as(USER_BOB, USER_BOB);
    raw_open(client, socket);
    user_back();
}

double victim_commit(struct raw_client *client, const char *socket, const char *name)
{
    struct raw_job job = {.name = name, .world = 1, .chunk_elems = CHUNK_ELEMS};
    double begun = bench_now();

    victim_open(client, socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, VICTIM_CHUNKS, CHUNK_ELEMS), CST_OK);
    ck_assert_msg(raw_status(client, raw_commit(client, VICTIM_CHUNKS, VICTIM_CHUNKS)) == CST_OK,
                  "%s", client->err.text);
    return bench_now() - begun;
}

static uint64_t batch(struct raw_client *client, uint64_t attempt, uint32_t kind, uint32_t chunk,
                      uint64_t generation)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch message = CISTERN__BATCH__INIT;
    Cistern__BatchDone *done;
    uint64_t got;

    item.kind = (Cistern__BatchItem__Kind)kind;
    item.chunk = chunk;
    item.has_generation = generation != 0;
    item.generation = generation;
    message.attempt = attempt;
    message.n_items = 1;
    message.items = &items;
    (void)raw_ask(client, CISTERN__MSG_TYPE__MSG_BATCH, &message.base);
    ck_assert(raw_receive(client));
    done = cistern__batch_done__unpack(NULL, client->reply.body_bytes, client->reply.body);
    ck_assert_ptr_nonnull(done);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    got = done->results[0]->generation;
    cistern__batch_done__free_unpacked(done, NULL);
    return got;
}

double victim_request(struct raw_client *client, uint64_t attempt, uint32_t chunk)
{
    double begun = bench_now(), took;
    uint64_t generation = batch(client, attempt, CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT, chunk, 0);

    took = bench_now() - begun;
    (void)batch(client, attempt, CISTERN__BATCH_ITEM__KIND__RELEASE, chunk, generation);
    return took * 1e6;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the memory of edges, in which both ranks can write anything. A rank puts to an edge to
 * itself and to an edge of all ranks, in which nothing waits. An input is a list of steps:
 *
 *   WRITE edge at u16 u64           a process writes anywhere
 *   PUT, TAKE edge number bytes     cst_put, cst_take
 *   OPEN edge number take           cst_put_begin or cst_take_begin, and a write of the whole slot
 *   CLOSE edge number take          cst_put_end or cst_take_end
 *   SYNC                            the next attempt begins
 *
 * Nothing outside of the memory and of the arrays is accessed. */
#include "client/lib/client.h"
#include "client/lib/edge.h"
#include "client/lib/job.h"
#include "offload/layout/edge.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/steps.h"

#include <stdbool.h>
#include <string.h>

const char fuzz_name[] = "edge_memory";

enum op { WRITE, PUT, TAKE, OPEN, CLOSE, SYNC, N_OPS };
enum { N_EDGES = 2, N_SLOTS = 5, SLOT_BYTES = 100, N_NUMBERS = 8 };

static struct cst_client client;
static struct cst_job job;
static struct cst_model model;
static struct cstc_edge edges[N_EDGES];

size_t fuzz_seed(uint8_t *out, size_t max)
{
    static const uint8_t steps[] = {PUT,  0,     1, 100, OPEN, 1,   2, 0, CLOSE, 1, 2, 0,
                                    TAKE, 0,     1, 100, OPEN, 1,   2, 1, CLOSE, 1, 2, 1,
                                    SYNC, WRITE, 0, 128, 0,    2,   0, 0, 0,     1, 0, 0,
                                    0,    TAKE,  0, 1,   50,   PUT, 1, 4, 64};

    fuzz_must(sizeof steps <= max, "room for the seed");
    memcpy(out, steps, sizeof steps);
    return sizeof steps;
}

/* Make the edges, which all inputs use. */
static void make_edges(void)
{
    const struct cst_edge_words words[] = {
        {.name = "own", .from = 0, .to = 0, .slot_bytes = SLOT_BYTES, .n_slots = N_SLOTS},
        {.name = "all",
         .from = CST_EDGE_ANY,
         .to = CST_EDGE_ANY,
         .slot_bytes = SLOT_BYTES,
         .n_slots = N_SLOTS}};
    struct cst_err err = {0};

    cst_model_init(&model);
    for (uint32_t i = 0; i < N_EDGES; i++) {
        struct cstc_edge *edge = &edges[i];

        fuzz_must(cst_model_edge(&model, &words[i], 2, &err) == CST_OK, err.text);
        edge->memory.bytes = cst_layout_edge_bytes(&model.edges[i]);
        edge->memory.base = aligned_alloc(CST_EDGE_PAGE_BYTES, edge->memory.bytes);
        edge->slots = calloc(N_SLOTS, sizeof *edge->slots);
        fuzz_must(edge->memory.base != NULL && edge->slots != NULL, "memory");
    }
}

/* Begin with empty edges. */
static void open_job(void)
{
    if (edges[0].slots == NULL) {
        make_edges();
    }
    memset(&job, 0, sizeof job);
    job.client = &client;
    job.world = 2;
    job.commit.phase = CSTC_COMMIT_DONE;
    job.synced = true;
    job.attempt = 1;
    job.model = model;
    job.edges = edges;
    for (uint32_t i = 0; i < N_EDGES; i++) {
        edges[i].next_put = edges[i].next_take = 0;
        memset(edges[i].slots, 0, N_SLOTS * sizeof *edges[i].slots);
        memset(edges[i].memory.base, 0, edges[i].memory.bytes);
    }
}

static void check(int rc, const struct cst_err *err)
{
    fuzz_must(rc == CST_OK || ((rc == CST_EINVAL || rc == CST_ENOTFOUND) && err->status == rc &&
                               err->text[0] != '\0'),
              "an array passes, or the reason why not has words");
}

/* Put or take an array of exactly @bytes bytes, so that a sanitizer detects what is beyond. */
static void pass(bool put, int edge, uint32_t number, size_t bytes)
{
    uint8_t *array = malloc(bytes > 0 ? bytes : 1);
    struct cst_err err = {0};
    int rc;

    fuzz_must(array != NULL, "memory");
    memset(array, (int)number, bytes);
    rc = put ? cst_put(&job, edge, number, array, bytes, &err)
             : cst_take(&job, edge, number, array, bytes, &err);
    check(rc, &err);
    free(array);
}

static void open_slot(int edge, uint32_t number, bool take_it)
{
    const void *from = NULL;
    void *to = NULL;
    struct cst_err err = {0};
    int rc = take_it ? cst_take_begin(&job, edge, number, &from, &err)
                     : cst_put_begin(&job, edge, number, &to, &err);

    check(rc, &err);
    if (rc == CST_OK) {
        const uint8_t *base = job.edges[edge].memory.base;
        const uint8_t *slot = take_it ? from : to;

        fuzz_must(slot >= base + cst_edge_head_bytes(N_SLOTS) &&
                      slot + SLOT_BYTES <= base + job.edges[edge].memory.bytes,
                  "a slot lies in the memory, after the words");
        if (to != NULL) {
            memset(to, (int)number, SLOT_BYTES);
        }
    }
}

static void step(struct bytes *in)
{
    const enum op op = (enum op)(take(in, 1) % N_OPS);
    const int edge = op == SYNC ? 0 : (int)(take(in, 1) % N_EDGES);
    struct cst_err err = {0};
    uint32_t number;
    size_t at;
    uint64_t value;

    switch (op) {
    case WRITE:
        at = take(in, 2) % (job.edges[edge].memory.bytes - 8);
        value = take(in, 8);
        memcpy((char *)job.edges[edge].memory.base + at, &value, sizeof value);
        break;
    case PUT:
    case TAKE:
        number = (uint32_t)(take(in, 1) % N_NUMBERS);
        pass(op == PUT, edge, number, take(in, 1));
        break;
    case OPEN:
        number = (uint32_t)(take(in, 1) % N_NUMBERS);
        open_slot(edge, number, take(in, 1) % 2 == 1);
        break;
    case CLOSE:
        number = (uint32_t)(take(in, 1) % N_NUMBERS);
        check(take(in, 1) % 2 == 1 ? cst_take_end(&job, edge, number, &err)
                                   : cst_put_end(&job, edge, number, &err),
              &err);
        break;
    case SYNC:
        cstc_edge_forget(&job);
        job.attempt++;
        break;
    case N_OPS:
    default:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct bytes in = {.at = data, .end = data + n};

    open_job();
    while (in.at < in.end) {
        step(&in);
    }
    return 0;
}

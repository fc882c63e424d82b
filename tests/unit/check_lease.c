/* The books of leases against a model of the daemon that grants everything and counts blocks. */
#include "client/lease.h"
#include "offload/layout.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CHUNKS 512

/* What the daemon would know of this rank. */
struct world {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_lease_operator *operators;
    uint32_t *tensor_chunk;
    struct cst_leases leases;
    uint64_t weight[MAX_CHUNKS]; /* generation of the lease, 0: none */
    uint64_t grad[MAX_CHUNKS];
    uint32_t n_handed_in[MAX_CHUNKS]; /* in this step */
    uint32_t n_leased;                /* blocks now */
    uint32_t most_leased;             /* blocks ever */
    uint64_t generation;
    struct cst_lease_item ahead; /* granted, the reply is on its way */
    bool has_ahead;
    uint32_t n_demands; /* batches that a begin waited for */
    char said[512];     /* items of the last plan, in short */
};

static uint64_t seed_of_run(void)
{
    const char *given = getenv("CST_TEST_SEED");

    return given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static void say(struct world *w, const struct cst_lease_item *item)
{
    static const char *const kinds[] = {"", "W", "G", "r", "R"};
    size_t n = strlen(w->said);

    (void)snprintf(w->said + n, sizeof w->said - n, "%s%s%u%s", n > 0 ? " " : "", kinds[item->kind],
                   item->chunk, item->ahead ? "+" : "");
}

/* Books of the daemon for one item; each rule of the protocol is asserted here. */
static void serve(struct world *w, const struct cst_lease_item *item)
{
    uint64_t *slot = item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_RELEASE
                         ? &w->weight[item->chunk]
                         : &w->grad[item->chunk];

    say(w, item);
    switch (item->kind) {
    case CST_LEASE_FETCH_WEIGHT:
    case CST_LEASE_FETCH_GRAD:
        ck_assert_uint_eq(*slot, 0);
        *slot = ++w->generation;
        w->n_leased++;
        break;
    case CST_LEASE_REDUCE_SCATTER:
        w->n_handed_in[item->chunk]++;
        /* fall through */
    case CST_LEASE_RELEASE:
        ck_assert_uint_ne(*slot, 0);
        ck_assert_uint_eq(*slot, item->lease.generation);
        *slot = 0;
        w->n_leased--;
        break;
    }
    if (w->n_leased > w->most_leased) {
        w->most_leased = w->n_leased;
    }
}

static void deliver(struct world *w, const struct cst_lease_item *item)
{
    struct cst_lease lease = {.generation = item->kind == CST_LEASE_FETCH_WEIGHT
                                                ? w->weight[item->chunk]
                                                : w->grad[item->chunk]};

    if (item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_FETCH_GRAD) {
        cst_lease_grant(&w->leases, item, &lease, false);
    }
}

static void deliver_ahead(struct world *w)
{
    if (w->has_ahead) {
        w->has_ahead = false;
        deliver(w, &w->ahead);
    }
}

/* Serve the plan in order; replies to what is asked ahead are kept back. */
static void send_plan(struct world *w)
{
    w->said[0] = '\0';
    for (uint32_t i = 0; i < w->leases.n_items; i++) {
        serve(w, &w->leases.items[i]);
    }
    for (uint32_t i = 0; i < w->leases.n_items; i++) {
        if (w->leases.items[i].ahead) {
            ck_assert(!w->has_ahead);
            w->ahead = w->leases.items[i];
            w->has_ahead = true;
        } else {
            deliver(w, &w->leases.items[i]);
        }
    }
}

/* Begin @op and check that it has what it needs. */
static int begin(struct world *w, uint32_t op, bool backward)
{
    uint32_t n;
    const uint32_t *chunks;
    struct cst_err err = {0};
    int rc;

    if (cst_lease_must_settle(&w->leases, op, backward)) {
        ck_assert(w->has_ahead);
        deliver_ahead(w);
        ck_assert(!cst_lease_must_settle(&w->leases, op, backward));
    }
    rc = cst_lease_begin(&w->leases, op, backward, &err);
    if (rc != CST_OK) {
        ck_assert_int_eq(rc, CST_EPOOL);
        ck_assert_uint_eq(w->leases.n_items, 0);
        return rc;
    }
    w->n_demands += w->leases.n_items > 0 ? 1 : 0;
    send_plan(w);
    chunks = cst_lease_op_chunks(&w->leases, op, &n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_ne(w->weight[chunks[i]], 0);
        ck_assert(!backward || w->grad[chunks[i]] != 0);
    }
    return CST_OK;
}

static void ahead(struct world *w, uint32_t op, bool backward)
{
    cst_lease_ahead(&w->leases, op, backward);
    send_plan(w);
}

static void end(struct world *w, uint32_t op, bool backward)
{
    cst_lease_end(&w->leases, op, backward);
    send_plan(w);
}

static void run(struct world *w, uint32_t op, bool backward)
{
    ck_assert_int_eq(begin(w, op, backward), CST_OK);
    ahead(w, op, backward);
    end(w, op, backward);
}

/* The end of a step: all is given back, and the next one starts. */
static void step(struct world *w)
{
    deliver_ahead(w);
    cst_lease_flush(&w->leases);
    send_plan(w);
    ck_assert_uint_eq(w->n_leased, 0);
    ck_assert_uint_eq(w->leases.n_held, 0);
    ck_assert_uint_eq(w->leases.n_open, 0);
    cst_lease_reset_step(&w->leases);
    memset(w->n_handed_in, 0, sizeof w->n_handed_in);
}

/* Lay the model out with @n_blocks per pool (0: the fewest that can run) and open the books. */
static void open_world(struct world *w, uint64_t chunk_elems, uint32_t n_blocks)
{
    struct cst_layout_config config = {.chunk_elems = chunk_elems, .n_nodes = 1};
    struct cst_lease_model model = {.n_operators = w->model.n_operators,
                                    .n_tensors = w->model.n_tensors};
    struct cst_err err = {0};

    ck_assert_msg(cst_layout_build(&w->layout, &w->model, &config, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_le(w->layout.n_chunks, MAX_CHUNKS);
    w->operators = calloc(w->model.n_operators, sizeof *w->operators);
    w->tensor_chunk = calloc(w->model.n_tensors, sizeof *w->tensor_chunk);
    for (uint32_t i = 0; i < w->model.n_operators; i++) {
        w->operators[i].tensors = w->model.operators[i].tensors;
        w->operators[i].n_tensors = w->model.operators[i].n_tensors;
    }
    for (uint32_t i = 0; i < w->model.n_tensors; i++) {
        w->tensor_chunk[i] = w->model.tensors[i].chunk;
    }
    model.operators = w->operators;
    model.tensor_chunk = w->tensor_chunk;
    model.n_chunks = w->layout.n_chunks;
    model.n_blocks = n_blocks > 0 ? n_blocks : w->layout.min_blocks;
    ck_assert_int_eq(cst_lease_init(&w->leases, &model, &err), CST_OK);
}

static void close_world(struct world *w)
{
    cst_lease_close(&w->leases);
    free(w->operators);
    free(w->tensor_chunk);
    cst_layout_close(&w->layout);
    cst_model_close(&w->model);
    free(w);
}

static struct world *new_world(void)
{
    struct world *w = calloc(1, sizeof *w);

    ck_assert_ptr_nonnull(w);
    cst_model_init(&w->model);
    return w;
}

static uint32_t add_tensor(struct world *w, int64_t n_elems)
{
    char name[16];

    (void)snprintf(name, sizeof name, "t%u", w->model.n_tensors);
    ck_assert_int_eq(cst_model_tensor(&w->model, name, &n_elems, 1, 1.0f, 1.0f, NULL), CST_OK);
    return w->model.n_tensors - 1;
}

static void add_operator(struct world *w, const uint32_t *tensors, uint32_t n)
{
    char name[16];

    (void)snprintf(name, sizeof name, "o%u", w->model.n_operators);
    ck_assert_int_eq(cst_model_operator(&w->model, name, tensors, n, NULL), CST_OK);
}

/* @n operators with a tensor each that fills a chunk of 4096 elements. */
static struct world *chain(uint32_t n)
{
    struct world *w = new_world();

    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = add_tensor(w, 4096);

        add_operator(w, &t, 1);
    }
    return w;
}

/* In order of declaration each begin but the first finds its chunk asked ahead; each crossing
 * releases what is behind. */
START_TEST(test_chain_messages)
{
    struct world *w = chain(3);

    open_world(w, 4096, 0);
    ck_assert_int_eq(begin(w, 0, false), CST_OK);
    ck_assert_str_eq(w->said, "W0");
    ahead(w, 0, false);
    ck_assert_str_eq(w->said, "W1+");
    end(w, 0, false);
    ck_assert_str_eq(w->said, "");
    ck_assert_int_eq(begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    ahead(w, 1, false);
    ck_assert_str_eq(w->said, "r0 W2+");
    end(w, 1, false);
    ck_assert_int_eq(begin(w, 2, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    /* Behind the last forward comes its own backward, then that of operator 1, whose weights are
     * here. */
    ahead(w, 2, false);
    ck_assert_str_eq(w->said, "");
    end(w, 2, false);
    ck_assert_int_eq(begin(w, 2, true), CST_OK);
    ck_assert_str_eq(w->said, "G2");
    ahead(w, 2, true);
    ck_assert_str_eq(w->said, "");
    end(w, 2, true);
    ck_assert_str_eq(w->said, "R2");
    ck_assert_int_eq(begin(w, 1, true), CST_OK);
    ck_assert_str_eq(w->said, "r2 G1");
    ahead(w, 1, true);
    ck_assert_str_eq(w->said, "W0+");
    end(w, 1, true);
    ck_assert_str_eq(w->said, "R1");
    ck_assert_int_eq(begin(w, 0, true), CST_OK);
    ck_assert_str_eq(w->said, "r1 G0");
    ahead(w, 0, true);
    ck_assert_str_eq(w->said, "");
    end(w, 0, true);
    ck_assert_str_eq(w->said, "R0");
    step(w);
    ck_assert_str_eq(w->said, "r0");
    ck_assert_uint_le(w->most_leased, w->layout.min_blocks);
    close_world(w);
}
END_TEST

/* Operators whose tensors share a chunk cost no message between them, and its gradient goes in with
 * the last of them. */
START_TEST(test_shared_chunk)
{
    struct world *w = new_world();

    for (uint32_t i = 0; i < 4; i++) {
        uint32_t t = add_tensor(w, 1024);

        add_operator(w, &t, 1);
    }
    open_world(w, 4096, 0);
    ck_assert_uint_eq(w->layout.n_chunks, 1);
    for (uint32_t op = 0; op < 4; op++) {
        run(w, op, false);
    }
    ck_assert_uint_eq(w->n_demands, 1);
    for (uint32_t op = 4; op-- > 0;) {
        ck_assert_uint_eq(w->n_handed_in[0], 0);
        run(w, op, true);
    }
    ck_assert_uint_eq(w->n_demands, 2);
    ck_assert_uint_eq(w->n_handed_in[0], 1);
    step(w);
    close_world(w);
}
END_TEST

/* A tensor that two operators use (a tied embedding) is written by the first backward, added to by
 * the second, and handed in after that alone. */
START_TEST(test_tied_tensor)
{
    struct world *w = new_world();
    uint32_t wte = add_tensor(w, 4096), middle = add_tensor(w, 4096);

    add_operator(w, &wte, 1);
    add_operator(w, &middle, 1);
    add_operator(w, (uint32_t[]){wte}, 1);
    open_world(w, 4096, 0);
    for (uint32_t op = 0; op < 3; op++) {
        run(w, op, false);
    }
    ck_assert(!w->leases.written[wte]);
    run(w, 2, true);
    ck_assert(w->leases.written[wte]);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[wte]], 0);
    run(w, 1, true);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[middle]], 1);
    run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[wte]], 1);
    ck_assert_uint_le(w->most_leased, w->layout.min_blocks);
    step(w);
    close_world(w);
}
END_TEST

/* An operator over several chunks asks for all it lacks in one batch. */
START_TEST(test_spanning_operator)
{
    struct world *w = new_world();
    uint32_t t[3];

    for (uint32_t i = 0; i < 3; i++) {
        t[i] = add_tensor(w, 4096);
    }
    add_operator(w, t, 1);
    add_operator(w, t, 3);
    open_world(w, 4096, 0);
    run(w, 0, false);
    ck_assert_int_eq(begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "W2");
    end(w, 1, false);
    ck_assert_int_eq(begin(w, 1, true), CST_OK);
    ck_assert_str_eq(w->said, "G0 G1 G2");
    end(w, 1, true);
    ck_assert_str_eq(w->said, "R1 R2");
    close_world(w);
}
END_TEST

/* A guess that was wrong is waited for, and given back in the batch that asks for what is really
 * needed. */
START_TEST(test_wrong_guess)
{
    struct world *w = chain(4);

    open_world(w, 4096, 0);
    run(w, 0, false);
    ck_assert(w->has_ahead);
    ck_assert(cst_lease_must_settle(&w->leases, 3, false));
    ck_assert_int_eq(begin(w, 3, false), CST_OK);
    ck_assert_str_eq(w->said, "r0 r1 W3");
    close_world(w);
}
END_TEST

/* A step over a chunk with some gradients missing hands the chunk in; one never begun is left out.
 */
START_TEST(test_flush_partial)
{
    struct world *w = new_world();

    for (uint32_t i = 0; i < 4; i++) {
        uint32_t t = add_tensor(w, 2048);

        add_operator(w, &t, 1);
    }
    open_world(w, 4096, 0);
    ck_assert_uint_eq(w->layout.n_chunks, 2);
    run(w, 3, true);
    ck_assert(w->leases.written[3]);
    ck_assert(!w->leases.written[2]);
    deliver_ahead(w);
    cst_lease_flush(&w->leases);
    send_plan(w);
    ck_assert_uint_eq(w->n_handed_in[1], 1);
    ck_assert_uint_eq(w->n_handed_in[0], 0);
    ck_assert_uint_eq(w->n_leased, 0);
    close_world(w);
}
END_TEST

/* Once a chunk is handed in, an operator on it is known as too late until the step is committed. */
START_TEST(test_handed_in)
{
    struct world *w = chain(2);

    open_world(w, 4096, 0);
    run(w, 1, true);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), 1);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 0), CST_LEASE_NONE);
    step(w);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), CST_LEASE_NONE);
    close_world(w);
}
END_TEST

/* A second backward of an operator on an open chunk adds to it and is not counted as another use.
 */
START_TEST(test_backward_twice)
{
    struct world *w = new_world();

    for (uint32_t i = 0; i < 2; i++) {
        uint32_t t = add_tensor(w, 2048);

        add_operator(w, &t, 1);
    }
    open_world(w, 4096, 0);
    run(w, 1, true);
    ck_assert(w->leases.written[1]);
    run(w, 1, true);
    ck_assert_uint_eq(w->n_handed_in[0], 0);
    run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[0], 1);
    step(w);
    close_world(w);
}
END_TEST

/* A refused fetch is not held: the next begin asks for it again, whether it was asked as a demand
 * or ahead. */
START_TEST(test_refused)
{
    struct world *w = chain(2);
    struct cst_lease_item item;

    open_world(w, 4096, 0);
    ck_assert_int_eq(cst_lease_begin(&w->leases, 0, false, NULL), CST_OK);
    item = w->leases.items[0];
    cst_lease_refuse(&w->leases, &item);
    ck_assert_uint_eq(w->leases.n_held, 0);
    ck_assert_int_eq(begin(w, 0, false), CST_OK);
    ck_assert_str_eq(w->said, "W0");
    cst_lease_ahead(&w->leases, 0, false);
    item = w->leases.items[0];
    ck_assert(item.ahead);
    cst_lease_refuse(&w->leases, &item);
    ck_assert_uint_eq(w->leases.asked_ahead, CST_LEASE_NONE);
    ck_assert_int_eq(begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "W1");
    close_world(w);
}
END_TEST

/* After a sync nothing is held and nothing of the step is remembered. */
START_TEST(test_forget)
{
    struct world *w = chain(3);

    open_world(w, 4096, 0);
    run(w, 2, true);
    run(w, 1, false);
    cst_lease_forget(&w->leases);
    memset(w->weight, 0, sizeof w->weight);
    memset(w->grad, 0, sizeof w->grad);
    w->n_leased = 0;
    w->has_ahead = false;
    ck_assert(!w->leases.written[2]);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 2), CST_LEASE_NONE);
    ck_assert_int_eq(begin(w, 2, true), CST_OK);
    ck_assert_str_eq(w->said, "W2 G2");
    close_world(w);
}
END_TEST

/* Operators in an order that opens more gradients than the pool has blocks get EPOOL, and nothing
 * is sent. */
START_TEST(test_pool_exhausted)
{
    struct world *w = new_world();

    for (uint32_t i = 0; i < 6; i++) {
        uint32_t t = add_tensor(w, 2048);

        add_operator(w, &t, 1);
    }
    open_world(w, 4096, 0);
    ck_assert_uint_eq(w->layout.min_blocks, 3);
    run(w, 1, true);
    run(w, 3, true);
    ck_assert_int_eq(begin(w, 5, true), CST_EPOOL);
    ck_assert_uint_le(w->most_leased, w->layout.min_blocks);
    close_world(w);
}
END_TEST

/* A random model: tensors of many sizes, operators over 1..4 of them, some tied, some never used.
 */
static struct world *random_world(uint64_t *rng)
{
    struct world *w = new_world();
    uint32_t n_tensors = 2 + draw(rng, 40), n_operators = 1 + draw(rng, 40);

    for (uint32_t i = 0; i < n_tensors; i++) {
        (void)add_tensor(w, 1 + draw(rng, 4096));
    }
    for (uint32_t i = 0; i < n_operators; i++) {
        uint32_t list[4], n = 0, from = i * n_tensors / n_operators;

        for (uint32_t k = 0; k < 1 + draw(rng, 4); k++) {
            uint32_t t = draw(rng, 5) == 0 ? draw(rng, n_tensors) : (from + k) % n_tensors;
            bool twice = false;

            for (uint32_t j = 0; j < n; j++) {
                twice = twice || list[j] == t;
            }
            if (!twice) {
                list[n++] = t;
            }
        }
        add_operator(w, list, n);
    }
    return w;
}

/* Every chunk that an operator uses was handed in exactly once, the others never. */
static void check_handed_in(const struct world *w)
{
    for (uint32_t c = 0; c < w->layout.n_chunks; c++) {
        ck_assert_uint_eq(w->n_handed_in[c], w->layout.chunks[c].n_uses > 0 ? 1 : 0);
    }
}

/* For any model, in order of declaration, the smallest pool is never exceeded and each used chunk
 * goes in once a step. */
START_TEST(test_random_in_order)
{
    uint64_t seed = seed_of_run() + (uint64_t)_i, rng = seed;
    struct world *w = random_world(&rng);

    printf("in_order: seed %" PRIu64 "\n", seed);
    open_world(w, 0, 0);
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t p = 0; p < 2 * w->model.n_operators; p++) {
            bool backward = p >= w->model.n_operators;

            if (draw(&rng, 2) == 0) {
                deliver_ahead(w);
            }
            run(w, backward ? 2 * w->model.n_operators - 1 - p : p, backward);
        }
        check_handed_in(w);
        step(w);
    }
    ck_assert_uint_le(w->most_leased, w->layout.min_blocks);
    close_world(w);
}
END_TEST

/* In any order at all, the pool is never exceeded; what cannot be is refused; the step gives
 * everything back. */
START_TEST(test_random_any_order)
{
    uint64_t seed = seed_of_run() + (uint64_t)_i, rng = seed;
    struct world *w = random_world(&rng);
    uint32_t n_blocks;

    printf("any_order: seed %" PRIu64 "\n", seed);
    open_world(w, 0, 0);
    n_blocks = w->leases.model.n_blocks;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t op = draw(&rng, w->model.n_operators);
        bool backward = draw(&rng, 2) == 0;

        if (draw(&rng, 2) == 0) {
            deliver_ahead(w);
        }
        if (draw(&rng, 20) == 0) {
            step(w);
        }
        if (backward && cst_lease_handed_in(&w->leases, op) != CST_LEASE_NONE) {
            continue;
        }
        if (begin(w, op, backward) == CST_OK) {
            ahead(w, op, backward);
            end(w, op, backward);
        }
        ck_assert_uint_le(w->n_leased, n_blocks);
    }
    step(w);
    ck_assert_uint_le(w->most_leased, n_blocks);
    close_world(w);
}
END_TEST

/* Many operators on one chunk: looking ahead stays linear (a quadratic search takes minutes and the
 * test times out). */
START_TEST(test_many_operators)
{
    struct world *w = new_world();
    uint32_t shared = add_tensor(w, 64), last = add_tensor(w, 4096);

    for (uint32_t i = 0; i < 65535; i++) {
        add_operator(w, &shared, 1);
    }
    add_operator(w, &last, 1);
    open_world(w, 4096, 0);
    run(w, 0, false);
    deliver_ahead(w);
    ck_assert_uint_ne(w->weight[w->tensor_chunk[last]], 0);
    close_world(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lease");
    TCase *exact = tcase_create("messages"), *random = tcase_create("random");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_add_test(exact, test_chain_messages);
    tcase_add_test(exact, test_shared_chunk);
    tcase_add_test(exact, test_tied_tensor);
    tcase_add_test(exact, test_spanning_operator);
    tcase_add_test(exact, test_wrong_guess);
    tcase_add_test(exact, test_flush_partial);
    tcase_add_test(exact, test_handed_in);
    tcase_add_test(exact, test_backward_twice);
    tcase_add_test(exact, test_refused);
    tcase_add_test(exact, test_forget);
    tcase_add_test(exact, test_pool_exhausted);
    tcase_add_test(exact, test_many_operators);
    tcase_add_loop_test(random, test_random_in_order, 0, 40);
    tcase_add_loop_test(random, test_random_any_order, 0, 40);
    suite_add_tcase(suite, exact);
    suite_add_tcase(suite, random);
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? 0 : 1;
}

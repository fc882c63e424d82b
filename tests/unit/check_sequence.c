/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of struct cst_sequence: the order in which a worker sends, awaits copies and marks its
 * stream. Each call of the sequence is written to a log. */
#include "offload/worker/sequence.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_CHUNKS 4

/* A worker with a tensor per operator and chunk, and its daemon. */
static struct {
    struct cst_sequence sequence;
    uint32_t tensors[MAX_CHUNKS];
    struct cst_lease_operator operators[MAX_CHUNKS];
    struct cst_lease_trait traits[MAX_CHUNKS];
    struct cst_lease_item ahead;                 /* fetch ahead that is not answered yet */
    bool has_ahead;                              /* `ahead` is valid */
    struct cst_lease_item asked[2 * MAX_CHUNKS]; /* fetches for which begin waits */
    uint32_t n_asked;                            /* number of entries in asked */
    bool poll_answers;                           /* poll finds the reply to the fetch ahead */
    const char *fails;                           /* name of the call that fails */
    uint64_t marks;                              /* number of marks in the stream */
    uint64_t generation;                         /* generation of the newest lease */
    char log[512];                               /* calls since the last expect */
} w;

static void __attribute__((format(printf, 1, 2))) note(const char *format, ...)
{
    size_t n = strlen(w.log);
    va_list args;

    va_start(args, format);
    if (n > 0) {
        w.log[n++] = ' ';
    }
    (void)vsnprintf(w.log + n, sizeof w.log - n, format, args);
    va_end(args);
}

static void expect(const char *log)
{
    ck_assert_str_eq(w.log, log);
    w.log[0] = '\0';
}

static int result(const char *call, struct cst_err *err)
{
    return w.fails != NULL && strcmp(w.fails, call) == 0
               ? cst_err_set(err, CST_EGPU, "%s failed", call)
               : CST_OK;
}

static void answer(const struct cst_lease_item *item)
{
    struct cst_lease lease = {.generation = ++w.generation};

    cst_lease_grant(&w.sequence.leases, item, &lease, false);
}

static void answer_ahead(void)
{
    ck_assert(w.has_ahead);
    w.has_ahead = false;
    answer(&w.ahead);
}

static void answer_asked(void)
{
    for (uint32_t i = 0; i < w.n_asked; i++) {
        answer(&w.asked[i]);
    }
    w.n_asked = 0;
    w.sequence.n_awaited = 0;
}

static int send_items(void *arg, const struct cst_lease_item *items, uint32_t n, bool awaited,
                      struct cst_err *err)
{
    static const char *const kinds[] = {"", "W", "G", "r", "R", "P", "E", "WANT"};

    (void)arg;
    for (uint32_t i = 0; i < n; i++) {
        bool fetch =
            items[i].kind == CST_LEASE_FETCH_WEIGHT || items[i].kind == CST_LEASE_FETCH_GRAD;

        if (items[i].kind == CST_LEASE_ACCUMULATE) {
            note("ACCUMULATE");
        } else {
            note("%s%u%s", kinds[items[i].kind], items[i].chunk, items[i].ahead ? "+" : "");
        }
        if (items[i].ahead) {
            w.ahead = items[i];
            w.has_ahead = true;
        } else if (fetch) {
            ck_assert(awaited);
            w.asked[w.n_asked++] = items[i];
        }
    }
    w.sequence.n_awaited += awaited && n > 0;
    return result("send", err);
}

static int poll_replies(void *arg, struct cst_err *err)
{
    (void)arg;
    note("poll");
    if (w.poll_answers && w.has_ahead) {
        answer_ahead();
    }
    return result("poll", err);
}

static int zero(void *arg, uint32_t tensor, const struct cst_lease *lease, struct cst_err *err)
{
    (void)arg;
    ck_assert_uint_ne(lease->generation, 0);
    note("zero%u", tensor);
    return result("zero", err);
}

static int await(void *arg, uint64_t copy, struct cst_err *err)
{
    (void)arg;
    note("await%llu", (unsigned long long)copy);
    return result("await", err);
}

static int mark(void *arg, uint64_t *out, struct cst_err *err)
{
    (void)arg;
    *out = ++w.marks;
    note("mark%llu", (unsigned long long)*out);
    return result("mark", err);
}

static int failed(void *arg, const struct cst_err *why, struct cst_err *err)
{
    (void)arg;
    note("failed");
    return cst_err_set(err, CST_ESTALE, "void: %.64s", why->text);
}

static const struct cst_sequence_calls calls = {
    .send = send_items,
    .poll = poll_replies,
    .zero = zero,
    .await = await,
    .mark = mark,
    .failed = failed,
};

/* Open a worker with @n chunks, all of which fit into the pool, and @blocks blocks. */
static void start(uint32_t n, uint32_t blocks, bool stream)
{
    static const char *const names[MAX_CHUNKS] = {"a", "b", "c", "d"};
    struct cst_lease_model model = {.operators = w.operators,
                                    .tensor_chunk = w.tensors,
                                    .traits = w.traits,
                                    .n_operators = n,
                                    .n_tensors = n,
                                    .n_chunks = n,
                                    .blocks = {blocks}};
    struct cst_err err;

    memset(&w, 0, sizeof w);
    for (uint32_t i = 0; i < n; i++) {
        w.tensors[i] = i;
        w.operators[i] = (struct cst_lease_operator){
            .name = names[i], .tensors = &w.tensors[i], .n_tensors = 1, .runs = true};
        w.traits[i].trains = true;
    }
    ck_assert_int_eq(cst_sequence_init(&w.sequence, &model, 2, stream, &calls, &w, &err), CST_OK);
}

static void stop(void)
{
    cst_sequence_close(&w.sequence);
}

static int begin(uint32_t op, bool backward)
{
    struct cst_err err = {0};

    return cst_sequence_begin(&w.sequence, op, backward, &err);
}

/* Run an operator that waits for nothing but its own fetches. */
static void run(uint32_t op, bool backward)
{
    struct cst_err err = {0};
    int rc = begin(op, backward);

    if (rc == CST_EAGAIN) {
        answer_asked();
        rc = begin(op, backward);
    }
    ck_assert_int_eq(rc, CST_OK);
    ck_assert_int_eq(cst_sequence_end(&w.sequence, op, backward, &err), CST_OK);
}

static void pass(uint64_t mark_number)
{
    struct cst_err err = {0};

    w.sequence.passed = mark_number;
    ck_assert_int_eq(cst_sequence_pass(&w.sequence, &err), CST_OK);
}

/* An operator waits for its fetches, and then fetches ahead. Repeated calls send nothing. */
START_TEST(begin_waits)
{
    start(2, 4, false);
    ck_assert_int_eq(begin(0, false), CST_EAGAIN);
    expect("W0");
    ck_assert_int_eq(begin(0, false), CST_EAGAIN);
    expect("");
    answer_asked();
    ck_assert_int_eq(begin(0, false), CST_OK);
    expect("W1+");
    stop();
}
END_TEST

/* An operator that needs the chunk of the fetch ahead says WANT once, and goes on when it is
 * answered. Each operator says so anew. */
START_TEST(wants_once)
{
    start(3, 6, false);
    run(0, false);
    expect("W0 W1+");
    ck_assert_int_eq(begin(1, false), CST_EAGAIN);
    expect("poll WANT1");
    ck_assert_int_eq(begin(1, false), CST_EAGAIN);
    expect("poll");
    answer_ahead();
    run(1, false);
    expect("r0 W2+");
    ck_assert_int_eq(begin(2, false), CST_EAGAIN);
    expect("poll WANT2");
    stop();
}
END_TEST

/* If the reply to the fetch ahead has arrived, poll finds it, and nothing is said. */
START_TEST(poll_is_enough)
{
    start(2, 4, false);
    run(0, false);
    w.log[0] = '\0';
    w.poll_answers = true;
    ck_assert_int_eq(begin(1, false), CST_OK);
    expect("poll");
    stop();
}
END_TEST

/* A failure of the fetches is the operator's, with its name, and the next begin fetches again. */
START_TEST(refused)
{
    struct cst_err err = {0};

    start(2, 4, false);
    ck_assert_int_eq(begin(1, false), CST_EAGAIN);
    cst_lease_refuse(&w.sequence.leases, &w.asked[0]);
    w.n_asked = w.sequence.n_awaited = 0;
    (void)cst_err_set(&w.sequence.refused, CST_EENGINE, "no engine");
    ck_assert_int_eq(cst_sequence_begin(&w.sequence, 1, false, &err), CST_EENGINE);
    ck_assert_str_eq(err.text, "operator 'b': no engine");
    expect("W1");
    ck_assert_int_eq(begin(1, false), CST_EAGAIN);
    expect("W1");
    stop();
}
END_TEST

/* Without a stream, gradients are handed in at the end of their operator. Those that were not
 * written are zeroed before. The flush waits for the fetch ahead and sends the rest once. */
START_TEST(host_step)
{
    struct cst_err err = {0};

    start(2, 4, false);
    run(1, true);
    expect("W1 G1 W0+ R1");
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_EAGAIN);
    expect("");
    answer_ahead();
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    answer_asked();
    ck_assert_int_eq(begin(0, true), CST_OK);
    expect("r1 G0");
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_OK);
    expect("zero0 R0 r0");
    cst_sequence_stepped(&w.sequence);
    stop();
}
END_TEST

/* On a device, what is given back waits for a mark behind the operator. The step ends when the
 * stream has passed all marks, and its hand-ins are planned once. */
START_TEST(device_step)
{
    struct cst_err err = {0};

    start(1, 2, true);
    run(0, true);
    expect("W0 G0 mark1");
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_EAGAIN);
    expect("");
    pass(1);
    expect("R0 r0");
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_OK);
    expect("");
    stop();
}
END_TEST

/* Zeroing is work in the stream: the hand-in gets a new mark behind it. */
START_TEST(zero_then_mark)
{
    struct cst_err err = {0};

    start(2, 4, true);
    run(1, true);
    expect("W1 G1 W0+ mark1");
    answer_ahead();
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    answer_asked();
    ck_assert_int_eq(begin(0, true), CST_OK);
    w.log[0] = '\0';
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_EAGAIN);
    expect("zero0 mark2");
    stop();
}
END_TEST

/* While the end of a micro-batch waits for the stream, weights are fetched and gradients are
 * not. */
START_TEST(micro_batch)
{
    struct cst_err err = {0};

    start(1, 2, true);
    run(0, true);
    ck_assert_int_eq(cst_sequence_accumulate(&w.sequence, &err), CST_OK);
    expect("W0 G0 mark1");
    run(0, false);
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    expect("");
    pass(1);
    expect("R0 ACCUMULATE");
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    expect("G0");
    stop();
}
END_TEST

/* The stream awaits a copy before the operator that uses the weights; and before a mark, if the
 * weights are given back unused. It awaits no copy twice. */
START_TEST(copies)
{
    start(3, 6, true);
    run(0, false);
    cst_sequence_copied(&w.sequence, 1, 7);
    answer_ahead();
    expect("W0 W1+");
    run(1, false);
    expect("await7 mark1 W2+");
    cst_sequence_copied(&w.sequence, 2, 8);
    answer_ahead();
    run(1, false);
    expect("");
    run(0, true);
    expect("await8 mark2 G0 mark3");
    stop();
}
END_TEST

/* A device that fails makes the step void, through `failed`. */
START_TEST(mark_fails)
{
    struct cst_err err = {0};

    start(1, 2, true);
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    answer_asked();
    ck_assert_int_eq(begin(0, true), CST_OK);
    expect("W0 G0");
    w.fails = "mark";
    ck_assert_int_eq(cst_sequence_end(&w.sequence, 0, true, &err), CST_ESTALE);
    ck_assert_str_eq(err.text, "void: mark failed");
    expect("mark1 failed");
    stop();
}
END_TEST

START_TEST(await_fails)
{
    start(2, 4, true);
    run(0, false);
    cst_sequence_copied(&w.sequence, 1, 5);
    answer_ahead();
    w.fails = "await";
    expect("W0 W1+");
    ck_assert_int_eq(begin(1, false), CST_ESTALE);
    expect("await5 failed");
    stop();
}
END_TEST

START_TEST(zero_fails)
{
    struct cst_err err = {0};

    start(1, 2, true);
    ck_assert_int_eq(begin(0, true), CST_EAGAIN);
    answer_asked();
    ck_assert_int_eq(begin(0, true), CST_OK);
    w.fails = "zero";
    expect("W0 G0");
    ck_assert_int_eq(cst_sequence_flush(&w.sequence, &err), CST_ESTALE);
    expect("zero0 failed");
    stop();
}
END_TEST

/* Fetches that are planned together with something that cannot be given back are not sent, and not
 * held. */
START_TEST(gives_up)
{
    start(3, 6, true);
    run(0, false);
    answer_ahead();
    w.fails = "mark";
    expect("W0 W1+");
    ck_assert_int_eq(begin(2, false), CST_ESTALE);
    expect("mark1 failed");
    ck_assert_int_eq(w.sequence.leases.chunks[2].weight.state, CST_LEASE_FREE);
    ck_assert_uint_eq(w.sequence.leases.n_items, 0);
    stop();
}
END_TEST

/* Draining drops what waits, awaits the newest copy and marks the end of the stream. A failure is
 * reported as it is. */
START_TEST(drain)
{
    struct cst_err err = {0};

    start(1, 2, true);
    run(0, true);
    w.log[0] = '\0';
    cst_sequence_copied(&w.sequence, 0, 3);
    ck_assert_int_eq(cst_sequence_drain(&w.sequence, &err), CST_OK);
    expect("await3 mark2");
    pass(2);
    expect("");
    w.fails = "mark";
    ck_assert_int_eq(cst_sequence_drain(&w.sequence, &err), CST_EGPU);
    expect("mark3");
    cst_sequence_forget(&w.sequence);
    w.fails = NULL;
    ck_assert_int_eq(begin(0, false), CST_EAGAIN);
    expect("W0");
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sequence");
    TCase *tcase = suite_case(suite, "sequence", NULL, NULL);

    tcase_add_test(tcase, begin_waits);
    tcase_add_test(tcase, wants_once);
    tcase_add_test(tcase, poll_is_enough);
    tcase_add_test(tcase, refused);
    tcase_add_test(tcase, host_step);
    tcase_add_test(tcase, device_step);
    tcase_add_test(tcase, zero_then_mark);
    tcase_add_test(tcase, micro_batch);
    tcase_add_test(tcase, copies);
    tcase_add_test(tcase, mark_fails);
    tcase_add_test(tcase, await_fails);
    tcase_add_test(tcase, zero_fails);
    tcase_add_test(tcase, gives_up);
    tcase_add_test(tcase, drain);
    return suite_run(suite);
}

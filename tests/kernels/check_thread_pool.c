/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/thread_pool: threads that execute pieces of tasks. */
#include "kernels/engine/thread_pool.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <semaphore.h>
#include <stdatomic.h>

#define N_JOBS 200
#define MAX_PIECES 50
#define FIRST 20 /* number of the thread pool's first thread */

static struct cste_thread_pool pool;
static sem_t finished, gate, entered;
static atomic_uint n_started;

static void start_thread(void *arg, unsigned thread)
{
    ck_assert_ptr_eq(arg, &pool);
    ck_assert(thread >= FIRST && thread < FIRST + 8);
    (void)atomic_fetch_add(&n_started, 1);
}

static void open_pool(unsigned n_threads)
{
    struct cste_thread_pool_config config = {.name = "test",
                                             .n_threads = n_threads,
                                             .first = FIRST,
                                             .start = start_thread,
                                             .arg = &pool};
    struct cst_err err;

    (void)sem_init(&finished, 0, 0);
    (void)sem_init(&gate, 0, 0);
    (void)sem_init(&entered, 0, 0);
    ck_assert_int_eq(cste_thread_pool_open(&pool, &config, &err), CST_OK);
}

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0) {
    }
}

struct counted {
    struct cste_task task;         /* must be the first member */
    atomic_uint times[MAX_PIECES]; /* number of times that each piece ran */
    unsigned n_done;               /* number of calls of done */
};

static void count_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    ck_assert(thread >= FIRST && thread < FIRST + pool.config.n_threads);
    (void)atomic_fetch_add(&((struct counted *)task)->times[piece], 1);
}

static void count_done(struct cste_task *task)
{
    struct counted *counted = (struct counted *)task;

    for (uint64_t i = 0; i < task->n_pieces; i++) {
        ck_assert_uint_eq(atomic_load(&counted->times[i]), 1);
    }
    counted->n_done++;
    (void)sem_post(&finished);
}

/* Every piece of every job runs once, and then the job's done is called once, with few threads or
 * many. */
START_TEST(test_all_pieces)
{
    static struct counted tasks[N_JOBS];

    open_pool((unsigned)_i);
    for (unsigned i = 0; i < N_JOBS; i++) {
        tasks[i].task = (struct cste_task){.piece = count_piece,
                                           .done = count_done,
                                           .n_pieces = 1 + i * 7 % MAX_PIECES,
                                           .class = i % CSTE_THREAD_POOL_CLASSES};
        cste_thread_pool_submit(&pool, &tasks[i].task);
    }
    for (unsigned i = 0; i < N_JOBS; i++) {
        wait_for(&finished);
    }
    cste_thread_pool_close(&pool);
    for (unsigned i = 0; i < N_JOBS; i++) {
        ck_assert_uint_eq(tasks[i].n_done, 1);
    }
    ck_assert_uint_eq(atomic_load(&n_started), (unsigned)_i);
}
END_TEST

static char order[64];
static unsigned n_order;

struct letter {
    struct cste_task task; /* must be the first member */
    char letter;           /* the letter that its pieces append to `order` */
};

static void write_letter(struct cste_task *task, uint64_t piece, unsigned thread)
{
    (void)piece;
    (void)thread;
    order[n_order++] = ((struct letter *)task)->letter;
}

static void letter_done(struct cste_task *task)
{
    (void)task;
    (void)sem_post(&finished);
}

static void block_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    (void)task;
    (void)piece;
    (void)thread;
    (void)sem_post(&entered);
    wait_for(&gate);
}

/* Keep the only thread of the thread pool busy until the gate opens, so that jobs submitted
 * meanwhile are queued. */
static void block(struct cste_task *task)
{
    *task = (struct cste_task){.piece = block_piece, .done = letter_done, .n_pieces = 1};
    cste_thread_pool_submit(&pool, task);
    wait_for(&entered);
}

static void submit(struct letter *letter, char c, struct cste_task task)
{
    *letter = (struct letter){.task = task, .letter = c};
    letter->task.piece = write_letter;
    letter->task.done = letter_done;
    cste_thread_pool_submit(&pool, &letter->task);
}

static void submit_letter(struct letter *letter, char c, unsigned class, uint64_t n_pieces)
{
    submit(letter, c, (struct cste_task){.n_pieces = n_pieces, .class = class});
}

/* Demand is served before prefetch, and prefetch before eviction. Jobs of one class are served in
 * the order of submission. */
START_TEST(test_classes)
{
    struct letter letters[5];
    struct cste_task blocker;

    open_pool(1);
    block(&blocker);
    submit_letter(&letters[0], 'e', 2, 2);
    submit_letter(&letters[1], 'p', 1, 2);
    submit_letter(&letters[2], 'd', 0, 2);
    submit_letter(&letters[3], 'q', 1, 1);
    submit_letter(&letters[4], 'c', 0, 1);
    (void)sem_post(&gate);
    for (int i = 0; i < 6; i++) {
        wait_for(&finished);
    }
    cste_thread_pool_close(&pool);
    ck_assert_str_eq(order, "ddcppqee");
}
END_TEST

/* A job with the flag newest_first is served before the waiting jobs of its class, the last such
 * job first, but it interrupts no job: the blocker has begun the first of its two pieces. */
START_TEST(test_newest_first)
{
    struct letter letters[5];
    struct cste_task blocker = {
        .piece = block_piece, .done = letter_done, .n_pieces = 2, .class = 1};

    open_pool(1);
    cste_thread_pool_submit(&pool, &blocker);
    wait_for(&entered);
    submit_letter(&letters[0], 'a', 1, 2);
    submit(&letters[1], 'y', (struct cste_task){.n_pieces = 1, .class = 1, .newest_first = true});
    submit(&letters[2], 'z', (struct cste_task){.n_pieces = 2, .class = 1, .newest_first = true});
    submit_letter(&letters[3], 'b', 1, 1);
    submit_letter(&letters[4], 'd', 0, 1);
    (void)sem_post(&gate);
    (void)sem_post(&gate);
    for (int i = 0; i < 6; i++) {
        wait_for(&finished);
    }
    cste_thread_pool_close(&pool);
    ck_assert_str_eq(order, "dzzyaab");
}
END_TEST

/* The lowest class gets a turn now and then, even if there is always demand. */
START_TEST(test_no_starvation)
{
    struct letter demand, background;
    struct cste_task blocker;
    unsigned at = 0;

    open_pool(1);
    block(&blocker);
    submit_letter(&background, 'b', CSTE_THREAD_POOL_CLASSES - 1, 1);
    submit_letter(&demand, 'd', 0, 3 * CSTE_THREAD_POOL_TURN);
    (void)sem_post(&gate);
    for (int i = 0; i < 3; i++) {
        wait_for(&finished);
    }
    cste_thread_pool_close(&pool);
    while (order[at] != 'b') {
        at++;
    }
    ck_assert_uint_lt(at, CSTE_THREAD_POOL_TURN);
    ck_assert_uint_eq(n_order, 3 * CSTE_THREAD_POOL_TURN + 1);
}
END_TEST

static void submit_again(struct cste_task *task)
{
    if (n_order < 10) {
        cste_thread_pool_submit(&pool, task);
    } else {
        (void)sem_post(&finished);
    }
}

/* A job's done may submit the job again. */
START_TEST(test_from_done)
{
    struct letter letter = {.task = {.piece = write_letter, .done = submit_again, .n_pieces = 1},
                            .letter = 'x'};

    open_pool(1);
    cste_thread_pool_submit(&pool, &letter.task);
    wait_for(&finished);
    cste_thread_pool_close(&pool);
    ck_assert_str_eq(order, "xxxxxxxxxx");
}
END_TEST

static bool begin_letter(struct cste_task *task, uint64_t piece, unsigned thread)
{
    write_letter(task, piece, thread);
    /* The last piece is done at once. */
    return piece + 1 < task->n_pieces;
}

static void finish_letter(struct cste_task *task, uint64_t piece, unsigned thread)
{
    (void)task;
    (void)thread;
    order[n_order++] = (char)('0' + piece);
}

/* A thread begins pieces until its window is full, and then finishes the oldest one. Without
 * another piece to begin, it finishes those that are left. The task is done after all of them. */
START_TEST(test_under_way)
{
    static const char *const orders[] = {"a0a1a2a3a4a", "a0a1a2a3a4a", "aa0a1a2a3a4", "aaa0a1a2a34",
                                         "aaaa0a1a234"};
    struct cste_thread_pool_config config = {
        .name = "test", .n_threads = 1, .first = FIRST, .window = (unsigned)_i};
    struct letter letter;
    struct cste_task blocker;
    struct cst_err err;

    (void)sem_init(&finished, 0, 0);
    (void)sem_init(&gate, 0, 0);
    (void)sem_init(&entered, 0, 0);
    ck_assert_int_eq(cste_thread_pool_open(&pool, &config, &err), CST_OK);
    block(&blocker);
    letter = (struct letter){.task = {.begin = begin_letter,
                                      .finish = finish_letter,
                                      .done = letter_done,
                                      .n_pieces = 6},
                             .letter = 'a'};
    cste_thread_pool_submit(&pool, &letter.task);
    (void)sem_post(&gate);
    wait_for(&finished);
    wait_for(&finished);
    ck_assert_str_eq(order, orders[_i]);
    cste_thread_pool_close(&pool);
}
END_TEST

static void *open_gate(void *arg)
{
    /* Becomes true when the thread pool was told to stop. Only then may the current piece end. */
    bool stop = false;

    (void)arg;
    while (!stop) {
        (void)pthread_mutex_lock(&pool.mutex);
        stop = pool.stop;
        (void)pthread_mutex_unlock(&pool.mutex);
        (void)sched_yield();
    }
    (void)sem_post(&gate);
    return NULL;
}

/* Closing waits for the current piece and drops the queued ones. */
START_TEST(test_close)
{
    struct cste_task blocker;
    struct letter letter;
    pthread_t opener;
    int n_finished;

    open_pool(1);
    block(&blocker);
    submit_letter(&letter, 'x', 0, 3);
    ck_assert_int_eq(pthread_create(&opener, NULL, open_gate, NULL), 0);
    cste_thread_pool_close(&pool);
    (void)pthread_join(opener, NULL);
    (void)sem_getvalue(&finished, &n_finished);
    ck_assert_int_eq(n_finished, 1);
    ck_assert_uint_eq(n_order, 0);
}
END_TEST

/* No threads, and too many threads, are refused. */
START_TEST(test_bad_number)
{
    struct cste_thread_pool_config config = {.name = "test"};
    struct cst_err err;

    ck_assert_int_eq(cste_thread_pool_open(&pool, &config, &err), CST_EINVAL);
    config.n_threads = CSTE_THREAD_POOL_MAX_THREADS + 1;
    ck_assert_int_eq(cste_thread_pool_open(&pool, &config, &err), CST_EINVAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("thread_pool");
    TCase *tcase = suite_case(suite, "thread_pool", NULL, NULL);

    tcase_add_loop_test(tcase, test_all_pieces, 1, 6);
    tcase_add_test(tcase, test_classes);
    tcase_add_test(tcase, test_newest_first);
    tcase_add_test(tcase, test_no_starvation);
    tcase_add_test(tcase, test_from_done);
    tcase_add_loop_test(tcase, test_under_way, 0, 5);
    tcase_add_test(tcase, test_close);
    tcase_add_test(tcase, test_bad_number);
    return suite_run(suite);
}

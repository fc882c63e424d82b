/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a thread of a GPU's engine has under way, in this process, with tests/lib/fakecuda.
 * A gate keeps a stream from going on: everything that is enqueued behind it is under way until the
 * test opens it. */
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/flight.h"
#include "kernels/engine/cpus.h"
#include "kernels/engine/thread_pool.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"
#include "tests/lib/tiny_job.h"

#include <check.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1u << 20)
#define POOL_BYTES (16u * (uint64_t)MIB)
#define LANE 1 /* number of the lane's thread; thread 0 is the team */
#define N_PIECES 7

static struct cste_cpus cpus;
static struct cste_device device;
static struct cste_gpu *gpu;
static struct cste_mem host, pool;
static int pool_fd = -1;
static uint64_t *gate; /* 1: open */
static struct cst_err err;

/* Open the device with @faults of the driver (NULL: none), host memory and a pool. */
static void open_device(const char *faults)
{
    struct cste_device_spec spec = {
        .cpus = &cpus, .id = fake_gpu_uuid(0), .n_team = 1, .n_threads = 2};
    int fd = engine_proc_memfd(POOL_BYTES, NULL);
    struct cst_err note;

    if (faults != NULL) {
        (void)setenv("CST_FAKECUDA_FAIL", faults, 1);
    }
    ck_assert_int_eq(cste_cpus_open(&cpus, 0, &err), CST_OK);
    ck_assert_msg(cste_device_open(&device, &cste_cuda_ops, &spec, &err) == CST_OK, "%s", err.text);
    gpu = device.state;
    host = (struct cste_mem){.bytes = POOL_BYTES};
    pool = (struct cste_mem){.bytes = POOL_BYTES};
    ck_assert_int_eq(cste_device_map(&device, fd, -1, &host, &note, &err), CST_OK);
    ck_assert_int_eq(cste_device_lock(&device, &host, &err), CST_OK);
    (void)close(fd);
    ck_assert_int_eq(cste_device_import(&device, LANE, &pool_fd, &pool, &err), CST_OK);
}

static void close_device(void)
{
    (void)gpu->driver.cuMemFreeHost(gate);
    cste_device_unmap(&device, &pool);
    cste_device_unmap(&device, &host);
    cste_device_close(&device);
    (void)close(pool_fd);
    cste_cpus_close(&cpus);
}

/* Close a gate on the stream of @thread. */
static void close_gate(unsigned thread)
{
    CUdeviceptr at;
    void *word;

    ck_assert_int_eq(cste_gpu_enter(gpu, &err), CST_OK);
    ck_assert_int_eq(gpu->driver.cuMemHostAlloc(&word, sizeof *gate, CU_MEMHOSTALLOC_PORTABLE),
                     CUDA_SUCCESS);
    gate = word;
    *gate = 0;
    ck_assert_int_eq(gpu->driver.cuMemHostGetDevicePointer(&at, gate, 0), CUDA_SUCCESS);
    ck_assert_int_eq(gpu->driver.cuStreamWaitValue64(cste_gpu_stream(gpu, thread), at, 1,
                                                     CU_STREAM_WAIT_VALUE_EQ),
                     CUDA_SUCCESS);
}

static void open_gate(void)
{
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

/* Returns how many flights of @thread the driver has under way. */
static unsigned n_under_way(unsigned thread)
{
    unsigned n = 0;

    for (unsigned i = 0; i < CSTE_GPU_WINDOW; i++) {
        struct cste_gpu_flight *flight = &gpu->threads[thread].flights[i];

        n += flight->departed && gpu->driver.cuEventQuery(flight->event) == CUDA_ERROR_NOT_READY;
    }
    return n;
}

/* -- the window ----------------------------------------------------------------------------- */

static sem_t begun, over;
static unsigned n_finished;
static uint64_t finished[N_PIECES];

static struct cste_addr in(const struct cste_mem *mem, uint64_t piece)
{
    return (struct cste_addr){.mem = mem, .offset = piece * MIB};
}

static bool begin_copy(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cst_err why;

    (void)task;
    ck_assert_int_eq(
        cste_device_copy(&device, thread, in(&pool, piece), in(&host, piece), MIB, &why), CST_OK);
    (void)sem_post(&begun);
    return true;
}

static void finish_copy(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cst_tile_done done;
    struct cst_err why;

    (void)task;
    ck_assert_int_eq(cste_device_finish(&device, thread, &done, &why), CST_OK);
    finished[n_finished++] = piece;
}

static void copies_done(struct cste_task *task)
{
    (void)task;
    (void)sem_post(&over);
}

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0) {
    }
}

/* A thread begins as many copies as its window holds while the first one is not done, and no more.
 * It finishes them in order, and the task is done after the last one. */
START_TEST(test_window)
{
    struct cste_task task = {
        .begin = begin_copy, .finish = finish_copy, .done = copies_done, .n_pieces = N_PIECES};
    struct cste_thread_pool_config config = {
        .name = "test", .n_threads = 1, .first = LANE, .window = cste_cuda_ops.window};
    struct cste_thread_pool lanes;

    open_device(NULL);
    memset(host.base, 7, N_PIECES * MIB);
    (void)sem_init(&begun, 0, 0);
    (void)sem_init(&over, 0, 0);
    close_gate(LANE);
    ck_assert_int_eq(cste_thread_pool_open(&lanes, &config, &err), CST_OK);
    cste_thread_pool_submit(&lanes, &task);
    for (unsigned i = 0; i < CSTE_GPU_WINDOW; i++) {
        wait_for(&begun);
    }
    ck_assert_uint_eq(n_under_way(LANE), CSTE_GPU_WINDOW);
    ck_assert_int_ne(sem_trywait(&begun), 0);
    ck_assert_int_ne(sem_trywait(&over), 0);
    ck_assert_uint_eq(*(unsigned char *)(uintptr_t)pool.device, 0);
    open_gate();
    wait_for(&over);
    cste_thread_pool_close(&lanes);
    ck_assert_uint_eq(n_finished, N_PIECES);
    for (unsigned i = 0; i < N_PIECES; i++) {
        ck_assert_uint_eq(finished[i], i);
    }
    ck_assert_mem_eq((void *)(uintptr_t)pool.device, host.base, N_PIECES * MIB);
    close_device();
}
END_TEST

/* -- marks ---------------------------------------------------------------------------------- */

static struct tiny_job job;

#define N_TILES 4

/* Begin the sum of tile @tile of two blocks of the pool. */
static int reduce(uint64_t tile)
{
    static struct cst_tile_work work;
    static struct cste_addr src[2];
    struct cst_place grad = tiny_job_row(&job, 0, CST_ROW_GRAD);
    struct cst_tile_done done;
    int rc;

    work = (struct cst_tile_work){
        .table = job.table,
        .table_id = job.ids[TINY_TABLE],
        .mark = 1,
        .rows = {.grad = (uint16_t *)(void *)((char *)job.base[TINY_ARENA] + grad.offset)}};
    for (unsigned i = 0; i < 2; i++) {
        src[i] = (struct cste_addr){.mem = &pool, .offset = tiny_job_block(&job, 0, i).offset};
    }
    rc = cste_device_reduce(&device, 0, &work, 2, src, tile, 1, NULL, &done, &err);
    ck_assert_uint_eq(done.n_elems, 0);
    return rc;
}

/* Returns the number of tiles with a mark, which are the first ones. */
static unsigned n_marked(void)
{
    const struct cst_table_tile *tiles = cst_table_tiles(job.table);
    unsigned n = 0;

    for (unsigned i = 0; i < N_TILES; i++) {
        ck_assert(tiles[i].reduce_mark != 1 || n == i);
        n += tiles[i].reduce_mark == 1;
    }
    return n;
}

static int finish(void)
{
    struct cst_tile_done done;
    int rc = cste_device_finish(&device, 0, &done, &err);

    ck_assert_int_eq(done.n_elems > 0, rc == CST_OK);
    return rc;
}

static void open_sums(const char *faults)
{
    uint64_t n_elems = N_TILES * CST_TILE_ELEMS;
    struct cste_mem arena;

    tiny_job_open(&job, 1, &n_elems, 1, 3);
    open_device(faults);
    arena = (struct cste_mem){.base = job.base[TINY_ARENA], .bytes = job.bytes[TINY_ARENA]};
    ck_assert_int_eq(cste_device_lock(&device, &arena, &err), CST_OK);
}

static void close_sums(void)
{
    (void)gpu->driver.cuMemHostUnregister(job.base[TINY_ARENA]);
    close_device();
    tiny_job_close(&job);
}

/* Several sums are under way at once. No tile is marked before its sum has arrived, and the tiles
 * are marked in the order in which their sums began. */
START_TEST(test_marks)
{
    open_sums(NULL);
    close_gate(0);
    for (unsigned i = 0; i < N_TILES; i++) {
        ck_assert_int_eq(reduce(i), CST_OK);
    }
    ck_assert_uint_eq(n_under_way(0), N_TILES);
    ck_assert_uint_eq(n_marked(), 0);
    open_gate();
    for (unsigned i = 0; i < N_TILES; i++) {
        ck_assert_uint_eq(n_marked(), i);
        ck_assert_int_eq(finish(), CST_OK);
    }
    ck_assert_uint_eq(n_marked(), N_TILES);
    close_sums();
}
END_TEST

/* A copy in the middle is refused: its call fails and leaves nothing under way, earlier sums are
 * marked when they are finished, and the tile of the refused copy is not marked. */
START_TEST(test_refused)
{
    /* The driver copies a sum's gradients and its sum of squares to the host. */
    open_sums("cuMemcpyDtoHAsync:6=1");
    close_gate(0);
    ck_assert_int_eq(reduce(0), CST_OK);
    ck_assert_int_eq(reduce(1), CST_OK);
    open_gate(); /* the failed call waits for the stream */
    ck_assert_int_eq(reduce(2), CST_EINTERNAL);
    ck_assert_uint_eq(n_marked(), 0);
    ck_assert_int_eq(finish(), CST_OK);
    ck_assert_int_eq(finish(), CST_OK);
    ck_assert_uint_eq(n_marked(), 2);
    ck_assert_int_eq(reduce(2), CST_OK);
    ck_assert_int_eq(finish(), CST_OK);
    ck_assert_uint_eq(n_marked(), 3);
    close_sums();
}
END_TEST

static const char *const lost[] = {"cuEventSynchronize:2=1", "cuEventSynchronize:2=719"};

/* The wait for a sum in the middle fails: what it has done is not known. Neither its tile nor a
 * later one is marked, though their sums may have arrived. */
START_TEST(test_lost)
{
    open_sums(lost[_i]);
    close_gate(0);
    for (unsigned i = 0; i < N_TILES; i++) {
        ck_assert_int_eq(reduce(i), CST_OK);
    }
    open_gate();
    ck_assert_int_eq(finish(), CST_OK);
    for (unsigned i = 1; i < N_TILES; i++) {
        ck_assert_int_eq(finish(), CST_EGPU);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
    ck_assert_uint_eq(n_marked(), 1);
    tiny_job_close(&job);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_flight");
    TCase *tcase = suite_case(suite, "flight", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_add_test(tcase, test_window);
    tcase_add_test(tcase, test_marks);
    tcase_add_test(tcase, test_refused);
    tcase_add_loop_test(tcase, test_lost, 0, 2);
    return suite_run(suite);
}

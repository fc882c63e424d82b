/* SPDX-License-Identifier: Apache-2.0 */
/* copy_up, copy_down, copy_both: the rate of a GPU's engine that copies 64 MiB chunks from an arena
 * to a pool and back, several at a time, compared with cuMemcpyAsync between pinned memory and the
 * GPU in one run: equally many bytes in equal pieces, one stream per direction, enqueued at once.
 * Engine and driver take turns; reports medians. Every byte that the engine has copied is compared.
 *
 * Starts a real engine. Usage: bench_copy [--quick] [--json FILE] [--engine PROGRAM] */
#include "tests/lib/engine_proc.h"

#include "kernels/cuda/driver.h"
#include "kernels/math/undo.h"
#include "tests/bench/timing.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNKS = 8,    /* chunks in the arena, and as many in the pool */
    IN_FLIGHT = 4, /* number of commands that the engine has at a time, in each direction */
    MAX_RUNS = 11, /* largest number of runs of each kind */
    MAX_THREADS = 64,
    NO_GPU = 77,
    ARENA = 1, /* the enumerators from here on are segment ids */
    POOL = 2,
    UNDO = 3,
};

enum way { UP, DOWN, BOTH, N_WAYS };

/* Copies of the chunks [first, first + n) in one direction, @rounds times. */
struct traffic {
    enum way way; /* UP or DOWN */
    unsigned first, n;
    uint64_t sent, total; /* number of commands */
};

struct bench {
    size_t chunk_bytes;
    unsigned rounds, runs;
    struct engine_proc proc;
    uint64_t last_ticket;
    /* CHUNKS chunks each; `pattern` is the content with which the pool was filled. */
    char *arena, *pattern;
    struct cst_cuda_driver driver;
    CUstream streams[2];
    CUdeviceptr device; /* memory of the comparison on the device */
    char *pinned;       /* memory of the comparison on the host */
    double engine[N_WAYS][MAX_RUNS], yard[N_WAYS][MAX_RUNS];
};

static const char *const names[N_WAYS] = {"copy_up", "copy_down", "copy_both"};

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_copy: %s\n", what);
    exit(EXIT_FAILURE);
}

static void fill(void *at, size_t bytes, uint64_t seed)
{
    uint64_t *words = at, x = seed * 2 + 1;

    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

/* The traffic of @way: all up, all down, or the first half up and the second half down. */
static unsigned plan(const struct bench *b, enum way way, struct traffic traffic[2])
{
    unsigned n = way == BOTH ? CHUNKS / 2 : CHUNKS;
    uint64_t total = (uint64_t)n * b->rounds;

    traffic[0] = (struct traffic){.way = way == DOWN ? DOWN : UP, .n = n, .total = total};
    traffic[1] = (struct traffic){.way = DOWN, .first = n, .n = n, .total = total};
    return way == BOTH ? 2 : 1;
}

static double gb_s(const struct bench *b, double seconds)
{
    return (double)CHUNKS * b->rounds * (double)b->chunk_bytes / seconds * 1e-9;
}

/* -- the engine ----------------------------------------------------------------------------- */

static void submit(struct bench *b, struct traffic *t)
{
    uint64_t at = (t->first + t->sent++ % t->n) * b->chunk_bytes;
    struct engine_command copy = {.kind = ENGINE__COMMAND_KIND__COPY,
                                  .ticket = ++b->last_ticket,
                                  .priority = t->way == UP ? ENGINE__PRIORITY__DEMAND
                                                           : ENGINE__PRIORITY__EVICTION,
                                  .src = {{.segment = t->way == UP ? ARENA : POOL, .offset = at}},
                                  .n_src = 1,
                                  .dst = {{.segment = t->way == UP ? POOL : ARENA, .offset = at}},
                                  .n_dst = 1,
                                  .bytes = b->chunk_bytes};

    engine_proc_submit(&b->proc, &copy, 1);
}

/* Count the completions since @seen by direction. A ticket does not tell the direction, so the
 * direction of each command is kept. */
static void count_done(const struct bench *b, size_t *seen, const enum way *way_of,
                       uint64_t first_ticket, uint64_t done[2])
{
    for (; *seen < b->proc.n_done; (*seen)++) {
        const struct engine_completion *c = &b->proc.done[*seen];

        if (c->status != CST_OK) {
            die(c->text);
        }
        done[way_of[c->ticket - first_ticket]]++;
    }
}

static void run_engine(struct bench *b, enum way way, double *out)
{
    struct traffic traffic[2];
    unsigned n = plan(b, way, traffic);
    uint64_t done[2] = {0}, first = b->last_ticket + 1, total = n * traffic[0].total;
    enum way *way_of = calloc(total, sizeof *way_of);
    size_t seen = 0;
    double began;

    if (way_of == NULL) {
        die("no memory");
    }
    b->proc.n_done = 0;
    began = bench_now();
    while (done[UP] + done[DOWN] < total) {
        for (unsigned i = 0; i < n; i++) {
            struct traffic *t = &traffic[i];

            while (t->sent < t->total && t->sent < done[t->way] + IN_FLIGHT) {
                way_of[b->last_ticket + 1 - first] = t->way;
                submit(b, t);
            }
        }
        if (!engine_proc_read(&b->proc, -1)) {
            die("the engine hung up");
        }
        count_done(b, &seen, way_of, first, done);
    }
    *out = gb_s(b, bench_now() - began);
    free(way_of);
}

/* -- comparison ----------------------------------------------------------------------------- */

static void call(struct bench *b, CUresult result, const char *what)
{
    struct cst_err err;

    if (cst_cuda_check(&b->driver, result, &err, "%s", what) != CST_OK) {
        die(err.text);
    }
}

static void run_driver(struct bench *b, enum way way, double *out)
{
    struct traffic traffic[2];
    unsigned n = plan(b, way, traffic);
    double began = bench_now();

    for (uint64_t i = 0; i < traffic[0].total; i++) {
        for (unsigned k = 0; k < n; k++) {
            const struct traffic *t = &traffic[k];
            size_t at = (t->first + i % t->n) * b->chunk_bytes;

            call(b,
                 t->way == UP ? b->driver.cuMemcpyHtoDAsync(b->device + at, b->pinned + at,
                                                            b->chunk_bytes, b->streams[UP])
                              : b->driver.cuMemcpyDtoHAsync(b->pinned + at, b->device + at,
                                                            b->chunk_bytes, b->streams[DOWN]),
                 "copy");
        }
    }
    call(b, b->driver.cuStreamSynchronize(b->streams[UP]), "wait");
    call(b, b->driver.cuStreamSynchronize(b->streams[DOWN]), "wait");
    *out = gb_s(b, bench_now() - began);
}

/* -- measurement ---------------------------------------------------------------------------- */

static void must_hold(const struct bench *b, unsigned first, unsigned n, const char *what)
{
    size_t at = first * b->chunk_bytes;

    if (memcmp(b->arena + at, b->pattern + at, n * b->chunk_bytes) != 0) {
        die(what);
    }
}

/* Measure the three ways, and compare every byte after each. A later way copies down what an
 * earlier one has left in the pool. */
static void measure(struct bench *b, unsigned run)
{
    size_t all = CHUNKS * b->chunk_bytes, half = all / 2;
    double ignored;

    fill(b->pattern, all, 2 * run + 1);
    memcpy(b->arena, b->pattern, all);
    run_engine(b, UP, &b->engine[UP][run]);
    run_driver(b, UP, &b->yard[UP][run]);
    memset(b->arena, 0, all);
    run_driver(b, DOWN, &b->yard[DOWN][run]);
    run_engine(b, DOWN, &b->engine[DOWN][run]);
    must_hold(b, 0, CHUNKS, "what came down is not what went up");

    fill(b->pattern, half, 2 * run + 2);
    memcpy(b->arena, b->pattern, half);
    memset(b->arena + half, 0, half);
    run_engine(b, BOTH, &b->engine[BOTH][run]);
    run_driver(b, BOTH, &b->yard[BOTH][run]);
    must_hold(b, CHUNKS / 2, CHUNKS / 2, "both ways at once: what came down is not what was there");
    memset(b->arena, 0, half);
    run_engine(b, DOWN, &ignored);
    must_hold(b, 0, CHUNKS, "both ways at once: what went up is not there");
}

/* The UUID of the first GPU, as the engine reports it: this process must not use CUDA before it
 * forks. */
static int probe(const char *program, char *uuid, size_t room)
{
    static const char key[] = "\"uuid\"";
    char command[512], text[4096], *at, *end;
    FILE *pipe;
    size_t n;

    (void)snprintf(command, sizeof command, "'%s' --probe", program);
    pipe = popen(command, "re");
    if (pipe == NULL) {
        die("popen");
    }
    n = fread(text, 1, sizeof text - 1, pipe);
    text[n] = '\0';
    (void)pclose(pipe);
    at = strstr(text, key);
    at = at != NULL ? strchr(at + sizeof key - 1, '"') : NULL;
    end = at != NULL ? strchr(at + 1, '"') : NULL;
    if (end == NULL || (size_t)(end - at) > room) {
        (void)fprintf(stderr, "bench_copy: %s --probe: %s\n", program, text);
        return NO_GPU;
    }
    (void)snprintf(uuid, room, "%.*s", (int)(end - at - 1), at + 1);
    return 0;
}

static void open_engine(struct bench *b)
{
    uint64_t bytes = CHUNKS * b->chunk_bytes, undo = MAX_THREADS * sizeof(struct cst_undo_slot);
    struct engine_segment_done done;
    void *arena;
    int fd;

    engine_proc_open(&b->proc, 0, 0, UNDO, engine_proc_memfd(undo, NULL), undo);
    fd = engine_proc_memfd(bytes, &arena);
    b->arena = arena;
    done = engine_proc_add(&b->proc, ARENA, fd, bytes, 0, true, true);
    if (done.status != CST_OK) {
        die(done.text);
    }
    if (!done.locked) {
        die("the engine could not register the arena: its copies would not be from pinned memory");
    }
    done = engine_proc_add_device(&b->proc, POOL, -1, bytes);
    if (done.status != CST_OK) {
        die(done.text);
    }
}

static void open_driver(struct bench *b, const char *uuid)
{
    size_t bytes = CHUNKS * b->chunk_bytes;
    struct cst_err err;
    CUdevice device = 0;
    CUcontext context;
    void *pinned;

    if (cst_cuda_driver_open(&b->driver, &err) != CST_OK ||
        cst_cuda_find(&b->driver, uuid, &device, &err) != CST_OK) {
        die(err.text);
    }
    call(b, b->driver.cuDevicePrimaryCtxRetain(&context, device), "context");
    call(b, b->driver.cuCtxSetCurrent(context), "context");
    call(b, b->driver.cuMemAlloc(&b->device, bytes), "memory of the GPU");
    call(b, b->driver.cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE), "pinned memory");
    b->pinned = pinned;
    fill(b->pinned, bytes, 7);
    for (int i = 0; i < 2; i++) {
        call(b, b->driver.cuStreamCreateWithPriority(&b->streams[i], CU_STREAM_NON_BLOCKING, 0),
             "stream");
    }
}

static void report(struct bench *b, const char *path)
{
    FILE *json = path != NULL ? fopen(path, "ae") : NULL;

    if (path != NULL && json == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    (void)printf("%s, %u x %zu MiB, %u in flight, %u lanes a direction\n", b->proc.device_name,
                 CHUNKS, b->chunk_bytes >> 20, IN_FLIGHT, b->proc.copy_threads);
    for (enum way way = UP; way < N_WAYS; way++) {
        double engine = bench_median(b->engine[way], b->runs),
               yard = bench_median(b->yard[way], b->runs);

        (void)printf("%-10s engine %7.2f GB/s, driver %7.2f GB/s, ratio %.3f\n", names[way], engine,
                     yard, engine / yard);
        if (json != NULL) {
            (void)fprintf(json,
                          "{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", \"yardstick\": "
                          "%.3f, \"ratio\": %.4f, \"runs\": %u}\n",
                          names[way], engine, yard, engine / yard, b->runs);
        }
    }
    if (json != NULL && fclose(json) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"engine", required_argument, NULL, 'e'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {NULL, 0, NULL, 0}};
    static struct bench b = {.chunk_bytes = (size_t)64 << 20, .rounds = 2, .runs = MAX_RUNS};
    const char *json = NULL, *engine = "./cistern-engine-cuda";
    char uuid[CST_CUDA_UUID_BYTES];
    int option, rc;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            json = optarg;
        } else if (option == 'e') {
            engine = optarg;
        } else if (option == 'q') {
            b.chunk_bytes = (size_t)4 << 20;
            b.runs = 3;
        } else {
            (void)fprintf(stderr, "usage: bench_copy [--quick] [--json FILE] [--engine PROGRAM]\n");
            return 2;
        }
    }
    rc = probe(engine, uuid, sizeof uuid);
    if (rc != 0) {
        return rc;
    }
    b.pattern = malloc(CHUNKS * b.chunk_bytes);
    if (b.pattern == NULL) {
        die("no memory");
    }
    engine_proc_use(engine, uuid);
    open_engine(&b);
    open_driver(&b, uuid);
    for (unsigned run = 0; run < b.runs; run++) {
        measure(&b, run);
    }
    report(&b, json);
    return engine_proc_close(&b.proc) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

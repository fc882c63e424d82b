/* SPDX-License-Identifier: Apache-2.0 */
/* copy_vs_memcpy: the rate of an engine that copies 32 MiB chunks from arena to pool and back,
 * several at a time, compared with memcpy in as many threads as the engine has lanes, on the same
 * memory in one run. All memory is touched and has new random data in every run; engine and memcpy
 * take turns. Reports the medians of the slower direction.
 *
 * Starts a real engine. Run from the build tree. Usage: bench_copy [--json FILE] [--lanes N] */
#include "tests/lib/engine_proc.h"

#include "kernels/math/undo.h"
#include "tests/bench/timing.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNKS = 8,    /* chunks in the arena, and as many in the pool */
    ROUNDS = 2,    /* number of copies of each chunk in a run */
    IN_FLIGHT = 4, /* number of commands that the engine has at a time */
    RUNS = 9,      /* number of runs with the engine, and as many with memcpy */
    MAX_THREADS = 64,
    ARENA = 1, /* the enumerators from here on are segment ids */
    POOL = 2,
    UNDO = 3,
};

#define CHUNK_BYTES ((size_t)32 << 20)
#define SEGMENT_BYTES (CHUNKS * CHUNK_BYTES)
#define RUN_BYTES ((uint64_t)ROUNDS * SEGMENT_BYTES)

static uint64_t last_ticket;

static void fill(void *at, uint64_t seed)
{
    uint64_t *words = at, x = seed * 2 + 1;

    for (size_t i = 0; i < SEGMENT_BYTES / sizeof *words; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

/* -- comparison ----------------------------------------------------------------------------- */

struct slice {
    pthread_t thread;
    pthread_barrier_t *start;
    char *dst;
    const char *src;
    size_t bytes; /* bytes of each chunk that this thread copies, from dst and src on */
};

static void *copy_slices(void *arg)
{
    const struct slice *slice = arg;

    (void)pthread_barrier_wait(slice->start);
    for (int i = 0; i < ROUNDS * CHUNKS; i++) {
        size_t at = (size_t)(i % CHUNKS) * CHUNK_BYTES;

        memcpy(slice->dst + at, slice->src + at, slice->bytes);
    }
    return NULL;
}

/* Rate of memcpy in GB/s. Each chunk is divided among @n threads that do not wait for one
 * another. */
static double run_memcpy(char *dst, const char *src, unsigned n)
{
    struct slice slices[MAX_THREADS];
    pthread_barrier_t start;
    double began;

    (void)pthread_barrier_init(&start, NULL, n + 1);
    for (unsigned i = 0; i < n; i++) {
        size_t from = CHUNK_BYTES / n * i;

        slices[i] = (struct slice){.start = &start,
                                   .dst = dst + from,
                                   .src = src + from,
                                   .bytes = (i + 1 < n ? CHUNK_BYTES / n : CHUNK_BYTES - from)};
        if (pthread_create(&slices[i].thread, NULL, copy_slices, &slices[i]) != 0) {
            abort();
        }
    }
    began = bench_now();
    (void)pthread_barrier_wait(&start);
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(slices[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&start);
    return (double)RUN_BYTES / (bench_now() - began) / 1e9;
}

/* -- the engine ----------------------------------------------------------------------------- */

static void submit(struct engine_proc *proc, uint32_t to, uint32_t from, uint64_t i)
{
    uint64_t at = i % CHUNKS * CHUNK_BYTES;
    struct engine_command copy = {.kind = ENGINE__COMMAND_KIND__COPY,
                                  .ticket = ++last_ticket,
                                  .src = {{.segment = from, .offset = at}},
                                  .n_src = 1,
                                  .dst = {{.segment = to, .offset = at}},
                                  .n_dst = 1,
                                  .bytes = CHUNK_BYTES};

    engine_proc_submit(proc, &copy, 1);
}

/* Rate of COPY commands in GB/s, IN_FLIGHT at a time. */
static double run_engine(struct engine_proc *proc, uint32_t to, uint32_t from)
{
    uint64_t sent = 0;
    double began = bench_now();

    proc->n_done = 0;
    while (proc->n_done < ROUNDS * CHUNKS) {
        while (sent < ROUNDS * CHUNKS && sent < proc->n_done + IN_FLIGHT) {
            submit(proc, to, from, sent++);
        }
        if (!engine_proc_read(proc, -1)) {
            fprintf(stderr, "bench_copy: the engine hung up\n");
            exit(EXIT_FAILURE);
        }
    }
    return (double)RUN_BYTES / (bench_now() - began) / 1e9;
}

static void must_same(const void *a, const void *b)
{
    if (memcmp(a, b, SEGMENT_BYTES) != 0) {
        fprintf(stderr, "bench_copy: the copy differs\n");
        exit(EXIT_FAILURE);
    }
}

/* -- measurement ---------------------------------------------------------------------------- */

struct direction {
    const char *name;
    uint32_t to, from;               /* segments of a direction */
    char *dst, *src;                 /* the segments' memory, mapped in this process */
    double engine[RUNS], yard[RUNS]; /* rates in GB/s */
    double value, yardstick;         /* medians in GB/s */
};

static void measure(struct engine_proc *proc, struct direction *direction, int run)
{
    fill(direction->src, (uint64_t)run + 1);
    /* After the source was written, engine and memcpy take turns at being first. */
    if (run % 2 == 0) {
        direction->engine[run] = run_engine(proc, direction->to, direction->from);
        must_same(direction->dst, direction->src);
        direction->yard[run] = run_memcpy(direction->dst, direction->src, proc->copy_threads);
    } else {
        direction->yard[run] = run_memcpy(direction->dst, direction->src, proc->copy_threads);
        direction->engine[run] = run_engine(proc, direction->to, direction->from);
    }
}

static void write_json(const char *path, const struct direction *worse, int runs)
{
    FILE *file = fopen(path, "a");

    if (file == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    fprintf(file,
            "{\"name\": \"copy_vs_memcpy\", \"value\": %.2f, \"unit\": \"GB/s\", "
            "\"yardstick\": %.2f, \"ratio\": %.3f, \"runs\": %d}\n",
            worse->value, worse->yardstick, worse->value / worse->yardstick, runs);
    (void)fclose(file);
}

static void *add(struct engine_proc *proc, uint32_t id)
{
    struct engine_segment_done done;
    void *base;
    int fd = engine_proc_memfd(SEGMENT_BYTES, &base);

    done = engine_proc_add(proc, id, fd, SEGMENT_BYTES, 0, true, false);
    if (done.status != CST_OK) {
        fprintf(stderr, "bench_copy: segment %u: %s\n", id, done.text);
        exit(EXIT_FAILURE);
    }
    memset(base, 1, SEGMENT_BYTES);
    return base;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"lanes", required_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    static struct direction directions[2] = {{.name = "arena to pool", .to = POOL, .from = ARENA},
                                             {.name = "pool to arena", .to = ARENA, .from = POOL}};
    const struct direction *worse = directions;
    const char *json = NULL;
    uint64_t undo_bytes = MAX_THREADS * sizeof(struct cst_undo_slot);
    unsigned lanes = 0;
    int runs = (int)bench_sized(RUNS, 1);
    struct engine_proc proc;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            json = optarg;
        } else if (option == 'l' && atoi(optarg) > 0 && atoi(optarg) <= MAX_THREADS) {
            lanes = (unsigned)atoi(optarg);
        } else {
            fprintf(stderr, "Usage: bench_copy [--json FILE] [--lanes 1..%d]\n", MAX_THREADS);
            return EXIT_FAILURE;
        }
    }
    engine_proc_open(&proc, 0, lanes, UNDO, engine_proc_memfd(undo_bytes, NULL), undo_bytes);
    directions[0].src = directions[1].dst = add(&proc, ARENA);
    directions[0].dst = directions[1].src = add(&proc, POOL);
    for (int run = 0; run < runs; run++) {
        measure(&proc, &directions[0], run);
        measure(&proc, &directions[1], run);
    }
    printf("%-14s %6s %14s %14s %7s\n", "direction", "lanes", "engine GB/s", "memcpy GB/s",
           "ratio");
    for (struct direction *d = directions; d < directions + 2; d++) {
        d->value = bench_median(d->engine, (size_t)runs);
        d->yardstick = bench_median(d->yard, (size_t)runs);
        printf("%-14s %6u %14.2f %14.2f %7.3f\n", d->name, proc.copy_threads, d->value,
               d->yardstick, d->value / d->yardstick);
        if (d->value / d->yardstick < worse->value / worse->yardstick) {
            worse = d;
        }
    }
    if (json != NULL) {
        write_json(json, worse, runs);
    }
    return engine_proc_close(&proc) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

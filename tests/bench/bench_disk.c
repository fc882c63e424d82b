/* SPDX-License-Identifier: Apache-2.0 */
/* disk_read, disk_write, disk_mixed: the rate of a drive's engine that copies rows of 16 MiB
 * between memory and a file, several at a time, compared with pread and pwrite in as many threads
 * as the engine has lanes in each direction, with the same file and memory, in one run. Engine and
 * threads take turns, and the file was written before. Reports medians. The sum of both directions
 * is that of "mixed".
 *
 * Starts a real engine. Run from the build tree, with TMPDIR on the drive that is meant.
 * Usage: bench_disk [--json FILE] [--lanes N] */
#include "tests/lib/disk_file.h"
#include "tests/lib/engine_proc.h"

#include "kernels/math/undo.h"
#include "tests/bench/timing.h"

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    IN_FLIGHT = 4, /* number of commands that the engine has in each direction at a time */
    RUNS = 11,     /* number of runs with the engine, and as many with threads */
    MAX_THREADS = 64,
    MEMORY = 1, /* the enumerators from here on are segment ids */
    FILE_ONE = 2,
    UNDO = 3,
};

#define PIECE_BYTES ((uint64_t)4 << 20) /* what a thread reads or writes at a time */
#define N_ROWS 32
#define BYTES (N_ROWS * row_bytes) /* of the file and of the memory */

enum way { READ, WRITE, N_WAYS };

/* What is done in a run: which rows are read, and which are written. */
struct load {
    const char *name;
    uint64_t first[N_WAYS], n[N_WAYS]; /* in rows */
    double engine[RUNS], yard[RUNS];   /* rates in GB/s */
};

static struct load loads[] = {
    {.name = "disk_read", .n = {[READ] = N_ROWS}},
    {.name = "disk_write", .n = {[WRITE] = N_ROWS}},
    {.name = "disk_mixed",
     .first = {[WRITE] = N_ROWS / 2},
     .n = {[READ] = N_ROWS / 2, [WRITE] = N_ROWS / 2}},
};

#define N_LOADS (sizeof loads / sizeof loads[0])

static uint64_t row_bytes; /* what a command copies */
static char *memory;
static int file;

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench_disk: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

static double rate_of(const struct load *load, double began)
{
    return (double)((load->n[READ] + load->n[WRITE]) * row_bytes) / (bench_now() - began) / 1e9;
}

/* -- comparison ----------------------------------------------------------------------------- */

/* The pieces of one direction, which several threads take. */
struct pieces {
    enum way way;
    uint64_t first, n;
    atomic_ulong next;
};

static void *move_pieces(void *arg)
{
    struct pieces *pieces = arg;
    uint64_t i;

    while ((i = atomic_fetch_add(&pieces->next, 1)) < pieces->n) {
        off_t at = (off_t)((pieces->first + i) * PIECE_BYTES);
        ssize_t n = pieces->way == READ ? pread(file, memory + at, PIECE_BYTES, at)
                                        : pwrite(file, memory + at, PIECE_BYTES, at);

        must(n == PIECE_BYTES, "pread or pwrite");
    }
    return NULL;
}

/* Rate of @lanes threads in each direction. */
static double run_threads(const struct load *load, unsigned lanes)
{
    struct pieces pieces[N_WAYS];
    pthread_t threads[N_WAYS * MAX_THREADS];
    unsigned n = 0;
    double began = bench_now();

    for (int way = 0; way < N_WAYS; way++) {
        pieces[way] = (struct pieces){.way = way,
                                      .first = load->first[way] * (row_bytes / PIECE_BYTES),
                                      .n = load->n[way] * (row_bytes / PIECE_BYTES)};
        for (unsigned i = 0; i < lanes && load->n[way] > 0; i++) {
            must(pthread_create(&threads[n++], NULL, move_pieces, &pieces[way]) == 0, "thread");
        }
    }
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return rate_of(load, began);
}

/* -- the engine ----------------------------------------------------------------------------- */

/* The tickets of a direction are all even or all odd. */
static uint64_t last_ticket[N_WAYS] = {2, 1};

static void submit(struct engine_proc *proc, enum way way, uint64_t row)
{
    struct cst_place in_memory = {.segment = MEMORY, .offset = row * row_bytes};
    struct cst_place in_file = {.segment = FILE_ONE, .offset = row * row_bytes};
    struct engine_command copy = way == READ ? engine_command_copy(in_memory, in_file, row_bytes)
                                             : engine_command_copy(in_file, in_memory, row_bytes);

    copy.ticket = last_ticket[way] += 2;
    engine_proc_submit(proc, &copy, 1);
}

static uint64_t count_done(const struct engine_proc *proc, enum way way)
{
    uint64_t n = 0;

    for (size_t i = 0; i < proc->n_done; i++) {
        must(proc->done[i].status == CST_OK, proc->done[i].text);
        n += proc->done[i].ticket % 2 == last_ticket[way] % 2;
    }
    return n;
}

/* Rate of COPY commands, IN_FLIGHT at a time in each direction. */
static double run_engine(struct engine_proc *proc, const struct load *load)
{
    uint64_t sent[N_WAYS] = {0}, all = load->n[READ] + load->n[WRITE];
    double began = bench_now();

    proc->n_done = 0;
    while (proc->n_done < all) {
        for (int way = 0; way < N_WAYS; way++) {
            while (sent[way] < load->n[way] && sent[way] < count_done(proc, way) + IN_FLIGHT) {
                submit(proc, way, load->first[way] + sent[way]++);
            }
        }
        must(engine_proc_read(proc, -1), "the engine hung up");
    }
    (void)count_done(proc, READ);
    return rate_of(load, began);
}

/* -- measurement ---------------------------------------------------------------------------- */

static void measure(struct engine_proc *proc, struct load *load, unsigned run)
{
    /* Engine and threads take turns at being first. */
    if (run % 2 == 0) {
        load->engine[run] = run_engine(proc, load);
        load->yard[run] = run_threads(load, proc->copy_threads);
    } else {
        load->yard[run] = run_threads(load, proc->copy_threads);
        load->engine[run] = run_engine(proc, load);
    }
}

/* What was written is read again. */
static void check_bytes(struct engine_proc *proc)
{
    uint64_t *words = (uint64_t *)(void *)memory, n = BYTES / sizeof *words;

    for (uint64_t i = 0; i < n; i++) {
        words[i] = i * 0x9e3779b97f4a7c15u;
    }
    (void)run_engine(proc, &loads[1]);
    memset(memory, 0, BYTES);
    (void)run_engine(proc, &loads[0]);
    for (uint64_t i = 0; i < n; i++) {
        must(words[i] == i * 0x9e3779b97f4a7c15u, "the copy differs");
    }
}

static void report(const char *json, unsigned lanes, unsigned runs)
{
    FILE *to = json != NULL ? fopen(json, "a") : NULL;

    must(json == NULL || to != NULL, "cannot write the results");
    printf("%-10s %6s %12s %12s %7s\n", "load", "lanes", "engine GB/s", "plain GB/s", "ratio");
    for (struct load *load = loads; load < loads + N_LOADS; load++) {
        double value = bench_median(load->engine, runs), yard = bench_median(load->yard, runs);

        printf("%-10s %6u %12.2f %12.2f %7.3f\n", load->name, lanes, value, yard, value / yard);
        if (to != NULL) {
            fprintf(to,
                    "{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", "
                    "\"yardstick\": %.3f, \"ratio\": %.3f, \"runs\": %u}\n",
                    load->name, value, yard, value / yard, runs);
        }
    }
    if (to != NULL) {
        (void)fclose(to);
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"lanes", required_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    uint64_t undo_bytes = sizeof(struct cst_undo_slot);
    unsigned lanes = 0, runs = bench_sized(RUNS, 1);
    struct engine_segment_done done;
    const char *json = NULL;
    struct engine_proc proc;
    void *base;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            json = optarg;
        } else if (option == 'l' && atoi(optarg) > 0 && atoi(optarg) <= MAX_THREADS) {
            lanes = (unsigned)atoi(optarg);
        } else {
            fprintf(stderr, "Usage: bench_disk [--json FILE] [--lanes 1..%d]\n", MAX_THREADS);
            return EXIT_FAILURE;
        }
    }
    row_bytes = (uint64_t)bench_sized(16, 4) << 20;
    if (disk_file_is_missing("bench_disk")) {
        return EXIT_SUCCESS;
    }
    engine_proc_use_option("--disk", NULL);
    engine_proc_open(&proc, 1, lanes, UNDO, engine_proc_memfd(undo_bytes, NULL), undo_bytes);
    engine_proc_must_add(&proc, MEMORY, engine_proc_memfd(BYTES, &base), BYTES);
    memory = base;
    file = disk_file_make(0, 0);
    done = engine_proc_add_file(&proc, FILE_ONE, file, 0, BYTES, true);
    must(done.status == CST_OK, done.text);
    check_bytes(&proc);
    for (unsigned run = 0; run < runs; run++) {
        for (unsigned i = 0; i < N_LOADS; i++) {
            measure(&proc, &loads[i], run);
        }
    }
    report(json, proc.copy_threads, runs);
    return engine_proc_close(&proc) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

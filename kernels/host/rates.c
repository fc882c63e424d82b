/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-host --rates: the team and the lanes work on one chunk of a job in memory of the
 * node, as an engine does: with its pieces, tile loops, undo slots and thread pools. */
#include "kernels/engine/rates.h"

#include "kernels/host/disk_rates.h"
#include "kernels/host/host.h"
#include "kernels/engine/self_benchmark.h"
#include "kernels/math/muon.h"
#include "proto/rates_fields.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define BUDGET_S 0.35              /* Time spent on one figure. */
#define MIN_BYTES (256u << 20)     /* Least memory to measure on. */
#define MAX_BYTES (2ull << 30)     /* Most memory to measure on. */
#define BYTES_PER_CORE (64u << 20) /* Several times the size of the caches of a core. */
#define MEMORY_SHARE 8             /* At most this part of the node's memory is used. */
/* Bytes of the chunk per element: five rows and two contributions. */
#define ELEM_BYTES 20
#define PIECE_BYTES (4u << 20) /* Bytes of a piece of a plain pass over memory. */
#define N_SRC 2
#define MATRIX 512          /* Rows and columns of the matrices that are multiplied. */
#define MATRICES_PER_CORE 2 /* Matrices for each core, if the arena has space for them. */

struct host_rates {
    struct cste_self_benchmark b;
    struct cste_thread_pool team;
    struct cste_self_benchmark_memory arena;
    struct cst_table_header *table;
    struct cst_undo_slot *slots;          /* One slot for each thread of the team. */
    struct cste_addr rows[CST_ROW_COUNT]; /* Rows of the chunk, in the arena. */
    struct cste_addr src[N_SRC];          /* Rows of the contributions, in the arena. */
    struct cst_tile_work work;
    uint64_t n_elems;               /* Number of elements of the chunk, a multiple of a piece. */
    uint64_t marks;                 /* Number of commands so far; each gets the next mark. */
    struct cst_table_span matrices; /* Matrices that are multiplied, in the arena. */
    struct cst_muon_batch batch;    /* The same matrices. */
    unsigned phase;                 /* Present phase of the products. */
    struct cste_task task;
    struct cst_rates_node rates; /* The results. */
};

static struct host_rates *rates_of(struct cste_task *task)
{
    return (struct host_rates *)(void *)((char *)task - offsetof(struct host_rates, task));
}

static double run(struct host_rates *r, struct cste_thread_pool *pool, cste_task_piece_fn piece,
                  uint64_t n_pieces)
{
    r->task = (struct cste_task){.piece = piece, .n_pieces = n_pieces};
    return cste_self_benchmark_run(pool, &r->task);
}

/* -- passes over memory --------------------------------------------------------------------- */

/* A wide vector. The compiler may split the vector, because memory is the bottleneck. */
typedef float vector __attribute__((vector_size(64)));

static void scale_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct host_rates *r = rates_of(task);
    vector *v = (vector *)(void *)((char *)r->arena.mem.base + piece * PIECE_BYTES);

    (void)thread;
    for (size_t i = 0; i < PIECE_BYTES / sizeof *v; i++) {
        v[i] = v[i] * 0.999f;
    }
}

static double scale(void *arg)
{
    struct host_rates *r = arg;

    return run(r, &r->team, scale_piece, r->arena.mem.bytes / PIECE_BYTES);
}

/* Copy from the first half of the arena to the second, bypassing the cache. */
static void stream_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct host_rates *r = rates_of(task);
    const char *from = (const char *)r->arena.mem.base + piece * PIECE_BYTES;
    char *to = (char *)r->arena.mem.base + (r->task.n_pieces + piece) * PIECE_BYTES;

    (void)thread;
#if defined(__SSE2__)
    for (size_t i = 0; i < PIECE_BYTES; i += sizeof(__m128i)) {
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_load_si128((const __m128i *)(const void *)(from + i)));
    }
    _mm_sfence();
#else
    memcpy(to, from, PIECE_BYTES);
#endif
}

static double stream(void *arg)
{
    struct host_rates *r = arg;

    return run(r, &r->team, stream_piece, r->arena.mem.bytes / PIECE_BYTES / 2);
}

/* -- the engine's work ---------------------------------------------------------------------- */

static void update_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    static const struct cst_tile_hyper hyper = {.lr = 1e-5,
                                                .beta1 = 0.9,
                                                .beta2 = 0.999,
                                                .eps = 1e-8,
                                                .weight_decay = 0.01,
                                                .grad_scale = 1.0f};
    struct host_rates *r = rates_of(task);
    struct cste_device_update what = {.work = &r->work, .hyper = &hyper, .row_elems = r->n_elems};
    uint64_t n = cste_host_ops.compute->max_tiles;
    struct cst_tile_done done;
    struct cst_err err;

    memcpy(what.in, r->rows, sizeof what.in);
    memcpy(what.out, r->rows, sizeof what.out);
    /* An update does not read weights and does not write gradients. */
    what.in[CST_ROW_WEIGHT] = what.out[CST_ROW_GRAD] = (struct cste_addr){0};
    if (cste_device_update(&r->b.device, thread, &what, piece * n, n, &r->slots[thread], &done,
                           &err) != CST_OK) {
        cste_self_benchmark_fail(&r->b, &err);
    }
}

static void reduce_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct host_rates *r = rates_of(task);
    uint64_t n = cste_host_ops.compute->max_tiles;
    struct cst_tile_done done;
    struct cst_err err;

    if (cste_device_reduce(&r->b.device, thread, &r->work, N_SRC, r->src, piece * n, n,
                           &r->slots[thread], &done, &err) != CST_OK) {
        cste_self_benchmark_fail(&r->b, &err);
    }
}

static double command(struct host_rates *r, cste_task_piece_fn piece)
{
    r->work.mark = ++r->marks;
    return run(r, &r->team, piece,
               r->n_elems / (cste_host_ops.compute->max_tiles * (uint64_t)CST_TILE_ELEMS));
}

static double update(void *arg)
{
    return command(arg, update_piece);
}

static double reduce(void *arg)
{
    return command(arg, reduce_piece);
}

/* -- products of Muon ----------------------------------------------------------------------- */

static void product_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct host_rates *r = rates_of(task);
    struct cst_tile_work work = r->work;
    struct cste_device_update what = {.work = &work};
    struct cst_err err;

    work.batch = &r->batch;
    if (cste_device_orthogonalise(&r->b.device, thread, &what, r->phase, piece, 1, &err) !=
        CST_OK) {
        cste_self_benchmark_fail(&r->b, &err);
    }
}

/* Orthogonalise all matrices. */
static double multiply(void *arg)
{
    struct host_rates *r = arg;
    double seconds = 0;

    for (r->phase = CST_MUON_SUMS; r->phase < CST_MUON_PHASES; r->phase++) {
        seconds += run(r, &r->team, product_piece, cst_muon_pieces(&r->batch, (unsigned)r->phase));
    }
    return seconds;
}

/* Put the matrices into the arena, whose rows are not needed any more. */
static void place_matrices(struct host_rates *r)
{
    const uint64_t matrix = (uint64_t)MATRIX * MATRIX;
    uint64_t each = cst_muon_sizes(matrix, MATRIX, MATRIX).total_bytes;
    uint64_t most = (r->arena.mem.bytes - sizeof(struct cst_muon_header)) / each;
    uint64_t n = (uint64_t)MATRICES_PER_CORE * r->b.cpus.n_cores;

    n = n < most ? n : most;
    r->matrices = (struct cst_table_span){.n_elems = n * matrix, .rows = MATRIX, .columns = MATRIX};
    r->batch =
        (struct cst_muon_batch){.spans = &r->matrices, .n_spans = 1, .scratch = r->arena.mem.base};
    memset(cst_muon_values(&r->batch, 0, false), 0x3c, n * matrix * sizeof(uint16_t)); /* 0.011 */
}

static void measure(struct host_rates *r)
{
    /* The lanes copy the first half of the arena to the second. */
    struct cste_self_benchmark_copy copy = {.dst = {.mem = &r->arena.mem},
                                            .src = {.mem = &r->arena.mem},
                                            .piece_bytes = cste_host_ops.memory->piece_bytes};
    double bytes = (double)(r->arena.mem.bytes / PIECE_BYTES * PIECE_BYTES);
    double halves = (double)(r->arena.mem.bytes / PIECE_BYTES / 2 * 2 * PIECE_BYTES);
    /* In place every byte is read and written. A stream reads one half of the arena and writes
     * the other. */
    double in_place = 2.0 * bytes / cste_self_benchmark_median(scale, r, BUDGET_S / 2);
    double streamed = halves / cste_self_benchmark_median(stream, r, BUDGET_S / 2);

    copy.region_bytes = r->arena.mem.bytes / 2 / copy.piece_bytes * copy.piece_bytes;
    copy.dst.offset = copy.region_bytes;
    r->rates.pass = in_place > streamed ? in_place : streamed;
    r->rates.copy = cste_self_benchmark_rate(&r->b, &copy, NULL, NULL);
    r->rates.reduce = (double)r->n_elems / cste_self_benchmark_median(reduce, r, BUDGET_S);
    r->rates.update = (double)r->n_elems / cste_self_benchmark_median(update, r, BUDGET_S);
    place_matrices(r);
    r->rates.products = cst_muon_flops(r->matrices.n_elems, MATRIX, MATRIX) /
                        cste_self_benchmark_median(multiply, r, BUDGET_S);
}

/* -- devices and memory to measure on ------------------------------------------------------- */

static void pin_team(void *arg, unsigned thread)
{
    struct host_rates *r = arg;

    (void)cste_cpus_pin(&r->b.cpus, thread);
}

static int open_pools(struct host_rates *r, const struct cste_engine_rates_options *options,
                      struct cst_err *err)
{
    struct cste_thread_pool_config team = {.name = "cst-team",
                                           .n_threads = options->threads > 0 ? options->threads
                                                                             : r->b.cpus.n_cores,
                                           .start = pin_team,
                                           .arg = r};
    struct cste_device_spec spec = {
        .cpus = &r->b.cpus, .n_team = team.n_threads, .n_threads = team.n_threads + r->b.n_lanes};
    int rc = cste_self_benchmark_open_device(&r->b, &cste_host_ops, &spec, err);

    if (rc == CST_OK) {
        rc = cste_thread_pool_open(&r->team, &team, err);
    }
    return rc == CST_OK ? cste_self_benchmark_open_lanes(&r->b, r->b.n_lanes, team.n_threads, err)
                        : rc;
}

/* Returns the memory of node @node, or of the machine if it has at most one node. */
static uint64_t memory_of(const struct cste_cpus *cpus, unsigned node)
{
    hwloc_obj_t obj = hwloc_get_numanode_obj_by_os_index(cpus->topology, node);

    if (obj != NULL && obj->attr->numanode.local_memory > 0 &&
        hwloc_get_nbobjs_by_type(cpus->topology, HWLOC_OBJ_NUMANODE) > 1) {
        return obj->attr->numanode.local_memory;
    }
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t choose_elems(const struct host_rates *r)
{
    const uint64_t piece = cste_host_ops.compute->max_tiles * (uint64_t)CST_TILE_ELEMS;
    uint64_t bytes = (uint64_t)r->b.cpus.n_cores * BYTES_PER_CORE;

    bytes = bytes < MIN_BYTES ? MIN_BYTES : bytes;
    bytes = bytes > MAX_BYTES ? MAX_BYTES : bytes;
    bytes =
        bytes > r->rates.memory_bytes / MEMORY_SHARE ? r->rates.memory_bytes / MEMORY_SHARE : bytes;
    /* There is at least one piece, even if memory is short. */
    return bytes / ELEM_BYTES / piece * piece + piece;
}

static int open_table(struct host_rates *r, struct cst_err *err)
{
    struct cst_table_header header;

    cst_table_size(&header, 1, 1, cst_table_n_tiles(r->n_elems));
    r->table = calloc(1, header.total_bytes);
    /* The slots are aligned as in an engine: no slot shares a cache line with that of another
     * thread. */
    r->slots = aligned_alloc(_Alignof(struct cst_undo_slot), r->team.n_started * sizeof *r->slots);
    if (r->table == NULL || r->slots == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a table of %" PRIu64 " tiles",
                           header.n_tiles);
    }
    memset(r->slots, 0, r->team.n_started * sizeof *r->slots);
    *r->table = header;
    cst_table_chunks(r->table)[0] = (struct cst_table_chunk){.n_elems = r->n_elems, .n_spans = 1};
    cst_table_spans(r->table)[0] =
        (struct cst_table_span){.n_elems = r->n_elems, .lr_scale = 1.0f, .decay_scale = 1.0f};
    return CST_OK;
}

/* Place the rows in the arena. Each is filled with a byte that yields numbers of the size that
 * occurs in training. */
static void place_rows(struct host_rates *r)
{
    const uint64_t n = r->n_elems;
    const uint64_t bytes[CST_ROW_COUNT] = {[CST_ROW_WEIGHT] = 2,
                                           [CST_ROW_GRAD] = 2,
                                           [CST_ROW_MASTER] = 4,
                                           [CST_ROW_MOMENT] = 4,
                                           [CST_ROW_MOMENT + 1] = 4};
    const int values[CST_ROW_COUNT] = {[CST_ROW_GRAD] = 0x3c,        /* 0.011 */
                                       [CST_ROW_MASTER] = 0x3d,      /* 0.046 */
                                       [CST_ROW_MOMENT] = 0x3b,      /* 0.0029 */
                                       [CST_ROW_MOMENT + 1] = 0x37}; /* 1.1e-5 */
    char *base = r->arena.mem.base;
    uint64_t at = 0;

    for (int row = 0; row < CST_ROW_COUNT; row++) {
        r->rows[row] = (struct cste_addr){.mem = &r->arena.mem, .offset = at};
        memset(base + at, values[row], n * bytes[row]);
        at += n * bytes[row];
    }
    for (unsigned i = 0; i < N_SRC; i++) {
        r->src[i] = (struct cste_addr){.mem = &r->arena.mem, .offset = at};
        memset(base + at, values[CST_ROW_GRAD], n * sizeof(uint16_t));
        at += n * sizeof(uint16_t);
    }
    r->work.rows.grad = (uint16_t *)(void *)(base + r->rows[CST_ROW_GRAD].offset);
    r->work.table = r->table;
}

static int open_all(struct host_rates *r, const struct cste_engine_rates_options *options,
                    struct cst_err *err)
{
    unsigned node = options->node < 0 ? 0 : (unsigned)options->node;
    int rc = cste_self_benchmark_open_cpus(&r->b, (int)node, &cste_host_ops, options, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = open_pools(r, options, err);
    if (rc != CST_OK) {
        return rc;
    }
    r->rates.cores = r->b.cpus.n_cores;
    r->rates.memory_bytes = memory_of(&r->b.cpus, node);
    r->n_elems = choose_elems(r);
    rc = open_table(r, err);
    if (rc == CST_OK) {
        rc = cste_self_benchmark_memory_open(&r->arena, &r->b.device, &r->b.cpus,
                                             r->b.cpus.node_found ? (int)node : -1,
                                             r->n_elems * ELEM_BYTES, &r->team, err);
    }
    if (rc == CST_OK) {
        place_rows(r);
    }
    return rc;
}

static void close_all(struct host_rates *r)
{
    cste_self_benchmark_memory_close(&r->arena);
    if (r->team.n_started > 0) {
        cste_thread_pool_close(&r->team);
    }
    cste_self_benchmark_close(&r->b);
    free(r->slots);
    free(r->table);
}

static int print(const struct host_rates *r, const struct cste_engine_rates_options *options,
                 FILE *to, struct cst_err *err)
{
    bool good =
        fprintf(to,
                "{\"node\":%d,\"isa\":\"%s\",\"threads\":%u,\"copy_threads\":%u,\"cores\":%u,"
                "\"memory_bytes\":%" PRIu64,
                options->node < 0 ? 0 : options->node, r->b.device.about.isa, r->team.n_started,
                r->b.n_lanes, r->rates.cores, r->rates.memory_bytes) > 0;

    for (const struct cst_rates_field *f = cst_rates_node_fields; f->name != NULL; f++) {
        good = good && fprintf(to, ",\"%s\":%.6e", f->name, cst_rates_get(&r->rates, f)) > 0;
    }
    good = good && fputs("}\n", to) != EOF && fflush(to) == 0;
    return good ? CST_OK : cst_err_set(err, CST_EIO, "the rates could not be written");
}

int cste_host_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err)
{
    struct host_rates *r;
    int rc;

    if (options->directory != NULL) {
        return cste_disk_rates(options, to, err);
    }
    r = calloc(1, sizeof *r);
    if (r == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to measure with");
    }
    rc = open_all(r, options, err);
    if (rc == CST_OK) {
        measure(r);
        rc = cste_self_benchmark_result(&r->b, err);
    }
    if (rc == CST_OK) {
        rc = print(r, options, to, err);
    }
    close_all(r);
    free(r);
    return rc;
}

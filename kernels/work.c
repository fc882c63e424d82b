#include "kernels/work.h"

#include "kernels/norm.h"

#include <inttypes.h>
#include <stdlib.h>

#define LANE_PIECE_ELEMS (256u << 10) /* CONVERT: 14 bytes an element */
#define TEAM_MIN_TILES 4              /* about as long as it takes to wake a thread */
#define TEAM_PIECES 4                 /* per thread at least, for an even end */

/* What a kind of command is; the table of them is at the end. */
struct kind {
    const char *name;          /* in words */
    uint32_t min_src, max_src; /* sources that it takes */
    uint32_t n_dst, or_dst;    /* destinations: one of the two numbers */
    bool compute;              /* on the team, not on the lanes */
    bool marks;                /* has a mark, which the chunk gets when it is done */
    int (*find)(struct cst_work *work,
                uint64_t *pieces); /* loop thread: resolve, hold, count pieces */
    int (*piece)(struct cst_work *work, uint64_t piece, unsigned thread,
                 struct cst_err *err); /* crew thread: do one piece */
};

static const struct kind *kind_of(const struct cst_work *work);

static struct cst_work *work_of(struct cst_job *job)
{
    return (struct cst_work *)(void *)((char *)job - offsetof(struct cst_work, job));
}

/* -- the message ---------------------------------------------------------------------------- */

static struct cst_place place_of(const Engine__Place *place)
{
    return (struct cst_place){.segment = place->segment, .offset = place->offset};
}

static int read_places(struct cst_work *work, const Engine__Command *command)
{
    if (command->n_src > CST_TILE_MAX_SRC || command->n_dst > CST_WORK_MAX_DST) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "%zu sources and %zu destinations, at most %d and %d", command->n_src,
                           command->n_dst, CST_TILE_MAX_SRC, CST_WORK_MAX_DST);
    }
    for (size_t i = 0; i < command->n_src; i++) {
        work->src_places[i] = place_of(command->src[i]);
    }
    for (size_t i = 0; i < command->n_dst; i++) {
        work->dst_places[i] = place_of(command->dst[i]);
    }
    work->n_src = (uint32_t)command->n_src;
    work->n_dst = (uint32_t)command->n_dst;
    return CST_OK;
}

static int read_hyper(struct cst_work *work, const Engine__Hyper *hyper)
{
    if (hyper == NULL) {
        return cst_err_set(&work->err, CST_EINVAL, "UPDATE without hyper-parameters");
    }
    work->hyper = (struct cst_tile_hyper){.lr = (double)hyper->lr,
                                          .beta1 = (double)hyper->beta1,
                                          .beta2 = (double)hyper->beta2,
                                          .eps = (double)hyper->eps,
                                          .weight_decay = (double)hyper->weight_decay,
                                          .grad_scale = hyper->grad_scale};
    return CST_OK;
}

static int check(struct cst_work *work)
{
    const struct kind *kind = kind_of(work);

    if (kind->name == NULL) {
        return cst_err_set(&work->err, CST_EUNSUPPORTED, "command kind %d", (int)work->kind);
    }
    if (work->n_src < kind->min_src || work->n_src > kind->max_src ||
        (work->n_dst != kind->n_dst && work->n_dst != kind->or_dst)) {
        return cst_err_set(&work->err, CST_EINVAL, "%s with %u sources and %u destinations",
                           kind->name, work->n_src, work->n_dst);
    }
    if (kind->marks && work->mark == 0) {
        return cst_err_set(&work->err, CST_EINVAL, "%s with mark 0: marks count from 1",
                           kind->name);
    }
    return CST_OK;
}

static int read_command(struct cst_work *work, const Engine__Command *command)
{
    int rc = read_places(work, command);

    work->kind = command->kind;
    work->class = command->has_priority ? (unsigned)command->priority : 0;
    work->class = work->class < CST_CREW_CLASSES ? work->class : CST_CREW_CLASSES - 1;
    work->bytes = command->bytes;
    work->n_elems = command->n_elems;
    work->table = command->table;
    work->chunk_index = command->chunk;
    work->mark = command->mark;
    work->accumulate = command->has_accumulate && command->accumulate;
    if (rc == CST_OK) {
        rc = check(work);
    }
    if (rc == CST_OK && work->kind == ENGINE__COMMAND_KIND__UPDATE) {
        rc = read_hyper(work, command->hyper);
    }
    return rc;
}

int cst_work_open(struct cst_work **out, struct cst_work_context *context,
                  const Engine__Command *command, struct cst_err *err)
{
    struct cst_work *work = calloc(1, sizeof *work);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for command %" PRIu64, command->ticket);
    }
    work->context = context;
    work->status = read_command(work, command);
    *out = work;
    return CST_OK;
}

void cst_work_close(struct cst_work *work)
{
    for (uint32_t i = 0; i < work->n_uses; i++) {
        work->uses[i]->n_uses--;
    }
    free(work);
}

/* -- running: crew threads ------------------------------------------------------------------ */

/* The first failure of a piece is the command's. */
static void fail(struct cst_work *work, int status, const struct cst_err *err)
{
    if (!atomic_exchange(&work->failed, true)) {
        work->status = status;
        work->err = *err;
    }
}

/* What piece @piece of @total things has: from *first on, so many. */
static uint64_t share(const struct cst_work *work, uint64_t piece, uint64_t total, uint64_t *first)
{
    *first = piece * work->grain;
    return total - *first < work->grain ? total - *first : work->grain;
}

static struct cst_addr ahead(struct cst_addr addr, uint64_t bytes)
{
    return (struct cst_addr){.mem = addr.mem, .offset = addr.offset + bytes};
}

static int copy_piece(struct cst_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t at, bytes = share(work, piece, work->bytes, &at);

    return cst_device_copy(work->context->device, thread, ahead(work->dst[0], at),
                           ahead(work->src, at), bytes, err);
}

static int fill_piece(struct cst_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t at, bytes = share(work, piece, work->bytes, &at);

    return cst_device_fill(work->context->device, thread, ahead(work->dst[0], at), bytes, err);
}

static int convert_piece(struct cst_work *work, uint64_t piece, unsigned thread,
                         struct cst_err *err)
{
    uint64_t at, n = share(work, piece, work->n_elems, &at);
    const struct cst_addr dst[4] = {ahead(work->dst[0], at * 4), ahead(work->dst[1], at * 2),
                                    ahead(work->dst[2], at * 4), ahead(work->dst[3], at * 4)};

    (void)thread;
    if (work->n_dst == 1) {
        return cst_device_cast(work->context->device, ahead(work->src, at * 4),
                               ahead(work->dst[0], at * 2), n, err);
    }
    return cst_device_convert(work->context->device, ahead(work->src, at * 4), dst, n, err);
}

static int reduce_piece(struct cst_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t first, n = share(work, piece, work->chunk.n_tiles, &first);

    return cst_device_reduce(work->context->device, thread, &work->chunk.work, work->n_src,
                             work->contributions, first, n, &work->context->slots[thread], err);
}

static int update_piece(struct cst_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    uint64_t first, n = share(work, piece, work->chunk.n_tiles, &first);

    return cst_device_update(work->context->device, &work->chunk.work, &work->hyper, first, n,
                             &work->context->slots[thread], err);
}

static int norm_piece(struct cst_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    (void)piece;
    (void)thread;
    (void)err;
    work->value = cst_norm_sum(cst_table_tiles(work->header), work->header->n_tiles);
    return CST_OK;
}

static void run_piece(struct cst_job *job, uint64_t piece, unsigned thread)
{
    struct cst_work *work = work_of(job);
    struct cst_err err;
    int rc;

    if (atomic_load(&work->failed)) {
        return;
    }
    rc = kind_of(work)->piece(work, piece, thread, &err);
    if (rc != CST_OK) {
        fail(work, rc, &err);
    }
    (void)atomic_fetch_add(&work->context->progress, 1);
}

/* Where the chunk has the mark of its last command of this kind. */
static uint64_t *chunk_mark(struct cst_work *work)
{
    return work->kind == ENGINE__COMMAND_KIND__REDUCE ? &work->chunk.entry->reduce_mark
                                                      : &work->chunk.entry->update_mark;
}

/* All tiles carry the mark: now the chunk may. Release: a reader of the chunk's mark sees its
 * tiles. */
static void mark_chunk(struct cst_work *work)
{
    __atomic_store_n(chunk_mark(work), work->mark, __ATOMIC_RELEASE);
}

static void job_done(struct cst_job *job)
{
    struct cst_work *work = work_of(job);

    if (kind_of(work)->marks && !atomic_load(&work->failed)) {
        mark_chunk(work);
    }
    work->ended_ns = cst_crew_now();
    cst_mailbox_post(work->context->box, &work->mail);
}

/* -- preparing: loop thread ----------------------------------------------------------------- */

static void hold(struct cst_work *work, struct cst_segment *segment)
{
    segment->n_uses++;
    work->uses[work->n_uses++] = segment;
}

/* Resolve and hold one place. */
static int find(struct cst_work *work, struct cst_place place, uint64_t bytes, uint64_t align,
                const char *what, struct cst_addr *out)
{
    struct cst_segment *segment;
    int rc =
        cst_segments_find(work->context->segments, place, bytes, align, what, &segment, &work->err);

    if (rc == CST_OK) {
        hold(work, segment);
        *out = (struct cst_addr){.mem = &segment->mem, .offset = place.offset};
    }
    return rc;
}

static bool overlap(struct cst_addr a, uint64_t a_bytes, struct cst_addr b, uint64_t b_bytes)
{
    return a.mem == b.mem && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
}

static uint64_t n_pieces(uint64_t total, uint64_t grain)
{
    return total / grain + (total % grain != 0);
}

/* Pieces of a chunk: small enough that all threads end together, large enough to be worth a thread.
 */
static uint64_t team_pieces(struct cst_work *work)
{
    uint64_t n = work->chunk.n_tiles;
    uint64_t grain = n / (work->context->n_threads * TEAM_PIECES);
    uint64_t most = work->context->device->ops->max_tiles;

    grain = grain < TEAM_MIN_TILES ? TEAM_MIN_TILES : grain;
    work->grain = grain > most ? most : grain;
    return n_pieces(n, work->grain);
}

static uint64_t lane_pieces(struct cst_work *work, uint64_t total, uint64_t grain)
{
    work->grain = grain;
    return n_pieces(total, grain);
}

/* A chunk that carries the mark was done by an engine before this one. One without a tile is done
 * by marking it. */
static uint64_t chunk_pieces(struct cst_work *work)
{
    uint64_t pieces = *chunk_mark(work) == work->mark ? 0 : team_pieces(work);

    if (pieces == 0) {
        mark_chunk(work);
    }
    return pieces;
}

static int find_copy(struct cst_work *work, uint64_t *pieces)
{
    int rc = find(work, work->src_places[0], work->bytes, 1, "source", &work->src);

    if (rc == CST_OK) {
        rc = find(work, work->dst_places[0], work->bytes, 1, "destination", &work->dst[0]);
    }
    if (rc == CST_OK && overlap(work->src, work->bytes, work->dst[0], work->bytes)) {
        rc = cst_err_set(&work->err, CST_EINVAL, "source and destination of a COPY overlap");
    }
    *pieces = lane_pieces(work, work->bytes, work->context->device->ops->piece_bytes);
    return rc;
}

static int find_fill(struct cst_work *work, uint64_t *pieces)
{
    *pieces = lane_pieces(work, work->bytes, work->context->device->ops->piece_bytes);
    return find(work, work->dst_places[0], work->bytes, 1, "destination", &work->dst[0]);
}

static int find_convert(struct cst_work *work, uint64_t *pieces)
{
    static const uint64_t states[4] = {4, 2, 4, 4}, half[1] = {2};
    static const char *const names[4] = {"master", "weight", "exp_avg", "exp_avg_sq"};
    const uint64_t *sizes = work->n_dst == 1 ? half : states;
    uint64_t n = work->n_elems;
    int rc;

    if (n > CST_CHUNK_MAX_ELEMS) {
        return cst_err_set(&work->err, CST_EINVAL, "CONVERT of %" PRIu64 " elements", n);
    }
    rc = find(work, work->src_places[0], n * 4, 4, "source", &work->src);
    for (uint32_t i = 0; i < work->n_dst && rc == CST_OK; i++) {
        const char *name = work->n_dst == 1 ? "destination" : names[i];

        rc = find(work, work->dst_places[i], n * sizes[i], sizes[i], name, &work->dst[i]);
        if (rc == CST_OK && overlap(work->src, n * 4, work->dst[i], n * sizes[i])) {
            rc = cst_err_set(&work->err, CST_EINVAL, "source and %s of a CONVERT overlap", name);
        }
        for (uint32_t k = 0; k < i && rc == CST_OK; k++) {
            if (overlap(work->dst[k], n * sizes[k], work->dst[i], n * sizes[i])) {
                rc = cst_err_set(&work->err, CST_EINVAL, "%s and %s of a CONVERT overlap", names[k],
                                 names[i]);
            }
        }
    }
    *pieces = lane_pieces(work, n, LANE_PIECE_ELEMS);
    return rc;
}

static int find_chunk(struct cst_work *work, unsigned rows)
{
    int rc = cst_chunk_find(work->context->segments, work->table, work->chunk_index, rows,
                            &work->chunk, &work->err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < work->chunk.n_segments; i++) {
        hold(work, work->chunk.segments[i]);
    }
    work->n_elems = work->chunk.n_elems;
    work->chunk.work.mark = work->mark;
    work->chunk.work.accumulate = work->accumulate;
    return CST_OK;
}

/* Does @src, of @bytes, lie across the grad row? It may be that row, if both are bf16. */
static bool across(const struct cst_work *work, struct cst_place src, uint64_t bytes)
{
    bool wide = work->chunk.work.rows.grad_f32 != NULL;
    struct cst_place grad = work->chunk.entry->rows[CST_ROW_GRAD];

    return src.segment == grad.segment && (wide || src.offset != grad.offset) &&
           src.offset < grad.offset + bytes * (wide ? 2 : 1) && grad.offset < src.offset + bytes;
}

/* A source is the grad row itself, or has nothing in common with it: else a thread would read what
 * another has written. */
static int find_reduce(struct cst_work *work, uint64_t *pieces)
{
    int rc = find_chunk(work, CST_CHUNK_ROWS_REDUCE);

    if (rc == CST_OK && work->accumulate && work->chunk.work.rows.grad_f32 == NULL) {
        rc = cst_err_set(&work->err, CST_EINVAL,
                         "REDUCE is to add to the grad row of chunk %u, which is bf16",
                         work->chunk_index);
    }

    for (uint32_t i = 0; i < work->n_src && rc == CST_OK; i++) {
        uint64_t bytes = work->n_elems * 2;
        struct cst_addr src;

        rc = find(work, work->src_places[i], bytes, 2, "contribution", &src);
        if (rc != CST_OK) {
            break;
        }
        if (across(work, work->src_places[i], bytes)) {
            rc = cst_err_set(&work->err, CST_EINVAL,
                             "contribution %u lies across the grad row of chunk %u", i,
                             work->chunk_index);
            break;
        }
        work->contributions[i] = src;
    }
    *pieces = rc == CST_OK ? chunk_pieces(work) : 0;
    return rc;
}

static int find_update(struct cst_work *work, uint64_t *pieces)
{
    int rc = find_chunk(work, CST_CHUNK_ROWS_ALL);

    *pieces = rc == CST_OK ? chunk_pieces(work) : 0;
    return rc;
}

static int find_norm(struct cst_work *work, uint64_t *pieces)
{
    struct cst_segment *segment;
    int rc =
        cst_chunk_table(work->context->segments, work->table, &segment, &work->header, &work->err);

    if (rc == CST_OK) {
        hold(work, segment);
    }
    *pieces = 1;
    return rc;
}

static const struct kind kinds[] = {
    [ENGINE__COMMAND_KIND__COPY] = {"COPY", 1, 1, 1, 1, false, false, find_copy, copy_piece},
    [ENGINE__COMMAND_KIND__REDUCE] = {"REDUCE", 0, CST_TILE_MAX_SRC, 0, 0, true, true, find_reduce,
                                      reduce_piece},
    [ENGINE__COMMAND_KIND__NORM] = {"NORM", 0, 0, 0, 0, true, false, find_norm, norm_piece},
    [ENGINE__COMMAND_KIND__UPDATE] = {"UPDATE", 0, 0, 0, 0, true, true, find_update, update_piece},
    [ENGINE__COMMAND_KIND__FILL] = {"FILL", 0, 0, 1, 1, false, false, find_fill, fill_piece},
    [ENGINE__COMMAND_KIND__CONVERT] = {"CONVERT", 1, 1, 4, 1, false, false, find_convert,
                                       convert_piece},
};

/* The first row, which has no name: no such kind. */
static const struct kind *kind_of(const struct cst_work *work)
{
    unsigned kind = (unsigned)work->kind;

    return &kinds[kind < sizeof kinds / sizeof kinds[0] ? kind : 0];
}

int cst_work_prepare(struct cst_work *work)
{
    uint64_t pieces = 0;

    if (work->status == CST_OK) {
        work->status = kind_of(work)->find(work, &pieces);
    }
    if (work->status == CST_OK) {
        work->job = (struct cst_job){
            .piece = run_piece, .done = job_done, .n_pieces = pieces, .class = work->class};
    }
    return work->status;
}

bool cst_work_is_compute(const struct cst_work *work)
{
    return kind_of(work)->compute;
}

enum cst_device_lane cst_work_lane(const struct cst_work *work)
{
    return work->kind == ENGINE__COMMAND_KIND__COPY
               ? cst_device_lane(work->dst[0].mem, work->src.mem)
               : CST_LANE_UP;
}

static void count_copy(const struct cst_work *work, uint64_t ns)
{
    struct cst_work_context *context = work->context;
    bool to = work->dst[0].mem->device != 0, from = work->src.mem->device != 0;

    context->copy_bytes += work->bytes;
    context->copy_ns += ns;
    if (to && !from) {
        context->up_bytes += work->bytes;
        context->up_ns += ns;
    } else if (from && !to) {
        context->down_bytes += work->bytes;
        context->down_ns += ns;
    }
}

void cst_work_count(const struct cst_work *work)
{
    struct cst_work_context *context = work->context;
    uint64_t ns = work->job.n_pieces > 0 ? work->ended_ns - work->job.began_ns : 0;

    context->commands++;
    if (work->status != CST_OK || work->job.n_pieces == 0) {
        return;
    }
    if (work->kind == ENGINE__COMMAND_KIND__COPY) {
        count_copy(work, ns);
    } else if (work->kind == ENGINE__COMMAND_KIND__REDUCE) {
        context->reduce_elems += work->n_elems;
        context->reduce_ns += ns;
    } else if (work->kind == ENGINE__COMMAND_KIND__UPDATE) {
        context->update_elems += work->n_elems;
        context->update_ns += ns;
    }
}

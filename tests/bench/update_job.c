/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/update_job.h"

#include "kernels/engine/populate.h"
#include "kernels/math/moments.h"
#include "kernels/math/split.h"
#include "proto/segment_map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, "bench_update: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* Map memory as engines do. cst_update_job_fill allocates it. */
static void *map_shared(struct cst_update_job *job, size_t bytes)
{
    struct cst_update_map *map = &job->maps[job->n_maps];

    if (job->n_maps == CST_UPDATE_JOB_MAX_MAPS) {
        errno = ENOSPC;
        die("rows");
    }
    map->fd = memfd_create("bench_update", MFD_CLOEXEC);
    if (map->fd < 0 || ftruncate(map->fd, (off_t)bytes) != 0) {
        die("memfd");
    }
    map->base = cst_segment_map(map->fd, bytes);
    if (map->base == MAP_FAILED) {
        die("mmap");
    }
    map->bytes = bytes;
    (void)madvise(map->base, bytes, MADV_HUGEPAGE);
    job->n_maps++;
    return map->base;
}

/* Allocate the share of thread @index of all rows. Shares have whole large pages. */
static void populate(const struct cst_update_job *job, unsigned index)
{
    for (unsigned i = 0; i < job->n_maps; i++) {
        const struct cst_update_map *map = &job->maps[i];
        const uint64_t pages = (map->bytes - 1) / CST_LARGE_PAGE + 1;
        const uint64_t first = pages * index / job->threads * CST_LARGE_PAGE;
        uint64_t end = pages * (index + 1) / job->threads * CST_LARGE_PAGE;

        end = end < map->bytes ? end : map->bytes;
        if (first < end) {
            errno = cste_populate(map->fd, map->base, first, end - first);
            if (errno != 0) {
                die("memory");
            }
        }
    }
}

static void open_table(struct cst_update_job *job)
{
    struct cst_table_header header;

    cst_table_size(&header, 1, 1, cst_table_n_tiles(job->params));
    job->work.table = map_shared(job, header.total_bytes);
    *job->work.table = header;
    cst_table_chunks(job->work.table)[0] =
        (struct cst_table_chunk){.n_elems = job->params, .n_spans = 1};
    cst_table_spans(job->work.table)[0] =
        (struct cst_table_span){.n_elems = job->params, .lr_scale = 1.0f, .decay_scale = 1.0f};
}

void cst_update_job_open(struct cst_update_job *job, size_t params, unsigned threads,
                         const struct cst_kernels *kernels)
{
    struct cst_rows *rows = &job->work.rows;

    *job = (struct cst_update_job){.params = params,
                                   .threads = threads,
                                   .work = {.kernels = kernels},
                                   .hyper = {.lr = 1e-5,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .eps = 1e-8,
                                             .weight_decay = 0.01,
                                             .grad_scale = 1.0f}};
    open_table(job);
    job->undo = map_shared(job, threads * sizeof *job->undo);
    job->updated = calloc(threads, sizeof *job->updated);
    if (job->updated == NULL) {
        die("memory");
    }
    rows->weight = map_shared(job, params * sizeof *rows->weight);
    rows->grad = map_shared(job, params * sizeof *rows->grad);
    rows->master = job->master = map_shared(job, params * sizeof *job->master);
    job->remainder = map_shared(job, params * sizeof *job->remainder);
    job->wide = map_shared(job, params * sizeof *job->wide);
    job->src[0] = rows->grad;
    for (int r = 1; r < CST_UPDATE_JOB_MAX_SRC; r++) {
        job->src[r] = map_shared(job, params * sizeof *rows->grad);
    }
    for (int format = 0; format < CST_MOMENTS_COUNT; format++) {
        for (int k = 0; k < 2; k++) {
            uint8_t *row =
                map_shared(job, cst_table_moment_bytes((enum cst_moments)format, params));

            job->moments[format][k] = (struct cst_update_moment){
                .values = row, .exponents = format == CST_MOMENTS_MX8 ? row + params : NULL};
        }
    }
    memcpy(rows->moments, job->moments[CST_MOMENTS_FP32], sizeof rows->moments);
}

void cst_update_job_share(const struct cst_update_job *job, unsigned index, size_t *first,
                          size_t *n)
{
    size_t tiles = cst_table_n_tiles(job->params);
    size_t from = tiles * index / job->threads;
    size_t to = tiles * (index + 1) / job->threads;
    size_t end = to * CST_TILE_ELEMS;

    *first = from * CST_TILE_ELEMS;
    end = end < job->params ? end : job->params;
    *n = end - *first;
}

void cst_update_job_fill(void *arg, unsigned index)
{
    const struct cst_update_job *job = arg;
    const struct cst_rows *rows = &job->work.rows;
    uint64_t x = 0x9e3779b97f4a7c15ull * (index + 1);
    float *const moments[2] = {job->moments[CST_MOMENTS_FP32][0].values,
                               job->moments[CST_MOMENTS_FP32][1].values};
    size_t first, n;

    populate(job, index);
    cst_update_job_share(job, index, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        float unit;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        unit = (float)(x >> 40) * 0x1p-24f - 0.5f;
        for (int r = 0; r < CST_UPDATE_JOB_MAX_SRC; r++) {
            ((uint16_t *)job->src[r])[i] = cst_fp32_to_bf16(unit * 0.1f);
        }
        job->master[i] = unit;
        cst_split_cut(unit, &rows->weight[i], &job->remainder[i]);
        moments[0][i] = unit * 0.01f;
        moments[1][i] = unit * unit * 0.001f;
        job->wide[i] = 0.0f;
    }
    for (int format = 1; format < CST_MOMENTS_COUNT; format++) {
        for (unsigned k = 0; k < 2; k++) {
            cst_moments_encode((enum cst_moments)format, k, first, n, moments[k] + first,
                               &job->moments[format][k]);
        }
    }
}

void cst_update_job_set(struct cst_update_job *job, const struct cst_update_way *way)
{
    struct cst_rows *rows = &job->work.rows;
    bool second = cst_optimizer_n_moments(way->optimizer) == 2;

    job->work.table->optimizer = way->optimizer;
    job->work.table->masters = way->masters;
    job->work.table->moments = way->moments;
    job->work.table->rounding = way->rounding;
    rows->moments[0] = job->moments[way->moments][0];
    rows->moments[1] =
        second ? job->moments[way->moments][1] : (struct cst_update_moment){.values = NULL};
    rows->master = way->masters == CST_MASTERS_SPLIT ? NULL : job->master;
    rows->remainder = way->masters == CST_MASTERS_SPLIT ? job->remainder : NULL;
    rows->weight_in = way->masters == CST_MASTERS_SPLIT ? rows->weight : NULL;
    rows->grad = way->n_src == 0 ? (uint16_t *)job->src[0] : NULL;
    job->work.src = job->src;
    job->work.n_src = way->n_src;
}

double cst_update_job_bytes(const struct cst_update_way *way)
{
    double moment = (double)cst_table_moment_bytes(way->moments, CST_MX8_BLOCK) / CST_MX8_BLOCK;
    double grads = way->n_src == 0 ? 1.0 : (double)way->n_src;

    double masters = way->masters == CST_MASTERS_SPLIT ? 8.0 : 8.0 + 2.0; /* With the weights. */

    return 2.0 * grads + masters + 2.0 * moment * cst_optimizer_n_moments(way->optimizer);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/rows.h"

#include "cistern/job.h"
#include "offload/layout/matrices.h"
#include "offload/layout/buffers.h"
#include "offload/layout/packing.h"
#include "offload/layout/partial_rows.h"
#include "proto/round_up.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS CST_ROWS_COUNT
#define NO_NODE UINT32_MAX

/* -- bytes ---------------------------------------------------------------------------------- */

/* The formats in the header of the job's table. */
static struct cst_table_header formats(const struct cst_layout_states *states, uint32_t grad_bytes)
{
    return (struct cst_table_header){.moments = (uint32_t)states->moments,
                                     .masters = (uint32_t)states->masters,
                                     .grad_bytes = grad_bytes};
}

struct cst_layout_states cst_layout_job_states(const struct cst_job_spec *spec)
{
    return (struct cst_layout_states){
        .optimizer = spec->states.optimizer,
        .masters = spec->states.masters,
        .moments = spec->states.moments,
        .two_weights = spec->updates.overlap != CST_OVERLAP_COMMIT || spec->states.versions > 1,
        .grad_over_weight = spec->states.grad_over_weight,
        .skips_unused = spec->updates.unused == CST_UNUSED_SKIP,
        .durable = spec->states.durable,
    };
}

uint64_t cst_layout_row_bytes(const struct cst_layout_states *states, uint32_t grad_bytes,
                              enum cst_dtype dtype, int row, uint64_t n_elems)
{
    const struct cst_table_header header = formats(states, grad_bytes);
    /* True if a chunk with states has this row, separate from all others. */
    bool has = row == CST_ROW_GRAD ? !states->grad_over_weight || dtype == CST_FP32
               : row == CST_ROW_WEIGHT_OTHER
                   ? states->two_weights || cst_layout_files_weights(states, dtype, true)
                   : cst_table_has_row(states->optimizer, dtype, row);

    return has ? cst_table_row_bytes(&header, dtype, row, n_elems) : 0;
}

uint64_t cst_layout_chunk_row_bytes(const struct cst_layout *layout,
                                    const struct cst_layout_chunk *chunk, int row, uint64_t n_elems)
{
    struct cst_layout_states states = cst_layout_states_of(&layout->states, chunk->muon);

    if (!cst_layout_has_states(chunk)) {
        bool has =
            row == CST_ROW_WEIGHT ||
            (row == CST_ROW_WEIGHT_OTHER && cst_layout_files_weights(&states, chunk->dtype, false));

        return has ? cst_dtype_bytes(chunk->dtype) * n_elems : 0;
    }
    return cst_layout_row_bytes(&states, layout->grad_bytes, chunk->dtype, row, n_elems);
}

double cst_layout_update_bytes(const struct cst_layout_states *states, uint32_t grad_bytes,
                               enum cst_dtype dtype)
{
    const struct cst_table_header header = formats(states, grad_bytes);
    uint64_t group = CST_MX8_BLOCK, bytes;

    bytes = cst_table_row_bytes(&header, dtype, CST_ROW_GRAD, group);
    bytes += (cst_table_reads_weights(&header, dtype) ? 2 : 1) *
             cst_table_row_bytes(&header, dtype, CST_ROW_WEIGHT, group);
    for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
        bytes += 2 * cst_layout_row_bytes(states, grad_bytes, dtype, row, group);
    }
    return (double)bytes / (double)group;
}

/* Bytes of a row of the chunk, with padding; 0: the chunk has no such row of its own. */
static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          uint32_t row)
{
    if (chunk->away && cst_table_is_state((int)row)) {
        return 0;
    }
    return cst_round_up(cst_layout_chunk_row_bytes(layout, chunk, (int)row, chunk->n_elems),
                        CST_LAYOUT_ROW_ALIGN);
}

static struct cst_layout_row *row_of(struct cst_layout_chunk *chunk, uint32_t row)
{
    return row == CST_ROW_WEIGHT_OTHER ? &chunk->other_weight : &chunk->rows[row];
}

static uint64_t chunk_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < N_ROWS && cst_layout_is_own(chunk); r++) {
        bytes += row_bytes(layout, chunk, r);
    }
    return bytes;
}

/* The node with the fewest bytes so far, of several the lowest. So consecutive chunks, in updates
 * and in the next forward pass, belong to different nodes, and all nodes work at any time. */
static uint32_t next_node(const uint64_t *bytes, uint32_t n_nodes)
{
    uint32_t least = 0;

    for (uint32_t node = 1; node < n_nodes; node++) {
        least = bytes[node] < bytes[least] ? node : least;
    }
    return least;
}

/* Returns whether each node is near to a rank. Otherwise the nodes that are near to none would have
 * no chunks of their own, and their processors and memory little to do. */
static bool all_nodes_are_near(const struct cst_layout_config *config)
{
    bool all = true;

    for (uint32_t node = 0; node < config->n_nodes; node++) {
        bool near = false;

        for (uint32_t r = 0; r < config->world && r < CST_LAYOUT_MAX_WORLD; r++) {
            near = near || config->near_node[r] == node + 1;
        }
        all = all && near;
    }
    return all;
}

/* Returns the node that is near to all ranks of @chunk; NO_NODE: there is none. */
static uint32_t node_near(const struct cst_layout_config *config,
                          const struct cst_layout_chunk *chunk)
{
    uint32_t near = 0;
    bool one = true;

    CST_SET_EACH (r, chunk->ranks) {
        one = one && config->near_node[r] != 0 && (near == 0 || near == config->near_node[r]);
        near = config->near_node[r];
    }
    return one && near != 0 ? near - 1 : NO_NODE;
}

/* Put chunks on the node that is near to all their ranks, as long as no node has more than its
 * share of the bytes. All other chunks have NO_NODE afterwards. */
static void place_near(struct cst_layout *layout, const struct cst_layout_config *config,
                       uint64_t *dealt)
{
    bool near = config->n_nodes > 1 && all_nodes_are_near(config);
    uint64_t share = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        share += chunk_bytes(layout, &layout->chunks[c]);
    }
    share /= config->n_nodes;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = chunk_bytes(layout, chunk);

        chunk->node = near && cst_layout_is_own(chunk) ? node_near(config, chunk) : NO_NODE;
        if (chunk->node < config->n_nodes && dealt[chunk->node] + bytes <= share) {
            dealt[chunk->node] += bytes;
        } else {
            chunk->node = NO_NODE;
        }
    }
}

/* A chunk of the base job stays on its node. */
int cst_rows_place_nodes(struct cst_layout *layout, const struct cst_layout_config *config,
                         struct cst_err *err)
{
    uint64_t *dealt = calloc(config->n_nodes, sizeof *dealt);
    int rc = CST_OK;

    if (dealt == NULL) {
        return CST_ENOMEM;
    }
    place_near(layout, config, dealt);
    for (uint32_t c = 0; c < layout->n_chunks && rc == CST_OK; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (!cst_layout_is_own(chunk)) {
            chunk->node = config->base->chunks[chunk->base_chunk].node;
        } else if (chunk->node == NO_NODE) {
            chunk->node = next_node(dealt, config->n_nodes);
            dealt[chunk->node] += chunk_bytes(layout, chunk);
        }
        if (chunk->node >= config->n_nodes) {
            rc = cst_err_set(err, CST_EINVAL,
                             "a chunk of the base is on node %" PRIu32 " of %" PRIu32, chunk->node,
                             config->n_nodes);
        }
    }
    free(dealt);
    return rc;
}

/* -- rows on accelerators --------------------------------------------------------------------- */

/* True if the row lies in a tier that is apart: in that of the chunk's states, or in a file. */
static bool is_on_device(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                         uint32_t row)
{
    return row == CST_ROW_WEIGHT_OTHER
               ? layout->states.durable
               : cst_tier_is_apart(chunk->tier) && cst_table_is_state((int)row);
}

uint64_t cst_rows_in_host(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          uint32_t row, struct cst_layout_row *place)
{
    if (!cst_layout_is_own(chunk) || is_on_device(layout, chunk, row)) {
        return 0;
    }
    *place = *cst_layout_row(chunk, (int)row);
    return row_bytes(layout, chunk, row);
}

static uint64_t state_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (int row = CST_ROW_MASTER; row < cst_layout_rows_apart(layout); row++) {
        bytes += row_bytes(layout, chunk, (uint32_t)row);
    }
    return bytes;
}

static uint64_t grain_of(const struct cst_layout_device *device)
{
    return device->grain > CST_LAYOUT_ROW_ALIGN ? device->grain : CST_LAYOUT_ROW_ALIGN;
}

/* The most bytes of a segment on @device, unless it has only one row. */
static uint64_t most_bytes(const struct cst_layout_device *device)
{
    return device->in_host ? CST_LAYOUT_FILE_SEGMENT_BYTES : CST_LAYOUT_SEGMENT_BYTES;
}

/* Bytes that can be lost because segments are rounded up to the grain. All segments but the last
 * one are at least half full. */
static uint64_t lost_to_grain(const struct cst_layout_device *device, uint64_t bytes)
{
    return (bytes / (most_bytes(device) / 2) + 1) * (grain_of(device) - 1);
}

static uint64_t usable(const struct cst_layout_device *device)
{
    uint64_t lost = lost_to_grain(device, device->bytes);

    return device->bytes > lost ? device->bytes - lost : 0;
}

/* Bytes of @device that are necessary to use @sum of them. */
static uint64_t with_lost(const struct cst_layout_device *device, uint64_t sum)
{
    uint64_t want = 0, before = 1;

    /* What is lost depends on the result, so iterate until it does not change. */
    while (sum > 0 && want != before) {
        before = want;
        want = sum + lost_to_grain(device, want);
    }
    return want;
}

uint64_t cst_layout_device_want(const struct cst_layout *layout,
                                const struct cst_layout_device *device)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        sum += chunk->tier == device->engine ? state_bytes(layout, chunk) : 0;
    }
    return with_lost(device, sum);
}

uint64_t cst_layout_device_least(const struct cst_layout *layout,
                                 const struct cst_layout_device *device)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_states_may_leave(layout, chunk) && state_bytes(layout, chunk) < least) {
            least = state_bytes(layout, chunk);
        }
    }
    return least == UINT64_MAX ? 0 : with_lost(device, least);
}

/* The last chunks go to accelerators first, because the next forward pass uses them last.
 * Accelerators take turns, as long as they have memory. */
void cst_rows_place_on_devices(struct cst_layout *layout, const struct cst_layout_config *config)
{
    uint64_t left[CST_LAYOUT_MAX_DEVICES];
    struct cst_buffers buffers[CST_LAYOUT_MAX_DEVICES];
    uint32_t turn = 0, n_drives = 0;

    for (uint32_t i = 0; i < config->n_devices; i++) {
        n_drives += config->devices[i].reservation_bytes == CST_LAYOUT_BUFFERS;
    }
    for (uint32_t i = 0; i < config->n_devices; i++) {
        uint64_t bytes = config->devices[i].reservation_bytes;
        struct cst_buffers_drives drives;

        if (bytes == CST_LAYOUT_BUFFERS) {
            cst_buffers_drives(&drives, layout, n_drives, config->devices[i].bytes);
            bytes = drives.bytes;
        }
        cst_buffers_divide(&buffers[i], layout, bytes);
        left[i] = usable(&config->devices[i]);
    }
    for (uint32_t c = layout->n_chunks; c-- > 0 && config->n_devices > 0;) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = state_bytes(layout, chunk);

        for (uint32_t i = 0; i < config->n_devices && cst_layout_states_may_leave(layout, chunk);
             i++) {
            uint32_t d = (turn + i) % config->n_devices;

            if (left[d] >= bytes && cst_buffers_hold(&buffers[d], chunk)) {
                left[d] -= bytes;
                chunk->tier = config->devices[d].engine;
                turn = d + 1;
                break;
            }
        }
    }
}

static struct cst_layout_segment *add_segment(struct cst_layout *layout, uint32_t node)
{
    struct cst_layout_segment *segment = &layout->segments[layout->n_segments++];

    segment->node = node;
    return segment;
}

/* Place @bytes of row @row of the chunk in the last segment of @device, from segment @first on, or
 * in a new one; 0: there is no such row. */
static void append(struct cst_layout *layout, const struct cst_layout_device *device,
                   uint32_t first, struct cst_layout_chunk *chunk, uint32_t row, uint64_t bytes)
{
    struct cst_layout_segment *segment =
        layout->n_segments > first ? &layout->segments[layout->n_segments - 1] : NULL;

    if (bytes == 0) {
        return;
    }
    if (segment == NULL || segment->bytes + bytes > most_bytes(device)) {
        segment = add_segment(layout, 0);
        segment->tier = device->engine;
    }
    *row_of(chunk, row) =
        (struct cst_layout_row){.segment = layout->n_segments - 1, .offset = segment->bytes};
    segment->bytes += bytes;
}

/* All rows of the segments of @device from segment @first on are placed. @twin: they have second
 * places. */
static void end_segments(struct cst_layout *layout, const struct cst_layout_device *device,
                         uint32_t first, bool twin)
{
    for (uint32_t i = first; i < layout->n_segments; i++) {
        struct cst_layout_segment *s = &layout->segments[i];

        s->bytes = cst_round_up(s->bytes, grain_of(device));
        s->twin = twin ? s->bytes : 0;
        s->bytes += s->twin;
        layout->device_bytes += s->bytes;
    }
}

/* Place the rows of the chunks whose states are on @device, in the order of chunks. */
static void place_device_rows(struct cst_layout *layout, const struct cst_layout_device *device)
{
    const uint32_t first = layout->n_segments;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (int r = CST_ROW_MASTER;
             r < cst_layout_rows_apart(layout) && chunk->tier == device->engine; r++) {
            append(layout, device, first, chunk, (uint32_t)r,
                   row_bytes(layout, chunk, (uint32_t)r));
        }
    }
    end_segments(layout, device, first, layout->states.durable);
}

/* Place the frozen weights in the files of a durable job: each chunk on one of @n drives, in turn.
 * They never change, so that one place is enough. */
static void place_frozen(struct cst_layout *layout, const struct cst_layout_device *drives,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n && layout->states.durable; i++) {
        const uint32_t first = layout->n_segments;
        uint32_t n_frozen = 0;

        for (uint32_t c = 0; c < layout->n_chunks; c++) {
            struct cst_layout_chunk *chunk = &layout->chunks[c];
            bool frozen = !cst_layout_has_states(chunk) && cst_layout_is_own(chunk);

            if (frozen && n_frozen++ % n == i && drives[i].in_host) {
                append(layout, &drives[i], first, chunk, CST_ROW_WEIGHT_OTHER,
                       row_bytes(layout, chunk, CST_ROW_WEIGHT_OTHER));
            }
        }
        end_segments(layout, &drives[i], first, false);
    }
}

/* Place the rows of the node's chunks one after the other. A new segment begins if the next row
 * does not fit. */
static void place_node_rows(struct cst_layout *layout, uint32_t node)
{
    struct cst_layout_segment *segment = NULL;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        bool here = cst_layout_is_own(chunk) && chunk->node == node;

        for (uint32_t r = 0; r < N_ROWS && here; r++) {
            uint64_t bytes = row_bytes(layout, chunk, r);

            if (bytes == 0 || is_on_device(layout, chunk, r)) {
                row_of(chunk, r)->segment = CST_LAYOUT_NO_ROW;
                continue;
            }
            if (segment == NULL || segment->bytes + bytes > CST_LAYOUT_SEGMENT_BYTES) {
                segment = add_segment(layout, node);
            }
            *row_of(chunk, r) = (struct cst_layout_row){.segment = layout->n_segments - 1,
                                                        .offset = segment->bytes};
            segment->bytes += bytes;
            layout->arena_bytes += bytes;
        }
        if (cst_layout_grad_over_weight(layout, chunk) && here && cst_layout_has_states(chunk)) {
            chunk->rows[CST_ROW_GRAD] = chunk->rows[CST_ROW_WEIGHT];
        }
    }
}

/* Add the segments of the base job that hold chunks used here, after this job's own. @known: per
 * segment of the base its number here. */
static void place_base_rows(struct cst_layout *layout, const struct cst_layout *base,
                            uint32_t *known)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        const struct cst_layout_row *row;

        if (cst_layout_is_own(chunk)) {
            continue;
        }
        row = &base->chunks[chunk->base_chunk].rows[CST_ROW_WEIGHT];
        if (known[row->segment] == UINT32_MAX) {
            struct cst_layout_segment *segment = add_segment(layout, chunk->node);

            segment->bytes = base->segments[row->segment].bytes;
            segment->is_base = true;
            segment->base_segment = row->segment;
            known[row->segment] = layout->n_segments - 1;
        }
        for (uint32_t r = 0; r < N_ROWS; r++) {
            row_of(chunk, r)->segment = CST_LAYOUT_NO_ROW;
        }
        chunk->rows[CST_ROW_WEIGHT] =
            (struct cst_layout_row){.segment = known[row->segment], .offset = row->offset};
    }
}

/* The largest number of contributions to @chunk that land at once; 0: none do. */
static uint32_t count_landings(const struct cst_layout *layout,
                               const struct cst_layout_chunk *chunk)
{
    uint32_t n = cst_set_count(chunk->ranks);
    bool lands = n == 1 ? layout->lands != CST_LANDINGS_NONE && layout->grad_bytes == 4
                        : layout->lands == CST_LANDINGS_SHARED;

    return lands && cst_layout_has_states(chunk) ? n : 0;
}

/* Bytes of the largest gradient on @node that lands. */
static uint64_t landing_bytes(const struct cst_layout *layout, uint32_t node)
{
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (chunk->node == node && count_landings(layout, chunk) > 0) {
            most = cst_layout_weight_bytes(chunk) > most ? cst_layout_weight_bytes(chunk) : most;
        }
    }
    return cst_round_up(most, CST_LAYOUT_ROW_ALIGN);
}

/* Each landing is in a segment of its own. */
static int place_landings(struct cst_layout *layout, uint32_t n_nodes)
{
    bool any = false;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        uint32_t n = CST_LAYOUT_LANDINGS * count_landings(layout, &layout->chunks[c]);

        layout->n_landings = n > layout->n_landings ? n : layout->n_landings;
    }
    layout->landings = calloc((size_t)n_nodes * layout->n_landings + 1, sizeof *layout->landings);
    if (layout->landings == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < n_nodes * layout->n_landings; i++) {
        uint32_t node = i / layout->n_landings;
        uint64_t bytes = landing_bytes(layout, node);

        layout->landings[i].segment = CST_LAYOUT_NO_ROW;
        if (bytes > 0) {
            add_segment(layout, node)->bytes = bytes;
            layout->landings[i].segment = layout->n_segments - 1;
            layout->arena_bytes += bytes;
            any = true;
        }
    }
    if (!any) {
        free(layout->landings);
        layout->landings = NULL;
        layout->n_landings = 0;
    }
    return CST_OK;
}

static int place_scratches(struct cst_layout *layout, const struct cst_model *model,
                           uint32_t n_nodes)
{
    layout->scratches = calloc(n_nodes, sizeof *layout->scratches);
    if (layout->scratches == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t node = 0; node < n_nodes; node++) {
        uint64_t bytes =
            cst_round_up(cst_matrices_scratch_bytes(layout, model, node), CST_LAYOUT_ROW_ALIGN);

        layout->scratches[node].segment = CST_LAYOUT_NO_ROW;
        if (bytes > 0) {
            add_segment(layout, node)->bytes = bytes;
            layout->scratches[node].segment = layout->n_segments - 1;
            layout->arena_bytes += bytes;
        }
    }
    return CST_OK;
}

static bool uses_muon(const struct cst_layout *layout)
{
    bool any = false;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        any = any || layout->chunks[c].muon;
    }
    return any;
}

int cst_rows_place(struct cst_layout *layout, const struct cst_model *model,
                   const struct cst_layout_config *config)
{
    const struct cst_layout *base = config->base;
    size_t n_base = base != NULL ? base->n_segments : 0;
    uint32_t *known = malloc((n_base + 1) * sizeof *known);

    layout->segments = calloc(
        (size_t)layout->n_chunks * N_ROWS + cst_partial_rows_segments(layout, config->n_nodes) +
            (size_t)config->n_nodes * (CST_LAYOUT_LANDINGS * CST_LAYOUT_MAX_WORLD + 1),
        sizeof *layout->segments);
    if (known == NULL || layout->segments == NULL) {
        free(known);
        return CST_ENOMEM;
    }
    memset(known, 0xff, n_base * sizeof *known);
    for (uint32_t node = 0; node < config->n_nodes; node++) {
        place_node_rows(layout, node);
    }
    for (uint32_t i = 0; i < config->n_devices; i++) {
        place_device_rows(layout, &config->devices[i]);
    }
    place_frozen(layout, config->devices, config->n_devices);
    place_base_rows(layout, base, known);
    free(known);
    if (uses_muon(layout) && place_scratches(layout, model, config->n_nodes) != CST_OK) {
        return CST_ENOMEM;
    }
    if (cst_partial_rows_place(layout, config->n_nodes) != CST_OK) {
        return CST_ENOMEM;
    }
    layout->lands = config->landings;
    return config->landings != CST_LANDINGS_NONE ? place_landings(layout, config->n_nodes) : CST_OK;
}

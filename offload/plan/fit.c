/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks and bytes of a point. */
#include "offload/plan/search.h"

#include "offload/packing.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>

#define PAGE_BYTES 4096 /* Rows are a multiple of this. */

static bool trains(const struct cst_layout_chunk *chunk)
{
    return cst_pattern(chunk->pattern)->has_states;
}

uint8_t cst_search_device_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                               uint32_t chunk)
{
    uint8_t all = 1u << CST_ROW_WEIGHT | 1u << CST_ROW_GRAD | 1u << CST_ROW_MASTER |
                  1u << CST_ROW_EXP_AVG | 1u << CST_ROW_EXP_AVG_SQ;

    if (layout->states.two_weights) {
        all |= 1u << CST_ROW_WEIGHT_OTHER;
    }
    if (chunk >= try->n_device) {
        return 0;
    }
    return trains(&layout->chunks[chunk]) ? all : 1u << CST_ROW_WEIGHT;
}

uint8_t cst_search_disk_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                             uint32_t chunk)
{
    uint32_t from_end = layout->n_chunks - chunk;
    uint8_t rows = 0;

    if (!trains(&layout->chunks[chunk]) || chunk < try->n_device) {
        return 0;
    }
    if (from_end <= try->n_moments) {
        rows |= 1u << CST_ROW_EXP_AVG | 1u << CST_ROW_EXP_AVG_SQ;
    }
    if (from_end <= try->n_masters) {
        rows |= 1u << CST_ROW_MASTER;
    }
    return rows;
}

/* -- shortages -------------------------------------------------------------------------------- */

/* Bytes of the ranks' own devices that updates use. */
static uint64_t for_updates(const struct cst_search *s, const struct cst_plan_try *try)
{
    return s->host || try->device_update_bytes == 0 ? 0
                                                    : try->device_update_bytes + try->device_states;
}

static uint32_t least_blocks(const struct cst_plan_try *try, const struct cst_layout_class *class)
{
    uint32_t n = class->min_blocks + (try->once ? class->n_chunks : 0);

    return n < class->max_blocks ? n : class->max_blocks;
}

/* Describe the least blocks of each size class: "2 of 8.0 KiB and 1 of 64.0 KiB". */
static void describe_least(const struct cst_plan_try *try, const struct cst_layout *layout,
                           char *out, size_t n)
{
    char block[CST_SIZE_TEXT];
    size_t used = 0;

    for (uint32_t i = 0; i < layout->n_classes && used < n; i++) {
        int more = snprintf(out + used, n - used, "%s%" PRIu32 " of %s", i > 0 ? " and " : "",
                            least_blocks(try, &layout->classes[i]),
                            cst_size_text(2 * layout->classes[i].capacity, block));

        used += more > 0 ? (size_t)more : 0;
    }
}

/* Describe a shortage of device memory. @needed: bytes of the smallest pool and of updates. */
static void describe_device(const struct cst_search *s, const struct cst_layout *layout,
                            const struct cst_plan_try *try, uint64_t needed, struct cst_err *err)
{
    uint64_t limit = s->config->budget->device_bytes;
    uint64_t beyond = s->activation_bytes > limit && !s->host ? s->activation_bytes - limit : 0;
    char updates[96] = "", blocks[96], kept[CST_SIZE_TEXT], pool[CST_SIZE_TEXT];
    char device[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT];

    if (for_updates(s, try) > 0) {
        int n = snprintf(updates, sizeof updates, ", updates %s",
                         cst_size_text(try->device_update_bytes, kept));

        if (try->device_states > 0) {
            (void)snprintf(updates + n, sizeof updates - (size_t)n, ", states that stay there %s",
                           cst_size_text(try->device_states, kept));
        }
    }
    describe_least(try, layout, blocks, sizeof blocks);
    (void)cst_err_set(
        err, CST_EPOOL,
        "device memory of %s: activations take %s%s, the smallest pool %s (operator '%s', blocks: "
        "%s): %s short",
        cst_size_text(limit, device), cst_size_text(s->activation_bytes, kept), updates,
        cst_size_text(needed - for_updates(s, try), pool),
        s->config->model->n_operators == 0 ? ""
                                           : s->config->model->operators[layout->min_operator].name,
        blocks, cst_size_exact(needed - s->room + beyond, lacks));
}

static bool may_use_disk(const struct cst_search *s, const struct cst_plan_try *try)
{
    return !s->config->runtime_only && s->config->budget->disk_bytes > 0 &&
           s->rates.disk_read > 0 && s->rates.disk_write > 0 && try->device_update_bytes == 0;
}

/* Describe a shortage of host memory. @spared: bytes that gradients in weight rows would save. */
static void describe_host(const struct cst_search *s, const struct cst_plan_try *try,
                          uint64_t spared, struct cst_err *err)
{
    uint64_t limit = s->config->budget->host_bytes;
    bool disk = may_use_disk(s, try);
    char words[96] = "", host[CST_SIZE_TEXT], takes[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT];

    if (try->over || disk) {
        (void)snprintf(words, sizeof words, ", %s",
                       try->over ? "with gradients in the place of weights"
                                 : "when the disk is full");
    } else if (spared > 0) {
        (void)snprintf(words, sizeof words, ", of which --grad-over-weight would save %s",
                       cst_size_text(spared, takes));
    }
    (void)cst_err_set(err, CST_EBUDGET, "host memory of %s: states and pools take %s%s: %s short",
                      cst_size_text(limit, host), cst_size_text(try->host_bytes, takes), words,
                      cst_size_exact(try->host_bytes - limit, lacks));
}

/* Shortages of a candidate; 0: none. */
struct shortage {
    uint64_t device, host; /* Missing bytes. */
    uint64_t needed;       /* Bytes of a device that the smallest pool and updates need. */
    uint64_t spared;       /* Bytes of host memory that gradients in weight rows would save. */
};

/* True if @bytes, of one limit or of both, is less than the least shortage so far, @most (0:
 * none). */
static bool is_smaller(uint64_t bytes, uint64_t most)
{
    return bytes > 0 && (most == 0 || bytes < most);
}

/* Record @lack of @try if it is the smallest of its kind. Candidates that use device memory by the
 * search's own choice do not prove that a device is too small. */
static void note_shortage(struct cst_search *s, const struct cst_layout *layout,
                          const struct cst_plan_try *try, const struct shortage *lack)
{
    bool both = lack->device > 0 && lack->host > 0;
    struct cst_plan_short *device = both ? &s->lack.device_of_both : &s->lack.device;
    struct cst_plan_short *host = both ? &s->lack.host_of_both : &s->lack.host;
    uint64_t most = both               ? device->bytes + host->bytes
                    : lack->device > 0 ? device->bytes
                                       : host->bytes;

    if ((lack->device > 0 && (try->block_room < s->room || try->state_room > 0 || s->splits)) ||
        !is_smaller(lack->device + lack->host, most)) {
        return;
    }
    if (lack->device > 0) {
        device->bytes = lack->device;
        describe_device(s, layout, try, lack->needed, &device->err);
    }
    if (lack->host > 0) {
        host->bytes = lack->host;
        describe_host(s, try, lack->spared, &host->err);
    }
}

/* -- device memory ---------------------------------------------------------------------------- */

static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          int row)
{
    return trains(chunk) || row == CST_ROW_WEIGHT
               ? cst_layout_row_bytes(&layout->states, layout->grad_bytes, row, chunk->n_elems)
               : 0;
}

/* Bytes of all rows of the chunk. */
static uint64_t chunk_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = row_bytes(layout, chunk, CST_ROW_WEIGHT_OTHER);

    for (int row = 0; row < CST_ROW_COUNT; row++) {
        bytes += row_bytes(layout, chunk, row);
    }
    return bytes;
}

/* Keep states of the first chunks on devices, of as many as fit; each device has its share. */
static void fit_states(const struct cst_search *s, struct cst_plan_try *try,
                       const struct cst_layout *layout)
{
    uint64_t total = 0;

    try->n_device = 0;
    while (try->state_room > 0 && try->n_device < layout->n_chunks) {
        uint64_t more = chunk_bytes(layout, &layout->chunks[try->n_device]);

        if ((total + more + s->world - 1) / s->world > try->state_room) {
            break;
        }
        total += more;
        try->n_device++;
    }
    try->state_bytes = (total + s->world - 1) / s->world;
}

static void add_blocks(struct cst_plan_try *try, const struct cst_layout *layout, uint32_t i,
                       uint64_t *room)
{
    uint64_t bytes = 2 * layout->classes[i].capacity;
    uint64_t n = layout->classes[i].max_blocks - try->n_blocks[i];

    n = n < *room / bytes ? n : *room / bytes;
    try->n_blocks[i] += (uint32_t)n;
    *room -= n * bytes;
}

/* If ranks compute on the host, their pools are in host memory, too: bytes that remain for each
 * rank after the arenas and the smallest pools of @least bytes. UINT64_MAX: no limit. If the arenas
 * and smallest pools do not fit, only choices that the daemon cannot make yet can save enough
 * memory. */
static uint64_t left_on_host(const struct cst_search *s, const struct cst_layout *layout,
                             uint64_t least)
{
    uint64_t limit = s->config->budget->host_bytes,
             used = cst_layout_host_bytes(layout) + s->world * least;

    if (!s->host || (used > limit && !s->config->runtime_only)) {
        return UINT64_MAX;
    }
    return used < limit ? (limit - used) / s->world : 0;
}

/* Number of blocks of each class: the smallest pool, and further blocks in the rest of the device.
 * If the smallest pool does not fit, *lack says so and the point has that pool nevertheless. */
static void fit_blocks(const struct cst_search *s, struct cst_plan_try *try,
                       const struct cst_layout *layout, struct shortage *lack)
{
    uint64_t room = s->room - try->state_bytes, updates = for_updates(s, try), needed = 0;
    uint64_t left, beyond = updates > room ? updates - room : 0;

    room = room > updates ? room - updates : 0;
    room = room < try->block_room ? room : try->block_room;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        try->n_blocks[i] = least_blocks(try, &layout->classes[i]);
        needed += try->n_blocks[i] * 2 * layout->classes[i].capacity;
    }
    if (needed > room) {
        lack->needed = needed + updates;
        lack->device = needed - room + beyond;
    }
    room -= needed < room ? needed : room;
    left = left_on_host(s, layout, needed);
    room = room < left ? room : left;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        add_blocks(try, layout, (try->first_class + i) % layout->n_classes, &room);
    }
    try->pool_bytes = 0;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        try->pool_bytes += try->n_blocks[i] * 2 * layout->classes[i].capacity;
    }
}

/* -- host memory ------------------------------------------------------------------------------ */

/* Move the rows @first to @last of the last chunks to disk until the host's memory suffices.
 * Returns the number of chunks. */
static uint32_t move_rows(struct cst_plan_try *try, const struct cst_layout *layout, int first,
                          int last, uint64_t host_limit, uint64_t disk_limit)
{
    uint32_t n = 0;

    while (try->host_bytes > host_limit && n < layout->n_chunks - try->n_device) {
        const struct cst_layout_chunk *chunk = &layout->chunks[layout->n_chunks - 1 - n];
        uint64_t bytes = 0;

        for (int row = first; row <= last; row++) {
            bytes += row_bytes(layout, chunk, row);
        }
        if (try->disk_bytes + bytes > disk_limit) {
            break;
        }
        try->host_bytes -= bytes;
        try->disk_bytes += bytes;
        n++;
    }
    return n;
}

/* Bytes that gradients in weight rows would save on the host; 0: they are impossible, or already
 * there. */
static uint64_t spared_bytes(const struct cst_plan_try *try, const struct cst_layout *layout)
{
    uint64_t bytes = 0;

    if (layout->grad_bytes != 2 || layout->states.grad_over_weight || layout->states.two_weights) {
        return 0;
    }
    for (uint32_t c = try->n_device; c < layout->n_chunks; c++) {
        bytes += cst_align_up(row_bytes(layout, &layout->chunks[c], CST_ROW_GRAD), PAGE_BYTES);
    }
    return bytes;
}

static void fit_host(const struct cst_search *s, struct cst_plan_try *try,
                     const struct cst_layout *layout, struct shortage *lack)
{
    const struct cst_plan_budget *budget = s->config->budget;
    uint64_t limit = budget->host_bytes;

    try->over = layout->states.grad_over_weight && !s->config->states.grad_over_weight;
    try->disk_bytes = 0;
    try->n_moments = try->n_masters = 0;
    try->host_bytes = cst_layout_host_bytes(layout) + (s->host ? s->world * try->pool_bytes : 0);
    for (uint32_t c = 0; c < try->n_device; c++) {
        uint64_t bytes = chunk_bytes(layout, &layout->chunks[c]);

        try->host_bytes -= bytes < try->host_bytes ? bytes : try->host_bytes;
    }
    lack->spared = spared_bytes(try, layout);
    if (try->host_bytes > limit && !s->config->runtime_only && lack->spared > 0) {
        try->over = true;
        try->host_bytes -= lack->spared;
    }
    if (may_use_disk(s, try)) {
        try->n_moments =
            move_rows(try, layout, CST_ROW_EXP_AVG, CST_ROW_EXP_AVG_SQ, limit, budget->disk_bytes);
        try->n_masters =
            move_rows(try, layout, CST_ROW_MASTER, CST_ROW_MASTER, limit, budget->disk_bytes);
    }
    lack->host = try->host_bytes > limit ? try->host_bytes - limit : 0;
}

bool cst_search_fit(struct cst_search *s, struct cst_plan_try *try, const struct cst_layout *layout)
{
    struct shortage lack = {0};

    try->n_chunks = layout->n_chunks;
    try->padding_bytes = 0;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        try->padding_bytes += 2 * (layout->classes[chunk->size_class].capacity - chunk->n_elems);
    }
    try->device_update_bytes = cst_search_room_bytes(s, try, layout);
    fit_states(s, try, layout);
    fit_blocks(s, try, layout, &lack);
    fit_host(s, try, layout, &lack);
    note_shortage(s, layout, try, &lack);
    return lack.device == 0 && lack.host == 0;
}

/* -- report of shortages ---------------------------------------------------------------------- */

static int tell_shortage(const struct cst_search *s, const struct cst_plan_short *device,
                         const struct cst_plan_short *host, struct cst_err *err)
{
    const struct cst_plan_budget *budget = s->config->budget;
    struct cst_plan_least *least = s->config->least;
    const struct cst_err *first = device->bytes > 0 ? &device->err : &host->err;

    if (least != NULL) {
        uint64_t beyond = !s->host && s->activation_bytes > budget->device_bytes
                              ? s->activation_bytes - budget->device_bytes
                              : 0;

        least->device_bytes =
            budget->device_bytes + device->bytes + (device->bytes > 0 ? beyond : 0);
        least->host_bytes = budget->host_bytes + host->bytes;
    }
    return cst_err_set(err, first->status, "%s%s%s", first->text,
                       device->bytes > 0 && host->bytes > 0 ? "; " : "",
                       device->bytes > 0 && host->bytes > 0 ? host->err.text : "");
}

int cst_search_tell_lack(const struct cst_search *s, struct cst_err *err)
{
    static const struct cst_plan_short none = {.bytes = 0};
    const struct cst_search_lack *lack = &s->lack;

    if (lack->device.bytes > 0 &&
        (lack->host.bytes == 0 || lack->device.bytes <= lack->host.bytes)) {
        return tell_shortage(s, &lack->device, &none, err);
    }
    if (lack->host.bytes > 0) {
        return tell_shortage(s, &none, &lack->host, err);
    }
    return lack->device_of_both.bytes > 0
               ? tell_shortage(s, &lack->device_of_both, &lack->host_of_both, err)
               : CST_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks and bytes of a point. */
#include "offload/plan/drives.h"
#include "offload/plan/reservation.h"

#include "offload/layout/packing.h"
#include "proto/round_up.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>

/* -- shortages -------------------------------------------------------------------------------- */

/* Bytes of the ranks' own devices that updates use. */
static uint64_t for_updates(const struct cst_search *s, const struct cst_plan_point *point)
{
    return s->host || point->device_update_bytes == 0
               ? 0
               : point->device_update_bytes + point->device_states;
}

/* Describe the least blocks of each size class: "2 of 8.0 KiB and 1 of 64.0 KiB". */
static void describe_least(const struct cst_layout *layout, char *out, size_t n)
{
    char block[CST_SIZE_TEXT];
    size_t used = 0;

    for (uint32_t i = 0; i < layout->n_classes && used < n; i++) {
        int more = snprintf(out + used, n - used, "%s%" PRIu32 " of %s", i > 0 ? " and " : "",
                            layout->classes[i].min_blocks,
                            cst_size_text(2 * layout->classes[i].capacity, block));

        used += more > 0 ? (size_t)more : 0;
    }
}

/* Describe a shortage of device memory. @needed: bytes of the smallest pool and of updates. */
static void describe_device(const struct cst_search *s, const struct cst_layout *layout,
                            const struct cst_plan_point *point, uint64_t needed,
                            struct cst_err *err)
{
    uint64_t limit = s->config->budget->device_bytes;
    uint64_t beyond = s->activation_bytes > limit && !s->host ? s->activation_bytes - limit : 0;
    char updates[96] = "", blocks[96], kept[CST_SIZE_TEXT], pool[CST_SIZE_TEXT];
    char device[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT];

    if (for_updates(s, point) > 0) {
        int n = snprintf(updates, sizeof updates, ", updates %s",
                         cst_size_text(point->device_update_bytes, kept));

        if (point->device_states > 0) {
            (void)snprintf(updates + n, sizeof updates - (size_t)n, ", states that stay there %s",
                           cst_size_text(point->device_states, kept));
        }
    }
    describe_least(layout, blocks, sizeof blocks);
    (void)cst_err_set(
        err, CST_EPOOL,
        "device memory of %s: activations take %s%s, the smallest pool %s (operator '%s', blocks: "
        "%s): %s short",
        cst_size_text(limit, device), cst_size_text(s->activation_bytes, kept), updates,
        cst_size_text(needed - for_updates(s, point), pool),
        s->config->model->n_operators == 0
            ? ""
            : s->config->model->operators[layout->classes[0].min_operator].name,
        blocks, cst_size_exact(needed - s->device_left + beyond, lacks));
}

/* Shortages of a candidate; 0: none. */
struct shortage {
    uint64_t device, host; /* Missing bytes. */
    uint64_t needed;       /* Bytes of a device that the smallest pool and updates need. */
    uint64_t spared;       /* Bytes of host memory that gradients in weight rows would save. */
    bool can_shrink;       /* There are formats of states that take less memory. */
};

/* Describe the shortage of host memory @lack. */
static void describe_host(const struct cst_search *s, const struct cst_plan_point *point,
                          const struct shortage *lack, struct cst_err *err)
{
    uint64_t limit = s->config->budget->host_bytes;
    char words[96] = "", host[CST_SIZE_TEXT], takes[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT];

    if (lack->spared > 0) {
        (void)snprintf(words, sizeof words, ", of which --grad-over-weight would save %s",
                       cst_size_text(lack->spared, takes));
    }
    (void)cst_err_set(
        err, CST_EBUDGET, "host memory of %s: states and pools take %s%s: %s short%s",
        cst_size_text(limit, host), cst_size_text(point->host_bytes, takes), words,
        cst_size_exact(point->host_bytes - limit, lacks),
        lack->can_shrink ? " (--masters split and --moments mx8 take less, and --disk least)" : "");
}

/* True if @bytes, of one limit or of both, is less than the least shortage so far, @most (0:
 * none). */
static bool is_smaller(uint64_t bytes, uint64_t most)
{
    return bytes > 0 && (most == 0 || bytes < most);
}

/* Record @lack of @point if it is the smallest of its kind. Candidates that use device memory by
 * the search's own choice do not prove that a device is too small. */
static void note_shortage(struct cst_search *s, const struct cst_layout *layout,
                          const struct cst_plan_point *point, const struct shortage *lack)
{
    bool both = lack->device > 0 && lack->host > 0;
    struct cst_plan_short *device = both ? &s->lack.device_of_both : &s->lack.device;
    struct cst_plan_short *host = both ? &s->lack.host_of_both : &s->lack.host;
    uint64_t most = both               ? device->bytes + host->bytes
                    : lack->device > 0 ? device->bytes
                                       : host->bytes;

    if ((lack->device > 0 && (point->pool_limit < s->device_left || s->splits)) ||
        !is_smaller(lack->device + lack->host, most)) {
        return;
    }
    if (lack->device > 0) {
        device->bytes = lack->device;
        describe_device(s, layout, point, lack->needed, &device->err);
    }
    if (lack->host > 0) {
        host->bytes = lack->host;
        describe_host(s, point, lack, &host->err);
    }
}

/* -- device memory ---------------------------------------------------------------------------- */

static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          int row)
{
    return cst_layout_has_states(chunk) || row == CST_ROW_WEIGHT
               ? cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems)
               : 0;
}

static void add_blocks(struct cst_plan_point *point, const struct cst_layout *layout, uint32_t i,
                       uint64_t *left)
{
    uint64_t bytes = 2 * layout->classes[i].capacity;
    uint64_t n = layout->classes[i].max_blocks - point->n_blocks[i];

    n = n < *left / bytes ? n : *left / bytes;
    point->n_blocks[i] += (uint32_t)n;
    *left -= n * bytes;
}

/* If ranks compute on the host, their pools are in host memory, too: bytes that remain for each
 * rank after the arenas and the smallest pools of @least bytes. UINT64_MAX: no limit. */
static uint64_t left_on_host(const struct cst_search *s, const struct cst_layout *layout,
                             uint64_t least)
{
    uint64_t limit = s->config->budget->host_bytes, used = cst_layout_host_bytes(layout) +
                                                           cst_drives_window_bytes(s, layout) +
                                                           s->world * least;

    if (!s->host) {
        return UINT64_MAX;
    }
    return used < limit ? (limit - used) / s->world : 0;
}

/* Number of blocks of each class: the smallest pool, and further blocks in the rest of the device.
 * If the smallest pool does not fit, *lack says so and the point has that pool nevertheless. */
static void fit_blocks(const struct cst_search *s, struct cst_plan_point *point,
                       const struct cst_layout *layout, struct shortage *lack)
{
    uint64_t left = s->device_left, updates = for_updates(s, point), needed = 0;
    uint64_t on_host, beyond = updates > left ? updates - left : 0;

    left = left > updates ? left - updates : 0;
    left = left < point->pool_limit ? left : point->pool_limit;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        point->n_blocks[i] = layout->classes[i].min_blocks;
        needed += point->n_blocks[i] * 2 * layout->classes[i].capacity;
    }
    if (needed > left) {
        lack->needed = needed + updates;
        lack->device = needed - left + beyond;
    }
    left -= needed < left ? needed : left;
    on_host = left_on_host(s, layout, needed);
    left = left < on_host ? left : on_host;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        add_blocks(point, layout, (point->first_class + i) % layout->n_classes, &left);
    }
    point->pool_bytes = 0;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        point->pool_bytes += point->n_blocks[i] * 2 * layout->classes[i].capacity;
    }
}

/* -- host memory ------------------------------------------------------------------------------ */

/* Bytes that gradients in weight rows would save on the host; 0: they are impossible, or already
 * there. */
static uint64_t spared_bytes(const struct cst_layout *layout)
{
    uint64_t bytes = 0;

    if (layout->grad_bytes != 2 || layout->states.grad_over_weight || layout->states.two_weights ||
        layout->states.masters == CST_MASTERS_SPLIT) {
        return 0;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        bytes +=
            cst_round_up(row_bytes(layout, &layout->chunks[c], CST_ROW_GRAD), CST_LAYOUT_ROW_ALIGN);
    }
    return bytes;
}

static void fit_host(const struct cst_search *s, struct cst_plan_point *point,
                     const struct cst_layout *layout, struct shortage *lack)
{
    uint64_t limit = s->config->budget->host_bytes;

    point->host_bytes = cst_layout_host_bytes(layout) + point->window_bytes +
                        (s->host ? s->world * point->pool_bytes : 0);
    lack->spared = point->window_bytes > 0 ? 0 : spared_bytes(layout); /* Not with drives. */
    lack->can_shrink = point->window_bytes == 0 && (layout->states.masters == CST_MASTERS_FP32 ||
                                                    layout->states.moments == CST_MOMENTS_FP32);
    lack->host = point->host_bytes > limit ? point->host_bytes - limit : 0;
}

/* Return whether pools lend memory, if the planner wants that of @point. If the first one does not,
 * the plan is that without lent memory. */
static bool lends_or_need_not(const struct cst_search *s, const struct cst_plan_point *point,
                              const struct cst_layout *layout)
{
    return !point->lends || s->lends || cst_reservation_lent_buffers(s, point, layout, 0) > 0;
}

bool cst_search_fit(struct cst_search *s, struct cst_plan_point *point,
                    const struct cst_layout *layout)
{
    struct shortage lack = {0};

    point->n_chunks = layout->n_chunks;
    point->padding_bytes = 0;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        point->padding_bytes +=
            2 * layout->classes[chunk->size_class].capacity - cst_layout_weight_bytes(chunk);
    }
    point->device_update_bytes = cst_reservation_bytes(s, point, layout);
    cst_drives_fit(s, layout, point);
    fit_blocks(s, point, layout, &lack);
    fit_host(s, point, layout, &lack);
    note_shortage(s, layout, point, &lack);
    return lack.device == 0 && lack.host == 0 && lends_or_need_not(s, point, layout);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/joining.h"

#include "kernels/math/moments.h"

#include <stdlib.h>
#include <string.h>

/* -- what is read ----------------------------------------------------------------------------- */

static const struct cstc_content_entry *entry_at(const struct cstc_joining *joining,
                                                 const struct cstc_joining_place *place)
{
    return &joining->content->entries[place->entry];
}

static bool is_cut(const struct cstc_joining *joining, const struct cstc_content_entry *entry)
{
    return !cst_reshard_is_whole(&joining->wholes->way, entry->tensor);
}

/* The entry as its parts are read: moments that are encoded here come in fp32. */
static struct cstc_content_entry read_as(const struct cstc_content_entry *entry)
{
    struct cstc_content_entry read = *entry;

    if (entry->raw) {
        read.raw = read.exponents = false;
        read.dtype = CSTC_DTYPE_F32;
    }
    return read;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Find the ranges of the band that begins at place->first. A tensor that is not cut is one band. */
static void find_band(const struct cstc_joining *joining, struct cstc_joining_place *place)
{
    const struct cst_reshard *way = &joining->wholes->way;
    const struct cstc_content_entry *entry = entry_at(joining, place);
    const uint64_t left = entry->n_elems - place->first;
    uint32_t parts[CST_BOX_MAX_PARTS];
    const uint32_t n_parts = cst_reshard_parts(way, entry->tensor, parts);

    place->n_elems = is_cut(joining, entry) ? least(left, CSTC_JOINING_BAND) : left;
    place->n_ranges = place->range = 0;
    place->done = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const uint64_t begin = cst_reshard_before(way, entry->tensor, place->first, parts[i]);
        const uint64_t end =
            cst_reshard_before(way, entry->tensor, place->first + place->n_elems, parts[i]);

        if (end > begin) {
            place->ranges[place->n_ranges++] = (struct cstc_joining_range){
                .tensor = parts[i], .first = begin, .n_elems = end - begin};
        }
    }
}

/* Go beyond a piece of @n elements. */
static void step(const struct cstc_joining *joining, struct cstc_joining_place *place, uint64_t n)
{
    place->done += n;
    if (place->done < place->ranges[place->range].n_elems) {
        return;
    }
    place->done = 0;
    if (++place->range < place->n_ranges) {
        return;
    }
    place->first += place->n_elems;
    place->n_elems = 0;
    if (place->first == entry_at(joining, place)->n_elems) {
        place->first = 0;
        place->entry++;
    }
}

/* The piece that begins at element @first of part @range, and does not go beyond it. */
static struct cstc_state_piece piece_of(const struct cstc_content_entry *entry,
                                        const struct cstc_joining_range *range, uint64_t done,
                                        uint64_t most)
{
    struct cstc_content_entry part = read_as(entry);
    struct cstc_state_piece piece;

    part.n_elems = range->n_elems;
    piece = cstc_content_piece(&part, done, most);
    piece.tensor = range->tensor;
    piece.first = range->first + done;
    return piece;
}

bool cstc_joining_next(struct cstc_joining *joining, struct cstc_state_piece *out)
{
    struct cstc_joining_place *place = &joining->next;
    const struct cstc_content_entry *entry;

    if (place->entry == joining->content->n_entries) {
        return false;
    }
    if (place->n_elems == 0) {
        find_band(joining, place);
    }
    entry = entry_at(joining, place);
    if (is_cut(joining, entry)) {
        *out = piece_of(entry, &place->ranges[place->range], place->done, joining->most);
    } else {
        *out = cstc_content_piece(entry, place->done, joining->most);
        out->tensor = place->ranges[0].tensor;
    }
    out->of_save = true;
    step(joining, place, out->n_elems);
    return true;
}

/* -- what is taken ---------------------------------------------------------------------------- */

/* Copy the elements of @piece to their places in the band. */
static void scatter(struct cstc_joining *joining, const struct cstc_state_piece *piece,
                    const char *data, unsigned bytes)
{
    const struct cstc_joining_place *place = &joining->taken;
    uint64_t n = 0;

    while (n < piece->n_elems) {
        struct cst_reshard_run run =
            cst_reshard_run(&joining->back, piece->tensor, piece->first + n, piece->n_elems - n);

        memcpy((char *)joining->band + (run.first - place->first) * bytes, data + n * bytes,
               run.n_elems * bytes);
        n += run.n_elems;
    }
}

/* Encode the band, whose moments are fp32. Returns the data of @entry. */
static const void *encode(struct cstc_joining *joining, const struct cstc_content_entry *entry,
                          uint64_t n)
{
    const enum cst_moments moments = (enum cst_moments)joining->wholes->description.moments;
    struct cst_update_moment row = {.values = joining->encoded};

    row.exponents = (uint8_t *)joining->encoded + 2 * CSTC_JOINING_BAND;
    /* Elements beyond the tensor, in its last block, are zeros. */
    memset(joining->encoded, 0, 3 * CSTC_JOINING_BAND);
    cst_moments_encode(moments, entry->row - CST_ROW_MOMENT, 0, n, joining->band, &row);
    return entry->exponents ? (const void *)row.exponents : row.values;
}

/* A piece of a tensor that is not cut goes to the file as it is. */
static void pass(struct cstc_joining *joining, const struct cstc_state_piece *piece,
                 const void *data, struct cstc_joining_data *out)
{
    struct cstc_joining_place *place = &joining->taken;

    *out = (struct cstc_joining_data){.entry = place->entry,
                                      .first = place->done,
                                      .n_elems = piece->n_elems,
                                      .data = data,
                                      .bytes = piece->bytes};
    step(joining, place, piece->n_elems);
}

void cstc_joining_take(struct cstc_joining *joining, const struct cstc_state_piece *piece,
                       const void *data, struct cstc_joining_data *out)
{
    struct cstc_joining_place *place = &joining->taken;
    const struct cstc_content_entry *entry = entry_at(joining, place);
    const struct cstc_content_entry read = read_as(entry);
    uint64_t n;

    if (place->n_elems == 0) {
        find_band(joining, place);
    }
    if (!is_cut(joining, entry)) {
        pass(joining, piece, data, out);
        return;
    }
    n = place->n_elems;
    *out = (struct cstc_joining_data){.entry = place->entry, .first = place->first};
    scatter(joining, piece, data, cstc_dtype_bytes(read.dtype));
    step(joining, place, piece->n_elems);
    if (place->n_elems == 0) {
        out->n_elems = n;
        out->data = entry->raw ? encode(joining, entry, n) : joining->band;
        out->bytes = cstc_content_bytes(entry, n);
    }
}

/* -- open and close --------------------------------------------------------------------------- */

int cstc_joining_open(struct cstc_joining *joining, const struct cstc_content *content,
                      const struct cstc_wholes *wholes, struct cst_err *err)
{
    bool any = false;
    int rc = cst_reshard_open(&joining->back, &wholes->files, &wholes->parts, err);

    joining->content = content;
    joining->wholes = wholes;
    for (uint32_t i = 0; i < content->n_entries; i++) {
        any = any || is_cut(joining, &content->entries[i]);
    }
    if (rc == CST_OK && any) {
        joining->band = malloc(CSTC_JOINING_BAND * sizeof(float));
        joining->encoded = malloc(3 * CSTC_JOINING_BAND);
        if (joining->band == NULL || joining->encoded == NULL) {
            rc = cst_err_set(err, CST_ENOMEM, "no memory to join tensors");
        }
    }
    return rc;
}

void cstc_joining_close(struct cstc_joining *joining)
{
    cst_reshard_close(&joining->back);
    free(joining->band);
    free(joining->encoded);
    *joining = (struct cstc_joining){.content = NULL};
}

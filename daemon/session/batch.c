/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/batch.h"

#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* Wire types of protobuf. */
/* Longest text of an item: as long as the texts of all items of a batch together fit into a frame.
 */
enum { MAX_TEXT = 383 };

/* -- reading -------------------------------------------------------------------------------- */

struct reader {
    const uint8_t *at, *end;
};

static bool read_varint(struct reader *r, uint64_t *out)
{
    uint64_t v = 0;

    /* At most 10 bytes. Bits beyond 64 are dropped, as in protobuf-c. */
    for (unsigned shift = 0; shift < 70 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;

        v |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if ((byte & 0x80) == 0) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Read a length and as many bytes. Like protobuf-c, the function refuses a length of more than 5
 * bytes. */
static bool read_bytes(struct reader *r, struct reader *out)
{
    const uint8_t *first = r->at;
    uint64_t n;

    if (!read_varint(r, &n) || r->at - first > 5 || n > (uint64_t)(r->end - r->at)) {
        return false;
    }
    *out = (struct reader){.at = r->at, .end = r->at + n};
    r->at += n;
    return true;
}

static bool skip(struct reader *r, unsigned wire)
{
    size_t n = wire == FIXED64 ? 8 : 4;
    struct reader bytes;
    uint64_t v;

    if (wire == VARINT) {
        return read_varint(r, &v);
    }
    if (wire == BYTES) {
        return read_bytes(r, &bytes);
    }
    if ((wire != FIXED64 && wire != FIXED32) || n > (size_t)(r->end - r->at)) {
        return false;
    }
    r->at += n;
    return true;
}

/* Read a field's number and wire type. Like protobuf-c, the function refuses a key of more than 5
 * bytes. */
static bool read_key(struct reader *r, uint64_t *field, unsigned *wire)
{
    const uint8_t *first = r->at;
    uint64_t key;

    if (!read_varint(r, &key) || r->at - first > 5 || key >> 3 == 0 || key > UINT32_MAX) {
        return false;
    }
    *field = key >> 3;
    *wire = (unsigned)key & 7;
    return true;
}

static void set_item(struct cstd_batch_item *item, uint64_t field, uint64_t v)
{
    switch (field) {
    case 1:
        item->kind = (uint32_t)v;
        break;
    case 2:
        item->chunk = (uint32_t)v;
        break;
    case 3:
        item->generation = v;
        break;
    default:
        item->ahead = v != 0;
        break;
    }
}

static bool read_item(struct reader r, struct cstd_batch_item *out)
{
    unsigned seen = 0, wire;
    uint64_t field, v;

    *out = (struct cstd_batch_item){.kind = 0};
    while (r.at < r.end) {
        if (!read_key(&r, &field, &wire)) {
            return false;
        }
        if (field > 4) {
            if (!skip(&r, wire)) {
                return false;
            }
            continue;
        }
        if (wire != VARINT || !read_varint(&r, &v)) {
            return false;
        }
        set_item(out, field, v);
        seen |= 1u << field;
    }
    return (seen & 6) == 6; /* The required fields kind and chunk are present. */
}

static int read_field(struct cstd_batch *out, struct reader *r, bool *has_attempt,
                      struct cst_err *err)
{
    struct reader bytes;
    uint64_t field;
    unsigned wire;

    if (!read_key(r, &field, &wire)) {
        goto err_malformed;
    }
    if (field == 1) {
        if (wire != VARINT || !read_varint(r, &out->attempt)) {
            goto err_malformed;
        }
        *has_attempt = true;
    } else if (field == 2) {
        if (wire != BYTES || !read_bytes(r, &bytes)) {
            goto err_malformed;
        }
        if (out->n_items == CSTD_PENDING_MAX_ITEMS) {
            return cst_err_set(err, CST_EINVAL, "batch of more than %d items",
                               CSTD_PENDING_MAX_ITEMS);
        }
        if (!read_item(bytes, &out->items[out->n_items])) {
            goto err_malformed;
        }
        out->n_items++;
    } else if (!skip(r, wire)) {
        goto err_malformed;
    }
    return CST_OK;

err_malformed:
    return cst_err_set(err, CST_EPROTO, "body is no valid Batch: item %u", out->n_items);
}

int cstd_batch_read(struct cstd_batch *out, const uint8_t *body, size_t n, struct cst_err *err)
{
    struct reader r = {.at = body, .end = body + n};
    bool has_attempt = false;
    int rc = CST_OK;

    out->n_items = 0;
    while (r.at < r.end && rc == CST_OK) {
        rc = read_field(out, &r, &has_attempt, err);
    }
    if (rc == CST_OK && !has_attempt) {
        rc = cst_err_set(err, CST_EPROTO, "Batch without attempt");
    }
    return rc;
}

/* -- writing -------------------------------------------------------------------------------- */

static uint8_t *put_varint(uint8_t *at, uint64_t v)
{
    while (v >= 0x80) {
        *at++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *at++ = (uint8_t)v;
    return at;
}

static uint8_t *put_field(uint8_t *at, unsigned field, uint64_t v)
{
    *at++ = (uint8_t)(field << 3 | VARINT);
    return put_varint(at, v);
}

/* Write an ItemResult without its text, at most 34 bytes. */
static uint8_t *put_numbers(uint8_t *at, const struct cstd_pending_item *item)
{
    uint32_t status = (uint32_t)item->status;

    /* Zigzag encoding of a sint32. */
    at = put_field(at, 1, (status << 1) ^ (uint32_t)(item->status >> 31));
    /* Only a granted lease has a place and a generation. */
    if (item->status == CST_OK && item->generation != 0) {
        at = put_field(at, 2, item->slab);
        at = put_field(at, 3, item->offset);
        at = put_field(at, 4, item->generation);
    }
    return at;
}

/* Write the place that a worker copies the weights from, at most 28 bytes. */
static uint8_t *put_home(uint8_t *at, const struct cstd_pending_item *item)
{
    if (item->home_bytes != 0) {
        at = put_field(at, 7, item->home.segment);
        at = put_field(at, 8, item->home.offset);
        at = put_field(at, 9, item->home_bytes);
    }
    return at;
}

static uint8_t *put_item(uint8_t *at, const struct cstd_pending_item *item)
{
    /* The fields are encoded first, because the item's length precedes them. */
    uint8_t body[80 + MAX_TEXT], *end = put_numbers(body, item);

    if (item->text != NULL) {
        size_t n = strnlen(item->text, MAX_TEXT);

        *end++ = 5 << 3 | BYTES;
        end = put_varint(end, n);
        memcpy(end, item->text, n);
        end += n;
    }
    if (item->status == CST_OK && item->generation != 0) {
        end = put_field(end, 6, item->hit);
        end = put_home(end, item);
    }
    if (item->reason != CST_REASON_NONE) {
        end = put_field(end, 10, item->reason);
    }
    *at++ = 1 << 3 | BYTES;
    at = put_varint(at, (uint64_t)(end - body));
    memcpy(at, body, (size_t)(end - body));
    return at + (end - body);
}

size_t cstd_batch_write(const struct cstd_pending_item *items, uint32_t n, bool paused,
                        uint8_t *out)
{
    uint8_t *at = out;

    for (uint32_t i = 0; i < n; i++) {
        at = put_item(at, &items[i]);
    }
    at = paused ? put_field(at, 2, 1) : at;
    return (size_t)(at - out);
}

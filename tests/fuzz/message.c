/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the bodies of messages of both protocols: they are unpacked within the daemon's limit of
 * memory, and packed again. The first byte of an input chooses the message (see types), and the
 * rest is its body. The daemon's hand-written reader of a Batch (daemon/session/batch.h) must agree
 * with protobuf-c. */
#include "daemon/session/batch.h"
#include "daemon/session/unpack.h"
#include "proto/cistern.pb-c.h"
#include "proto/engine.pb-c.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

const char fuzz_name[] = "message";

static const ProtobufCMessageDescriptor *const types[] = {
    &cistern__error__descriptor,         &cistern__hello__descriptor,
    &cistern__welcome__descriptor,       &cistern__job_open__descriptor,
    &cistern__job_opened__descriptor,    &cistern__tensor_decl__descriptor,
    &cistern__group_decl__descriptor,    &cistern__operator_decl__descriptor,
    &cistern__declare__descriptor,       &cistern__commit__descriptor,
    &cistern__committed__descriptor,     &cistern__pool_class__descriptor,
    &cistern__layout_get__descriptor,    &cistern__layout_part__descriptor,
    &cistern__pool_get__descriptor,      &cistern__pool_part__descriptor,
    &cistern__arena_get__descriptor,     &cistern__arena_part__descriptor,
    &cistern__synced__descriptor,        &cistern__batch_item__descriptor,
    &cistern__batch__descriptor,         &cistern__item_result__descriptor,
    &cistern__batch_done__descriptor,    &cistern__hyper__descriptor,
    &cistern__step__descriptor,          &cistern__prepare_step__descriptor,
    &cistern__accumulate__descriptor,    &cistern__stepped__descriptor,
    &cistern__cancel__descriptor,        &cistern__staging_get__descriptor,
    &cistern__staging_part__descriptor,  &cistern__tensor_io__descriptor,
    &cistern__books__descriptor,         &cistern__rank_info__descriptor,
    &cistern__class_info__descriptor,    &cistern__pattern_info__descriptor,
    &cistern__job_info__descriptor,      &cistern__engine_info__descriptor,
    &cistern__gpu_info__descriptor,      &cistern__stat_reply__descriptor,
    &cistern__job_list_get__descriptor,  &cistern__job_list_part__descriptor,
    &cistern__job_name__descriptor,      &cistern__job_info_reply__descriptor,
    &cistern__explain__descriptor,       &cistern__explain_reply__descriptor,
    &cistern__trace_get__descriptor,     &cistern__trace_interval__descriptor,
    &cistern__trace_part__descriptor,    &engine__setup__descriptor,
    &engine__ready__descriptor,          &engine__segment_add__descriptor,
    &engine__segment_done__descriptor,   &engine__segment_drop__descriptor,
    &engine__progress__descriptor,       &engine__command__descriptor,
    &engine__hyper__descriptor,          &engine__submit__descriptor,
    &engine__completion__descriptor,     &engine__done__descriptor,
    &engine__pong__descriptor,           &cistern__save_begun__descriptor,
    &cistern__restore__descriptor,       &cistern__job_description__descriptor,
    &cistern__saved__descriptor,         &cistern__tensors_get__descriptor,
    &cistern__tensors_part__descriptor,  &cistern__history_get__descriptor,
    &cistern__history_entry__descriptor, &cistern__history_part__descriptor,
    &cistern__job_plan__descriptor,
};
enum { N_TYPES = sizeof types / sizeof types[0] };

static struct cstd_unpack unpack;

static unsigned number_of(const ProtobufCMessageDescriptor *type)
{
    unsigned i = 0;

    while (i < N_TYPES && types[i] != type) {
        i++;
    }
    fuzz_must(i < N_TYPES, "the message is in the list");
    return i;
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    Cistern__Batch message = CISTERN__BATCH__INIT;
    Cistern__BatchItem items[2] = {CISTERN__BATCH_ITEM__INIT, CISTERN__BATCH_ITEM__INIT};
    Cistern__BatchItem *pointers[2] = {&items[0], &items[1]};

    items[0].kind = CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT;
    items[0].chunk = 300;
    items[0].has_ahead = items[0].ahead = 1;
    items[1].kind = CISTERN__BATCH_ITEM__KIND__RELEASE;
    items[1].has_generation = 1;
    items[1].generation = UINT64_C(1) << 40;
    message.attempt = 7;
    message.n_items = 2;
    message.items = pointers;
    fuzz_must(1 + protobuf_c_message_get_packed_size(&message.base) <= max, "room for the seed");
    out[0] = (uint8_t)number_of(&cistern__batch__descriptor);
    return 1 + protobuf_c_message_pack(&message.base, out + 1);
}

static bool items_agree(const struct cstd_batch_item *item, const Cistern__BatchItem *other)
{
    return item->kind == (uint32_t)other->kind && item->chunk == other->chunk &&
           item->generation == (other->has_generation ? other->generation : 0) &&
           item->ahead == (other->has_ahead && other->ahead);
}

/* Check that protobuf-c reads a Batch which the daemon's reader accepts to equal values. @other is
 * protobuf-c's result (NULL: it refused the body). */
static void compare_batch(const uint8_t *body, size_t n, const Cistern__Batch *other)
{
    struct cstd_batch batch;
    struct cst_err err = {0};
    int rc = cstd_batch_read(&batch, body, n, &err);

    if (rc != CST_OK) {
        fuzz_must(err.status == rc && err.text[0] != '\0', "a refusal has words");
        return;
    }
    fuzz_must(other != NULL, "the daemon accepts no Batch that is malformed");
    fuzz_must(batch.attempt == other->attempt && batch.n_items == other->n_items,
              "both readers see the same Batch");
    for (uint32_t i = 0; i < batch.n_items; i++) {
        fuzz_must(items_agree(&batch.items[i], other->items[i]), "both readers see the same item");
    }
}

/* Check that the daemon's reader accepts the @n bytes in which protobuf-c has packed @message.
 * Other encodings may differ: protobuf-c accepts field numbers beyond 32 bits, and cuts them. */
static void read_packed(const uint8_t *bytes, size_t n, const Cistern__Batch *message)
{
    struct cstd_batch batch;
    struct cst_err err = {0};
    bool plain = message->base.n_unknown_fields == 0;

    for (size_t i = 0; i < message->n_items; i++) {
        plain = plain && message->items[i]->base.n_unknown_fields == 0;
    }
    if (plain && message->n_items <= CSTD_PENDING_MAX_ITEMS) {
        fuzz_must(cstd_batch_read(&batch, bytes, n, &err) == CST_OK, err.text);
    }
}

/* Check that an unpacked message is packed into @n bytes, and that these are unpacked and packed to
 * equal bytes. */
static void pack_again(const ProtobufCMessageDescriptor *type, const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n + 1), *again = malloc(n + 1);
    ProtobufCMessage *second = NULL;
    struct cst_err err = {0};

    fuzz_must(bytes != NULL && again != NULL, "memory");
    fuzz_must(protobuf_c_message_pack(message, bytes) == n, "a message has the size that it says");
    if (type == &cistern__batch__descriptor) {
        read_packed(bytes, n, (const Cistern__Batch *)message);
    }
    if (cstd_unpack_message(&unpack, type, bytes, n, (void *)&second, &err) == CST_OK) {
        fuzz_must(protobuf_c_message_get_packed_size(second) == n &&
                      protobuf_c_message_pack(second, again) == n && memcmp(bytes, again, n) == 0,
                  "a message is packed as it was unpacked");
    }
    free(bytes);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const ProtobufCMessageDescriptor *type = types[n > 0 ? data[0] % N_TYPES : 0];
    ProtobufCMessage *message = NULL;
    struct cst_err err = {0};
    int rc;

    if (n == 0) {
        return 0;
    }
    if (unpack.region == NULL) {
        fuzz_must(cstd_unpack_init(&unpack, &err) == CST_OK, err.text);
    }
    rc = cstd_unpack_message(&unpack, type, data + 1, n - 1, (void *)&message, &err);
    fuzz_must(unpack.used <= CSTD_UNPACK_BYTES, "unpacking keeps its bound of memory");
    fuzz_must(rc == CST_OK || rc == CST_EPROTO, "a body is taken, or refused as malformed");
    if (type == &cistern__batch__descriptor) {
        compare_batch(data + 1, n - 1, (const Cistern__Batch *)message);
    }
    if (rc == CST_OK) {
        pack_again(type, message);
    }
    return 0;
}

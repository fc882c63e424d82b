/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes frames: the header of a message with the length of its body and the number of its
 * descriptors. The first byte of an input is the number of descriptors, and the rest is the
 * message. */
#include "proto/frame.h"

#include "tests/fuzz/fuzz.h"

#include <string.h>

const char fuzz_name[] = "frame";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    static const uint8_t body[] = "a body";
    struct cst_frame frame = {.type = 7,
                              .flags = CST_FRAME_REPLY,
                              .request = 42,
                              .body_bytes = sizeof body,
                              .body = body,
                              .n_fds = 2};
    size_t n = 1 + CST_FRAME_HEADER_BYTES + sizeof body;

    fuzz_must(n <= max, "room for the seed");
    out[0] = 2;
    cst_frame_header(&frame, out + 1);
    memcpy(out + 1 + CST_FRAME_HEADER_BYTES, body, sizeof body);
    return n;
}

/* Check that an accepted header is written again to equal bytes. */
static void check_header(const struct cst_frame *frame, const uint8_t *bytes, size_t n)
{
    uint8_t again[CST_FRAME_HEADER_BYTES];

    fuzz_must(frame->body_bytes == n - CST_FRAME_HEADER_BYTES, "the body is the rest");
    fuzz_must(frame->body == bytes + CST_FRAME_HEADER_BYTES, "the body follows the header");
    fuzz_must(frame->body_bytes <= CST_FRAME_MAX_BODY, "the body keeps its limit");
    fuzz_must(frame->n_fds <= CST_FRAME_MAX_FDS, "the descriptors keep their limit");
    cst_frame_header(frame, again);
    fuzz_must(memcmp(again, bytes, sizeof again) == 0, "a header is written as it was read");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cst_frame frame = {0};
    struct cst_err err = {0};
    unsigned n_fds = n > 0 ? data[0] : 0;
    int rc;

    if (n == 0) {
        return 0;
    }
    rc = cst_frame_parse(data + 1, n - 1, n_fds, &frame, &err);
    fuzz_must(rc == CST_OK || rc == CST_EPROTO, "a message is taken, or refused as no frame");
    if (rc == CST_OK) {
        check_header(&frame, data + 1, n - 1);
        fuzz_must(frame.n_fds == n_fds, "the descriptors are those that came");
    } else {
        fuzz_must(err.status == rc && err.text[0] != '\0', "a refusal has words");
    }
    return 0;
}

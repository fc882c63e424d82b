/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what another machine sends on a link after TLS: frames in a stream that is cut anywhere,
 * the Hello in them, and the check of it. The first byte of an input is the number of bytes that
 * come at a time; 0: as many as are wanted. */
#include "daemon/links/frame_stream.h"
#include "daemon/links/hello.h"
#include "proto/text.h"

#include "tests/fuzz/fuzz.h"

#include <string.h>

const char fuzz_name[] = "link";

static struct cstd_hello mine;

size_t fuzz_seed(uint8_t *out, size_t max)
{
    uint8_t body[CSTD_HELLO_MAX_BYTES];
    struct cst_frame frame = {.type = 1, .body = body};
    struct cstd_hello hello;

    cstd_hello_init(&hello, "b", 4711);
    frame.body_bytes = (uint32_t)cstd_hello_write(&hello, body);
    fuzz_must(1 + CST_FRAME_HEADER_BYTES + frame.body_bytes <= max, "room for the seed");
    out[0] = 7;
    cst_frame_header(&frame, out + 1);
    memcpy(out + 1 + CST_FRAME_HEADER_BYTES, body, frame.body_bytes);
    return 1 + CST_FRAME_HEADER_BYTES + frame.body_bytes;
}

/* A Hello that is read is written to one that is read as the same; others are refused with words.
 */
static void check_hello(const struct cst_frame *frame)
{
    struct cstd_hello hello, again;
    uint8_t bytes[CSTD_HELLO_MAX_BYTES];
    struct cst_err err = {0};
    size_t n;
    int rc = cstd_hello_read(&hello, frame->body, frame->body_bytes, &err);

    if (rc != CST_OK) {
        fuzz_must(rc == CST_EPROTO && err.text[0] != '\0', "a wrong Hello is refused with words");
        return;
    }
    fuzz_must(cst_text_is_clean(hello.name) && cst_text_is_clean(hello.program) &&
                  cst_text_is_clean(hello.isa),
              "what is shown of a node can be shown");
    n = cstd_hello_write(&hello, bytes);
    fuzz_must(n <= sizeof bytes && cstd_hello_read(&again, bytes, n, &err) == CST_OK &&
                  memcmp(&again, &hello, sizeof hello) == 0,
              "a Hello is written as it was read");
    rc = cstd_hello_check(&mine, &hello, "b", &err);
    fuzz_must(rc == CST_OK || ((rc == CST_EVERSION || rc == CST_EMISMATCH) && err.status == rc),
              "a node fits, or is refused");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cstd_frame_stream stream = {.bytes = NULL};
    const size_t piece = n > 0 && data[0] != 0 ? data[0] : SIZE_MAX;
    struct cst_err err = {0};
    int rc = cstd_frame_stream_admit(&stream, CSTD_HELLO_MAX_BYTES, &err);

    if (mine.instance == 0) {
        cstd_hello_init(&mine, "a", 1);
    }
    for (size_t at = 1; at < n && (rc == CST_OK || rc == CST_EAGAIN);) {
        struct cst_frame frame;
        size_t room;
        uint8_t *to = cstd_frame_stream_next(&stream, &room);

        fuzz_must(room > 0 && room <= CST_FRAME_HEADER_BYTES + CSTD_HELLO_MAX_BYTES,
                  "some bytes are wanted, and there is room for them");
        room = room < piece ? room : piece;
        room = room < n - at ? room : n - at;
        memcpy(to, data + at, room);
        at += room;
        rc = cstd_frame_stream_take(&stream, room, &frame, &err);
        if (rc == CST_OK) {
            check_hello(&frame);
        }
    }
    fuzz_must(rc == CST_OK || rc == CST_EAGAIN || rc == CST_EPROTO, "a stream is cut, or refused");
    cstd_frame_stream_close(&stream);
    return 0;
}

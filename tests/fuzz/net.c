/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the messages between engines of a network. The first byte of an input chooses: bit 0 a
 * request (to an engine that serves a segment to a peer) or a reply (to a pull), bit 1 whether the
 * checksum is made right, behind which the rest would seldom be reached. */
#include "kernels/net/answer.h"
#include "kernels/net/crc32c.h"
#include "kernels/net/pull.h"

#include "tests/fuzz/fuzz.h"

#include <string.h>

#define SEGMENT 9
#define SEGMENT_BYTES 5000
#define MACHINE 3

const char fuzz_name[] = "net";

static const uint8_t token[CSTE_WIRE_TOKEN_BYTES] = "sixteen bytes...";
static char memory[SEGMENT_BYTES];
static struct cste_net net;
static struct cste_net_peer *peer;

/* The network, with one peer and one segment. */
static void open_net(void)
{
    struct cste_peer_spec spec = {
        .machine = MACHINE, .end = {.transport = "tcp", .version = "1", .address = "10.0.0.3:1"}};
    struct cst_err err;

    if (peer != NULL) {
        return;
    }
    memcpy(spec.token, token, sizeof spec.token);
    cste_net_peers_init(&net.peers);
    cste_served_init(&net.served);
    fuzz_must(cste_net_peers_add(&net.peers, &spec, &err) == CST_OK, "a peer");
    fuzz_must(cste_net_peers_hold(&net.peers, MACHINE, &peer, &err) == CST_OK, "the peer");
    fuzz_must(cste_served_add(&net.served, SEGMENT, memory, sizeof memory, &err) == CST_OK,
              "a segment");
}

size_t fuzz_seed(uint8_t *out, size_t max)
{
    struct cste_wire_request request = {
        .id = 1, .machine = MACHINE, .segment = SEGMENT, .offset = 100, .bytes = 4900};

    fuzz_must(max > CSTE_WIRE_BYTES, "room for the seed");
    memcpy(request.token, token, sizeof request.token);
    out[0] = 2;
    cste_wire_write_request(&request, out + 1);
    return 1 + CSTE_WIRE_BYTES;
}

static void check_refusal(int rc, const struct cst_err *err)
{
    fuzz_must(rc == CST_EPROTO || rc == CST_EVERSION, "what is no message is refused as that");
    fuzz_must(err->status == rc && err->text[0] != '\0', "a refusal has words");
}

/* An engine gives bytes of its segment to its peer, and nothing else to anybody. */
static void run_request(const uint8_t *in, size_t n)
{
    struct cste_wire_request request;
    struct cste_wire_reply reply;
    struct cste_net_answer answer;
    uint8_t again[CSTE_WIRE_BYTES];
    struct cst_err err = {0};
    int rc = cste_net_answer_make(&net, in, n, &answer, &err);

    if (rc != CST_OK) {
        check_refusal(rc, &err);
        return;
    }
    fuzz_must(cste_wire_read_request(in, n, &request, &err) == CST_OK, "a request is read again");
    cste_wire_write_request(&request, again);
    fuzz_must(memcmp(again, in, n) == 0, "a request is written as it was read");
    fuzz_must(cste_wire_read_reply(answer.reply, sizeof answer.reply, &reply, &err) == CST_OK,
              "an answer is a reply");
    fuzz_must(reply.id == request.id, "an answer is to its request");
    if (reply.status == CST_OK) {
        fuzz_must(request.machine == MACHINE && memcmp(request.token, token, sizeof token) == 0 &&
                      answer.peer == peer,
                  "only the peer gets bytes");
        fuzz_must(request.segment == SEGMENT && answer.bytes == request.bytes &&
                      request.offset <= SEGMENT_BYTES &&
                      request.bytes <= SEGMENT_BYTES - request.offset,
                  "the bytes are in the segment");
        fuzz_must(answer.payload == memory + request.offset, "the bytes are those asked for");
    } else {
        fuzz_must(answer.segment == NULL && answer.bytes == 0, "a refusal has no bytes");
    }
    cste_net_answer_end(&net, &answer, false);
}

/* A reply gives a pull as many bytes as it has room for, or none. */
static void run_reply(const uint8_t *in, size_t n)
{
    struct cste_net_pull pull = {
        .peer = peer, .id = 1, .segment = SEGMENT, .bytes = 4900, .to = memory};
    struct cste_wire_reply reply;
    uint8_t again[CSTE_WIRE_BYTES];
    struct cst_err err = {0};
    uint32_t sum;
    int rc = cste_net_pull_reply(&pull, in, n, &sum, &err);

    if (rc != CST_OK) {
        check_refusal(rc, &err);
        fuzz_must(!pull.done, "a pull whose reply was no message goes on");
        return;
    }
    fuzz_must(cste_wire_read_reply(in, n, &reply, &err) == CST_OK, "a reply is read again");
    cste_wire_write_reply(&reply, again);
    fuzz_must(memcmp(again, in, n) == 0, "a reply is written as it was read");
    fuzz_must(reply.id == 1, "a reply is to its request");
    fuzz_must(pull.done == (reply.status != CST_OK), "a refused pull is done");
    fuzz_must(pull.done ? pull.err.status != CST_OK
                        : reply.bytes == 4900 && sum == reply.payload_sum,
              "a refusal has words, a payload the right length");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t message[CSTE_WIRE_BYTES];
    const uint8_t *in = data + 1;

    if (n == 0) {
        return 0;
    }
    open_net();
    if ((data[0] & 2) != 0 && n == 1 + CSTE_WIRE_BYTES) {
        uint32_t sum = cste_crc32c(in, CSTE_WIRE_BYTES - 4);

        memcpy(message, in, sizeof message);
        for (unsigned i = 0; i < 4; i++) {
            message[CSTE_WIRE_BYTES - 4 + i] = (uint8_t)(sum >> 8 * i);
        }
        in = message;
    }
    if ((data[0] & 1) == 0) {
        run_request(in, n - 1);
    } else {
        run_reply(in, n - 1);
    }
    return 0;
}

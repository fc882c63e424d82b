/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/outbox.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Number of completions in a message. The smallest takes about 10 bytes. */
#define MAX_BATCH 2048

struct cste_outbox_message {
    struct cste_outbox_message *next; /* Next younger message. */
    struct cst_frame frame;           /* The frame. body points to bytes; the fds are owned. */
    uint8_t bytes[];                  /* Packed message. */
};

void cste_outbox_init(struct cste_outbox *outbox, int sock)
{
    *outbox = (struct cste_outbox){.sock = sock};
    outbox->messages_tail = &outbox->messages;
    outbox->completions_tail = &outbox->completions;
}

static void free_completion(struct cste_outbox *outbox)
{
    struct cste_completion *c = outbox->completions;

    outbox->completions = c->next;
    if (outbox->completions == NULL) {
        outbox->completions_tail = &outbox->completions;
    }
    free(c->text);
    free(c);
}

static void free_message(struct cste_outbox *outbox)
{
    struct cste_outbox_message *m = outbox->messages;

    outbox->messages = m->next;
    if (outbox->messages == NULL) {
        outbox->messages_tail = &outbox->messages;
    }
    cst_frame_close_fds(&m->frame);
    free(m);
}

static int queue(struct cste_outbox *outbox, Engine__MsgType type, uint16_t flags, uint64_t request,
                 const ProtobufCMessage *message, int fd, struct cst_err *err)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    struct cste_outbox_message *m;

    if (n > CST_FRAME_MAX_BODY) {
        return cst_err_set(err, CST_EINVAL, "message %d of %zu bytes", (int)type, n);
    }
    m = malloc(sizeof *m + n);
    if (m == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a message of %zu bytes", n);
    }
    m->next = NULL;
    m->frame = (struct cst_frame){.type = (uint16_t)type,
                                  .flags = flags,
                                  .request = request,
                                  .body_bytes = (uint32_t)n,
                                  .body = m->bytes};
    if (fd >= 0) {
        m->frame.fds[m->frame.n_fds++] = fd;
    }
    (void)protobuf_c_message_pack(message, m->bytes);
    *outbox->messages_tail = m;
    outbox->messages_tail = &m->next;
    return CST_OK;
}

/* Returns the bytes that @c takes in a DONE: tag, length (a completion is below 16 KiB) and
 * content. */
static size_t packed_bytes(const Engine__Completion *c)
{
    return 1 + 2 + engine__completion__get_packed_size(c);
}

/* Pack as many completions as fit into one DONE. */
static int pack_batch(struct cste_outbox *outbox, struct cst_err *err)
{
    Engine__Completion *pointers[MAX_BATCH], batch[MAX_BATCH];
    Engine__Done done = ENGINE__DONE__INIT;
    size_t n = 0, bytes = 0;
    int rc;

    for (const struct cste_completion *c = outbox->completions; c != NULL && n < MAX_BATCH;
         c = c->next) {
        batch[n] = (Engine__Completion)ENGINE__COMPLETION__INIT;
        batch[n].ticket = c->ticket;
        batch[n].status = c->status;
        batch[n].has_value = c->has_value;
        batch[n].value = c->value;
        batch[n].text = c->text;
        batch[n].has_began_ns = batch[n].has_ended_ns = c->ended_ns != 0;
        batch[n].began_ns = c->began_ns;
        batch[n].ended_ns = c->ended_ns;
        pointers[n] = &batch[n];
        bytes += packed_bytes(&batch[n]);
        if (bytes > CST_FRAME_MAX_BODY) {
            break;
        }
        n++;
    }
    done.n_completions = n;
    done.completions = pointers;
    rc = queue(outbox, ENGINE__MSG_TYPE__ENGINE_DONE, CST_FRAME_EVENT, 0, &done.base, -1, err);
    while (rc == CST_OK && n-- > 0) {
        free_completion(outbox);
    }
    return rc;
}

static int pack_all(struct cste_outbox *outbox, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && outbox->completions != NULL) {
        rc = pack_batch(outbox, err);
    }
    return rc;
}

int cste_outbox_say(struct cste_outbox *outbox, Engine__MsgType type, uint16_t flags,
                    uint64_t request, const ProtobufCMessage *message, int fd, struct cst_err *err)
{
    /* Completions that were queued before go first. */
    int rc = pack_all(outbox, err);

    if (rc == CST_OK) {
        rc = queue(outbox, type, flags, request, message, fd, err);
    }
    if (rc != CST_OK && fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

int cste_outbox_complete(struct cste_outbox *outbox, uint64_t ticket, int status,
                         const double *value, const char *text, uint64_t began_ns,
                         uint64_t ended_ns, struct cst_err *err)
{
    struct cste_completion *c = calloc(1, sizeof *c);

    if (c == NULL || (text != NULL && (c->text = strdup(text)) == NULL)) {
        free(c);
        return cst_err_set(err, CST_ENOMEM, "no memory for a completion");
    }
    c->ticket = ticket;
    c->status = status;
    c->has_value = value != NULL;
    c->value = value != NULL ? *value : 0.0;
    c->began_ns = began_ns;
    c->ended_ns = ended_ns;
    *outbox->completions_tail = c;
    outbox->completions_tail = &c->next;
    return CST_OK;
}

int cste_outbox_send(struct cste_outbox *outbox, struct cst_err *err)
{
    int rc = CST_OK;

    outbox->starved = false;
    while (rc == CST_OK) {
        if (outbox->messages == NULL) {
            if (outbox->completions == NULL) {
                break;
            }
            rc = pack_batch(outbox, err);
            continue;
        }
        rc = cst_frame_send(outbox->sock, MSG_DONTWAIT, &outbox->messages->frame, err);
        if (rc == CST_ENOMEM) {
            outbox->starved = true;
            rc = CST_EAGAIN;
        }
        if (rc == CST_OK) {
            free_message(outbox);
        }
    }
    outbox->full = rc == CST_EAGAIN;
    return outbox->full ? CST_OK : rc;
}

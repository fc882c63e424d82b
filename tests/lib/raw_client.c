/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/raw_client.h"

#include "proto/reason.h"
#include "tests/lib/patience.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_MS = 200000, DECLARE_PAGE = 12 };

void raw_connect(struct raw_client *client, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(client, 0, sizeof *client);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    client->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(client->sock, 0);
    ck_assert_msg(connect(client->sock, (struct sockaddr *)&address, sizeof address) == 0, "%s: %s",
                  path, strerror(errno));
}

void raw_open(struct raw_client *client, const char *path)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    raw_connect(client, path);
    hello.min_version = hello.max_version = 1;
    hello.build = (char *)(uintptr_t) "raw client";
    raw_ask(client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
    raw_expect(client, 0, CISTERN__MSG_TYPE__MSG_WELCOME, NULL);
}

struct raw_body {
    struct raw_body *next;
    ProtobufCMessage *message;
};

static void *keep(struct raw_client *client, const ProtobufCMessageDescriptor *descriptor)
{
    struct raw_body *body = malloc(sizeof *body);

    ck_assert_ptr_nonnull(body);
    body->message =
        protobuf_c_message_unpack(descriptor, NULL, client->reply.body_bytes, client->reply.body);
    ck_assert_ptr_nonnull(body->message);
    body->next = client->bodies;
    client->bodies = body;
    return body->message;
}

void raw_close(struct raw_client *client)
{
    while (client->bodies != NULL) {
        struct raw_body *next = client->bodies->next;

        protobuf_c_message_free_unpacked(client->bodies->message, NULL);
        free(client->bodies);
        client->bodies = next;
    }
    ck_assert_int_eq(close(client->sock), 0);
    client->sock = -1;
}

bool raw_send(struct raw_client *client, const void *bytes, size_t n, const int *fds,
              unsigned n_fds, int flags)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds > 0) {
        struct cmsghdr *c;

        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    return sendmsg(client->sock, &msg, flags | MSG_NOSIGNAL) >= 0;
}

uint64_t raw_ask(struct raw_client *client, uint16_t type, const ProtobufCMessage *message)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame frame = {.type = type, .request = ++client->id, .body = body};
    struct cst_err err = {0};

    if (message != NULL) {
        ck_assert_uint_le(protobuf_c_message_get_packed_size(message), sizeof body);
        frame.body_bytes = (uint32_t)protobuf_c_message_pack(message, body);
    }
    ck_assert_msg(cst_frame_send(client->sock, 0, &frame, &err) == CST_OK, "%s", err.text);
    return client->id;
}

static void take_error(struct raw_client *client)
{
    Cistern__Error *error =
        cistern__error__unpack(NULL, client->reply.body_bytes, client->reply.body);

    ck_assert_ptr_nonnull(error);
    ck_assert_int_lt(error->status, 0);
    ck_assert_int_eq(error->retryable, cst_status_retryable(error->status));
    ck_assert_uint_gt(strlen(error->text), 0);
    (void)cst_err_give_reason(&client->err, cst_reason_of_number(error->reason),
                              cst_err_set(&client->err, error->status, "%s", error->text));
    cistern__error__free_unpacked(error, NULL);
}

bool raw_receive(struct raw_client *client)
{
    struct pollfd p = {.fd = client->sock, .events = POLLIN};
    struct cst_err err = {0};
    int rc;

    do {
        ck_assert_msg(poll(&p, 1, patience_ms(ANSWER_MS)) == 1, "no answer from the daemon");
        rc = cst_frame_recv(client->sock, 0, &client->buf, &client->reply, &err);
        ck_assert_msg(rc == CST_OK || rc == CST_ECONN, "%s", err.text);
        if (rc == CST_OK && client->reply.flags == CST_FRAME_EVENT) {
            ck_assert_uint_eq(client->reply.request, 0);
            take_error(client);
            client->farewell = client->err;
        }
    } while (rc == CST_OK && client->reply.flags == CST_FRAME_EVENT);
    return rc == CST_OK;
}

bool raw_is_quiet(const struct raw_client *client)
{
    struct pollfd p = {.fd = client->sock, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

void *raw_expect(struct raw_client *client, uint64_t id, uint16_t type,
                 const ProtobufCMessageDescriptor *descriptor)
{
    ck_assert_msg(raw_receive(client), "the daemon has closed the connection");
    if (client->reply.type == CISTERN__MSG_TYPE__MSG_ERROR &&
        type != CISTERN__MSG_TYPE__MSG_ERROR) {
        take_error(client);
        ck_abort_msg("%s: %s", cst_status_name(client->err.status), client->err.text);
    }
    ck_assert_uint_eq(client->reply.type, type);
    ck_assert_uint_eq(client->reply.flags, CST_FRAME_REPLY);
    ck_assert_uint_eq(client->reply.request, id != 0 ? id : client->id);
    return descriptor != NULL ? keep(client, descriptor) : NULL;
}

int raw_status(struct raw_client *client, uint64_t id)
{
    client->err = (struct cst_err){0};
    ck_assert_msg(raw_receive(client), "the daemon has closed the connection");
    ck_assert_uint_eq(client->reply.flags, CST_FRAME_REPLY);
    ck_assert_uint_eq(client->reply.request, id != 0 ? id : client->id);
    if (client->reply.type == CISTERN__MSG_TYPE__MSG_ERROR) {
        take_error(client);
    }
    return client->err.status;
}

int raw_call(struct raw_client *client, uint16_t type, const ProtobufCMessage *message)
{
    return raw_status(client, raw_ask(client, type, message));
}

void raw_expect_closed(struct raw_client *client)
{
    while (raw_receive(client)) {
        cst_frame_close_fds(&client->reply);
    }
}

Cistern__StatReply *raw_stat(struct raw_client *client)
{
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_STAT, NULL);

    return raw_expect(client, id, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                      &cistern__stat_reply__descriptor);
}

bool raw_explains(struct raw_client *client, const char *job, const char *tensor, const char *words)
{
    Cistern__Explain message = CISTERN__EXPLAIN__INIT;
    const Cistern__ExplainReply *reply;
    size_t i = 0;

    message.job = (char *)(uintptr_t)job;
    message.tensor = (char *)(uintptr_t)tensor;
    reply = raw_expect(client, raw_ask(client, CISTERN__MSG_TYPE__MSG_EXPLAIN, &message.base),
                       CISTERN__MSG_TYPE__MSG_EXPLAIN_REPLY, &cistern__explain_reply__descriptor);
    while (i < reply->n_lines && strstr(reply->lines[i], words) == NULL) {
        i++;
    }
    return i < reply->n_lines;
}

uint64_t raw_job_ask(struct raw_client *client, const struct raw_job *job)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open.name = (char *)(uintptr_t)job->name;
    open.rank = job->rank;
    open.world = job->world;
    open.device = (char *)(uintptr_t)job->device;
    open.plan = job->plan;
    open.has_pool_bytes = open.has_chunk_elems = open.has_timeout_ms = 1;
    open.has_optimizer = job->optimizer != 0;
    open.optimizer = job->optimizer;
    open.has_moments = job->moments != 0;
    open.moments = job->moments;
    open.has_device_update_bytes = open.has_device_states = 1;
    open.device_update_bytes = job->device_update_bytes;
    open.device_states = job->device_states;
    open.pool_bytes = job->pool_bytes;
    open.chunk_elems = job->chunk_elems;
    open.timeout_ms = job->timeout_ms;
    if (job->send_token) {
        open.has_token = 1;
        open.token = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)job->token,
                                           .len = sizeof job->token};
    }
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base);
}

int raw_job_open(struct raw_client *client, struct raw_job *job)
{
    int rc = raw_status(client, raw_job_ask(client, job));

    if (rc == CST_OK) {
        const Cistern__JobOpened *opened = keep(client, &cistern__job_opened__descriptor);

        ck_assert_uint_eq(opened->token.len, sizeof job->token);
        memcpy(job->token, opened->token.data, sizeof job->token);
        job->step = opened->step;
        job->created = opened->created;
        job->initialised = opened->initialised;
        job->committed = opened->committed;
        (void)snprintf(job->got, sizeof job->got, "%s", opened->device);
    }
    return rc;
}

int raw_declare(struct raw_client *client, const char *name, uint32_t n_dims, const int64_t *shape)
{
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors = &tensor;
    Cistern__Declare declare = CISTERN__DECLARE__INIT;

    tensor.name = (char *)(uintptr_t)name;
    tensor.dtype = 1;
    tensor.shape = (int64_t *)(uintptr_t)shape;
    tensor.n_shape = n_dims;
    declare.n_tensors = 1;
    declare.tensors = &tensors;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

static int declare_tensors(struct raw_client *client, uint32_t first, uint32_t n, int64_t elems)
{
    static Cistern__TensorDecl v[DECLARE_PAGE];
    static Cistern__TensorDecl *pointers[DECLARE_PAGE];
    static char names[DECLARE_PAGE][16];
    Cistern__Declare declare = CISTERN__DECLARE__INIT;

    for (uint32_t i = 0; i < n; i++) {
        cistern__tensor_decl__init(&v[i]);
        (void)snprintf(names[i], sizeof names[i], "t%u", first + i);
        v[i].name = names[i];
        v[i].dtype = 1;
        v[i].n_shape = 1;
        v[i].shape = &elems;
        pointers[i] = &v[i];
    }
    declare.n_tensors = n;
    declare.tensors = pointers;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

static int declare_operators(struct raw_client *client, uint32_t first, uint32_t n)
{
    static Cistern__OperatorDecl v[DECLARE_PAGE];
    static Cistern__OperatorDecl *pointers[DECLARE_PAGE];
    static char names[DECLARE_PAGE][16];
    static uint32_t tensors[DECLARE_PAGE];
    Cistern__Declare declare = CISTERN__DECLARE__INIT;

    for (uint32_t i = 0; i < n; i++) {
        cistern__operator_decl__init(&v[i]);
        (void)snprintf(names[i], sizeof names[i], "o%u", first + i);
        tensors[i] = first + i;
        v[i].name = names[i];
        v[i].n_tensors = 1;
        v[i].tensors = &tensors[i];
        pointers[i] = &v[i];
    }
    declare.n_operators = n;
    declare.operators = pointers;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

int raw_declare_many(struct raw_client *client, uint32_t n, int64_t elems)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i += DECLARE_PAGE) {
        rc = declare_tensors(client, i, n - i < DECLARE_PAGE ? n - i : DECLARE_PAGE, elems);
    }
    for (uint32_t i = 0; i < n && rc == CST_OK; i += DECLARE_PAGE) {
        rc = declare_operators(client, i, n - i < DECLARE_PAGE ? n - i : DECLARE_PAGE);
    }
    return rc;
}

uint64_t raw_ask_named(struct raw_client *client, uint32_t i, unsigned length)
{
    Cistern__TensorDecl tensor = CISTERN__TENSOR_DECL__INIT, *tensors = &tensor;
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    int64_t rows[RAW_NAMES], shape[] = {RAW_NAMES, 1};
    char texts[RAW_NAMES][256], *names[RAW_NAMES], name[16];

    for (unsigned k = 0; k < RAW_NAMES; k++) {
        (void)snprintf(texts[k], sizeof texts[k], "%0*u.%02u", (int)length - 3, i, k);
        names[k] = texts[k];
        rows[k] = 1;
    }
    (void)snprintf(name, sizeof name, "t%u", i);
    tensor.name = name;
    tensor.dtype = 1;
    tensor.n_shape = 2;
    tensor.shape = shape;
    tensor.n_external_name = tensor.n_external_rows = RAW_NAMES;
    tensor.external_name = names;
    tensor.external_rows = rows;
    declare.n_tensors = 1;
    declare.tensors = &tensors;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

uint64_t raw_commit(struct raw_client *client, uint32_t n_tensors, uint32_t n_operators)
{
    Cistern__Commit commit = CISTERN__COMMIT__INIT;

    commit.n_tensors = n_tensors;
    commit.n_operators = n_operators;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base);
}

void raw_says(const struct raw_client *client, const char *words)
{
    ck_assert_msg(strstr(client->err.text, words) != NULL, "'%s' does not say '%s'",
                  client->err.text, words);
}

int raw_declare_operator(struct raw_client *client, const char *name, uint32_t tensor)
{
    return raw_declare_activations(client, name, tensor, 0);
}

int raw_declare_activations(struct raw_client *client, const char *name, uint32_t tensor,
                            uint64_t bytes)
{
    Cistern__OperatorDecl op = CISTERN__OPERATOR_DECL__INIT, *operators = &op;
    Cistern__Declare declare = CISTERN__DECLARE__INIT;

    op.name = (char *)(uintptr_t)name;
    op.n_tensors = 1;
    op.tensors = &tensor;
    op.has_activation_bytes = bytes > 0;
    op.activation_bytes = bytes;
    declare.n_operators = 1;
    declare.operators = &operators;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base);
}

Cistern__JobInfo *raw_job_info(struct raw_client *client, const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;
    Cistern__JobInfoReply *reply;
    uint64_t id;

    message.name = (char *)(uintptr_t)name;
    id = raw_ask(client, CISTERN__MSG_TYPE__MSG_JOB_INFO, &message.base);
    reply = raw_expect(client, id, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY,
                       &cistern__job_info_reply__descriptor);
    return reply->job;
}

int raw_job_remove(struct raw_client *client, const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;

    message.name = (char *)(uintptr_t)name;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base);
}

uint64_t raw_sync(struct raw_client *client)
{
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    const Cistern__Synced *synced =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_SYNCED, &cistern__synced__descriptor);

    return synced->attempt;
}

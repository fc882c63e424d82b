/* SPDX-License-Identifier: Apache-2.0 */
/* A client without libcistern: sends what the test says, well formed or not, and takes replies
 * apart. Everything here fails the running test when something is not as it should be; every wait
 * ends. */
#ifndef RAW_CLIENT_H
#define RAW_CLIENT_H

#include "proto/cistern.pb-c.h"
#include "proto/frame.h"

#include <stdbool.h>

struct raw_body; /* private */

struct raw_client {
    int sock;
    uint64_t id;            /* of the last request */
    struct cst_frame reply; /* the last one; body in buf; fds are the test's */
    struct cst_frame_buf buf;
    struct cst_err err; /* the last Error */
    struct cst_err
        farewell; /* what the daemon said before it closes the connection; status 0: nothing */
    struct raw_body *bodies; /* what was unpacked; freed by raw_close */
};

/* Connect to @path, without Hello. */
void raw_connect(struct raw_client *client, const char *path);

/* Connect and say Hello. */
void raw_open(struct raw_client *client, const char *path);

void raw_close(struct raw_client *client);

/* Send @n bytes as they are with @n_fds descriptors. False: the daemon does not take them (it has
 * hung up, or with @flags MSG_DONTWAIT is full). */
bool raw_send(struct raw_client *client, const void *bytes, size_t n, const int *fds,
              unsigned n_fds, int flags);

/* Send a request of @type with @message (NULL: empty); returns its id. */
uint64_t raw_ask(struct raw_client *client, uint16_t type, const ProtobufCMessage *message);

/* Wait for the next frame. False: the daemon has closed the connection. */
bool raw_receive(struct raw_client *client);

/* True if nothing has come. */
bool raw_is_quiet(const struct raw_client *client);

/* Wait for the reply to @id (the last request: 0), which must be of @type; returns its unpacked
 * body (@descriptor NULL: NULL), which lives until raw_close. */
void *raw_expect(struct raw_client *client, uint64_t id, uint16_t type,
                 const ProtobufCMessageDescriptor *descriptor);

/* Wait for the reply to @id (0: the last request): OK or another reply: 0; an Error: its status,
 * words in client->err. */
int raw_status(struct raw_client *client, uint64_t id);

/* raw_ask and raw_status. */
int raw_call(struct raw_client *client, uint16_t type, const ProtobufCMessage *message);

/* Wait for the daemon to close the connection; frames that come before are dropped. */
void raw_expect_closed(struct raw_client *client);

/* The words of the last Error have @words in them. */
void raw_says(const struct raw_client *client, const char *words);

/* -- whole messages --------------------------------------------------------------------------- */

Cistern__StatReply *raw_stat(struct raw_client *client);

Cistern__JobInfo *raw_job_info(struct raw_client *client, const char *name);

/* JobRemove; status. */
int raw_job_remove(struct raw_client *client, const char *name);

/* True if Explain of @tensor says @words in a line. */
bool raw_explains(struct raw_client *client, const char *job, const char *tensor,
                  const char *words);

struct raw_job {
    const char *name;
    uint32_t rank, world;
    uint64_t pool_bytes;
    uint64_t chunk_elems;
    uint32_t timeout_ms;
    uint32_t moments;                    /* enum cst_moments */
    uint64_t update_room, device_states; /* of an accelerator */
    const char *device;                  /* NULL: not said */
    uint8_t token[16];                   /* filled by raw_job_open */
    bool send_token;                     /* to take the rank over */
    uint64_t step;                       /* filled by raw_job_open, as are the following */
    bool created, initialised, committed;
    char got[64]; /* the device that it became */
};

/* Send JobOpen; the id. */
uint64_t raw_job_ask(struct raw_client *client, const struct raw_job *job);

/* JobOpen; status, and what job is to be filled with on success. */
int raw_job_open(struct raw_client *client, struct raw_job *job);

/* Declare one tensor; status. */
int raw_declare(struct raw_client *client, const char *name, uint32_t n_dims, const int64_t *shape);

/* Declare @n tensors "t<i>" of @elems elements each, and @n operators "o<i>" that use one each;
 * status of the first that fails. */
int raw_declare_many(struct raw_client *client, uint32_t n, int64_t elems);

/* Send Commit; the id. */
uint64_t raw_commit(struct raw_client *client, uint32_t n_tensors, uint32_t n_operators);

/* Declare an operator that uses @tensor; status. */
int raw_declare_operator(struct raw_client *client, const char *name, uint32_t tensor);

/* Sync; the attempt. */
uint64_t raw_sync(struct raw_client *client);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A client without libcistern. It sends what the test specifies, well-formed or not, and unpacks
 * replies. All functions fail the running test on an error, and every wait has a limit. */
#ifndef RAW_CLIENT_H
#define RAW_CLIENT_H

#include "proto/cistern.pb-c.h"
#include "proto/frame.h"

#include <stdbool.h>

struct raw_body; /* private to raw_client.c */

/* A connection to the daemon. */
struct raw_client {
    int sock;
    uint64_t id; /* id of the last request */
    /* The last frame received. Its body is in `buf`; its descriptors belong to the test. */
    struct cst_frame reply;
    struct cst_frame_buf buf;
    struct cst_err err; /* the last Error received */
    struct cst_err
        farewell; /* the daemon's message before it closed the connection; status 0: none */
    struct raw_body *bodies; /* list of unpacked bodies, freed by raw_close */
};

/* Connect to @path without sending Hello. */
void raw_connect(struct raw_client *client, const char *path);

/* Connect to @path and send Hello. */
void raw_open(struct raw_client *client, const char *path);

/* Close the connection and free the unpacked bodies. */
void raw_close(struct raw_client *client);

/* Send @n @bytes unchanged, with @n_fds descriptors. False if the daemon has closed the connection
 * or, with @flags MSG_DONTWAIT, if its queue is full. */
bool raw_send(struct raw_client *client, const void *bytes, size_t n, const int *fds,
              unsigned n_fds, int flags);

/* Send a request of @type with @message (NULL: empty). Returns the request's id. */
uint64_t raw_ask(struct raw_client *client, uint16_t type, const ProtobufCMessage *message);

/* Wait for the next frame. False if the daemon has closed the connection. */
bool raw_receive(struct raw_client *client);

/* True if no frame has arrived. */
bool raw_is_quiet(const struct raw_client *client);

/* Wait for the reply to @id (0: the last request), which must be of @type. Returns its unpacked
 * body, or NULL if @descriptor is NULL. The body is valid until raw_close. */
void *raw_expect(struct raw_client *client, uint64_t id, uint16_t type,
                 const ProtobufCMessageDescriptor *descriptor);

/* Wait for the reply to @id (0: the last request). Returns the status of an Error, which is stored
 * in client->err, and 0 for every other reply. */
int raw_status(struct raw_client *client, uint64_t id);

/* raw_ask followed by raw_status. */
int raw_call(struct raw_client *client, uint16_t type, const ProtobufCMessage *message);

/* Wait until the daemon closes the connection. Frames that arrive before are dropped. */
void raw_expect_closed(struct raw_client *client);

/* Check that the message of the last Error contains @words. */
void raw_says(const struct raw_client *client, const char *words);

/* -- whole messages --------------------------------------------------------------------------- */

Cistern__StatReply *raw_stat(struct raw_client *client);

Cistern__JobInfo *raw_job_info(struct raw_client *client, const char *name);

/* Remove the job. Returns the status. */
int raw_job_remove(struct raw_client *client, const char *name);

/* True if a line of the reply to Explain of @tensor contains @words. */
bool raw_explains(struct raw_client *client, const char *job, const char *tensor,
                  const char *words);

/* The fields of JobOpen and of its reply. */
struct raw_job {
    const char *name;
    uint32_t rank, world;
    uint64_t pool_bytes;
    uint64_t chunk_elems;
    uint32_t timeout_ms;
    uint32_t optimizer;                          /* an enum cst_optimizer */
    uint32_t moments;                            /* an enum cst_moments */
    uint64_t device_update_bytes, device_states; /* bytes of the device reservation */
    Cistern__JobPlan *plan;                      /* NULL: none */
    const char *device;                          /* device of the pool; NULL: not specified */
    uint8_t token[16];                           /* token of the rank, filled in by raw_job_open */
    bool send_token;                             /* send `token`, to take over the rank */
    /* The last committed step. raw_job_open fills in this field and those after it. */
    uint64_t step;
    bool created, initialised, committed;
    char got[64]; /* the device that the daemon chose */
};

/* Send JobOpen. Returns the request id. */
uint64_t raw_job_ask(struct raw_client *client, const struct raw_job *job);

/* Send JobOpen and wait for the reply. Returns the status; on success @job is filled in. */
int raw_job_open(struct raw_client *client, struct raw_job *job);

/* Declare one tensor. Returns the status. */
int raw_declare(struct raw_client *client, const char *name, uint32_t n_dims, const int64_t *shape);

/* Declare @n tensors "t<i>" of @elems elements each, and @n operators "o<i>" that use one tensor
 * each. Returns the first status that is not CST_OK, or CST_OK. */
int raw_declare_many(struct raw_client *client, uint32_t n, int64_t elems);

#define RAW_NAMES 64

/* Declare tensor "t<i>", which stands for RAW_NAMES tensors of model files of one element each,
 * with names of @length bytes, 16 to 255. Returns the request id. */
uint64_t raw_ask_named(struct raw_client *client, uint32_t i, unsigned length);

/* Send Commit. Returns the request id. */
uint64_t raw_commit(struct raw_client *client, uint32_t n_tensors, uint32_t n_operators);

/* Declare an operator that uses @tensor. Returns the status. */
int raw_declare_operator(struct raw_client *client, const char *name, uint32_t tensor);

/* The same, for an operator that declares @bytes of activations. */
int raw_declare_activations(struct raw_client *client, const char *name, uint32_t tensor,
                            uint64_t bytes);

/* Sync. Returns the attempt. */
uint64_t raw_sync(struct raw_client *client);

#endif

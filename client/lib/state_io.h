/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of states between this process and the daemon's memory, through a staging segment. A
 * stream is a sequence of pieces. Several pieces are in flight at a time, and their data is handed
 * over in the order of the sequence. Internal header of libcistern; used by the client's thread
 * only. */
#ifndef CSTC_STATE_IO_H
#define CSTC_STATE_IO_H

#include "client/lib/call.h"

#define CSTC_STATE_SLOTS 4 /* Most pieces in flight. */

/* A part of a row of a tensor. `row` is an enum cst_row; the flags and the unit of `first` and
 * n_elems are those of TensorIo in proto/cistern.proto. */
struct cstc_state_piece {
    uint32_t tensor;
    uint32_t row;
    bool raw, exponents, of_save, bf16;
    uint64_t first, n_elems;
    uint64_t bytes; /* Size of the piece in the staging segment, at most cstc_state_most. */
};

/* The sequence and the data of a stream. */
struct cstc_state_stream {
    /* Store the next piece in *out. Returns false after the last one. */
    bool (*next)(void *arg, struct cstc_state_piece *out);
    /* Reads: take over the data of @piece. Writes: fill in the data of @piece. A status that is not
     * CST_OK ends the stream. */
    int (*data)(void *arg, const struct cstc_state_piece *piece, void *data, struct cst_err *err);
    void *arg; /* For both functions. */
};

/* Get the client's staging segment, if there is none yet. cst_disconnect unmaps it. CST_EPROTO: the
 * connection was ended; CST_ENOMEM, CST_EBUDGET; CST_EBUSY: a cst_try_... call is pending. */
int cstc_state_open(struct cst_client *client, struct cst_err *err);

/* The same in two parts, for those who do not wait: ask for the segment in @call, which the caller
 * has cleared, and take it when the call has succeeded. */
int cstc_state_ask(struct cst_client *client, struct cstc_call *call, struct cst_err *err);
int cstc_state_take(struct cst_client *client, struct cstc_call *call, struct cst_err *err);

/* The largest piece, in bytes: a multiple of 4096. cstc_state_open has succeeded. */
uint64_t cstc_state_most(const struct cst_client *client);

/* Read or write all pieces of @stream; cstc_state_open has succeeded. Returns the first failure,
 * after all pieces in flight have their answers. Statuses of the requests (cst_tensor_read and
 * cst_tensor_write) and of stream->data; CST_EBUSY: a cst_try_... call is pending. */
int cstc_states_read(struct cst_client *client, const struct cstc_state_stream *stream,
                     struct cst_err *err);
int cstc_states_write(struct cst_client *client, const struct cstc_state_stream *stream,
                      struct cst_err *err);

/* A slot of the staging segment and the piece that is in it. */
struct cstc_state_slot {
    struct cstc_call call;
    struct cstc_state_piece piece;
    void *data;
};

/* A stream that is under way. The slots are used in turn. The caller sets the first three members
 * and clears the others. */
struct cstc_state_run {
    struct cst_client *client;
    struct cstc_state_stream stream;
    bool writes; /* Otherwise the stream reads. */
    struct cstc_state_slot slots[CSTC_STATE_SLOTS];
    uint64_t begun, ended; /* Numbers of pieces. */
    bool at_end;           /* There are no further pieces. */
    struct cst_err failed; /* The first failure; status 0: none. */
};

/* Go on with @run, which must stay where it is until the end. CST_EAGAIN: a reply is missing. Other
 * statuses are the last one, as in cstc_states_read. */
int cstc_states_advance(struct cstc_state_run *run, struct cst_err *err);

#endif

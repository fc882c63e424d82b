/* SPDX-License-Identifier: Apache-2.0 */
/* Writes inputs of the targets of daemon_rig.h: what workers of a job with a small model send. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include "proto/cistern.pb-c.h"

#include <stddef.h>
#include <stdint.h>

/* Tensors of the model, each with a chunk and an operator of its own, and elements of each. */
enum { SCRIPT_CHUNKS = 3, SCRIPT_ELEMS = 4096 };

/* Write to @out, which has room for @max bytes, from now on; the number of bytes written. */
void script_begin(uint8_t *out, size_t max);
size_t script_end(void);

/* Write a byte; the length and the bytes of a message, or a length of 0 for NULL. */
void script_put(unsigned byte);
void script_put_message(const ProtobufCMessage *message);

/* Write the steps FRAME, with a message or without a body, and ENGINE, where no command fails. */
void script_ask(unsigned session, unsigned type, const ProtobufCMessage *message);
void script_engine(void);

/* Write the steps with which @session says hello, opens the job "j" with what @open has, whose
 * name, chunks and pool are filled in, declares the model, and commits. */
void script_open_job(unsigned session, Cistern__JobOpen *open);

/* Write the steps in which @session trains @chunk: it fetches its weights and its gradient, and
 * hands them back. @generation counts the leases of all sessions. */
void script_train(unsigned session, uint64_t attempt, uint32_t chunk, uint64_t *generation);

/* Write the STEP of @session. */
void script_ask_step(unsigned session, uint64_t attempt);

#endif

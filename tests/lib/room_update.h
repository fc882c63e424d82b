/* SPDX-License-Identifier: Apache-2.0 */
/* An update that goes through memory of an accelerator, as commands: the rows that it reads go up,
 * are updated there from one place to another, and come down. */
#ifndef ROOM_UPDATE_H
#define ROOM_UPDATE_H

#include "tests/lib/tiny_job.h"

#define ROOM_UPDATE_COMMANDS 9 /* at most: four rows up, the update, four rows down */

/* Bytes of room that an update of @chunk of @job takes. */
uint64_t room_update_bytes(const struct tiny_job *job, unsigned chunk);

/* Write to @out the commands of step @mark of @chunk by way of @room, with tickets behind @ticket;
 * the first ones come after the @n_before tickets up to @before. Returns how many there are; the
 * last *n_last of them are what the next step comes after. */
size_t room_update_write(const struct tiny_job *job, unsigned chunk, uint64_t mark,
                         struct cst_place room, uint64_t ticket, uint64_t before, unsigned n_before,
                         struct engine_command *out, unsigned *n_last);

#endif

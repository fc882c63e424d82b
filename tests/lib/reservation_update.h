/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the commands of a device update: copies of the rows to the accelerator, the update there
 * from one place to another, and copies back. */
#ifndef RESERVATION_UPDATE_H
#define RESERVATION_UPDATE_H

#include "tests/lib/tiny_job.h"

/* Largest number of commands: four rows up, the update, four rows down. */
#define RESERVATION_UPDATE_COMMANDS 9

/* Bytes of accelerator memory that an update of @chunk of @job needs. */
uint64_t reservation_update_bytes(const struct tiny_job *job, unsigned chunk);

/* Write the commands of step @mark of @chunk, which use the memory at @reservation, to @out. Their
 * tickets follow @ticket. The first commands wait for the @n_before tickets that end with @before.
 * Returns the number of commands; the next step must wait for the last *@n_last of them. */
size_t reservation_update_write(const struct tiny_job *job, unsigned chunk, uint64_t mark,
                                struct cst_place reservation, uint64_t ticket, uint64_t before,
                                unsigned n_before, struct engine_command *out, unsigned *n_last);

#endif

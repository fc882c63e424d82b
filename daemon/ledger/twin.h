/* SPDX-License-Identifier: Apache-2.0 */
/* A record in shared memory that is there twice. The two are written in turns, each with a number
 * and a checksum:
 *
 *   | number | record | checksum | number | record | checksum |
 *
 * of 64-bit words, where the checksum is XXH3 of what comes before it. Number 0: it was never
 * written. So the newest record that is whole is that of the last write, or of the one before if
 * the writer was killed in between. One writer; it does not protect against a loss of power. */
#ifndef CSTD_TWIN_H
#define CSTD_TWIN_H

#include <stddef.h>
#include <stdint.h>

struct cstd_twin {
    uint64_t *at; /* Both, cstd_twin_bytes() in all; zeros before the first write. Borrowed. */
    size_t bytes; /* Of one record; a multiple of 8. */
};

/* Bytes of both. */
size_t cstd_twin_bytes(const struct cstd_twin *twin);

/* The newest whole record; NULL: there is none. Valid until the write after the next one. */
const void *cstd_twin_newest(const struct cstd_twin *twin);

/* Write a record of twin->bytes. */
void cstd_twin_write(const struct cstd_twin *twin, const void *record);

#endif

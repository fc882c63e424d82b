/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (the polynomial of Castagnoli, as in iSCSI and RFC 3720) of what goes over a network. It
 * finds errors, and stops no attacker. The processor's instruction is used where there is one;
 * three sums that do not wait for each other then run side by side. Any thread. */
#ifndef CST_CRC32C_H
#define CST_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC32C of @bytes at @data. */
uint32_t cste_crc32c(const void *data, size_t bytes);

/* The same by a table of 256 entries, the truth for tests. */
uint32_t cste_crc32c_ref(const void *data, size_t bytes);

#endif

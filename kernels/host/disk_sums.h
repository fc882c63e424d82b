/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of what this engine has written to a range of a file. A drive that loses a write, puts
 * it elsewhere or changes bits says nothing of it; the checksum of what is read back does.
 *
 * There is one for each transfer that was written as a whole, for those who read the same bytes as
 * a whole again, as updates do. What was written by an engine that has ended, and what is read in
 * other portions than it was written in, is not checked. */
#ifndef CST_DISK_SUMS_H
#define CST_DISK_SUMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cste_disk_sum {
    uint64_t at, bytes; /* The bytes of the range. */
    uint64_t sum;       /* Their XXH3 (64 bits, seed 0). */
};

/* Zeroed, and with an initialised lock, it has none. */
struct cste_disk_sums {
    pthread_mutex_t lock;
    struct cste_disk_sum *v; /* In the order of the range; no two have a byte in common. Owned. */
    uint32_t n, capacity;
};

/* The bytes [@at, @at + @bytes) are about to be changed: their checksums do not hold any more. Any
 * thread. */
void cste_disk_sums_forget(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes);

/* The bytes [@at, @at + @bytes), which were forgotten before, were written and have the checksum
 * @sum. Without memory it is not kept. Any thread. */
void cste_disk_sums_keep(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes, uint64_t sum);

/* True: the bytes [@at, @at + @bytes) were written as a whole, and had the checksum *sum. Any
 * thread. */
bool cste_disk_sums_find(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes, uint64_t *sum);

#endif

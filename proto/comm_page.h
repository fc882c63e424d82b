/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a communicator (cistern/comm.h), which the ranks of a group share: its layout, and
 * how ranks that sleep are woken. The daemon makes the memory, a sealed memfd, and maps the control
 * part alone. The data is the ranks' business (client/comm).
 *
 *   head     4096 bytes: whether the communicator is broken, and why. The daemon writes it.
 *   lines    256 bytes for each rank: how far the rank is (it writes this), and its bell
 *   slots    CST_COMM_SLOTS for each rank, written by this rank and read by the others: the header
 * of a call, numbers of bytes for the ranks, data
 *
 * Any process of the group can write anywhere at any time. Whoever reads a value here reads it
 * once, and uses it for no address. Numbers here have the byte order of the machine. */
#ifndef CST_COMM_PAGE_H
#define CST_COMM_PAGE_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CST_COMM_MAX_RANKS 64 /* As many as a job has. */
/* Slots of a rank. An all-reduce has two pieces under way, each with a slot of contributions and a
 * slot of sums (client/comm/transfer.h). */
#define CST_COMM_SLOTS 4
#define CST_COMM_PAGE_BYTES 4096

struct cst_comm_head {
    uint32_t broken; /* 1: no rank waits any more, because of `status` and `text`. */
    int32_t status;
    char text[sizeof(((struct cst_err *)NULL)->text)];
};

struct cst_comm_line {
    /* Rounds that this rank has written, and that it has read, modulo 2^32. It writes both. */
    _Alignas(128) uint32_t written;
    uint32_t read;
    /* A futex word, which others increase to wake this rank; 1: this rank sleeps, or is about to.
     */
    _Alignas(128) uint32_t bell;
    uint32_t asleep;
};

/* The header in the slot of a call's first round. The ranks compare their headers. */
struct cst_comm_header {
    _Alignas(64) uint64_t op; /* enum cst_comm_op */
    uint64_t type;            /* enum cst_comm_type */
    uint64_t root;            /* Rank in the group; 0: the call has none. */
    uint64_t n_elems;         /* Elements, of all ranks together. */
    uint64_t counts;          /* Digest of the ranks' numbers of elements; 0: the call has none. */
};

/* Bytes of the control part, a multiple of CST_COMM_PAGE_BYTES, for @size ranks. */
static inline size_t cst_comm_control_bytes(uint32_t size)
{
    const size_t page = CST_COMM_PAGE_BYTES;

    return page + (size * sizeof(struct cst_comm_line) + page - 1) / page * page;
}

/* Bytes in a slot before the data: the header, and a number for each rank. */
static inline size_t cst_comm_prefix_bytes(uint32_t size)
{
    return sizeof(struct cst_comm_header) + (size * sizeof(uint64_t) + 63) / 64 * 64;
}

/* Bytes of the whole memory. @slot_bytes: data in a slot, a multiple of 64. */
static inline size_t cst_comm_bytes(uint32_t size, size_t slot_bytes)
{
    const size_t slots = (size_t)size * CST_COMM_SLOTS * (cst_comm_prefix_bytes(size) + slot_bytes);
    const size_t page = CST_COMM_PAGE_BYTES;

    return cst_comm_control_bytes(size) + (slots + page - 1) / page * page;
}

/* The line of @rank in the memory at @base. */
static inline struct cst_comm_line *cst_comm_line(void *base, uint32_t rank)
{
    return (struct cst_comm_line *)(void *)((char *)base + CST_COMM_PAGE_BYTES) + rank;
}

/* Increase the bell of @line and wake its rank. Any thread of any process. */
void cst_comm_ring(struct cst_comm_line *line);

/* Sleep until the bell of @line differs from @bell, at most @timeout_ms. May return early. */
void cst_comm_sleep(struct cst_comm_line *line, uint32_t bell, unsigned timeout_ms);

/* Declare the communicator of @size ranks at @base broken because of @why, and wake all ranks. Only
 * the daemon calls this function, once, and it writes nothing else there. */
void cst_comm_break(void *base, uint32_t size, const struct cst_err *why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a communicator (cistern/comm.h), which the ranks of a group share. The daemon makes
 * it, a sealed memfd, and maps the head alone, to wake the ranks (proto/shared.h). The rest is the
 * ranks' business (client/comm).
 *
 *   control  256 bytes: how ranks wait and learn that the attempt is over, who has closed its
 *            communicator, and who can use the transport that the daemon has chosen
 *   lines    128 bytes for each rank, which this rank writes: how far it is
 *   slots    CST_COMM_SLOTS for each rank, written by this rank and read by the others: the header
 *            of a call, numbers of bytes for the ranks and from the ranks, data. The first begins
 *            at a page
 *
 * A rank on a GPU begins to use the transport that the daemon has chosen, NCCL or slots on GPUs,
 * and says whether it could. If all could, the communicator is open. If one could not, all close
 * it.
 *
 * If the ranks have slots on GPUs, these have the data, and the slots here only the header and the
 * numbers. In a communicator by NCCL the memory has no data. The slots of a rank are one array of
 * CST_COMM_CALLS entries there, each a header and numbers: what the rank calls.
 *
 * A rank that waits for another one looks at a single cache line, which has also the header that it
 * reads next: the one at the start of the slot.
 *
 * Any process of the group can write anywhere at any time. Whoever reads a value here reads it
 * once, and uses it for no address. Numbers here have the byte order of the machine. */
#ifndef CST_COMM_MEMORY_H
#define CST_COMM_MEMORY_H

#include "proto/round_up.h"
#include "proto/shared.h"

#include <stddef.h>

#define CST_COMM_MAX_RANKS 64 /* Bits of a word that counts them. */
/* Slots of a rank. An all-reduce has two pieces under way, each with a slot of contributions and a
 * slot of sums (client/comm/transfer.h). */
#define CST_COMM_SLOTS 4
/* Data in a slot. An all-reduce of 1 MiB by two ranks took 144 us with 128 KiB, 103 us with 256 KiB
 * and 52 us with 512 KiB (Zen 4, 1 MiB of second-level cache): presumably because longer slots have
 * left the cache of the processor that wrote them when another one reads them, and come from the
 * cache that both share. */
#define CST_COMM_SLOT_BYTES (512u << 10)
/* Data in a slot on a GPU, for which a rank waits twice. In 30 us, which that may take, NVLink
 * moves some 10 MB, and PCIe 1 MB. */
#define CST_COMM_PEER_SLOT_BYTES (4u << 20)
#define CST_COMM_PAGE_BYTES 4096
#define CST_COMM_CALLS 16 /* Calls of which a rank of a communicator by NCCL has entries. */

struct cst_comm_control {
    struct cst_shared_head head;
    /* Ranks of the group, one bit each. A rank on a GPU that could begin to use the transport is in
     * `ready`, and one that could not is in `refused`. No rank is in both. */
    _Alignas(128) _Atomic uint64_t closed; /* Ranks that have closed it. */
    _Atomic uint64_t ready;
    _Atomic uint64_t refused;
};

_Static_assert(sizeof(struct cst_comm_control) == 256, "as above");

struct cst_comm_line {
    _Alignas(128) _Atomic uint32_t read; /* Rounds that this rank has read, modulo 2^32. */
};

/* What the ranks compare. */
struct cst_comm_header {
    uint64_t op;      /* enum cst_comm_op */
    uint64_t type;    /* enum cst_comm_type */
    uint64_t root;    /* Rank in the group; 0: the call has none. */
    uint64_t n_elems; /* Elements, of all ranks together. */
    uint64_t counts;  /* Digest of the ranks' numbers of elements; 0: the call has none. */
};

/* The start of a slot. */
struct cst_comm_slot {
    _Alignas(64) struct cst_comm_header header; /* In the first round of a call. */
    /* The round in this slot, or the call in this entry, plus 1. Written last. */
    _Atomic uint64_t written;
};

/* Bytes of the control and the lines of @size ranks, whole pages. */
static inline size_t cst_comm_control_bytes(uint32_t size)
{
    return cst_round_up(sizeof(struct cst_comm_control) + size * sizeof(struct cst_comm_line),
                        CST_COMM_PAGE_BYTES);
}

/* Bytes in a slot before the data: its start, and two numbers for each rank. The numbers are those
 * of an all-to-all: first the bytes that the slot's rank sends to each rank, then the bytes that it
 * receives from each rank. */
static inline size_t cst_comm_prefix_bytes(uint32_t size)
{
    return sizeof(struct cst_comm_slot) + cst_round_up(2 * size * sizeof(uint64_t), 64);
}

/* Data in the slots of a communicator by NCCL: with it, the slots of a rank are at least as long as
 * its entries. At least 64 bytes for each rank. */
static inline size_t cst_comm_call_slot_bytes(uint32_t size)
{
    return (CST_COMM_CALLS / CST_COMM_SLOTS - 1) * cst_comm_prefix_bytes(size) + 64 * (size_t)size;
}

/* Bytes of the whole memory. @slot_bytes: data in a slot, a multiple of 64. */
static inline size_t cst_comm_bytes(uint32_t size, size_t slot_bytes)
{
    const size_t slots = (size_t)size * CST_COMM_SLOTS * (cst_comm_prefix_bytes(size) + slot_bytes);

    return cst_comm_control_bytes(size) + cst_round_up(slots, CST_COMM_PAGE_BYTES);
}

/* The line of @rank in the memory at @base. */
static inline struct cst_comm_line *cst_comm_line(void *base, uint32_t rank)
{
    return (struct cst_comm_line *)(void *)((char *)base + sizeof(struct cst_comm_control)) + rank;
}

#endif

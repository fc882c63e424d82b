/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/channel.h"

_Static_assert(sizeof(struct cst_comm_line) == 128, "no two ranks share a cache line");
_Static_assert(sizeof(struct cst_comm_header) == 64, "a header is a cache line");

void cstc_channel_init(struct cstc_channel *channel, void *base, uint32_t rank, uint32_t size,
                       size_t slot_bytes)
{
    *channel =
        (struct cstc_channel){.base = base, .rank = rank, .size = size, .slot_bytes = slot_bytes};
}

static struct cst_comm_line *line_of(const struct cstc_channel *channel, uint32_t rank)
{
    return cst_comm_line(channel->base, rank);
}

static char *slot(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    const size_t bytes = cst_comm_prefix_bytes(channel->size) + channel->slot_bytes;

    return (char *)channel->base + cst_comm_control_bytes(channel->size) +
           (rank * CST_COMM_SLOTS + round % CST_COMM_SLOTS) * bytes;
}

struct cst_comm_header *cstc_channel_header(const struct cstc_channel *channel, uint32_t rank,
                                            uint64_t round)
{
    return (struct cst_comm_header *)(void *)slot(channel, rank, round);
}

uint64_t *cstc_channel_numbers(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    return (uint64_t *)(void *)(slot(channel, rank, round) + sizeof(struct cst_comm_header));
}

char *cstc_channel_data(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    return slot(channel, rank, round) + cst_comm_prefix_bytes(channel->size);
}

/* Return whether @counter, modulo 2^32, is at least @round. No rank is more than CST_COMM_SLOTS
 * rounds ahead of another one. */
static bool has_reached(const _Atomic uint32_t *counter, uint64_t round)
{
    return (int32_t)(atomic_load(counter) - (uint32_t)round) >= 0;
}

bool cstc_channel_is_written(struct cstc_channel *channel, uint64_t round)
{
    for (uint32_t i = 0; i < channel->size; i++) {
        const uint32_t rank = (channel->late + i) % channel->size;

        if (rank != channel->rank && !has_reached(&line_of(channel, rank)->written, round + 1)) {
            channel->late = rank;
            return false;
        }
    }
    return true;
}

bool cstc_channel_is_free(struct cstc_channel *channel)
{
    for (uint32_t i = 0; i < channel->size && channel->written >= CST_COMM_SLOTS; i++) {
        const uint32_t rank = (channel->late + i) % channel->size;

        if (rank != channel->rank &&
            !has_reached(&line_of(channel, rank)->read, channel->written + 1 - CST_COMM_SLOTS)) {
            channel->late = rank;
            return false;
        }
    }
    return true;
}

void cstc_channel_wrote(struct cstc_channel *channel)
{
    atomic_store(&line_of(channel, channel->rank)->written, (uint32_t)++channel->written);
    cst_shared_notify(channel->base);
}

void cstc_channel_did_read(struct cstc_channel *channel)
{
    atomic_store(&line_of(channel, channel->rank)->read, (uint32_t)++channel->read);
    cst_shared_notify(channel->base);
}

void cstc_channel_close(const struct cstc_channel *channel)
{
    atomic_store(&line_of(channel, channel->rank)->closed, 1);
    cst_shared_notify(channel->base);
}

uint32_t cstc_channel_closed(const struct cstc_channel *channel)
{
    uint32_t rank = 0;

    while (rank < channel->size && atomic_load(&line_of(channel, rank)->closed) == 0) {
        rank++;
    }
    return rank;
}

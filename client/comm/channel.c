/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/channel.h"

#include <string.h>
#include <unistd.h>

/* Looks before this rank sleeps, if each rank can have a processor. They take about as long as the
 * kernel needs to wake a process on another processor, which is the most that can be lost. */
#define N_SPINS 2000

void cstc_channel_init(struct cstc_channel *channel, void *base, uint32_t rank, uint32_t size,
                       size_t slot_bytes)
{
    /* With more ranks than processors, the rank that is awaited may need this processor. */
    const bool crowded = (long)size > sysconf(_SC_NPROCESSORS_ONLN);

    *channel = (struct cstc_channel){.base = base,
                                     .rank = rank,
                                     .size = size,
                                     .slot_bytes = slot_bytes,
                                     .n_spins = crowded ? 0 : N_SPINS};
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
static bool has_reached(const uint32_t *counter, uint64_t round)
{
    return (int32_t)(__atomic_load_n(counter, __ATOMIC_SEQ_CST) - (uint32_t)round) >= 0;
}

bool cstc_channel_is_written(struct cstc_channel *channel, uint64_t round)
{
    for (uint32_t i = 0; i < channel->size; i++) {
        const uint32_t rank = (channel->late + i) % channel->size;

        if (rank != channel->rank &&
            !has_reached(&cst_comm_line(channel->base, rank)->written, round + 1)) {
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

        if (rank != channel->rank && !has_reached(&cst_comm_line(channel->base, rank)->read,
                                                  channel->written + 1 - CST_COMM_SLOTS)) {
            channel->late = rank;
            return false;
        }
    }
    return true;
}

/* Wake the others, after a counter was stored. A rank that goes to sleep stores `asleep` and looks
 * at the counters then. One of the two sees the other's store, because all four accesses are in one
 * order. */
static void wake_sleepers(const struct cstc_channel *channel)
{
    for (uint32_t rank = 0; rank < channel->size; rank++) {
        struct cst_comm_line *line = cst_comm_line(channel->base, rank);

        if (rank != channel->rank && __atomic_load_n(&line->asleep, __ATOMIC_SEQ_CST) != 0) {
            cst_comm_ring(line);
        }
    }
}

void cstc_channel_wrote(struct cstc_channel *channel)
{
    struct cst_comm_line *line = cst_comm_line(channel->base, channel->rank);

    channel->written++;
    __atomic_store_n(&line->written, (uint32_t)channel->written, __ATOMIC_SEQ_CST);
    wake_sleepers(channel);
}

void cstc_channel_did_read(struct cstc_channel *channel)
{
    struct cst_comm_line *line = cst_comm_line(channel->base, channel->rank);

    channel->read++;
    __atomic_store_n(&line->read, (uint32_t)channel->read, __ATOMIC_SEQ_CST);
    wake_sleepers(channel);
}

int cstc_channel_broken(const struct cstc_channel *channel, struct cst_err *err)
{
    const struct cst_comm_head *head = channel->base;
    char text[sizeof head->text];
    int status;

    if (__atomic_load_n(&head->broken, __ATOMIC_ACQUIRE) == 0) {
        return CST_OK;
    }
    status = __atomic_load_n(&head->status, __ATOMIC_RELAXED);
    memcpy(text, head->text, sizeof text);
    text[sizeof text - 1] = '\0';
    /* The daemon writes a failure that ends the communicator. */
    if (status != CST_ECANCELLED && status != CST_ENOTFOUND) {
        status = CST_EPEERDIED;
    }
    return cst_err_set(err, status, "%s", text);
}

uint32_t cstc_channel_announce(struct cstc_channel *channel)
{
    struct cst_comm_line *line = cst_comm_line(channel->base, channel->rank);

    __atomic_store_n(&line->asleep, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&line->bell, __ATOMIC_ACQUIRE);
}

void cstc_channel_sleep(struct cstc_channel *channel, uint32_t bell, unsigned timeout_ms)
{
    cst_comm_sleep(cst_comm_line(channel->base, channel->rank), bell, timeout_ms);
}

void cstc_channel_end(struct cstc_channel *channel)
{
    __atomic_store_n(&cst_comm_line(channel->base, channel->rank)->asleep, 0, __ATOMIC_RELAXED);
}

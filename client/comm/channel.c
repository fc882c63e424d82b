/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/channel.h"

_Static_assert(sizeof(struct cst_comm_line) == 128, "no two ranks share a cache line");
_Static_assert(sizeof(struct cst_comm_slot) == 64, "the start of a slot is a cache line");

void cstc_channel_init(struct cstc_channel *channel, void *base, uint32_t rank, uint32_t size,
                       size_t slot_bytes)
{
    *channel =
        (struct cstc_channel){.base = base, .rank = rank, .size = size, .slot_bytes = slot_bytes};
}

static struct cst_comm_control *control_of(const struct cstc_channel *channel)
{
    return channel->base;
}

static char *slot_of(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    const size_t bytes = cst_comm_prefix_bytes(channel->size) + channel->slot_bytes;

    return (char *)channel->base + cst_comm_control_bytes(channel->size) +
           (rank * CST_COMM_SLOTS + round % CST_COMM_SLOTS) * bytes;
}

static struct cst_comm_slot *start_of(const struct cstc_channel *channel, uint32_t rank,
                                      uint64_t round)
{
    return (struct cst_comm_slot *)(void *)slot_of(channel, rank, round);
}

struct cst_comm_header *cstc_channel_header(const struct cstc_channel *channel, uint32_t rank,
                                            uint64_t round)
{
    return &start_of(channel, rank, round)->header;
}

uint64_t *cstc_channel_numbers(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    return (uint64_t *)(void *)(start_of(channel, rank, round) + 1);
}

char *cstc_channel_data(const struct cstc_channel *channel, uint32_t rank, uint64_t round)
{
    if (channel->apart != NULL) {
        return channel->apart[rank] + round % CST_COMM_SLOTS * channel->apart_bytes;
    }
    return slot_of(channel, rank, round) + cst_comm_prefix_bytes(channel->size);
}

struct cst_comm_slot *cstc_channel_call(const struct cstc_channel *channel, uint32_t rank,
                                        uint64_t number)
{
    char *first = slot_of(channel, rank, 0);

    return (struct cst_comm_slot *)(void *)(first + number % CST_COMM_CALLS *
                                                        cst_comm_prefix_bytes(channel->size));
}

bool cstc_channel_is_written(struct cstc_channel *channel, uint64_t round)
{
    for (uint32_t i = 0; i < channel->size; i++) {
        const uint32_t rank = (channel->late + i) % channel->size;

        if (rank != channel->rank &&
            atomic_load(&start_of(channel, rank, round)->written) != round + 1) {
            channel->late = rank;
            return false;
        }
    }
    return true;
}

/* Look how many rounds the others have read. None of them has read more than this rank has
 * written. */
static void look_freed(struct cstc_channel *channel)
{
    int64_t least = (int64_t)(channel->written - channel->freed);

    for (uint32_t rank = 0; rank < channel->size; rank++) {
        const uint32_t read = atomic_load(&cst_comm_line(channel->base, rank)->read);
        const int32_t more = (int32_t)(read - (uint32_t)channel->freed);

        if (rank != channel->rank && more < least) {
            least = more > 0 ? more : 0;
            channel->late = rank;
        }
    }
    channel->freed += (uint64_t)least;
}

bool cstc_channel_is_free(struct cstc_channel *channel)
{
    if (channel->written - channel->freed >= CST_COMM_SLOTS) {
        look_freed(channel);
    }
    return channel->written - channel->freed < CST_COMM_SLOTS;
}

/* Return the first round, from @round on, in which a call can begin. */
static uint64_t first_round(uint64_t round)
{
    return round % CST_COMM_SLOTS < 2
               ? round
               : (round + CST_COMM_SLOTS - 1) / CST_COMM_SLOTS * CST_COMM_SLOTS;
}

void cstc_channel_wrote(struct cstc_channel *channel)
{
    struct cst_comm_slot *start = start_of(channel, channel->rank, channel->written);

    atomic_store(&start->written, ++channel->written);
    cst_shared_notify(&control_of(channel)->head);
}

void cstc_channel_ends(struct cstc_channel *channel)
{
    channel->written = first_round(channel->written);
}

void cstc_channel_did_read(struct cstc_channel *channel, bool ends)
{
    channel->read = ends ? first_round(channel->read + 1) : channel->read + 1;
    atomic_store(&cst_comm_line(channel->base, channel->rank)->read, (uint32_t)channel->read);
    cst_shared_notify(&control_of(channel)->head);
}

/* Add this rank to @ranks. */
static void say(const struct cstc_channel *channel, _Atomic uint64_t *ranks)
{
    (void)atomic_fetch_or(ranks, UINT64_C(1) << channel->rank);
    cst_shared_wake(&control_of(channel)->head);
}

void cstc_channel_close(const struct cstc_channel *channel)
{
    say(channel, &control_of(channel)->closed);
}

uint32_t cstc_channel_closed(const struct cstc_channel *channel)
{
    const uint64_t closed = atomic_load(&control_of(channel)->closed);

    return closed != 0 ? (uint32_t)__builtin_ctzll(closed) : CST_COMM_MAX_RANKS;
}

void cstc_channel_say_ready(const struct cstc_channel *channel)
{
    say(channel, &control_of(channel)->ready);
}

void cstc_channel_refuse(const struct cstc_channel *channel)
{
    say(channel, &control_of(channel)->refused);
}

/* A rank that refuses says so before it closes its communicator. Therefore `closed` is read
 * first. */
enum cstc_channel_answer cstc_channel_ask(const struct cstc_channel *channel, uint32_t *rank)
{
    struct cst_comm_control *control = control_of(channel);
    const uint64_t all = UINT64_MAX >> (64 - channel->size);
    const uint64_t closed = atomic_load(&control->closed);
    const uint64_t missing = all & ~atomic_load(&control->ready);

    if (missing == 0) {
        return CSTC_CHANNEL_READY;
    }
    *rank = (uint32_t)__builtin_ctzll((missing & closed) != 0 ? missing & closed : missing);
    if ((all & atomic_load(&control->refused)) != 0) {
        return CSTC_CHANNEL_REFUSED;
    }
    return (missing & closed) != 0 ? CSTC_CHANNEL_LEFT : CSTC_CHANNEL_UNKNOWN;
}

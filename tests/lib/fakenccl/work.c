/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakenccl/work.h"

#include <math.h>
#include <sched.h>
#include <string.h>
#include <time.h>

size_t work_elem_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclFloat32:
        return 4;
    }
    return 0;
}

/* Let others run. Returns false if the work was aborted. */
static bool rest(const struct work_place *place, unsigned *n_rests)
{
    if (++*n_rests > 100) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    } else {
        (void)sched_yield();
    }
    return !atomic_load(place->aborted);
}

/* -- mailboxes -------------------------------------------------------------------------------- */

static struct arena_mail *mail_to(const struct work_place *place, uint32_t peer)
{
    return &place->arena->mail[place->rank][peer];
}

static struct arena_mail *mail_from(const struct work_place *place, uint32_t peer)
{
    return &place->arena->mail[peer][place->rank];
}

static bool is_empty(struct arena_mail *mail)
{
    return atomic_load(&mail->written) == atomic_load(&mail->taken);
}

static size_t chunk_of(size_t bytes)
{
    return bytes < ARENA_CHUNK_BYTES ? bytes : ARENA_CHUNK_BYTES;
}

static void put(struct arena_mail *mail, const char *data, size_t bytes)
{
    memcpy(mail->data, data, bytes);
    mail->bytes = (uint32_t)bytes;
    (void)atomic_fetch_add(&mail->written, 1);
}

/* -- sends and receives ----------------------------------------------------------------------- */

static bool step(const struct work_place *place, struct work *work)
{
    const size_t chunk = chunk_of(work->bytes - work->done);

    if (work->kind == WORK_SEND) {
        struct arena_mail *mail = mail_to(place, work->peer);

        if (!is_empty(mail)) {
            return false;
        }
        put(mail, work->in + work->done, chunk);
    } else {
        struct arena_mail *mail = mail_from(place, work->peer);

        if (is_empty(mail)) {
            return false;
        }
        memcpy(work->out + work->done, mail->data, chunk);
        (void)atomic_fetch_add(&mail->taken, 1);
    }
    work->done += chunk;
    return true;
}

/* Return whether an earlier one of @works uses the mailbox of work @i and is not done. */
static bool has_earlier(const struct work *works, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (works[k].kind == works[i].kind && works[k].peer == works[i].peer &&
            works[k].done < works[k].bytes) {
            return true;
        }
    }
    return false;
}

/* All of @works are sends and receives, and go on at the same time. */
static bool exchange(const struct work_place *place, struct work *works, size_t n)
{
    unsigned n_rests = 0;
    bool is_done;

    do {
        bool moved = false;

        is_done = true;
        for (size_t i = 0; i < n; i++) {
            if (works[i].done < works[i].bytes) {
                moved = (!has_earlier(works, i) && step(place, &works[i])) || moved;
                is_done = is_done && works[i].done == works[i].bytes;
            }
        }
        if (!moved && !is_done && !rest(place, &n_rests)) {
            return false;
        }
    } while (!is_done);
    return true;
}

/* -- sums ------------------------------------------------------------------------------------- */

static float load(const char *at, ncclDataType_t type)
{
    uint32_t bits = 0;
    uint16_t half;
    float x;

    if (type == ncclBfloat16) {
        memcpy(&half, at, sizeof half);
        bits = (uint32_t)half << 16;
    } else {
        memcpy(&bits, at, sizeof bits);
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void store(char *at, ncclDataType_t type, float x)
{
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &x, sizeof bits);
    bits = isnan(x) ? 0x7fc00000 : bits;
    if (type == ncclBfloat16) {
        bits += isnan(x) ? 0 : 0x7fff + (bits >> 16 & 1); /* To nearest even. */
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof half);
    } else {
        memcpy(at, &bits, sizeof bits);
    }
}

/* Sum @n elements: those of @own, and those in the mailboxes. */
static void add_up(const struct work_place *place, const struct work *work, const char *own,
                   char *out, size_t n)
{
    const size_t bytes = work_elem_bytes(work->type);

    for (size_t i = 0; i < n; i++) {
        float sum = 0;

        for (uint32_t rank = 0; rank < place->size; rank++) {
            const char *from = rank == place->rank ? own : mail_from(place, rank)->data;
            const float x = load(from + i * bytes, work->type);

            sum = rank == 0 ? x : sum + x;
        }
        store(out + i * bytes, work->type, sum);
    }
}

/* Wait until the mailbox to @peer is empty, or the one from it is full. */
static bool await(const struct work_place *place, struct arena_mail *mail, bool empty)
{
    unsigned n_rests = 0;

    while (is_empty(mail) != empty) {
        if (!rest(place, &n_rests)) {
            return false;
        }
    }
    return true;
}

/* Elements [@first, @first + @n) of the sums. */
static bool sum_chunk(const struct work_place *place, const struct work *work, size_t first,
                      size_t n)
{
    const size_t bytes = work_elem_bytes(work->type);

    for (uint32_t peer = 0; peer < place->size; peer++) {
        struct arena_mail *mail = mail_to(place, peer);

        if (peer != place->rank && (work->receivers >> peer & 1) != 0) {
            if (!await(place, mail, true)) {
                return false;
            }
            put(mail, work->in + (peer * work->stride + first) * bytes, n * bytes);
        }
    }
    if ((work->receivers >> place->rank & 1) == 0) {
        return true;
    }
    for (uint32_t peer = 0; peer < place->size; peer++) {
        if (peer != place->rank && !await(place, mail_from(place, peer), false)) {
            return false;
        }
    }
    add_up(place, work, work->in + (place->rank * work->stride + first) * bytes,
           work->out + first * bytes, n);
    for (uint32_t peer = 0; peer < place->size; peer++) {
        if (peer != place->rank) {
            (void)atomic_fetch_add(&mail_from(place, peer)->taken, 1);
        }
    }
    return true;
}

static bool sum(const struct work_place *place, const struct work *work)
{
    const size_t most = ARENA_CHUNK_BYTES / work_elem_bytes(work->type);

    for (size_t first = 0; first < work->n_elems; first += most) {
        const size_t left = work->n_elems - first;

        if (!sum_chunk(place, work, first, left < most ? left : most)) {
            return false;
        }
    }
    return true;
}

/* -- all parts -------------------------------------------------------------------------------- */

static bool is_exchange(const struct work *work)
{
    return work->kind == WORK_SEND || work->kind == WORK_RECEIVE;
}

bool work_run(const struct work_place *place, struct work *works, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;

        if (atomic_load(place->aborted)) {
            return false;
        }
        while (end < n && is_exchange(&works[end])) {
            end++;
        }
        if (end > i) {
            if (!exchange(place, &works[i], end - i)) {
                return false;
            }
            i = end;
        } else if (works[i].kind == WORK_COPY) {
            memmove(works[i].out, works[i].in, works[i].bytes);
            i++;
        } else if (!sum(place, &works[i++])) {
            return false;
        }
    }
    return true;
}

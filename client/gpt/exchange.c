/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/exchange_inside.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 50000000 /* interval between two checks of the peers while waiting */

struct gpt_exchange_hub {
    uint32_t world;
    size_t region_bytes;
    struct gpt_exchange_segment *segment;
};

static size_t padded(size_t bytes)
{
    return (bytes + GPT_EXCHANGE_ALIGN - 1) / GPT_EXCHANGE_ALIGN * GPT_EXCHANGE_ALIGN;
}

/* Allocate the shared memory for ranks of one process. NULL: out of memory. */
static struct gpt_exchange_segment *segment_get(uint32_t world, size_t region_bytes)
{
    void *p = mmap(NULL, gpt_exchange_bytes(world, region_bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void segment_put(struct gpt_exchange_segment *segment, uint32_t world, size_t region_bytes)
{
    if (segment != NULL) {
        (void)munmap(segment, gpt_exchange_bytes(world, region_bytes));
    }
}

static int exchange_new(struct gpt_exchange **out, uint32_t rank, uint32_t world,
                        size_t region_bytes, struct cst_err *err)
{
    struct gpt_exchange *x = calloc(1, sizeof *x);

    if (x == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    x->rank = rank;
    x->world = world;
    x->region_bytes = padded(region_bytes);
    for (size_t i = 0; i < GPT_EXCHANGE_MAX_RANKS; i++) {
        x->connections[i] = -1;
    }
    *out = x;
    return 0;
}

int gpt_exchange_open_alone(struct gpt_exchange **out, size_t region_bytes, struct cst_err *err)
{
    struct gpt_exchange *x;
    int rc = exchange_new(&x, 0, 1, region_bytes, err);

    if (rc != 0) {
        return rc;
    }
    x->segment = segment_get(1, x->region_bytes);
    if (x->segment == NULL) {
        free(x);
        return cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes for tokens", region_bytes);
    }
    *out = x;
    return 0;
}

int gpt_exchange_hub_open(struct gpt_exchange_hub **out, uint32_t world, size_t region_bytes,
                          struct cst_err *err)
{
    struct gpt_exchange_hub *hub = calloc(1, sizeof *hub);

    if (hub != NULL) {
        hub->world = world;
        hub->region_bytes = padded(region_bytes);
        hub->segment = segment_get(world, hub->region_bytes);
    }
    if (hub == NULL || hub->segment == NULL) {
        free(hub);
        return cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes for the tokens of %u ranks",
                           region_bytes, world);
    }
    *out = hub;
    return 0;
}

void gpt_exchange_hub_close(struct gpt_exchange_hub *hub)
{
    if (hub != NULL) {
        segment_put(hub->segment, hub->world, hub->region_bytes);
        free(hub);
    }
}

int gpt_exchange_open_thread(struct gpt_exchange **out, struct gpt_exchange_hub *hub, uint32_t rank,
                             struct cst_err *err)
{
    int rc = exchange_new(out, rank, hub->world, hub->region_bytes, err);

    if (rc == 0) {
        (*out)->hub = hub;
    }
    return rc;
}

int gpt_exchange_open_process(struct gpt_exchange **out, const char *name, uint32_t rank,
                              uint32_t world, size_t region_bytes, struct cst_err *err)
{
    struct gpt_exchange *x;
    int rc;

    /* An abstract address has a zero byte before the name, and x->name one after it. */
    if (name[0] == '\0' || strlen(name) + 2 > sizeof x->name) {
        return cst_err_set(err, CST_EINVAL, "'%s': the name must have 1 to %zu characters", name,
                           sizeof x->name - 2);
    }
    rc = exchange_new(&x, rank, world, region_bytes, err);
    if (rc != 0) {
        return rc;
    }
    x->process = true;
    strcpy(x->name, name);
    *out = x;
    return 0;
}

static void tell_came(const struct gpt_exchange *x)
{
    if (x->watch != NULL && x->segment != NULL) {
        x->watch->came(x->watch->arg, x->segment, gpt_exchange_bytes(x->world, x->region_bytes));
    }
}

static void tell_goes(const struct gpt_exchange *x)
{
    if (x->watch != NULL && x->segment != NULL) {
        x->watch->goes(x->watch->arg, x->segment);
    }
}

void gpt_exchange_watch(struct gpt_exchange *x, const struct gpt_exchange_watch *watch)
{
    tell_goes(x);
    x->watch = watch;
    tell_came(x);
}

void gpt_exchange_close(struct gpt_exchange *x)
{
    if (x != NULL) {
        gpt_exchange_leave(x);
        /* An exchange without peers does not leave, so the watch has not been told yet. */
        tell_goes(x);
        if (x->hub == NULL && !x->process) {
            segment_put(x->segment, x->world, x->region_bytes);
        }
        free(x);
    }
}

static void futex_wake_all(uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wait until @word differs from @value, for at most LOOK_NS. */
static void futex_wait(uint32_t *word, uint32_t value)
{
    const struct timespec limit = {.tv_nsec = LOOK_NS};

    (void)syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

static void break_segment(struct gpt_exchange_segment *s)
{
    __atomic_store_n(&s->broken, 1, __ATOMIC_RELEASE);
    futex_wake_all(&s->generation);
}

void gpt_exchange_hub_break(struct gpt_exchange_hub *hub)
{
    break_segment(hub->segment);
}

int gpt_exchange_join(struct gpt_exchange *x, struct cst_err *err)
{
    int rc = 0;

    if (x->process) {
        /* A join needs new memory, because the old memory may be broken. */
        gpt_exchange_leave(x);
        rc = gpt_exchange_connect(x, err);
    } else if (x->hub != NULL && __atomic_load_n(&x->hub->segment->broken, __ATOMIC_ACQUIRE) != 0) {
        rc = cst_err_set(err, CST_ECANCELLED, "another rank of this process failed");
    } else if (x->hub != NULL) {
        x->segment = x->hub->segment;
    }
    if (rc == 0 && (x->process || x->hub != NULL)) {
        tell_came(x);
    }
    return rc;
}

void gpt_exchange_leave(struct gpt_exchange *x)
{
    /* An exchange without peers stays joined. */
    if (x->segment == NULL || (x->hub == NULL && !x->process)) {
        return;
    }
    break_segment(x->segment);
    tell_goes(x);
    if (x->process) {
        segment_put(x->segment, x->world, x->region_bytes);
        gpt_exchange_disconnect(x);
    }
    x->segment = NULL;
}

static bool is_held(const struct gpt_exchange_segment *s, uint32_t generation)
{
    return __atomic_load_n(&s->generation, __ATOMIC_ACQUIRE) != generation;
}

int gpt_exchange_meet(struct gpt_exchange *x, struct cst_err *err)
{
    struct gpt_exchange_segment *s = x->segment;
    const uint32_t generation = __atomic_load_n(&s->generation, __ATOMIC_ACQUIRE);

    if (__atomic_add_fetch(&s->n_here, 1, __ATOMIC_ACQ_REL) == x->world) {
        /* The other ranks wait for the next line, so none has entered the next barrier. */
        __atomic_store_n(&s->n_here, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&s->generation, generation + 1, __ATOMIC_RELEASE);
        if (x->world > 1) {
            futex_wake_all(&s->generation);
        }
        return 0;
    }
    while (!is_held(s, generation)) {
        if (__atomic_load_n(&s->broken, __ATOMIC_ACQUIRE) != 0) {
            if (is_held(s, generation)) {
                break; /* The barrier completed after the check above, and a rank left after it. */
            }
            return cst_err_set(err, CST_EPEERDIED, "another rank has left the exchange of tokens");
        }
        futex_wait(&s->generation, generation);
        /* A killed process cannot break the segment, so a waiting rank does it. */
        if (x->process && gpt_exchange_lost(x)) {
            break_segment(s);
        }
        if (x->watch != NULL && !is_held(s, generation)) {
            x->watch->look(x->watch->arg);
        }
    }
    return 0;
}

void *gpt_exchange_region(const struct gpt_exchange *x, uint32_t rank)
{
    return (char *)x->segment + GPT_EXCHANGE_ALIGN + rank * x->region_bytes;
}

uint32_t gpt_exchange_rank(const struct gpt_exchange *x)
{
    return x->rank;
}

uint32_t gpt_exchange_world(const struct gpt_exchange *x)
{
    return x->world;
}

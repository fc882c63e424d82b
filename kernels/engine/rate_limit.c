/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/rate_limit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int parse_number(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0' ? CST_OK : CST_EINVAL;
}

int cste_rate_limit_parse(const char *text, struct cste_rate_limit_spec *out, struct cst_err *err)
{
    static char up[] = "up", down[] = "down", update[] = "update", memory[] = "memory";
    char *const names[] = {up, down, update, memory, NULL};
    struct cste_rate_limit_spec spec = {0};
    uint64_t *const fields[] = {&spec.up, &spec.down, &spec.update, &spec.memory};
    char *copy = strdup(text), *rest = copy, *value;
    int rc = copy != NULL ? CST_OK : CST_ENOMEM;

    while (rc == CST_OK && *rest != '\0') {
        int i = getsubopt(&rest, names, &value);

        rc = i >= 0 && value != NULL ? parse_number(value, fields[i]) : CST_EINVAL;
    }
    free(copy);
    if (rc == CST_OK) {
        *out = spec;
        return CST_OK;
    }
    return cst_err_set(err, rc, "'%s' is not a list of up=N, down=N, update=N and memory=N", text);
}

void cste_rate_limit_init(struct cste_rate_limit *pace, uint64_t rate)
{
    *pace = (struct cste_rate_limit){.rate = (double)rate};
    (void)pthread_mutex_init(&pace->mutex, NULL);
}

void cste_rate_limit_close(struct cste_rate_limit *pace)
{
    (void)pthread_mutex_destroy(&pace->mutex);
}

/* Returns when the work of the current stretch ends. The work is summed in units and not in
 * nanoseconds, which are rounded: many small pieces then take as long as one large piece. */
static uint64_t end_of(const struct cste_rate_limit *pace)
{
    return pace->began_ns + (uint64_t)(pace->units * 1e9 / pace->rate);
}

static void begin(struct cste_rate_limit *pace, uint64_t at_ns)
{
    pace->began_ns = at_ns;
    pace->units = 0;
}

void cste_rate_limit_enter(struct cste_rate_limit *pace, uint64_t now_ns)
{
    uint64_t end;

    if (pace->rate <= 0) {
        return;
    }
    (void)pthread_mutex_lock(&pace->mutex);
    end = end_of(pace);
    /* A late thread that is alone begins a new stretch. While others are inside, the stretch goes
     * on, and a delay of up to CSTE_RATE_LIMIT_LAG_NS is made up for. */
    if (pace->n_inside == 0 && now_ns > end + CSTE_RATE_LIMIT_LATE_NS) {
        begin(pace, now_ns);
    } else if (now_ns > end + CSTE_RATE_LIMIT_LAG_NS) {
        begin(pace, now_ns - CSTE_RATE_LIMIT_LAG_NS);
    }
    pace->n_inside++;
    (void)pthread_mutex_unlock(&pace->mutex);
}

uint64_t cste_rate_limit_take(struct cste_rate_limit *pace, uint64_t units)
{
    uint64_t end;

    if (pace->rate <= 0) {
        return 0;
    }
    (void)pthread_mutex_lock(&pace->mutex);
    pace->units += (double)units;
    end = end_of(pace);
    (void)pthread_mutex_unlock(&pace->mutex);
    return end;
}

void cste_rate_limit_leave(struct cste_rate_limit *pace)
{
    if (pace->rate > 0) {
        (void)pthread_mutex_lock(&pace->mutex);
        pace->n_inside--;
        (void)pthread_mutex_unlock(&pace->mutex);
    }
}

void cste_rate_limit_wait(struct cste_rate_limit *pace, uint64_t units)
{
    uint64_t end = cste_rate_limit_take(pace, units);
    const struct timespec until = {.tv_sec = (time_t)(end / 1000000000),
                                   .tv_nsec = (long)(end % 1000000000)};

    /* A signal does not shorten the sleep, because the end is an absolute time. */
    while (end > 0 && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
    cste_rate_limit_leave(pace);
}

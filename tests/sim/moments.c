/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/moments.h"

#include <stdbool.h>
#include <stdlib.h>

void moments_close(struct moments *moments)
{
    free(moments->v);
    *moments = (struct moments){0};
}

static bool before(const struct moment *a, const struct moment *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void grow(struct moments *moments)
{
    moments->capacity = moments->capacity == 0 ? 1024 : 2 * moments->capacity;
    moments->v = realloc(moments->v, moments->capacity * sizeof *moments->v);
    if (moments->v == NULL) {
        abort();
    }
}

void moments_push(struct moments *moments, struct moment moment)
{
    size_t i = moments->n++;

    if (moments->n > moments->capacity) {
        grow(moments);
    }
    moment.order = moments->order++;
    for (; i > 0 && before(&moment, &moments->v[(i - 1) / 2]); i = (i - 1) / 2) {
        moments->v[i] = moments->v[(i - 1) / 2];
    }
    moments->v[i] = moment;
}

struct moment moments_pop(struct moments *moments)
{
    struct moment first = moments->v[0];
    struct moment last = moments->v[--moments->n];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < moments->n; i = child) {
        if (child + 1 < moments->n && before(&moments->v[child + 1], &moments->v[child])) {
            child++;
        }
        if (!before(&moments->v[child], &last)) {
            break;
        }
        moments->v[i] = moments->v[child];
    }
    moments->v[i] = last;
    return first;
}

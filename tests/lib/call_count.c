/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/call_count.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#define MAX_NAMES 32

static struct {
    const char *name;
    unsigned n;
} counts[MAX_NAMES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

unsigned call_count(const char *name)
{
    unsigned n = 0;

    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_NAMES && n == 0; i++) {
        if (counts[i].name == NULL || strcmp(counts[i].name, name) == 0) {
            counts[i].name = name;
            n = ++counts[i].n;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return n;
}

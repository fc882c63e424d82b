/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakenccl/settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAMES 32

/* How often a name was asked for. */
static struct {
    const char *name;
    unsigned n;
} counts[MAX_NAMES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Noreturn void refuse(const char *name, const char *value)
{
    (void)fprintf(stderr, "fakenccl: %s=%s makes no sense\n", name, value);
    _Exit(2);
}

int settings_version(void)
{
    const char *value = getenv("CST_FAKENCCL_VERSION");
    char *end;
    long version;

    if (value == NULL) {
        return 22809;
    }
    version = strtol(value, &end, 10);
    if (*end != '\0' || version < 2000 || version > 99999) {
        refuse("CST_FAKENCCL_VERSION", value);
    }
    return (int)version;
}

/* Count this call of @name. */
static unsigned count(const char *name)
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

ncclResult_t settings_fault(const char *name)
{
    const char *list = getenv("CST_FAKENCCL_FAIL");
    const unsigned n = count(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        char wanted[64];
        unsigned number;
        int result, length = 0;

        if (sscanf(at, "%63[A-Za-z]:%u=%d%n", wanted, &number, &result, &length) != 3) {
            refuse("CST_FAKENCCL_FAIL", list);
        }
        if (number == n && strcmp(wanted, name) == 0) {
            return (ncclResult_t)result;
        }
        at += length;
        at += *at == ',';
    }
    return ncclSuccess;
}

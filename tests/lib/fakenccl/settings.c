/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakenccl/settings.h"

#include "tests/lib/call_count.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Stop this process if the test wants it to hang in call @n of @name. */
static void stop_if(const char *name, unsigned n)
{
    const char *value = getenv("CST_FAKENCCL_STOP");
    char wanted[64];
    unsigned number;

    if (value == NULL) {
        return;
    }
    if (sscanf(value, "%63[A-Za-z]:%u", wanted, &number) != 2) {
        refuse("CST_FAKENCCL_STOP", value);
    }
    if (number == n && strcmp(wanted, name) == 0) {
        (void)raise(SIGSTOP);
    }
}

ncclResult_t settings_fault(const char *name)
{
    const char *list = getenv("CST_FAKENCCL_FAIL");
    const unsigned n = call_count(name);

    stop_if(name, n);
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

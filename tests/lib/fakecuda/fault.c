/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/settings.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 32
#define MAX_NAME 48

struct rule {
    char name[MAX_NAME]; /* name of the entry point or kind of operation; "*": every entry point */
    uint64_t nth;        /* number of the call that fails, from 1 */
    bool onwards;        /* all later calls fail as well */
    CUresult result;     /* the result of these calls */
    uint64_t n_calls;    /* number of calls so far */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct rule rules[MAX_RULES];
static size_t n_rules;
static bool rules_read;
static bool ready;
static atomic_bool forked;
static atomic_uint_fast64_t n_misuses, n_leaks, n_calls, n_faults;
static _Thread_local bool in_host_function;

/* -- the lock ------------------------------------------------------------------------------- */

void cst_fake_lock(void)
{
    (void)pthread_mutex_lock(&lock);
}

void cst_fake_unlock(void)
{
    (void)pthread_mutex_unlock(&lock);
}

void cst_fake_wait(void)
{
    (void)pthread_cond_wait(&changed, &lock);
}

void cst_fake_changed(void)
{
    (void)pthread_cond_broadcast(&changed);
}

/* -- states of the library ------------------------------------------------------------------ */

static void child_of_fork(void)
{
    atomic_store(&forked, true);
}

void cst_fake_set_ready(void)
{
    if (!ready) {
        (void)pthread_atfork(NULL, NULL, child_of_fork);
    }
    ready = true;
}

bool cst_fake_is_ready(void)
{
    return ready && !atomic_load(&forked);
}

void cst_fake_in_host_function(bool yes)
{
    in_host_function = yes;
}

/* -- faults --------------------------------------------------------------------------------- */

/* Read a rule. "cuMemCreate:3=2": the third call returns 2. "cuMemCreate:3+=2": the third and all
 * later calls return 2. */
static void read_rule(const char *text, size_t length)
{
    struct rule *rule = &rules[n_rules++];
    char copy[128], plus[2] = "";
    int result = CUDA_ERROR_UNKNOWN, n = 0;
    unsigned long long nth = 0;

    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    if (length >= sizeof copy || n_rules == MAX_RULES ||
        (sscanf(copy, "%47[^:]:%llu%1[+]=%d%n", rule->name, &nth, plus, &result, &n) != 4 &&
         sscanf(copy, "%47[^:]:%llu=%d%n", rule->name, &nth, &result, &n) != 3 &&
         sscanf(copy, "%47[^:]:%llu%n", rule->name, &nth, &n) != 2) ||
        (size_t)n != length || nth == 0) {
        cst_fake_bad_setting("CST_FAKECUDA_FAIL", text);
    }
    rule->nth = nth;
    rule->onwards = plus[0] == '+';
    rule->result = (CUresult)result;
}

static void read_rules(void)
{
    const char *at = cst_fake_settings()->faults;

    rules_read = true;
    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ",");

        read_rule(at, length);
        at += length;
        at += *at == ',';
    }
}

static bool rule_is_for(const struct rule *rule, const char *name)
{
    return strcmp(rule->name, name) == 0 ||
           (strcmp(rule->name, "*") == 0 && name[0] == 'c' && name[1] == 'u');
}

CUresult cst_fake_fault(const char *kind)
{
    CUresult result = CUDA_SUCCESS;

    if (!rules_read) {
        read_rules();
    }
    for (size_t i = 0; i < n_rules; i++) {
        struct rule *rule = &rules[i];

        if (rule_is_for(rule, kind)) {
            rule->n_calls++;
            if (rule->n_calls == rule->nth || (rule->onwards && rule->n_calls > rule->nth)) {
                result = rule->result;
            }
        }
    }
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add(&n_faults, 1);
    }
    return result;
}

bool cst_fake_is_sticky(CUresult result)
{
    int n = (int)result;

    return n == CUDA_ERROR_ILLEGAL_ADDRESS || n == CUDA_ERROR_LAUNCH_TIMEOUT ||
           n == CUDA_ERROR_ASSERT ||
           (n >= CUDA_ERROR_HARDWARE_STACK_ERROR && n <= CUDA_ERROR_LAUNCH_FAILED) ||
           n == CUDA_ERROR_ECC_UNCORRECTABLE || n == CUDA_ERROR_NVLINK_UNCORRECTABLE ||
           n == CUDA_ERROR_CONTAINED || n == CUDA_ERROR_EXTERNAL_DEVICE;
}

/* -- the frame ------------------------------------------------------------------------------ */

static void plain_name(const char *name, char out[MAX_NAME])
{
    size_t length;

    snprintf(out, MAX_NAME, "%s", name);
    length = strlen(out);
    if (length > 3 && out[length - 3] == '_' && out[length - 2] == 'v') {
        out[length - 3] = '\0';
    }
}

static CUresult may_call(const char *name, enum cst_fake_needs needs)
{
    CUresult result = CUDA_SUCCESS;

    if (needs != CST_FAKE_NOTHING && !ready) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (needs == CST_FAKE_CONTEXT) {
        result = cst_fake_context_usable();
    }
    if (result == CUDA_SUCCESS) {
        result = cst_fake_fault(name);
        if (cst_fake_is_sticky(result)) {
            cst_fake_context_break(cst_fake_context_current(), result);
        }
    }
    return result;
}

CUresult cst_fake_begin(const char *full_name, enum cst_fake_needs needs)
{
    char name[MAX_NAME];
    CUresult result;

    plain_name(full_name, name);
    atomic_fetch_add(&n_calls, 1);
    if (in_host_function) {
        cst_fake_misuse("%s in a host function that a stream called", name);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (atomic_load(&forked)) {
        cst_fake_misuse("%s in a forked child of a process that used CUDA", name);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    cst_fake_lock();
    result = may_call(name, needs);
    if (result != CUDA_SUCCESS) {
        cst_fake_unlock();
    }
    return result;
}

CUresult cst_fake_end(CUresult result)
{
    cst_fake_unlock();
    return result;
}

/* -- counts --------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static void say(const char *what, const char *fmt,
                                                      va_list args)
{
    char text[256];

    vsnprintf(text, sizeof text, fmt, args);
    fprintf(stderr, "fakecuda: %s: %s\n", what, text);
}

void cst_fake_misuse(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say("misuse", fmt, args);
    va_end(args);
    atomic_fetch_add(&n_misuses, 1);
}

void cst_fake_leak(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say("leak", fmt, args);
    va_end(args);
    atomic_fetch_add(&n_leaks, 1);
}

uint64_t cst_fake_misuses(void)
{
    return atomic_load(&n_misuses);
}

uint64_t cst_fake_leaks(void)
{
    return atomic_load(&n_leaks);
}

uint64_t cst_fake_calls(void)
{
    return atomic_load(&n_calls);
}

uint64_t cst_fake_faults(void)
{
    return atomic_load(&n_faults);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEMORY ((size_t)4 << 30)
#define DEFAULT_DRIVER 13000
#define DEFAULT_CAPABILITY 90

static struct cst_fake_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void cst_fake_bad_setting(const char *name, const char *value)
{
    fprintf(stderr, "fakecuda: %s=%s makes no sense\n", name, value);
    abort();
}

/* Read the number with a unit at *@at, and advance *@at behind it. */
static uint64_t take_number(const char *name, const char *value, const char **at)
{
    static const char units[] = "KMG";
    char *end = NULL;
    uint64_t n;
    const char *unit;

    errno = 0;
    n = strtoull(*at, &end, 10);
    if (end == *at || errno != 0) {
        cst_fake_bad_setting(name, value);
    }
    unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        n <<= 10 * (unit - units + 1);
        end += strncmp(end + 1, "iB", 2) == 0 ? 3 : 1;
    }
    *at = end;
    return n;
}

static uint64_t read_number(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    const char *at = value;
    uint64_t n;

    if (value == NULL || *value == '\0') {
        return otherwise;
    }
    n = take_number(name, value, &at);
    if (*at != '\0') {
        cst_fake_bad_setting(name, value);
    }
    return n;
}

/* Skip the comma at *@at. False at the end. */
static bool next_item(const char *name, const char *value, const char **at)
{
    if (**at == '\0') {
        return false;
    }
    if (**at != ',') {
        cst_fake_bad_setting(name, value);
    }
    (*at)++;
    return true;
}

static int take_device(const char *name, const char *value, const char **at)
{
    uint64_t n = take_number(name, value, at);

    if (n >= CST_FAKE_MAX_DEVICES) {
        cst_fake_bad_setting(name, value);
    }
    return (int)n;
}

/* Read "4GiB" for all devices, or "4GiB,1GiB"; the last size is also for further devices. */
static void read_memory(void)
{
    const char *name = "CST_FAKECUDA_MEMORY", *value = getenv(name), *at = value;
    size_t bytes = DEFAULT_MEMORY;

    for (int i = 0; i < CST_FAKE_MAX_DEVICES; i++) {
        if (at != NULL && *at != '\0' && (i == 0 || next_item(name, value, &at))) {
            bytes = take_number(name, value, &at);
        }
        settings.memory_bytes[i] = bytes;
    }
    if (at != NULL && *at != '\0') {
        cst_fake_bad_setting(name, value);
    }
}

static void read_mig(void)
{
    const char *name = "CST_FAKECUDA_MIG", *value = getenv(name), *at = value;

    if (value == NULL || *value == '\0') {
        return;
    }
    do {
        settings.mig[take_device(name, value, &at)] = true;
    } while (next_item(name, value, &at));
}

/* Read "all", "none", or pairs as in "0-1,2-3". */
static void read_peers(void)
{
    const char *name = "CST_FAKECUDA_PEERS", *value = getenv(name), *at = value;
    bool all = value == NULL || strcmp(value, "all") == 0;
    int a, b;

    for (int i = 0; i < CST_FAKE_MAX_DEVICES; i++) {
        for (int j = 0; j < CST_FAKE_MAX_DEVICES; j++) {
            settings.peer[i][j] = all && i != j;
        }
    }
    if (all || strcmp(value, "none") == 0) {
        return;
    }
    do {
        a = take_device(name, value, &at);
        if (*at++ != '-') {
            cst_fake_bad_setting(name, value);
        }
        b = take_device(name, value, &at);
        settings.peer[a][b] = settings.peer[b][a] = true;
    } while (next_item(name, value, &at));
}

static void read_attributes(void)
{
    const char *name = "CST_FAKECUDA_ATTRIBUTES", *value = getenv(name), *at = value;
    struct cst_fake_attribute *a;

    if (value == NULL || *value == '\0') {
        return;
    }
    do {
        if (settings.n_attributes == sizeof settings.attributes / sizeof settings.attributes[0]) {
            cst_fake_bad_setting(name, value);
        }
        a = &settings.attributes[settings.n_attributes++];
        a->number = (int)take_number(name, value, &at);
        if (*at++ != '=') {
            cst_fake_bad_setting(name, value);
        }
        a->value = (int)take_number(name, value, &at);
    } while (next_item(name, value, &at));
}

/* Read a capability such as "9.0". */
static void read_capability(void)
{
    const char *name = "CST_FAKECUDA_CC", *value = getenv(name), *at = value;
    uint64_t major;

    settings.capability = DEFAULT_CAPABILITY;
    if (value == NULL || *value == '\0') {
        return;
    }
    major = take_number(name, value, &at);
    if (*at++ != '.') {
        cst_fake_bad_setting(name, value);
    }
    settings.capability = (int)(10 * major + take_number(name, value, &at));
}

static bool read_word(const char *name, const char *word)
{
    const char *value = getenv(name);

    return value != NULL && strcmp(value, word) == 0;
}

static const char *read_text(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

static void read_all(void)
{
    uint64_t n = read_number("CST_FAKECUDA_DEVICES", 1);

    if (n > CST_FAKE_MAX_DEVICES) {
        cst_fake_bad_setting("CST_FAKECUDA_DEVICES", getenv("CST_FAKECUDA_DEVICES"));
    }
    settings.n_devices = (int)n;
    read_memory();
    read_mig();
    read_peers();
    read_attributes();
    read_capability();
    settings.driver = (int)read_number("CST_FAKECUDA_DRIVER", DEFAULT_DRIVER);
    settings.proc_null = read_word("CST_FAKECUDA_PROC", "null");
    settings.pinned_bytes = read_number("CST_FAKECUDA_PINNED", SIZE_MAX);
    settings.pageable = !read_word("CST_FAKECUDA_PAGEABLE", "no");
    settings.delay_us = (unsigned)read_number("CST_FAKECUDA_DELAY_US", 0);
    settings.seed = read_number("CST_FAKECUDA_SEED", 1);
    settings.state_dir = read_text("CST_FAKECUDA_STATE");
    settings.leak_file = read_text("CST_FAKECUDA_LEAKS");
    settings.faults = read_text("CST_FAKECUDA_FAIL");
    settings.visible = getenv("CUDA_VISIBLE_DEVICES");
    if (settings.delay_us != 0 || getenv("CST_FAKECUDA_SEED") != NULL) {
        fprintf(stderr, "fakecuda: CST_FAKECUDA_DELAY_US=%u CST_FAKECUDA_SEED=%llu\n",
                settings.delay_us, (unsigned long long)settings.seed);
    }
}

const struct cst_fake_settings *cst_fake_settings(void)
{
    (void)pthread_once(&once, read_all);
    return &settings;
}

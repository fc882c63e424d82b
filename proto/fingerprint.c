/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FNV_OFFSET UINT64_C(14695981039346656037)
#define FNV_PRIME UINT64_C(1099511628211)

/* FNV-1a, 64 bits. A zero byte ends each text, for "ab", "c" to differ from "a", "bc". */
static uint64_t add(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * FNV_PRIME;
    }
    return hash * FNV_PRIME;
}

/* Find the first line of @path that begins with @key, and copy what follows its colon to @out. "":
 * there is none. */
static void find_line(const char *path, const char *key, char *out, size_t n)
{
    FILE *file = fopen(path, "re");
    char line[512];

    out[0] = '\0';
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, key, strlen(key)) == 0 && colon != NULL) {
            (void)snprintf(out, n, "%s", colon + 1);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* Hash the processor's model, the number of cores, the NUMA nodes and the memory. Memory counts in
 * GiB, because kernels reserve different amounts. */
static uint64_t hash_host(void)
{
    char text[512];
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    uint64_t hash;

    find_line("/proc/cpuinfo", "model name", text, sizeof text);
    hash = add(FNV_OFFSET, text);
    (void)snprintf(text, sizeof text, "%ld cores, %" PRIu64 " GiB", sysconf(_SC_NPROCESSORS_ONLN),
                   (uint64_t)page * (uint64_t)pages >> 30);
    hash = add(hash, text);
    if (file != NULL && fgets(text, sizeof text, file) != NULL) {
        hash = add(hash, text);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return hash;
}

void cst_fingerprint(const char *const *gpus, size_t n_gpus, char out[CST_FINGERPRINT_BYTES])
{
    uint64_t sum = 0; /* A sum, for the order of the GPUs not to matter. */

    for (size_t i = 0; i < n_gpus; i++) {
        sum += add(FNV_OFFSET, gpus[i]);
    }
    (void)snprintf(out, CST_FINGERPRINT_BYTES, "%016" PRIx64 "%016" PRIx64, hash_host(), sum);
}

bool cst_fingerprint_same_host(const char *a, const char *b)
{
    return strlen(a) >= CST_FINGERPRINT_HALF && strlen(b) >= CST_FINGERPRINT_HALF &&
           strncmp(a, b, CST_FINGERPRINT_HALF) == 0;
}

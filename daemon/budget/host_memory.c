/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/budget/host_memory.h"

#include "proto/host_nodes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUP_BYTES = PATH_MAX / 2 };

/* A hierarchy of control groups: its mount point and the name of the limit file. */
struct hierarchy {
    const char *dir;
    const char *file;
};

static const struct hierarchy version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"};
static const struct hierarchy version_2[] = {
    {"/sys/fs/cgroup", "memory.max"},
    {"/sys/fs/cgroup/unified", "memory.max"}, /* Version 2 mounted in addition to version 1. */
};

static uint64_t machine_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Read the number in the file @path. UINT64_MAX: the file has "max" or does not exist. */
static uint64_t read_limit(const char *path)
{
    uint64_t bytes = UINT64_MAX;
    FILE *file = fopen(path, "re");

    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &bytes) != 1) {
            bytes = UINT64_MAX;
        }
        (void)fclose(file);
    }
    return bytes;
}

/* Lower *least to the limits of the group @path ("/a/b") and of its ancestors. In a container the
 * mount point may be the group itself, and @path a path outside the container; groups that do not
 * exist have no limit. */
static void look_up(const char *root, const struct hierarchy *in, const char *path,
                    struct cstd_host_memory_limit *least)
{
    char group[GROUP_BYTES], file[PATH_MAX];
    char *end;

    (void)snprintf(group, sizeof group, "%s", strcmp(path, "/") == 0 ? "" : path);
    do {
        uint64_t bytes;

        (void)snprintf(file, sizeof file, "%s%s%s/%s", root, in->dir, group, in->file);
        bytes = read_limit(file);
        if (bytes < least->bytes) {
            least->bytes = bytes;
            memcpy(least->file, file, sizeof file);
        }
        end = strrchr(group, '/');
        if (end != NULL) {
            *end = '\0';
        }
    } while (end != NULL);
}

/* True if @names, separated by commas, contains "memory". */
static bool has_memory(char *names)
{
    char *rest = NULL;

    for (char *name = strtok_r(names, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "memory") == 0) {
            return true;
        }
    }
    return false;
}

/* Evaluate one line of /proc/self/cgroup: "4:memory:/path" (version 1) or "0::/path" (version
 * 2). */
static void look_at(const char *root, char *line, struct cstd_host_memory_limit *least)
{
    char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;

    if (path == NULL || path[1] != '/' || strlen(path) >= GROUP_BYTES) {
        return;
    }
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (names[1] == '\0') {
        for (size_t i = 0; i < sizeof version_2 / sizeof *version_2; i++) {
            look_up(root, &version_2[i], path, least);
        }
    } else if (has_memory(names + 1)) {
        look_up(root, &version_1, path, least);
    }
}

bool cstd_host_memory_limit(const char *root, struct cstd_host_memory_limit *out)
{
    struct cstd_host_memory_limit least = {.bytes = machine_bytes()};
    char path[PATH_MAX], line[PATH_MAX];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        look_at(root, line, &least);
    }
    (void)fclose(file);
    if (least.file[0] == '\0') {
        return false;
    }
    *out = least;
    return true;
}

/* Returns the memory of the machine's host nodes. */
static uint64_t host_bytes(void)
{
    struct cst_host_nodes nodes;
    uint64_t bytes = machine_bytes();
    struct cst_err err;

    /* If hwloc fails, the search for nodes will report it. */
    if (cst_host_nodes_open(&nodes, CST_HOST_NODES_ONLY, &err) == CST_OK) {
        bytes -= nodes.others_bytes < bytes ? nodes.others_bytes : 0;
        cst_host_nodes_close(&nodes);
    }
    return bytes;
}

uint64_t cstd_host_memory_memory(const char *root)
{
    struct cstd_host_memory_limit limit;
    uint64_t bytes = host_bytes();

    return cstd_host_memory_limit(root, &limit) && limit.bytes < bytes ? limit.bytes : bytes;
}

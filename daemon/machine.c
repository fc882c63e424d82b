#include "daemon/machine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number in @dir's memory.max; UINT64_MAX: "max", or there is none. */
static uint64_t limit_of(const char *dir)
{
    char path[PATH_MAX + 16];
    uint64_t bytes = UINT64_MAX;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/memory.max", dir);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &bytes) != 1) {
            bytes = UINT64_MAX;
        }
        (void)fclose(file);
    }
    return bytes;
}

/* The path of our group in the unified hierarchy, "/..." without a newline; "": none. */
static void find_group(const char *root, char *group, size_t size)
{
    char path[PATH_MAX], line[PATH_MAX];
    FILE *file;

    group[0] = '\0';
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "0::/", 4) == 0) {
            (void)snprintf(group, size, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
        }
    }
    (void)fclose(file);
}

/* The least limit of our group and of those that it lies in. */
static uint64_t group_limit(const char *root)
{
    char group[PATH_MAX / 2], dir[PATH_MAX];
    uint64_t least = UINT64_MAX;

    find_group(root, group, sizeof group);
    for (char *end = group + strlen(group); end > group; end = strrchr(group, '/')) {
        uint64_t bytes;

        *end = '\0';
        (void)snprintf(dir, sizeof dir, "%s/sys/fs/cgroup%s", root, group);
        bytes = limit_of(dir);
        least = bytes < least ? bytes : least;
    }
    return least;
}

uint64_t cst_machine_memory(const char *root)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit = group_limit(root);

    return limit < memory ? limit : memory;
}

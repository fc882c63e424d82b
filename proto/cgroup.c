/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cgroup.h"

#include <stdio.h>
#include <string.h>

/* If @line of /proc/PID/cgroup, "4:cpu,memory:/path" (version 1) or "0::/path" (version 2), is
 * about memory, write the path to @out. *version_1: it is of version 1, which has the memory then.
 */
static bool take(char *line, bool *version_1, char out[CST_CGROUP_BYTES])
{
    char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
    char *rest = NULL;
    bool memory;

    if (path == NULL || path[1] != '/') {
        return false;
    }
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    *version_1 = names[1] != '\0';
    memory = !*version_1;
    for (char *name = strtok_r(names + 1, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        memory = memory || strcmp(name, "memory") == 0;
    }
    if (memory) {
        (void)snprintf(out, CST_CGROUP_BYTES, "%s", path);
    }
    return memory;
}

bool cst_cgroup_of(const char *root, int pid, char out[CST_CGROUP_BYTES])
{
    char path[512], line[2 * CST_CGROUP_BYTES];
    bool found = false, version_1 = false;
    FILE *file;

    if (pid == 0) {
        (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    } else {
        (void)snprintf(path, sizeof path, "%s/proc/%d/cgroup", root, pid);
    }
    file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    /* The line of version 2 is there in addition to those of version 1, and comes last. */
    while (!version_1 && fgets(line, sizeof line, file) != NULL) {
        bool first = false;

        found = take(line, &first, out) || found;
        version_1 = found && first;
    }
    (void)fclose(file);
    return found;
}

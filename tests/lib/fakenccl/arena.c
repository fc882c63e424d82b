/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakenccl/arena.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The contents of a unique id. */
struct name {
    int pid; /* Process that made it. */
    int fd;  /* The memfd in that process. */
};

static struct name name_of(const ncclUniqueId *id)
{
    struct name name;

    memcpy(&name, id->internal, sizeof name);
    return name;
}

bool arena_make_id(ncclUniqueId *id)
{
    const struct name name = {.pid = (int)getpid(), .fd = memfd_create("fakenccl", MFD_CLOEXEC)};

    if (name.fd < 0 || ftruncate(name.fd, sizeof(struct arena)) != 0) {
        return false;
    }
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &name, sizeof name);
    return true;
}

struct arena *arena_map(const ncclUniqueId *id)
{
    const struct name name = name_of(id);
    char path[64];
    void *base;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    base = mmap(NULL, sizeof(struct arena), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    return base != MAP_FAILED ? base : NULL;
}

void arena_unmap(struct arena *arena, const ncclUniqueId *id)
{
    const struct name name = name_of(id);

    if (arena != NULL) {
        (void)munmap(arena, sizeof *arena);
    }
    if (name.pid == (int)getpid()) {
        (void)close(name.fd);
    }
}

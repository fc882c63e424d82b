/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/stepped.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void cstc_stepped_tell(void)
{
    const char *path = getenv(CSTC_STEPPED);
    int fd = path != NULL ? open(path, O_WRONLY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        (void)!write(fd, "1", 1);
        (void)close(fd);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/opened.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether @fd is the pipe with number @inode, and no file to which the path has come to lead. */
static bool is_ours(int fd, uint64_t inode)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && st.st_ino == inode;
}

void cstc_opened_tell(enum cstc_opened_what what, uint32_t rank)
{
    const char *text = getenv(CSTC_OPENED);
    struct cstc_opened opened = {.what = what, .rank = rank};
    uint64_t inode;
    int fd, at = 0;

    if (text == NULL ||
        sscanf(text, "%" SCNu32 " %" SCNu64 " %n", &opened.place, &inode, &at) != 2 || at == 0) {
        return;
    }
    fd = open(text + at, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (is_ours(fd, inode)) {
        (void)!write(fd, &opened, sizeof opened);
    }
    (void)close(fd);
}

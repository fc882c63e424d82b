/* SPDX-License-Identifier: Apache-2.0 */
/* Gives an input to code that reads a file. Not thread-safe, like all targets. */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Make the @n bytes of @data the content of the file @fd, whose pages are kept. */
static inline void fuzz_write(int fd, const void *data, size_t n)
{
    fuzz_must(fd >= 0 && pwrite(fd, data, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0,
              "a file in memory");
}

/* Make a file in memory with the @n bytes of @data. Returns its path, which is valid until the next
 * call. */
static inline const char *fuzz_file(const void *data, size_t n)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_write(fd, data, n);
    return path;
}

/* A directory with one file, which are removed when the program ends. */
static char fuzz_dir_path[64], fuzz_dir_file[PATH_MAX];

static inline void fuzz_remove_dir(void)
{
    (void)unlink(fuzz_dir_file);
    (void)rmdir(fuzz_dir_path);
}

/* Write the @n bytes of @data to the file @name of a directory in memory. Returns its path. */
static inline const char *fuzz_dir(const char *name, const void *data, size_t n)
{
    static int fd = -1;

    if (fuzz_dir_path[0] == '\0') {
        (void)snprintf(fuzz_dir_path, sizeof fuzz_dir_path, "/dev/shm/cistern-fuzz.XXXXXX");
        fuzz_must(mkdtemp(fuzz_dir_path) != NULL && atexit(fuzz_remove_dir) == 0, "a directory");
        (void)snprintf(fuzz_dir_file, sizeof fuzz_dir_file, "%s/%s", fuzz_dir_path, name);
        fd = open(fuzz_dir_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    }
    fuzz_write(fd, data, n);
    return fuzz_dir_path;
}

/* Copy the text @text, without its end, to @out. Returns its length. */
static inline size_t fuzz_seed_text(const char *text, uint8_t *out, size_t max)
{
    const size_t n = strlen(text);

    fuzz_must(n <= max, "room for the seed");
    memcpy(out, text, n);
    return n;
}

#endif

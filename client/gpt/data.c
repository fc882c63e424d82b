/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/data.h"

#include "client/gpt/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_DATA (1ull << 40) /* larger than any tensor's stream, its number */

int gpt_data_open(struct gpt_data *data, const char *path, size_t context, struct cst_err *err)
{
    struct stat st;
    void *map;
    int rc, fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "data file '%s'", path);
    }
    if (fstat(fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "data file '%s'", path);
        goto out_close;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = cst_err_set(err, CST_EINVAL, "data file '%s': not a regular file", path);
        goto out_close;
    }
    if (st.st_size == 0 || (uint64_t)st.st_size < context + 1) {
        rc = cst_err_set(err, CST_EINVAL,
                         "data file '%s' has %lld bytes; one sequence of context %zu and its "
                         "targets need %zu",
                         path, (long long)st.st_size, context, context + 1);
        goto out_close;
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        rc = cst_err_errno(err, CST_EIO, errno, "data file '%s': mmap of %lld bytes", path,
                           (long long)st.st_size);
        goto out_close;
    }
    *data = (struct gpt_data){.bytes = map, .n_bytes = (size_t)st.st_size};
    rc = 0;
out_close:
    close(fd);
    return rc;
}

void gpt_data_close(struct gpt_data *data)
{
    if (data->bytes != NULL) {
        munmap((void *)(uintptr_t)data->bytes, data->n_bytes);
    }
    *data = (struct gpt_data){0};
}

void gpt_data_batch(const struct gpt_data *data, uint64_t seed, uint64_t first, size_t n_seqs,
                    size_t context, uint8_t *tokens, uint8_t *targets)
{
    /* A sequence needs one byte more than the context, for its last target. */
    const uint64_t places = data->n_bytes - context;

    for (size_t i = 0; i < n_seqs; i++) {
        const uint64_t at = gpt_rng_u64(seed, STREAM_DATA, first + i) % places;

        memcpy(tokens + i * context, data->bytes + at, context);
        memcpy(targets + i * context, data->bytes + at + 1, context);
    }
}

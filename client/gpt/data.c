/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/data.h"

#include "client/gpt/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_DATA (1ull << 40) /* larger than any tensor's stream, its number */

/* Names and sizes of tokens. */
static const struct {
    const char *name;
    unsigned bytes;
} forms[] = {[GPT_TOKENS_BYTES] = {"bytes", 1},
             [GPT_TOKENS_UINT16] = {"tokens", 2},
             [GPT_TOKENS_UINT32] = {"tokens", 4}};

static int check_length(const struct gpt_data *data, size_t context, struct cst_err *err)
{
    const char *name = forms[data->form].name;

    return data->n_tokens > context
               ? 0
               : cst_err_set(err, CST_EINVAL,
                             "data file '%s' has %zu %s; one sequence of context %zu and its "
                             "targets need %zu",
                             data->name, data->n_tokens, name, context, context + 1);
}

int gpt_data_open(struct gpt_data *data, const char *path, enum gpt_tokens form, uint32_t vocab,
                  size_t context, struct cst_err *err)
{
    struct stat st;
    void *map;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);

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
    if (st.st_size % forms[form].bytes != 0) {
        rc = cst_err_set(err, CST_EINVAL,
                         "data file '%s' has %lld bytes, which is no whole number of tokens of %u "
                         "bytes (--tokens)",
                         path, (long long)st.st_size, forms[form].bytes);
        goto out_close;
    }
    *data = (struct gpt_data){.name = path,
                              .n_tokens = (size_t)st.st_size / forms[form].bytes,
                              .form = form,
                              .vocab = vocab};
    rc = check_length(data, context, err);
    if (rc != 0) {
        goto out_close;
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        rc = cst_err_errno(err, CST_EIO, errno, "data file '%s': mmap of %lld bytes", path,
                           (long long)st.st_size);
        goto out_close;
    }
    data->first = data->map = map;
    data->map_bytes = (size_t)st.st_size;
out_close:
    close(fd);
    return rc;
}

void gpt_data_close(struct gpt_data *data)
{
    if (data->map != NULL) {
        munmap(data->map, data->map_bytes);
    }
    *data = (struct gpt_data){0};
}

int gpt_data_split(struct gpt_data *data, double percent, size_t context, struct gpt_data *part,
                   struct cst_err *err)
{
    *part = *data;
    part->map = NULL;
    part->n_tokens = (size_t)((double)data->n_tokens * percent / 100);
    data->n_tokens -= part->n_tokens;
    part->first += data->n_tokens * forms[data->form].bytes;
    return part->n_tokens > context && data->n_tokens > context
               ? 0
               : cst_err_set(err, CST_EINVAL,
                             "--validate %g%%: of the %zu %s of '%s', %zu are for validation and "
                             "%zu remain; both need at least %zu",
                             percent, data->n_tokens + part->n_tokens, forms[data->form].name,
                             data->name, part->n_tokens, data->n_tokens, context + 1);
}

static uint32_t token(const struct gpt_data *data, size_t at)
{
    const uint8_t *bytes = data->first + at * forms[data->form].bytes;
    uint32_t number = 0;

    for (unsigned i = 0; i < forms[data->form].bytes; i++) {
        number |= (uint32_t)bytes[i] << (8 * i);
    }
    return number;
}

int gpt_data_sequence(const struct gpt_data *data, size_t at, size_t context, uint32_t *tokens,
                      uint32_t *targets, struct cst_err *err)
{
    for (size_t i = 0; i <= context; i++) {
        const uint32_t number = token(data, at + i);

        if (number >= data->vocab) {
            return cst_err_set(err, CST_EINVAL,
                               "data file '%s': token %zu is %u, the vocabulary has %u (--vocab)",
                               data->name, at + i, number, data->vocab);
        }
        if (i < context) {
            tokens[i] = number;
        }
        if (i > 0) {
            targets[i - 1] = number;
        }
    }
    return 0;
}

int gpt_data_batch(const struct gpt_data *data, uint64_t seed, uint64_t first, size_t n_seqs,
                   size_t context, uint32_t *tokens, uint32_t *targets, struct cst_err *err)
{
    /* A sequence needs one token more than the context, for its last target. */
    const uint64_t places = data->n_tokens - context;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n_seqs; i++) {
        const uint64_t at = gpt_rng_u64(seed, STREAM_DATA, first + i) % places;

        rc = gpt_data_sequence(data, at, context, tokens + i * context, targets + i * context, err);
    }
    return rc;
}

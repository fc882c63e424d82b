/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/data.h"

#include "client/gpt/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
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
                             "file '%s' has %zu %s; one sequence of context %zu and its "
                             "targets need %zu: give a longer text, or a shorter --context",
                             data->name, data->n_tokens, name, context, context + 1);
}

int gpt_data_open(struct gpt_data *data, const char *path, enum gpt_tokens form, uint32_t vocab,
                  size_t context, struct cst_err *err)
{
    struct stat st;
    struct gpt_data opened;
    /* Nobody may wait for a writer of a FIFO. */
    int rc, fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0) {
        /* A path that leads to no file is a wrong option, with which a restart does not help. */
        return cst_err_set(err, errno == ENOENT || errno == ENOTDIR ? CST_EINVAL : CST_EIO,
                           "file '%s': %s: name a file with text that you can read", path,
                           strerror(errno));
    }
    if (fstat(fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "file '%s'", path);
        goto err_close;
    }
    if (!S_ISREG(st.st_mode)) {
        rc =
            cst_err_set(err, CST_EINVAL, "file '%s': not a regular file: name one with text", path);
        goto err_close;
    }
    if (st.st_size % forms[form].bytes != 0) {
        rc = cst_err_set(err, CST_EINVAL,
                         "file '%s' has %lld bytes, which is no whole number of tokens of %u "
                         "bytes: name the form of the file (--tokens bytes, uint16 or uint32)",
                         path, (long long)st.st_size, forms[form].bytes);
        goto err_close;
    }
    opened = (struct gpt_data){.name = path,
                               .fd = fd,
                               .owns_fd = true,
                               .file_bytes = (uint64_t)st.st_size,
                               .n_tokens = (size_t)st.st_size / forms[form].bytes,
                               .form = form,
                               .vocab = vocab};
    rc = check_length(&opened, context, err);
    if (rc == 0) {
        *data = opened;
        return 0;
    }
err_close:
    close(fd);
    return rc;
}

void gpt_data_close(struct gpt_data *data)
{
    if (data->owns_fd) {
        close(data->fd);
    }
    *data = (struct gpt_data){0};
}

int gpt_data_split(struct gpt_data *data, double percent, size_t context, struct gpt_data *part,
                   struct cst_err *err)
{
    *part = *data;
    part->owns_fd = false;
    part->n_tokens = (size_t)((double)data->n_tokens * percent / 100);
    data->n_tokens -= part->n_tokens;
    part->first += data->n_tokens;
    return part->n_tokens > context && data->n_tokens > context
               ? 0
               : cst_err_set(err, CST_EINVAL,
                             "--validate %g%%: of the %zu %s of '%s', %zu are for validation and "
                             "%zu remain; both need at least %zu: give a larger share, a longer "
                             "text, or a shorter --context",
                             percent, data->n_tokens + part->n_tokens, forms[data->form].name,
                             data->name, part->n_tokens, data->n_tokens, context + 1);
}

/* Set the error of a file that has no byte @offset any more. */
static int has_ended(const struct gpt_data *data, uint64_t offset, struct cst_err *err)
{
    struct stat st;

    if (fstat(data->fd, &st) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "file '%s'", data->name);
    }
    return cst_err_set(err, CST_EIO,
                       "file '%s' has %lld bytes now, and had %" PRIu64
                       " when it was opened: byte %" PRIu64 " is missing",
                       data->name, (long long)st.st_size, data->file_bytes, offset);
}

static int read_bytes(const struct gpt_data *data, uint64_t offset, uint8_t *out, size_t bytes,
                      struct cst_err *err)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(data->fd, out + done, bytes - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return cst_err_errno(err, CST_EIO, errno, "file '%s': read at byte %" PRIu64,
                                 data->name, offset + done);
        }
        if (n == 0) {
            return has_ended(data, offset + done, err);
        }
        done += (size_t)n;
    }
    return 0;
}

/* Return the token at @bytes. */
static uint32_t token(enum gpt_tokens form, const uint8_t *bytes)
{
    uint32_t number = 0;

    for (unsigned i = 0; i < forms[form].bytes; i++) {
        number |= (uint32_t)bytes[i] << (8 * i);
    }
    return number;
}

int gpt_data_sequence(const struct gpt_data *data, size_t at, size_t context, uint32_t *tokens,
                      uint32_t *targets, struct cst_err *err)
{
    const size_t token_bytes = forms[data->form].bytes, first = data->first + at;
    uint8_t bytes[4096]; /* Whole tokens of each form fit. */
    const size_t n_fit = sizeof bytes / token_bytes;

    for (size_t i = 0; i <= context; i++) {
        uint32_t number;

        if (i % n_fit == 0) {
            const size_t n = context + 1 - i < n_fit ? context + 1 - i : n_fit;
            const int rc = read_bytes(data, (first + i) * token_bytes, bytes, n * token_bytes, err);

            if (rc != 0) {
                return rc;
            }
        }
        number = token(data->form, bytes + i % n_fit * token_bytes);
        if (number >= data->vocab) {
            return cst_err_set(
                err, CST_EINVAL,
                "file '%s': token %zu is %u, the vocabulary has %u: give --vocab %u or "
                "more",
                data->name, first + i, number, data->vocab, number + 1);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { N_BUFFERS = 4, ALIGN = 4096 };
#define BUFFER_BYTES ((size_t)4 << 20)
/* Bytes are hashed and copied in parts that stay in the processor's first cache in between. */
#define PART_BYTES ((size_t)16 << 10)

struct buffer {
    uint8_t *data;
    size_t bytes;    /* Bytes that are filled in, or being written. */
    uint64_t offset; /* Place in the file. */
    bool in_flight;
};

struct cstc_file_writer {
    char name[256];
    int fd;
    bool direct;    /* Writes must be aligned in memory, offset and length. */
    bool has_ring;  /* Otherwise io_uring is not available. */
    bool uses_ring; /* For further writes. */
    struct io_uring ring;
    struct buffer buffers[N_BUFFERS];
    unsigned current;      /* The buffer that is filled next. */
    unsigned n_in_flight;  /* Buffers that the kernel is writing. */
    uint64_t bytes;        /* Bytes that were appended. */
    XXH3_state_t *hash;    /* Of these bytes. */
    struct cst_err failed; /* The first failure; status 0: none. */
};

static int fail(struct cstc_file_writer *writer, int error, uint64_t offset, const char *what)
{
    if (writer->failed.status == CST_OK) {
        (void)cst_err_errno(&writer->failed, CST_EIO, error, "%s: %s at byte %llu", writer->name,
                            what, (unsigned long long)offset);
    }
    return CST_EIO;
}

static void destroy(struct cstc_file_writer *writer)
{
    if (writer->has_ring) {
        io_uring_queue_exit(&writer->ring);
    }
    for (int i = 0; i < N_BUFFERS; i++) {
        free(writer->buffers[i].data);
    }
    XXH3_freeState(writer->hash);
    if (writer->fd >= 0) {
        (void)close(writer->fd);
    }
    free(writer);
}

/* Open the file, with O_DIRECT if the file system knows it. */
static int open_file(struct cstc_file_writer *writer, int dirfd)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;

    writer->fd = openat(dirfd, writer->name, flags | O_DIRECT, 0666);
    writer->direct = writer->fd >= 0;
    if (writer->fd < 0 && errno == EINVAL) {
        /* Some file systems make the file before they refuse the flag. */
        (void)unlinkat(dirfd, writer->name, 0);
        writer->fd = openat(dirfd, writer->name, flags, 0666);
    }
    return writer->fd >= 0 ? 0 : errno;
}

int cstc_file_writer_open(struct cstc_file_writer **out, int dirfd, const char *name,
                          struct cst_err *err)
{
    struct cstc_file_writer *writer = calloc(1, sizeof *writer);
    int error;

    if (writer == NULL || strlen(name) >= sizeof writer->name) {
        free(writer);
        return cst_err_set(err, CST_ENOMEM, "%.64s: no memory to write the file", name);
    }
    writer->fd = -1;
    memcpy(writer->name, name, strlen(name) + 1);
    writer->hash = XXH3_createState();
    for (int i = 0; i < N_BUFFERS; i++) {
        writer->buffers[i].data = aligned_alloc(ALIGN, BUFFER_BYTES);
        if (writer->buffers[i].data == NULL || writer->hash == NULL) {
            destroy(writer);
            return cst_err_set(err, CST_ENOMEM, "%s: no memory to write the file", name);
        }
    }
    (void)XXH3_128bits_reset(writer->hash);
    error = open_file(writer, dirfd);
    if (error != 0) {
        destroy(writer);
        return cst_err_errno(err, CST_EIO, error, "%s cannot be made", name);
    }
    writer->has_ring = io_uring_queue_init(N_BUFFERS, &writer->ring, 0) == 0;
    writer->uses_ring = writer->has_ring;
    *out = writer;
    return CST_OK;
}

/* Go on through the page cache. The rest of a short write need not be aligned, and some file
 * systems open a file for direct writes and refuse them later. False: the writes are not direct. */
static bool leave_direct(struct cstc_file_writer *writer)
{
    bool was = writer->direct;
    int flags = was ? fcntl(writer->fd, F_GETFL) : -1;

    writer->direct = false;
    return flags >= 0 && fcntl(writer->fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Write the rest of a buffer of which @done bytes are written already. */
static int write_rest(struct cstc_file_writer *writer, const struct buffer *buffer, size_t done)
{
    while (done < buffer->bytes) {
        ssize_t n = pwrite(writer->fd, buffer->data + done, buffer->bytes - done,
                           (off_t)(buffer->offset + done));

        if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct(writer)))) {
            continue;
        }
        if (n <= 0) {
            return fail(writer, n == 0 ? ENOSPC : errno, buffer->offset + done, "write");
        }
        done += (size_t)n;
    }
    return CST_OK;
}

/* Take one completion. A write can be short, for example if the disk is full. */
static int take_completion(struct cstc_file_writer *writer)
{
    struct io_uring_cqe *cqe;
    struct buffer *buffer;
    int rc;

    do {
        rc = io_uring_wait_cqe(&writer->ring, &cqe);
    } while (rc == -EINTR);
    if (rc < 0) {
        return fail(writer, -rc, writer->bytes, "waiting for a write");
    }
    buffer = io_uring_cqe_get_data(cqe);
    rc = cqe->res;
    io_uring_cqe_seen(&writer->ring, cqe);
    buffer->in_flight = false;
    writer->n_in_flight--;
    if (rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -EINVAL) {
        return fail(writer, -rc, buffer->offset, "write");
    }
    return write_rest(writer, buffer, rc > 0 ? (size_t)rc : 0);
}

/* Begin to write @buffer; without io_uring, write it. A request that the kernel does not take stays
 * in the ring, and would be sent with the next one, when its buffer has other contents. Thus none
 * is sent after it. */
static int begin_write(struct cstc_file_writer *writer, struct buffer *buffer)
{
    struct io_uring_sqe *sqe = writer->uses_ring ? io_uring_get_sqe(&writer->ring) : NULL;

    if (sqe == NULL) {
        return write_rest(writer, buffer, 0);
    }
    io_uring_prep_write(sqe, writer->fd, buffer->data, (unsigned)buffer->bytes, buffer->offset);
    io_uring_sqe_set_data(sqe, buffer);
    buffer->in_flight = true;
    writer->n_in_flight++;
    if (io_uring_submit(&writer->ring) < 1) {
        writer->uses_ring = false;
        buffer->in_flight = false;
        writer->n_in_flight--;
        return write_rest(writer, buffer, 0);
    }
    return CST_OK;
}

/* The current buffer is full: write it, and make the next one empty. */
static int turn(struct cstc_file_writer *writer)
{
    struct buffer *next;
    int rc = begin_write(writer, &writer->buffers[writer->current]);

    writer->current = (writer->current + 1) % N_BUFFERS;
    next = &writer->buffers[writer->current];
    while (rc == CST_OK && next->in_flight) {
        rc = take_completion(writer);
    }
    next->bytes = 0;
    next->offset = writer->bytes;
    return rc;
}

int cstc_file_writer_append(struct cstc_file_writer *writer, const void *data, size_t bytes,
                            struct cst_err *err)
{
    const uint8_t *from = data;
    int rc = writer->failed.status;

    while (rc == CST_OK && bytes > 0) {
        struct buffer *buffer = &writer->buffers[writer->current];
        size_t room = BUFFER_BYTES - buffer->bytes, n = bytes < room ? bytes : room;

        n = n < PART_BYTES ? n : PART_BYTES;
        (void)XXH3_128bits_update(writer->hash, from, n);
        memcpy(buffer->data + buffer->bytes, from, n);
        buffer->bytes += n;
        writer->bytes += n;
        from += n;
        bytes -= n;
        if (buffer->bytes == BUFFER_BYTES) {
            rc = turn(writer);
        }
    }
    if (rc != CST_OK && err != NULL) {
        *err = writer->failed;
    }
    return rc;
}

/* Write the last buffer. A direct write is padded to a whole block, and the file is cut to its
 * length afterwards. */
static int write_last(struct cstc_file_writer *writer)
{
    struct buffer *last = &writer->buffers[writer->current];
    size_t padded = (last->bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    int rc = CST_OK;

    if (writer->direct) {
        memset(last->data + last->bytes, 0, padded - last->bytes);
        last->bytes = padded;
    }
    if (last->bytes > 0) {
        rc = begin_write(writer, last);
    }
    while (rc == CST_OK && writer->n_in_flight > 0) {
        rc = take_completion(writer);
    }
    if (rc == CST_OK && ftruncate(writer->fd, (off_t)writer->bytes) != 0) {
        rc = fail(writer, errno, writer->bytes, "setting the length");
    }
    if (rc == CST_OK && fsync(writer->fd) != 0) {
        rc = fail(writer, errno, writer->bytes, "fsync");
    }
    return rc;
}

int cstc_file_writer_finish(struct cstc_file_writer *writer, uint64_t *bytes,
                            struct cstc_file_hash *hash, struct cst_err *err)
{
    XXH128_canonical_t canonical;
    int rc = writer->failed.status == CST_OK ? write_last(writer) : writer->failed.status;

    if (rc != CST_OK) {
        if (err != NULL) {
            *err = writer->failed;
        }
        cstc_file_writer_abandon(writer);
        return rc;
    }
    *bytes = writer->bytes;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(writer->hash));
    memcpy(hash->bytes, canonical.digest, sizeof hash->bytes);
    destroy(writer);
    return CST_OK;
}

void cstc_file_writer_abandon(struct cstc_file_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    /* The kernel should not read buffers that are freed. */
    while (writer->n_in_flight > 0) {
        unsigned before = writer->n_in_flight;

        (void)take_completion(writer);
        if (writer->n_in_flight == before) {
            /* io_uring itself fails, and nothing tells when the writes end. They keep the pages of
             * the buffers. Only a file that is incomplete anyway can get what is stored there next.
             */
            break;
        }
    }
    destroy(writer);
}

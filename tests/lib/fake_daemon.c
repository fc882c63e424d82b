/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fake_daemon.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int fake_memfd(uint64_t bytes, bool sealed)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (sealed) {
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    }
    return fd;
}

static char *map(int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    return base;
}

char *fake_daemon_row(struct fake_daemon *fake, uint32_t chunk)
{
    return fake->arenas[chunk % fake->n_arenas] +
           (size_t)(chunk / fake->n_arenas) * FAKE_BLOCK_BYTES;
}

/* -- replies ---------------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* Corrupt one reply in eight: its bits, its length or its type. */
static void corrupt(uint64_t *state, struct cst_frame *frame, uint8_t *bytes)
{
    if (draw(state, 8) != 0) {
        return;
    }
    switch (draw(state, 6)) {
    case 0:
        frame->type = (uint16_t)draw(state, 64);
        break;
    case 1:
        frame->body_bytes = draw(state, frame->body_bytes + 1);
        break;
    case 2:
        frame->n_fds = 0;
        break;
    default:
        for (uint32_t i = 0; frame->body_bytes > 0 && i < 1 + draw(state, 4); i++) {
            bytes[draw(state, frame->body_bytes)] ^= (uint8_t)(1u << draw(state, 8));
        }
        break;
    }
}

void fake_daemon_reply(struct fake_daemon *fake, const struct cst_frame *request, uint16_t type,
                       const ProtobufCMessage *body, const int *fds, unsigned n_fds)
{
    static uint8_t bytes[CST_FRAME_MAX_BODY];
    struct cst_frame frame = {.type = type,
                              .flags = CST_FRAME_REPLY,
                              .request = request->request,
                              .body = bytes,
                              .n_fds = n_fds};

    if (body != NULL) {
        ck_assert_uint_le(protobuf_c_message_get_packed_size(body), sizeof bytes);
        frame.body_bytes = (uint32_t)protobuf_c_message_pack(body, bytes);
    }
    for (unsigned i = 0; i < n_fds; i++) {
        frame.fds[i] = fds[i];
    }
    if (fake->corrupt != 0) {
        corrupt(&fake->corrupt, &frame, bytes);
    }
    /* The client may be gone; the test finds that out. */
    (void)cst_frame_send(fake->sock, 0, &frame, NULL);
}

void fake_daemon_error(struct fake_daemon *fake, const struct cst_frame *request, int status,
                       const char *text)
{
    Cistern__Error msg = CISTERN__ERROR__INIT;

    msg.status = status;
    msg.retryable = cst_status_retryable(status);
    msg.text = (char *)(uintptr_t)text;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_ERROR, &msg.base, NULL, 0);
}

void fake_daemon_hang_up(struct fake_daemon *fake)
{
    (void)shutdown(fake->sock, SHUT_RDWR);
}

/* -- start and stop --------------------------------------------------------------------------- */

static void serve_connection(struct fake_daemon *fake)
{
    struct cst_frame frame = {0};

    while (cst_frame_recv(fake->sock, 0, &fake->in, &frame, NULL) == CST_OK) {
        (void)pthread_mutex_lock(&fake->mutex);
        ck_assert_uint_lt(frame.type, sizeof fake->n_requests / sizeof fake->n_requests[0]);
        fake->n_requests[frame.type]++;
        if (fake->hook == NULL || !fake->hook(fake, &frame, fake->hook_arg)) {
            fake_daemon_serve(fake, &frame);
        }
        (void)pthread_mutex_unlock(&fake->mutex);
        cst_frame_close_fds(&frame);
    }
}

static void *run(void *arg)
{
    struct fake_daemon *fake = arg;
    int sock;

    while ((sock = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        fake->sock = sock;
        fake->n_connections++;
        serve_connection(fake);
        (void)close(sock);
        fake->sock = -1;
    }
    return NULL;
}

static void listen_on(struct fake_daemon *fake)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    (void)snprintf(fake->directory, sizeof fake->directory, "/tmp/cst-fake-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake->directory));
    (void)snprintf(fake->path, sizeof fake->path, "%s/sock", fake->directory);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", fake->path);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fake->listener, 0);
    ck_assert_int_eq(bind(fake->listener, (const struct sockaddr *)&addr, sizeof addr), 0);
    ck_assert_int_eq(listen(fake->listener, 8), 0);
}

void fake_daemon_start(struct fake_daemon *fake)
{
    fake->credits = fake->credits > 0 ? fake->credits : 8;
    fake->max_batch = fake->max_batch > 0 ? fake->max_batch : 64;
    fake->n_blocks = fake->n_blocks > 0 ? fake->n_blocks : 6;
    fake->staging_bytes = fake->staging_bytes > 0 ? fake->staging_bytes : 4096;
    fake->n_slabs = (fake->n_blocks + FAKE_BLOCKS_PER_SLAB - 1) / FAKE_BLOCKS_PER_SLAB;
    for (uint32_t i = 0; i < fake->n_slabs; i++) {
        fake->slab_fds[i] = fake_memfd(FAKE_BLOCKS_PER_SLAB * FAKE_BLOCK_BYTES, true);
        fake->slabs[i] = map(fake->slab_fds[i], FAKE_BLOCKS_PER_SLAB * FAKE_BLOCK_BYTES);
    }
    fake->staging_fd = fake_memfd(fake->staging_bytes, true);
    fake->staging = map(fake->staging_fd, fake->staging_bytes);
    fake->states = calloc(FAKE_TENSOR_ELEMS, 4);
    ck_assert_ptr_nonnull(fake->states);
    for (uint32_t c = 0; c < FAKE_MAX_CHUNKS; c++) {
        fake->weight[c][0] = (uint16_t)(0x4000 + c);
    }
    for (uint32_t i = 0; i < fake->n_arenas; i++) {
        fake->arena_fds[i] = fake_memfd((uint64_t)FAKE_ARENA_ROWS * FAKE_BLOCK_BYTES, true);
        fake->arenas[i] = map(fake->arena_fds[i], (uint64_t)FAKE_ARENA_ROWS * FAKE_BLOCK_BYTES);
    }
    for (uint32_t c = 0; c < fake->n_arenas * FAKE_ARENA_ROWS; c++) {
        memcpy(fake_daemon_row(fake, c), fake->weight[c], sizeof fake->weight[0]);
    }
    fake->sock = -1;
    ck_assert_int_eq(pthread_mutex_init(&fake->mutex, NULL), 0);
    listen_on(fake);
    ck_assert_int_eq(pthread_create(&fake->thread, NULL, run, fake), 0);
}

/* Shutting the listener down wakes accept. A connection that is still open is an error of the test,
 * and would block here. */
void fake_daemon_stop(struct fake_daemon *fake)
{
    (void)shutdown(fake->listener, SHUT_RDWR);
    ck_assert_int_eq(pthread_join(fake->thread, NULL), 0);
    (void)close(fake->listener);
    (void)unlink(fake->path);
    (void)rmdir(fake->directory);
    for (uint32_t i = 0; i < fake->n_slabs; i++) {
        (void)munmap(fake->slabs[i], FAKE_BLOCKS_PER_SLAB * FAKE_BLOCK_BYTES);
        (void)close(fake->slab_fds[i]);
    }
    for (uint32_t i = 0; i < fake->n_arenas; i++) {
        (void)munmap(fake->arenas[i], (uint64_t)FAKE_ARENA_ROWS * FAKE_BLOCK_BYTES);
        (void)close(fake->arena_fds[i]);
    }
    (void)munmap(fake->staging, fake->staging_bytes);
    (void)close(fake->staging_fd);
    free(fake->states);
    for (uint32_t c = 0; c < FAKE_MAX_CHUNKS; c++) {
        free(fake->grads[c]);
    }
    (void)pthread_mutex_destroy(&fake->mutex);
}

char *fake_daemon_log(struct fake_daemon *fake)
{
    char *copy;

    (void)pthread_mutex_lock(&fake->mutex);
    copy = strdup(fake->log);
    (void)pthread_mutex_unlock(&fake->mutex);
    ck_assert_ptr_nonnull(copy);
    return copy;
}

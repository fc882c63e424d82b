/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fakecuda_rig.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FOLDER "tests/lib/fakecuda/.libs" /* relative to the build tree, in which tests run */

/* With a sanitizer a fault must end the process at once, as without one. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "handle_segv=0:handle_sigbus=0";
}

const char *__tsan_default_options(void)
{
    return "handle_segv=0:handle_sigbus=0:atexit_sleep_ms=0";
}

struct cst_cuda_driver cu;
CUcontext rig_context;

void rig_find_library(char **argv)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    char folder[PATH_MAX], both[2 * PATH_MAX];

    if (realpath(FOLDER, folder) == NULL) {
        perror(FOLDER);
        exit(EXIT_FAILURE);
    }
    if (path != NULL && strncmp(path, folder, strlen(folder)) == 0) {
        return;
    }
    snprintf(both, sizeof both, "%s%s%s", folder, path != NULL ? ":" : "",
             path != NULL ? path : "");
    setenv("LD_LIBRARY_PATH", both, 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    execv("/proc/self/exe", argv);
    perror("execv");
    exit(EXIT_FAILURE);
}

void rig_use_device(CUdevice device)
{
    CUcontext context;

    ck_ok(cu.cuDevicePrimaryCtxRetain(&context, device));
    ck_ok(cu.cuCtxSetCurrent(context));
}

void rig_open(void)
{
    struct cst_err err;

    ck_assert_msg(cst_cuda_driver_open(&cu, &err) == CST_OK, "%s", err.text);
    ck_ok(cu.cuDevicePrimaryCtxRetain(&rig_context, 0));
    ck_ok(cu.cuCtxSetCurrent(rig_context));
}

/* -- memory --------------------------------------------------------------------------------- */

CUmemAllocationProp rig_properties(CUdevice device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

CUresult rig_create(CUdevice device, size_t bytes, CUmemGenericAllocationHandle *out)
{
    CUmemAllocationProp properties = rig_properties(device);

    return cu.cuMemCreate(out, bytes, &properties, 0);
}

void rig_map(struct piece *piece, CUdevice device)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    ck_ok(cu.cuMemAddressReserve(&piece->at, piece->bytes, 0, 0, 0));
    ck_ok(cu.cuMemMap(piece->at, piece->bytes, 0, piece->handle, 0));
    ck_ok(cu.cuMemSetAccess(piece->at, piece->bytes, &access, 1));
}

struct piece rig_piece(size_t bytes)
{
    struct piece piece = {.bytes = bytes};

    ck_ok(rig_create(0, bytes, &piece.handle));
    rig_map(&piece, 0);
    return piece;
}

void rig_unmap(const struct piece *piece)
{
    ck_ok(cu.cuMemUnmap(piece->at, piece->bytes));
    ck_ok(cu.cuMemAddressFree(piece->at, piece->bytes));
    ck_ok(cu.cuMemRelease(piece->handle));
}

unsigned char *rig_host(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

/* -- processes ------------------------------------------------------------------------------ */

pid_t rig_fork(void (*fn)(int socket), int *socket_out)
{
    int pair[2];
    pid_t child;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(pair[0]);
        fn(pair[1]);
        exit(EXIT_SUCCESS);
    }
    (void)close(pair[1]);
    *socket_out = pair[0];
    return child;
}

void rig_kill(pid_t child)
{
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

void rig_join(pid_t child)
{
    int status;

    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x",
                  status);
}

void rig_send_fd(int socket, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS,
                            .cmsg_len = CMSG_LEN(sizeof(int))}};
    char byte = 'f';
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};

    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    ck_assert_int_eq(sendmsg(socket, &msg, 0), 1);
}

int rig_take_fd(int socket)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    int fd;

    ck_assert_int_eq(recvmsg(socket, &msg, MSG_CMSG_CLOEXEC), 1);
    ck_assert_int_eq(control.header.cmsg_type, SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}

void rig_send_byte(int socket)
{
    ck_assert_int_eq(send(socket, "b", 1, MSG_NOSIGNAL), 1);
}

void rig_take_byte(int socket)
{
    char byte;

    ck_assert_int_eq(recv(socket, &byte, 1, 0), 1);
}

static char path[64]; /* folder of fakecuda's state; empty: none */

static void remove_state(void)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", path);
    ck_assert_int_eq(system(command), 0);
}

void rig_end(void)
{
    if (path[0] != '\0') {
        remove_state();
    }
}

const char *rig_state(void)
{
    snprintf(path, sizeof path, "/dev/shm/check_fakecuda.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    setenv("CST_FAKECUDA_STATE", path, 1);
    return path;
}

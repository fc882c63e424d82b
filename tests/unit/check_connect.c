/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of connecting to the daemon: errors that name what is wrong, versions, and what a
 * connection opens. */
#include "tests/lib/descriptors.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct fake_job f;

/* Without a daemon the error names the socket. $CISTERN_SOCKET is the default socket. */
START_TEST(test_no_daemon)
{
    struct cst_client *client = NULL;
    struct cst_err err = {0};

    ck_assert_int_eq(cst_connect(&client, "/nonexistent/sock", &err), CST_ECONN);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/sock"));
    ck_assert_ptr_null(client);
    ck_assert_int_eq(setenv("CISTERN_SOCKET", "/nonexistent/other", 1), 0);
    ck_assert_int_eq(cst_connect(&client, NULL, &err), CST_ECONN);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/other"));
}
END_TEST

/* Connect to a socket with @mode as a user who is neither root nor its owner, and return the error.
 */
static struct cst_err refused_with(mode_t mode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/check_connect.XXXXXX";
    struct cst_client *client;
    struct cst_err err = {0};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", dir);
    ck_assert_int_eq(bind(sock, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(sock, 1), 0);
    ck_assert_int_eq(chmod(address.sun_path, mode), 0);
    ck_assert_int_eq(chmod(dir, mode == 0 ? 0 : 0711), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(address.sun_path, 65533, 65533), 0);
        ck_assert_int_eq(seteuid(65534), 0);
    }
    ck_assert_int_eq(cst_connect(&client, address.sun_path, &err), CST_EDENIED);
    ck_assert_int_eq(seteuid(getuid()), 0);
    ck_assert_int_eq(chmod(dir, 0700), 0);
    ck_assert_int_eq(unlink(address.sun_path), 0);
    ck_assert_int_eq(rmdir(dir), 0);
    (void)close(sock);
    return err;
}

/* Who cannot connect is told who can: the members of a group only if the socket's mode says so. */
START_TEST(test_denied)
{
    struct cst_err err = refused_with(0060);

    ck_assert_ptr_nonnull(strstr(err.text, "only members of the group"));
    err = refused_with(0004);
    ck_assert_ptr_nonnull(strstr(err.text, "only the user '"));
    ck_assert_ptr_null(strstr(err.text, "adduser"));
    err = refused_with(0);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot search a directory of this path"));
}
END_TEST

/* A path that is too long for a socket is refused. */
START_TEST(test_long_path)
{
    struct cst_client *client;
    struct cst_err err = {0};
    char path[300];

    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    ck_assert_int_eq(cst_connect(&client, path, &err), CST_EINVAL);
}
END_TEST

static bool hook_version(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    Cistern__Welcome msg = CISTERN__WELCOME__INIT;

    if (request->type != CISTERN__MSG_TYPE__MSG_HELLO) {
        return false;
    }
    if (arg == NULL) {
        fake_daemon_error(fake, request, CST_EVERSION, "versions 2 to 3 here, 1 there");
        return true;
    }
    msg.version = 2;
    msg.credits = 1;
    msg.max_batch = 1;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_WELCOME, &msg.base, NULL, 0);
    return true;
}

/* A daemon of another protocol version is refused, whether it reports its version or replies in
 * another version. */
START_TEST(test_version)
{
    struct cst_client *client;
    struct cst_err err = {0};
    int dummy;

    f.fake.hook = hook_version;
    f.fake.hook_arg = _i == 0 ? NULL : &dummy;
    fake_daemon_start(&f.fake);
    ck_assert_int_eq(cst_connect(&client, f.fake.path, &err), CST_EVERSION);
    ck_assert_uint_gt(strlen(err.text), 0);
    fake_daemon_stop(&f.fake);
}
END_TEST

/* A ping waits for the reply and measures the time. */
START_TEST(test_ping)
{
    struct cst_err err = {0};
    uint64_t ns = 0;

    fake_job_start(&f, 2);
    CK_OK(cst_ping(f.client, &ns, &err));
    ck_assert_uint_gt(ns, 0);
    ck_assert_int_ge(cst_client_fd(f.client), 0);
    fake_job_stop(&f);
}
END_TEST

/* Connecting, working and disconnecting leaves no descriptor open. */
START_TEST(test_no_leak)
{
    unsigned before;
    struct cst_err err = {0};
    uint16_t data[4];

    fake_daemon_start(&f.fake);
    before = descriptors_count();
    fake_job_open(&f);
    fake_job_declare(&f, 4);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_tensor_read(f.job, 0, CST_STATE_WEIGHT, 0, 4, data, &err));
    /* The client has its end of the connection, the descriptor to poll and a timer; the daemon has
     * its end of the connection. */
    ck_assert_uint_eq(descriptors_count(), before + 4);
    cst_disconnect(f.client);
    fake_daemon_stop(&f.fake);
    ck_assert_uint_lt(descriptors_count(), before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("connect");
    TCase *tcase = suite_case(suite, "connect", NULL, NULL);

    tcase_add_test(tcase, test_no_daemon);
    tcase_add_test(tcase, test_denied);
    tcase_add_test(tcase, test_long_path);
    tcase_add_loop_test(tcase, test_version, 0, 2);
    tcase_add_test(tcase, test_ping);
    tcase_add_test(tcase, test_no_leak);
    return suite_run(suite);
}

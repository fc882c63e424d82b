/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/unread.h"

#include "proto/frame.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <uv.h>

void cst_unread_init(struct cst_unread_total *total)
{
    struct rlimit limit = {.rlim_cur = 1024};
    rlim_t most = 1 << 20; /* A larger number has no use. */

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    *total = (struct cst_unread_total){
        .limit = (uint32_t)(limit.rlim_cur < most ? limit.rlim_cur : most) / 4};
    if (total->limit < CST_FRAME_MAX_FDS) {
        total->limit = CST_FRAME_MAX_FDS; /* One reply can always be sent. */
    }
}

static void clear(struct cst_unread *unread)
{
    unread->total->n -= unread->n;
    cst_quota_give(unread->account, CST_QUOTA_DESCRIPTORS, unread->n);
    unread->n = 0;
}

void cst_unread_close(struct cst_unread *unread)
{
    clear(unread);
}

void cst_unread_refresh(struct cst_unread *unread, int sock)
{
    int bytes = 0;

    if (unread->n > 0 && ioctl(sock, SIOCOUTQ, &bytes) == 0 && bytes == 0) {
        clear(unread);
    }
}

enum cst_unread_limit cst_unread_limit(const struct cst_unread *unread, unsigned n_fds)
{
    return unread->n + n_fds > CST_UNREAD_SESSION ? CST_UNREAD_OWN
                                                  : cst_unread_shared_limit(unread, n_fds);
}

enum cst_unread_limit cst_unread_shared_limit(const struct cst_unread *unread, unsigned n_fds)
{
    if (cst_quota_left(unread->account, CST_QUOTA_DESCRIPTORS) < n_fds) {
        return CST_UNREAD_USER;
    }
    return unread->total->n + n_fds > unread->total->limit ? CST_UNREAD_ALL : CST_UNREAD_FITS;
}

bool cst_unread_admits(struct cst_unread *unread, int sock, unsigned n_fds)
{
    if (n_fds > 0 && cst_unread_limit(unread, n_fds) != CST_UNREAD_FITS) {
        cst_unread_refresh(unread, sock);
    }
    return n_fds == 0 || cst_unread_limit(unread, n_fds) == CST_UNREAD_FITS;
}

void cst_unread_sent(struct cst_unread *unread, unsigned n_fds)
{
    if (n_fds == 0) {
        return;
    }
    if (unread->n == 0) {
        unread->since_ns = uv_hrtime();
    }
    /* No limit is checked here, because cst_unread_admits has checked it. */
    cst_quota_force(unread->account, CST_QUOTA_DESCRIPTORS, n_fds);
    unread->n += n_fds;
    unread->total->n += n_fds;
}

bool cst_unread_keep(struct cst_unread *unread, unsigned n_fds)
{
    if (unread->total->waiting + n_fds > unread->total->limit) {
        return false;
    }
    unread->total->waiting += n_fds;
    return true;
}

void cst_unread_unkeep(struct cst_unread *unread, unsigned n_fds)
{
    unread->total->waiting -= n_fds;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/unread.h"

#include "proto/frame.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <uv.h>

void cstd_unread_init(struct cstd_unread_total *total)
{
    struct rlimit limit = {.rlim_cur = 1024};
    rlim_t most = 1 << 20; /* A larger number has no use. */

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    *total = (struct cstd_unread_total){
        .limit = (uint32_t)(limit.rlim_cur < most ? limit.rlim_cur : most) / 4};
    if (total->limit < CST_FRAME_MAX_FDS) {
        total->limit = CST_FRAME_MAX_FDS; /* One reply can always be sent. */
    }
}

static void clear(struct cstd_unread *unread)
{
    unread->total->n -= unread->n;
    cstd_quota_give(unread->account, CSTD_QUOTA_DESCRIPTORS, unread->n);
    unread->n = 0;
}

void cstd_unread_close(struct cstd_unread *unread)
{
    clear(unread);
}

void cstd_unread_refresh(struct cstd_unread *unread, int sock)
{
    int bytes = 0;

    if (unread->n > 0 && ioctl(sock, SIOCOUTQ, &bytes) == 0 && bytes == 0) {
        clear(unread);
    }
}

enum cstd_unread_limit cstd_unread_limit(const struct cstd_unread *unread, unsigned n_fds)
{
    return unread->n + n_fds > CSTD_UNREAD_SESSION ? CSTD_UNREAD_OWN
                                                   : cstd_unread_shared_limit(unread, n_fds);
}

enum cstd_unread_limit cstd_unread_shared_limit(const struct cstd_unread *unread, unsigned n_fds)
{
    if (cstd_quota_left(unread->account, CSTD_QUOTA_DESCRIPTORS) < n_fds) {
        return CSTD_UNREAD_USER;
    }
    return unread->total->n + n_fds > unread->total->limit ? CSTD_UNREAD_ALL : CSTD_UNREAD_FITS;
}

bool cstd_unread_admits(struct cstd_unread *unread, int sock, unsigned n_fds)
{
    if (n_fds > 0 && cstd_unread_limit(unread, n_fds) != CSTD_UNREAD_FITS) {
        cstd_unread_refresh(unread, sock);
    }
    return n_fds == 0 || cstd_unread_limit(unread, n_fds) == CSTD_UNREAD_FITS;
}

void cstd_unread_sent(struct cstd_unread *unread, unsigned n_fds)
{
    if (n_fds == 0) {
        return;
    }
    if (unread->n == 0) {
        unread->since_ns = uv_hrtime();
    }
    /* No limit is checked here, because cstd_unread_admits has checked it. */
    cstd_quota_force(unread->account, CSTD_QUOTA_DESCRIPTORS, n_fds);
    unread->n += n_fds;
    unread->total->n += n_fds;
}

bool cstd_unread_keep(struct cstd_unread *unread, unsigned n_fds)
{
    if (unread->total->waiting + n_fds > unread->total->limit) {
        return false;
    }
    unread->total->waiting += n_fds;
    return true;
}

void cstd_unread_unkeep(struct cstd_unread *unread, unsigned n_fds)
{
    unread->total->waiting -= n_fds;
}

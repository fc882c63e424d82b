/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/open_files.h"

#include "daemon/base/log.h"
#include "daemon/budget/arena.h"
#include "daemon/links/links.h"
#include "daemon/session/unread.h"
#include "daemon/settings/settings.h"

#include <sys/resource.h>

void cstd_open_files_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

uint64_t cstd_open_files_count(const struct cstd_unread_total *unread,
                               const struct cstd_settings *config)
{
    const uint64_t half = 2 * (uint64_t)unread->limit,
                   sessions = 2 * ((uint64_t)config->max_sessions + 32),
                   links = config->node.listen[0] != '\0' ? CSTD_LINK_FILES : 0,
                   own = 64 + 8 * CSTD_ARENA_MAX_ENGINES + links;

    if (half >= sessions + own && half - sessions - own >= half / 4) {
        return half - sessions - own;
    }
    cstd_log(CSTD_LOG_WARNING,
             "%llu open files are allowed, which may not be enough for %u connections and %llu "
             "files of jobs (raise LimitNOFILE, or lower max_sessions in [job])",
             (unsigned long long)(2 * half), config->max_sessions, (unsigned long long)(half / 4));
    return half / 4;
}

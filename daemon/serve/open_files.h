/* SPDX-License-Identifier: Apache-2.0 */
/* How many files the daemon can have open, and how many of them are for its users. */
#ifndef CSTD_OPEN_FILES_H
#define CSTD_OPEN_FILES_H

#include <stdint.h>

struct cstd_settings;
struct cstd_unread_total;

/* Raise the limit of open files as far as possible. Every segment and every worker needs a
 * descriptor. */
void cstd_open_files_raise(void);

/* Return the number of files that the daemon may hold for its users. Half of the limit of open
 * files is for descriptors that clients have not read: duplicates that wait, and sockets that
 * linger (unread.h, linger.h). Of the other half, connections have two each, and the daemon keeps a
 * reserve for its own needs, such as the restart of each engine and links to other nodes. Warns if
 * little is left. */
uint64_t cstd_open_files_count(const struct cstd_unread_total *unread,
                               const struct cstd_settings *config);

#endif

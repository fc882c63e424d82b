/* SPDX-License-Identifier: Apache-2.0 */
/* Counts descriptors, to show that what opens one closes it. */
#ifndef CST_TESTS_DESCRIPTORS_H
#define CST_TESTS_DESCRIPTORS_H

#include <check.h>
#include <dirent.h>

/* Return the number of descriptors that this process has open, plus a constant. */
static inline unsigned descriptors_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

#endif

/* What a process leaves behind, counted at its end. */
#ifndef CST_FAKE_LEAK_H
#define CST_FAKE_LEAK_H

#include <stddef.h>

/* Handles that were created or imported and not released. With the lock. */
size_t cst_fake_n_handles(void);

#endif

/* How much memory this process may use: the machine's, or less where a control group (systemd's
 * MemoryMax=, a container) holds it to less. What budgets are compared with: memory beyond it is
 * not refused by the kernel, it ends in the killing of processes. */
#ifndef CST_MACHINE_H
#define CST_MACHINE_H

#include <stdint.h>

/* Bytes. @root: where /proc and /sys lie, "" but in tests. */
uint64_t cst_machine_memory(const char *root);

#endif

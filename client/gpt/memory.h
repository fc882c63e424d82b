/* SPDX-License-Identifier: Apache-2.0 */
/* Large zeroed buffers for activations and states. They are aligned to 128 bytes, and use huge
 * pages where the kernel provides them. */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include <stddef.h>

/* Allocate @bytes of zeros; the caller frees them with gpt_memory_put. The pages are backed by
 * memory when the call returns. NULL: out of memory. */
void *gpt_memory_get(size_t bytes);

/* Free @p, which may be NULL. */
void gpt_memory_put(void *p);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Large zeroed buffers for activations and states: aligned to 128 bytes, on huge pages where the
 * kernel gives them. */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include <stddef.h>

/* NULL: out of memory. The pages are backed when the call returns. */
void *gpt_memory_get(size_t bytes);

/* NULL is allowed. */
void gpt_memory_put(void *p);

#endif

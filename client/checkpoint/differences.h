/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between a saved job and the one that a checkpoint is loaded into, without making the
 * load impossible. Pure. */
#ifndef CSTC_DIFFERENCES_H
#define CSTC_DIFFERENCES_H

#include "proto/cistern.pb-c.h"

#include <stddef.h>

/* Append to the text in @out, of at most @bytes with the terminator, the options of @job that are
 * not those of @saved and change the results: seed, rounding, masters, delayed updates, and the
 * keys of the configurations that both have. "; " is between the differences. What does not fit is
 * cut off. */
void cstc_differences(const Cistern__JobDescription *saved, const Cistern__JobOpen *job, char *out,
                      size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How often each function of a stand-in library was called, so that a setting can name the call
 * that fails. Each library that is linked with this module counts for itself, per process. */
#ifndef CALL_COUNT_H
#define CALL_COUNT_H

/* Count a call of @name, and return its number, from 1 on. @name stays valid. At most 32 names are
 * counted; 0: there are more. Any thread. */
unsigned call_count(const char *name);

#endif

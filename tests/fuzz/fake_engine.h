/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of daemon/process.c: engines without processes that answer when told and compute
 * nothing. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdbool.h>

/* All engines answer what they were sent; every @fail-th command (0: none) fails. False: there was
 * nothing to answer. */
bool fake_engine_turn(unsigned fail);

/* All engines die; what they were sent and did not answer is lost. */
void fake_engine_kill(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces daemon/engine/process.c: engines without processes. They complete commands only when the
 * target says so, and compute nothing. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdbool.h>

/* Complete all commands that engines have received. Every @fail-th command (0: none) fails. Returns
 * false if there was no command. */
bool fake_engine_turn(unsigned fail);

/* Let all engines die. Commands that they have received and not completed are lost. */
void fake_engine_kill(void);

#endif

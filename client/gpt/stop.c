/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t asked; /* number of the signal */

static void on_signal(int number)
{
    asked = number;
}

/* Catch the signal, unless it is ignored: a program that is started in the background, or with
 * nohup, should stay unaffected by it. */
static void catch_unless_ignored(int number)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;

    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        (void)sigaction(number, &action, NULL);
    }
}

void gpt_stop_catch(void)
{
    catch_unless_ignored(SIGINT);
    catch_unless_ignored(SIGTERM);
}

int gpt_stop_asked(void)
{
    return asked;
}

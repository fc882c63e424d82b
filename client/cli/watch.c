/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/watch.h"

#include "proto/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <termios.h>
#include <unistd.h>

static volatile sig_atomic_t ended;  /* A signal has arrived. */
static volatile sig_atomic_t hidden; /* Keys are not shown: the terminal must be restored. */
static struct termios before;        /* The original settings of the terminal. */

/* The kernel stops a process in the background that changes the settings of its terminal. */
static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* Restore the terminal. Makes only async-signal-safe calls. */
static void restore_terminal(void)
{
    if (hidden != 0 && in_foreground()) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    }
    hidden = 0;
}

static void end_soon(int number)
{
    int saved = errno;

    (void)number;
    restore_terminal();
    ended = 1;
    errno = saved;
}

static void end_now(int number)
{
    restore_terminal();
    (void)raise(number); /* SA_RESETHAND: the default action ends the program after this handler. */
}

/* A signal that is ignored stays ignored: nohup, or a shell that starts this process in the
 * background, may have arranged this. */
static void catch_unless_ignored(int number, void (*handler)(int))
{
    const struct sigaction action = {.sa_handler = handler, .sa_flags = (int)SA_RESETHAND};
    struct sigaction now;

    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
        (void)sigaction(number, &action, NULL);
    }
}

/* A second signal of the same kind ends the program at once, even during a wait for the daemon. */
static void catch_signals(void)
{
    catch_unless_ignored(SIGINT, end_soon);
    catch_unless_ignored(SIGTERM, end_soon);
    catch_unless_ignored(SIGHUP, end_soon);
    catch_unless_ignored(SIGQUIT, end_now);
    catch_unless_ignored(SIGPIPE, end_now);
}

/* Set the terminal so that keys are read at once and are not shown. False: the keys are not for
 * this program. If the output is a pipe, they may be for the program that displays it. */
static bool take_keys(void)
{
    struct termios raw;

    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !in_foreground() ||
        tcgetattr(STDIN_FILENO, &before) != 0) {
        return false;
    }
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) {
        return false;
    }
    hidden = 1;
    return true;
}

static int64_t now_ms(void)
{
    return (int64_t)(cst_clock_ns() / 1000000);
}

/* Wait until the next drawing is due. False: the user or a signal has ended the program. */
static bool wait_for_next(double seconds, bool keys)
{
    struct pollfd input = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
    int64_t end = now_ms() + (int64_t)(seconds * 1000), left;
    char key;

    while (ended == 0 && (left = end - now_ms()) > 0) {
        /* The time can exceed an int; poll in parts. */
        int n = poll(&input, 1, left > 60000 ? 60000 : (int)left);

        if ((n < 0 && errno != EINTR) ||
            (n > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q'))) {
            return false;
        }
    }
    return ended == 0;
}

static bool draw_once(struct cli *cli, cli_draw_fn draw, void *arg)
{
    if (cli->watch_seconds > 0 && !cli->json && isatty(STDOUT_FILENO)) {
        (void)printf("\033[H\033[2J"); /* Cursor to the top left, and clear the screen. */
    }
    return draw(cli, arg) && fflush(stdout) == 0;
}

int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg)
{
    bool keys = false, good;

    if (cli->watch_seconds > 0) {
        (void)setvbuf(stdout, NULL, _IOFBF, 1 << 16); /* A drawing is written at once. */
        catch_signals();
        keys = take_keys();
    }
    good = draw_once(cli, draw, arg);
    while (good && cli->watch_seconds > 0 && wait_for_next(cli->watch_seconds, keys)) {
        good = draw_once(cli, draw, arg);
    }
    restore_terminal();
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

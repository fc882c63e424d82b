#include "client/cli/watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t ended; /* a signal came */

static void on_signal(int number)
{
    (void)number;
    ended = 1;
}

/* A second signal of the same kind ends the program at once, whatever it waits for. */
static void catch_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

/* Keys come at once and are not shown. False: standard input is no terminal. */
static bool take_keys(struct termios *before)
{
    struct termios raw;

    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, before) != 0) {
        return false;
    }
    raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for the next drawing. False: there will be none. */
static bool wait_for_next(double seconds, bool keys)
{
    struct pollfd input = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
    int64_t end = now_ms() + (int64_t)(seconds * 1000), left;
    char key;

    while (ended == 0 && (left = end - now_ms()) > 0) {
        if (poll(&input, 1, left > 60000 ? 60000 : (int)left) < 0 && errno != EINTR) {
            return false;
        }
        if ((input.revents & POLLIN) != 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q')) {
            return false;
        }
    }
    return ended == 0;
}

static bool draw_once(struct cli *cli, cli_draw_fn draw, void *arg)
{
    if (cli->watch && !cli->json && isatty(STDOUT_FILENO)) {
        (void)printf("\033[H\033[2J");
    }
    return draw(cli, arg) && fflush(stdout) == 0;
}

int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg)
{
    struct termios before;
    bool keys = false, good;

    if (cli->watch) {
        (void)setvbuf(stdout, NULL, _IOFBF, 1 << 16); /* a drawing appears in one piece */
        catch_signals();
        keys = take_keys(&before);
    }
    good = draw_once(cli, draw, arg);
    while (good && cli->watch && wait_for_next(cli->watch_seconds, keys)) {
        good = draw_once(cli, draw, arg);
    }
    if (keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    }
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

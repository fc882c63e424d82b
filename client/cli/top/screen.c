/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/screen.h"

#include "proto/clock.h"

#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { ESCAPE_MS = 100, ESCAPE = 27 };

/* The screen of the process. */
static struct {
    SCREEN *curses; /* NULL: it is not open. */
    struct cli_grid grid;
    bool colour;           /* The terminal has colours, and they may be used. */
    struct termios before; /* Settings of the terminal before it was opened. */
} screen;

/* For handlers of signals. */
static volatile sig_atomic_t is_open;
static volatile sig_atomic_t ended; /* A signal has asked the program to end. */
static char reset[128];             /* What the terminal is sent when a signal ends the program. */

/* -- signals ---------------------------------------------------------------------------------- */

/* The kernel stops a process in the background that changes the settings of its terminal. */
static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* End the program by the signal, after the terminal is as it was. Makes only async-signal-safe
 * calls. */
static void end_now(int number)
{
    if (is_open != 0 && in_foreground()) {
        if (write(STDOUT_FILENO, reset, strlen(reset)) < 0) {
            reset[0] = '\0'; /* The terminal is gone. */
        }
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
    }
    is_open = 0;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void end_soon(int number)
{
    if (ended != 0) {
        end_now(number);
    }
    ended = 1;
}

static void catch_signals(void)
{
    static const struct {
        int number;
        void (*handler)(int);
    } rows[] = {{SIGINT, end_soon}, {SIGTERM, end_soon}, {SIGHUP, end_soon}, {SIGQUIT, end_now},
                {SIGPIPE, end_now}, {SIGABRT, end_now},  {SIGSEGV, end_now}, {SIGBUS, end_now}};
    struct sigaction now;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct sigaction action = {.sa_handler = rows[i].handler};

        /* A signal that is ignored stays ignored: nohup, for example, has arranged this. */
        if (sigaction(rows[i].number, NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            (void)sigaction(rows[i].number, &action, NULL);
        }
    }
}

/* Add what the capability @name is for this terminal to `reset`. */
static void add_reset(const char *name)
{
    const char *text = tigetstr(name);

    if (text != NULL && text != (char *)-1 && strlen(reset) + strlen(text) < sizeof reset) {
        (void)strcat(reset, text);
    }
}

/* -- open and close --------------------------------------------------------------------------- */

bool cli_screen_is_possible(void)
{
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && in_foreground();
}

static void start_colours(bool colour)
{
    screen.colour = colour && has_colors() && start_color() == OK && use_default_colors() == OK;
    for (short i = 1; screen.colour && i <= CLI_LOOK_COLOUR; i++) {
        (void)init_pair(i, i, -1);
    }
}

static int refuse(struct cst_err *err)
{
    const char *term = getenv("TERM");

    return cst_err_set(err, CST_EUNSUPPORTED,
                       "a terminal of the type '%.40s' cannot be drawn on: set TERM to its type, "
                       "such as TERM=xterm-256color, or print once with 'cistern stat'",
                       term != NULL ? term : "");
}

int cli_screen_open(bool colour, struct cst_err *err)
{
    (void)setlocale(LC_CTYPE, ""); /* Failure leaves the locale C: ASCII is shown then. */
    if (tcgetattr(STDIN_FILENO, &screen.before) != 0) {
        return cst_err_errno(err, CST_EUNSUPPORTED, errno, "tcgetattr of the terminal");
    }
    catch_signals();
    /* With these in the environment, curses would not follow the size of the terminal. */
    (void)unsetenv("LINES");
    (void)unsetenv("COLUMNS");
    screen.curses = newterm(NULL, stdout, stdin);
    if (screen.curses == NULL) {
        return refuse(err);
    }
    if (tigetstr("cup") == NULL) {
        (void)endwin();
        delscreen(screen.curses);
        screen.curses = NULL;
        return refuse(err);
    }
    reset[0] = '\0';
    add_reset("rmkx");
    add_reset("sgr0");
    add_reset("cnorm");
    add_reset("rmcup");
    is_open = 1;
    (void)cbreak();
    (void)noecho();
    (void)nodelay(stdscr, TRUE);
    (void)keypad(stdscr, TRUE);
    (void)set_escdelay(ESCAPE_MS);
    (void)curs_set(0);
    start_colours(colour);
    return CST_OK;
}

void cli_screen_close(void)
{
    if (screen.curses == NULL) {
        return;
    }
    (void)endwin();
    is_open = 0;
    delscreen(screen.curses);
    screen.curses = NULL;
    cli_grid_free(&screen.grid);
}

/* -- drawing ---------------------------------------------------------------------------------- */

struct cli_grid *cli_screen_grid(void)
{
    (void)cli_grid_reset(&screen.grid, (unsigned)LINES, (unsigned)COLS); /* Else it is empty. */
    screen.grid.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return &screen.grid;
}

static attr_t attributes(unsigned look)
{
    return ((look & CLI_LOOK_BOLD) != 0 ? A_BOLD : 0) |
           ((look & CLI_LOOK_REVERSE) != 0 ? A_REVERSE : 0);
}

/* Show one cell. What the locale cannot show in one column is a question mark. */
static void show_cell(unsigned row, unsigned col, const struct cli_cell *cell)
{
    const wchar_t ch = (wchar_t)cell->ch;
    const wchar_t text[2] = {wcwidth(ch) == 1 ? ch : L'?', L'\0'};
    const short pair = screen.colour ? (short)(cell->look & CLI_LOOK_COLOUR) : 0;
    cchar_t shown;

    if (setcchar(&shown, text, attributes(cell->look), pair, NULL) == OK) {
        /* ERR in the last cell only says that the cursor cannot move on. */
        (void)mvadd_wch((int)row, (int)col, &shown);
    }
}

void cli_screen_show(void)
{
    const struct cli_grid *grid = &screen.grid;

    (void)erase();
    for (unsigned row = 0; row < grid->rows; row++) {
        for (unsigned col = 0; col < grid->cols; col++) {
            const struct cli_cell *cell = &grid->cells[(size_t)row * grid->cols + col];

            if (cell->ch != ' ' || cell->look != 0) {
                show_cell(row, col, cell);
            }
        }
    }
    (void)refresh();
}

/* -- keys ------------------------------------------------------------------------------------- */

/* Return the key that curses calls @code. */
static int key_of(int code)
{
    static const int keys[][2] = {
        {KEY_UP, CLI_KEY_UP},           {KEY_DOWN, CLI_KEY_DOWN},     {KEY_LEFT, CLI_KEY_LEFT},
        {KEY_RIGHT, CLI_KEY_RIGHT},     {KEY_HOME, CLI_KEY_HOME},     {KEY_END, CLI_KEY_END},
        {KEY_ENTER, CLI_KEY_ENTER},     {KEY_PPAGE, CLI_KEY_PAGE_UP}, {'\n', CLI_KEY_ENTER},
        {KEY_NPAGE, CLI_KEY_PAGE_DOWN}, {'\r', CLI_KEY_ENTER},        {ESCAPE, CLI_KEY_ESCAPE},
    };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i][0] == code) {
            return keys[i][1];
        }
    }
    return code;
}

/* Wait as cli_screen_wait, while the signals are blocked except during the wait itself. */
static enum cli_screen_event wait_blocked(int fd, double due_s, const sigset_t *open)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    const double left = due_s - cst_clock_s();
    const struct timespec time = {.tv_sec = (time_t)left,
                                  .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};

    if (ended != 0) {
        return CLI_SCREEN_END;
    }
    if (left <= 0) {
        return CLI_SCREEN_DUE;
    }
    if (ppoll(fds, 2, &time, open) < 0 && errno != EINTR) {
        return CLI_SCREEN_END;
    }
    if (ended != 0 || (fds[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        return CLI_SCREEN_END;
    }
    return fds[1].revents != 0 ? CLI_SCREEN_READY : CLI_SCREEN_KEY;
}

enum cli_screen_event cli_screen_wait(int fd, double due_s, int *key)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    enum cli_screen_event event = CLI_SCREEN_KEY;
    sigset_t blocked, open;

    (void)sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)sigaddset(&blocked, numbers[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &blocked, &open);
    /* Curses may have read keys already, and knows of the signal for a new size. */
    while (event == CLI_SCREEN_KEY && (*key = getch()) == ERR) {
        event = wait_blocked(fd, due_s, &open);
    }
    (void)sigprocmask(SIG_SETMASK, &open, NULL);
    if (event == CLI_SCREEN_KEY && *key == KEY_RESIZE) {
        return CLI_SCREEN_RESIZED;
    }
    *key = event == CLI_SCREEN_KEY ? key_of(*key) : 0;
    return event;
}

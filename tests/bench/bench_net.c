/* SPDX-License-Identifier: Apache-2.0 */
/* net_tcp, net_tls, net_ucx: the rate of an engine of a network that reads rows of 8 MiB from
 * another one, several at a time, over each transport, compared with active messages of 1 MiB by
 * ucx_perftest (Debian: ucx-utils) over TCP, in one run. The two ends are in network namespaces of
 * their own, with a veth pair between them. Engine and ucx_perftest take turns. Reports medians.
 *
 * Needs root, for the namespaces, and ip (Debian: iproute2). Run from the build tree.
 * Usage: bench_net [--json FILE] [--lanes N] */
#include "config.h"

#include "tests/bench/timing.h"
#include "tests/lib/net_rig.h"

#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    IN_FLIGHT = 4, /* number of COPYs at a time */
    RUNS = 11,     /* number of runs with each engine, and as many with ucx_perftest for each */
    N_ENDS = 2,
};

#define MIB ((uint64_t)1 << 20)
#define ROW (2 * MIB)
#define ADDRESS(end) ((end) == 0 ? "10.123.0.1" : "10.123.0.2")

struct load {
    const char *name, *transport;
    struct net_machine machines[N_ENDS]; /* the second one reads */
    double engine[RUNS], yard[RUNS];     /* rates in GB/s */
};

static struct load loads[] = {
    {.name = "net_tcp", .transport = "tcp"},
    {.name = "net_tls", .transport = "tls"},
#ifdef HAVE_UCX
    {.name = "net_ucx", .transport = "ucx"},
#endif
};

#define N_LOADS (sizeof loads / sizeof loads[0])

static uint64_t n_rows; /* that are read in a run */

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench_net: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

/* -- namespaces ----------------------------------------------------------------------------- */

static struct {
    pid_t holder; /* a process in it that does nothing */
    int fd;
} ends[N_ENDS];

/* Enter a namespace, with the /sys of it, in which UCX looks for interfaces. */
static void enter(int end)
{
    must(setns(ends[end].fd, CLONE_NEWNET) == 0, "setns");
    (void)umount2("/sys", MNT_DETACH);
    must(mount("sysfs", "/sys", "sysfs", MS_RDONLY, NULL) == 0, "mounting /sys");
}

/* Make a namespace with a process in it. */
static void make_end(int end)
{
    char path[64], byte = 0;
    int ready[2];

    must(pipe2(ready, O_CLOEXEC) == 0, "pipe");
    ends[end].holder = fork();
    must(ends[end].holder >= 0, "fork");
    if (ends[end].holder == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET) == 0 && write(ready[1], &byte, 1) == 1) {
            (void)close(ready[1]);
            for (;;) {
                (void)pause();
            }
        }
        _exit(EXIT_FAILURE);
    }
    (void)close(ready[1]);
    must(read(ready[0], &byte, 1) == 1, "no network namespace: run as root");
    (void)close(ready[0]);
    (void)snprintf(path, sizeof path, "/proc/%d/ns/net", ends[end].holder);
    ends[end].fd = open(path, O_RDONLY | O_CLOEXEC);
    must(ends[end].fd >= 0, path);
}

static void run_ip(const char *arguments)
{
    char command[200];

    (void)snprintf(command, sizeof command, "ip %s", arguments);
    must(system(command) == 0, command);
}

/* Wait until the interface of @end has a carrier, without which UCX leaves it out. */
static void await_carrier(int end)
{
    char path[64], state = '0';
    int tries = 0;

    enter(end);
    (void)snprintf(path, sizeof path, "/sys/class/net/end%d/carrier", end);
    while (state != '1') {
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        must(fd >= 0 && read(fd, &state, 1) == 1 && tries++ < 1000, path);
        (void)close(fd);
        (void)usleep(10000);
    }
}

static void make_ends(void)
{
    char line[160];

    must(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0,
         "a namespace of mounts");
    make_end(0);
    make_end(1);
    enter(0);
    (void)snprintf(line, sizeof line, "link add end0 type veth peer name end1 netns %d",
                   ends[1].holder);
    run_ip(line);
    for (int end = 0; end < N_ENDS; end++) {
        enter(end);
        (void)snprintf(line, sizeof line, "addr add %s/30 dev end%d", ADDRESS(end), end);
        run_ip(line);
        (void)snprintf(line, sizeof line, "link set end%d up", end);
        run_ip(line);
        run_ip("link set lo up");
    }
    await_carrier(0);
    await_carrier(1);
}

/* -- loads ---------------------------------------------------------------------------------- */

/* Rate of COPY commands, IN_FLIGHT at a time. */
static double run_engine(struct load *load)
{
    struct net_machine *reader = &load->machines[1];
    struct engine_proc *proc = &reader->proc;
    uint64_t sent = 0;
    double began = bench_now();

    proc->n_done = 0;
    while (proc->n_done < n_rows) {
        while (sent < n_rows && sent < proc->n_done + IN_FLIGHT) {
            uint64_t at = sent % IN_FLIGHT * ROW;

            (void)net_submit(reader, (struct cst_place){.segment = NET_OWN, .offset = at},
                             (struct cst_place){.segment = NET_REMOTE, .offset = at}, ROW);
            sent++;
        }
        must(engine_proc_read(proc, -1), "the engine hung up");
    }
    for (size_t i = 0; i < proc->n_done; i++) {
        must(proc->done[i].status == CST_OK, proc->done[i].text);
    }
    return (double)(n_rows * ROW) / (bench_now() - began) / 1e9;
}

/* Start the side of ucx_perftest that waits. Returns when it waits. */
static pid_t start_yard(void)
{
    int out[2];
    pid_t pid;
    char line[256] = "";
    FILE *from;

    must(pipe2(out, O_CLOEXEC) == 0, "pipe");
    enter(0);
    pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        /* Keep this /sys. */
        (void)unshare(CLONE_NEWNS);
        (void)dup2(out[1], STDOUT_FILENO);
        (void)setenv("UCX_NET_DEVICES", "end0", 1);
        (void)execlp("stdbuf", "stdbuf", "-oL", "ucx_perftest", (char *)NULL);
        _exit(EXIT_FAILURE);
    }
    (void)close(out[1]);
    from = fdopen(out[0], "r");
    while (strstr(line, "Waiting") == NULL) {
        must(fgets(line, sizeof line, from) != NULL, "ucx_perftest does not start");
    }
    /* The rest of its words is of no interest; it is killed if nobody takes them. */
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    return pid;
}

/* Rate that ucx_perftest reports for as many bytes. */
static double run_yard(void)
{
    pid_t waits = start_yard();
    char command[200], line[256];
    double mib_per_s = 0;
    FILE *from;

    enter(1);
    (void)snprintf(command, sizeof command,
                   "UCX_NET_DEVICES=end1 ucx_perftest %s -t ucp_am_bw -s %llu -n %llu -w 16 -f -v",
                   ADDRESS(0), (unsigned long long)MIB, (unsigned long long)(n_rows * ROW / MIB));
    from = popen(command, "r");
    must(from != NULL, "popen");
    while (fgets(line, sizeof line, from) != NULL) {
        (void)sscanf(line, " %*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%lf", &mib_per_s);
    }
    must(pclose(from) == 0 && mib_per_s > 0, "ucx_perftest has failed");
    (void)kill(waits, SIGTERM);
    (void)waitpid(waits, NULL, 0);
    return mib_per_s * (double)MIB / 1e9;
}

static void start_engines(struct load *load, unsigned lanes)
{
    struct net_machine *m = load->machines;

    for (int end = 0; end < N_ENDS; end++) {
        enter(end);
        net_start(&m[end], (uint32_t)end, load->transport, ADDRESS(end), lanes, 1);
    }
    net_meet(&m[0], &m[1], net_token(1));
    must(net_add_remote(&m[1], NET_REMOTE, 0, NET_SERVED, NET_BYTES).status == CST_OK, "segment");
    (void)run_engine(load);
    must(memcmp(m[1].own, m[0].served, IN_FLIGHT * ROW) == 0, "the copy differs");
}

static void measure(struct load *load, unsigned run)
{
    if (run % 2 == 0) {
        load->engine[run] = run_engine(load);
        load->yard[run] = run_yard();
    } else {
        load->yard[run] = run_yard();
        load->engine[run] = run_engine(load);
    }
}

static void report(const char *json, unsigned runs)
{
    FILE *to = json != NULL ? fopen(json, "a") : NULL;

    must(json == NULL || to != NULL, "cannot write the results");
    printf("%-8s %6s %12s %18s %7s\n", "load", "lanes", "engine GB/s", "ucx_perftest GB/s",
           "ratio");
    for (struct load *load = loads; load < loads + N_LOADS; load++) {
        double value = bench_median(load->engine, runs), yard = bench_median(load->yard, runs);

        printf("%-8s %6u %12.2f %18.2f %7.3f\n", load->name, load->machines[1].proc.copy_threads,
               value, yard, value / yard);
        if (to != NULL) {
            fprintf(to,
                    "{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", "
                    "\"yardstick\": %.3f, \"ratio\": %.3f, \"runs\": %u}\n",
                    load->name, value, yard, value / yard, runs);
        }
    }
    if (to != NULL) {
        (void)fclose(to);
    }
}

/* Returns whether this machine lacks what the benchmark needs, and says what. */
static bool is_missing(void)
{
    const char *what = geteuid() != 0                                      ? "root"
                       : system("command -v ip >/dev/null") != 0           ? "ip"
                       : system("command -v ucx_perftest >/dev/null") != 0 ? "ucx_perftest"
                                                                           : NULL;

    if (what != NULL) {
        fprintf(stderr, "bench_net: skipped: it needs %s\n", what);
    }
    return what != NULL;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"lanes", required_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    unsigned lanes = 0, runs = bench_sized(RUNS, 1);
    const char *json = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            json = optarg;
        } else if (option == 'l' && atoi(optarg) > 0 && atoi(optarg) <= 64) {
            lanes = (unsigned)atoi(optarg);
        } else {
            fprintf(stderr, "Usage: bench_net [--json FILE] [--lanes 1..64]\n");
            return EXIT_FAILURE;
        }
    }
    if (is_missing()) {
        return EXIT_SUCCESS;
    }
    n_rows = bench_sized(256, 16);
    /* For ucx_perftest; engines set these for themselves. */
    must(setenv("UCX_TLS", "tcp", 1) == 0 && setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1) == 0,
         "setenv");
    make_ends();
    for (struct load *load = loads; load < loads + N_LOADS; load++) {
        start_engines(load, lanes);
    }
    for (unsigned run = 0; run < runs; run++) {
        for (struct load *load = loads; load < loads + N_LOADS; load++) {
            measure(load, run);
        }
    }
    report(json, runs);
    for (struct load *load = loads; load < loads + N_LOADS; load++) {
        net_stop(&load->machines[0]);
        net_stop(&load->machines[1]);
    }
    return EXIT_SUCCESS;
}

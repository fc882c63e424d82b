/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of `cistern metrics`: its text, the requests that it answers, and the addresses at which it
 * listens. */
#include "client/cli/metrics_text.h"
#include "client/cli/scrape_listen.h"
#include "client/cli/scrape_request.h"
#include "client/cli/scrape_server.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- the text ------------------------------------------------------------------------------- */

/* Metrics of a daemon with a job of two ranks, and the memory of the messages. */
static struct {
    Cistern__StatReply stat;
    Cistern__EngineInfo engine, *engines[1];
    Cistern__GpuInfo gpu, *gpus[1];
    Cistern__JobInfo job;
    Cistern__JobInfoReply reply;
    Cistern__RankInfo ranks[2], *rank_pointers[2];
    Cistern__Books pool;
    ProtobufCMessage *replies[1];
    struct cli_metrics metrics;
    char *text;
} rig;

static void setup(void)
{
    memset(&rig, 0, sizeof rig);
    cistern__stat_reply__init(&rig.stat);
    cistern__engine_info__init(&rig.engine);
    cistern__gpu_info__init(&rig.gpu);
    cistern__job_info__init(&rig.job);
    cistern__job_info_reply__init(&rig.reply);
    cistern__books__init(&rig.pool);
    rig.stat.version = rig.stat.host = "x";
    rig.engines[0] = &rig.engine;
    rig.engine.kind = "cuda";
    rig.engine.state = "ready";
    rig.engine.device = rig.gpu.uuid = "GPU-1";
    rig.gpu.index = 3;
    rig.gpus[0] = &rig.gpu;
    rig.gpu.name = "card";
    rig.stat.n_engines = rig.stat.n_gpus = 1;
    rig.stat.engines = rig.engines;
    rig.stat.gpus = rig.gpus;
    rig.job.name = "run7";
    rig.job.uid = 5;
    rig.job.state = "training";
    rig.job.n_ranks = 2;
    rig.job.ranks = rig.rank_pointers;
    for (uint32_t r = 0; r < 2; r++) {
        cistern__rank_info__init(&rig.ranks[r]);
        rig.rank_pointers[r] = &rig.ranks[r];
    }
    rig.reply.job = &rig.job;
    rig.replies[0] = &rig.reply.base;
    rig.metrics = (struct cli_metrics){.stat = &rig.stat, .jobs = {rig.replies, 1}};
}

static void teardown(void)
{
    free(rig.text);
}

static const char *print(void)
{
    size_t n;
    FILE *out = open_memstream(&rig.text, &n);

    ck_assert_ptr_nonnull(out);
    ck_assert(cli_metrics_print(&rig.metrics, out));
    ck_assert_int_eq(fclose(out), 0);
    return rig.text;
}

/* Fail unless the text has the line @line. */
static void has_line(const char *text, const char *line)
{
    const char *at = text;

    while ((at = strstr(at, line)) != NULL) {
        if ((at == text || at[-1] == '\n') && at[strlen(line)] == '\n') {
            return;
        }
        at++;
    }
    ck_abort_msg("no line '%s'", line);
}

/* A number that the daemon does not send has no sample, but the metric is named. */
START_TEST(test_absent)
{
    const char *text = print();

    has_line(text, "cistern_up 1");
    has_line(text, "# TYPE cistern_job_loss gauge");
    ck_assert_ptr_null(strstr(text, "\ncistern_job_loss"));
    has_line(text, "cistern_job_step{name=\"run7\",uid=\"5\"} 0");
}
END_TEST

/* Numbers of a job's ranks are added up, also those of their pools. A rank without numbers counts
 * as none. */
START_TEST(test_sum)
{
    for (uint32_t r = 0; r < 2; r++) {
        rig.ranks[r].has_hits = rig.ranks[r].has_weight_wait_seconds = 1;
        rig.ranks[r].hits = 40 + r;
        rig.ranks[r].weight_wait_seconds = 0.25;
    }
    rig.ranks[1].pool = &rig.pool;
    rig.pool.capacity = 4096;
    print();
    has_line(rig.text, "cistern_job_fetches_total{name=\"run7\",uid=\"5\",result=\"hit\"} 81");
    has_line(rig.text, "cistern_job_weight_wait_seconds_total{name=\"run7\",uid=\"5\"} 0.5");
    has_line(rig.text, "cistern_job_pool_bytes{name=\"run7\",uid=\"5\"} 4096");
    ck_assert_ptr_null(strstr(rig.text, "result=\"miss\""));
}
END_TEST

/* A job on several nodes has samples of each of them. The own node has no bytes and no waits. */
START_TEST(test_nodes)
{
    Cistern__JobNode nodes[2], *pointers[] = {&nodes[0], &nodes[1]};

    for (uint32_t m = 0; m < 2; m++) {
        cistern__job_node__init(&nodes[m]);
        nodes[m].name = m == 0 ? "a" : "b\"c";
    }
    nodes[0].up = nodes[0].member = nodes[1].member = 1;
    nodes[1].has_received_bytes = nodes[1].has_sent_bytes = nodes[1].has_wait_seconds = 1;
    nodes[1].received_bytes = 1000;
    nodes[1].sent_bytes = 2000;
    nodes[1].wait_seconds = 0.5;
    rig.job.nodes = pointers;
    rig.job.n_nodes = 2;
    print();
#define NODE "{name=\"run7\",uid=\"5\",node=\"b\\\"c\""
    has_line(rig.text, "cistern_job_node_up{name=\"run7\",uid=\"5\",node=\"a\"} 1");
    has_line(rig.text, "cistern_job_node_up" NODE "} 0");
    has_line(rig.text, "cistern_job_node_member" NODE "} 1");
    has_line(rig.text, "# TYPE cistern_job_node_bytes_total counter");
    has_line(rig.text, "cistern_job_node_bytes_total" NODE ",direction=\"received\"} 1000");
    has_line(rig.text, "cistern_job_node_bytes_total" NODE ",direction=\"sent\"} 2000");
    has_line(rig.text, "cistern_job_node_wait_seconds_total" NODE "} 0.5");
    ck_assert_ptr_null(strstr(rig.text, "seconds_total{name=\"run7\",uid=\"5\",node=\"a\""));
}
END_TEST

/* Numbers are written as Prometheus reads them. */
START_TEST(test_numbers)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{NAN, "NaN"}, {INFINITY, "+Inf"}, {-INFINITY, "-Inf"},
                 {0.1, "0.1"}, {2.3211, "2.3211"}, {1.0 / 3, "0.33333333333333331"}};
    char line[96];

    rig.job.has_last_loss = 1;
    rig.job.last_loss = cases[_i].value;
    (void)snprintf(line, sizeof line, "cistern_job_loss{name=\"run7\",uid=\"5\"} %s",
                   cases[_i].text);
    has_line(print(), line);
}
END_TEST

/* Whole numbers are exact. */
START_TEST(test_whole)
{
    rig.stat.n_requests = UINT64_MAX;
    has_line(print(), "cistern_requests_total 18446744073709551615");
}
END_TEST

/* A text in a label cannot end the label or the line. A long one is cut. */
START_TEST(test_labels)
{
    char name[1000];

    memset(name, '"', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    rig.gpu.name = "a\"b\\c\nd";
    print();
    has_line(rig.text,
             "cistern_accelerator_info{device=\"cuda:3\",name=\"a\\\"b\\\\c\\\\x0ad\"} 1");
    free(rig.text);
    rig.gpu.name = name;
    print();
    has_line(rig.text, "# TYPE cistern_accelerator_memory_bytes gauge");
    for (char *line = strtok(rig.text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        ck_assert_uint_lt(strlen(line), 600);
        ck_assert(line[0] == '#' || strrchr(line, '}') == NULL ||
                  strstr(strrchr(line, '}'), "\"") == NULL);
    }
}
END_TEST

/* An engine of a GPU has the GPU's name, and the text of its state is a label. */
START_TEST(test_engine)
{
    has_line(print(), "cistern_engine_state{engine=\"cuda:3\",state=\"ready\"} 1");
}
END_TEST

/* Without an answer of the daemon there is one sample. */
START_TEST(test_down)
{
    rig.metrics.stat = NULL;
    ck_assert_str_eq(print(), "# HELP cistern_up 1: the daemon has answered.\n"
                              "# TYPE cistern_up gauge\ncistern_up 0\n");
}
END_TEST

/* Each metric is declared once. The names of counters, and of no other metrics, end in _total. */
START_TEST(test_names)
{
    char seen[16384] = "", name[80], type[16], key[96];
    unsigned n = 0;

    print();
    for (char *line = strtok(rig.text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        const bool is_type = sscanf(line, "# TYPE %79s %15s", name, type) == 2;
        const char *end = strrchr(name, '_');

        if (is_type) {
            ck_assert_int_eq(strcmp(type, "counter") == 0,
                             end != NULL && strcmp(end, "_total") == 0);
            (void)snprintf(key, sizeof key, " %s ", name);
            ck_assert_msg(strstr(seen, key) == NULL, "%s is declared twice", name);
            ck_assert_uint_lt(strlen(seen) + strlen(key), sizeof seen);
            (void)strcat(seen, key);
            n++;
        }
    }
    ck_assert_uint_gt(n, 60);
}
END_TEST

/* -- requests ------------------------------------------------------------------------------- */

static const struct {
    const char *bytes;
    int status;
    bool head;
} requests[] = {
    {"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200, false},
    {"GET /metrics HTTP/1.0\n\n", 200, false},
    {"HEAD /metrics?x=/y HTTP/1.1\r\n\r\n", 200, true},
    {"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nmore", 200, false},
    {"GET / HTTP/1.1\r\n\r\n", 404, false},
    {"GET /metric HTTP/1.1\r\n\r\n", 404, false},
    {"GET /metrics/ HTTP/1.1\r\n\r\n", 404, false},
    {"POST /metrics HTTP/1.1\r\n\r\n", 405, false},
    {"get /metrics HTTP/1.1\r\n\r\n", 405, false},
    {"GET /metrics HTTP/2\r\n\r\n", 400, false},
    {"GET /metrics HTTP/1.1 \r\n\r\n", 400, false},
    {"GET  /metrics HTTP/1.1\r\n\r\n", 400, false},
    {"GET /metrics\r\n\r\n", 400, false},
    {"\r\n\r\n", 400, false},
    {"\n\n", 400, false},
    {"", 0, false},
    {"\n", 0, false},
    {"GET /metrics HTTP/1.1\r\n", 0, false},
    {"GET /metrics HTTP/1.1\r\n\r", 0, false},
};

/* A request is answered by its first line as soon as it is complete, and not before. It is read
 * from memory of its own size, so that sanitizers see what is read after it. */
START_TEST(test_request)
{
    const size_t n = strlen(requests[_i].bytes);
    char *bytes = malloc(n + 1);
    bool head;

    ck_assert_ptr_nonnull(bytes);
    bytes = realloc(bytes, n > 0 ? n : 1);
    memcpy(bytes, requests[_i].bytes, n);
    ck_assert_int_eq(cli_scrape_request(bytes, n, &head), requests[_i].status);
    ck_assert_int_eq(head, requests[_i].head);
    free(bytes);
}
END_TEST

/* A request that fills its memory without an end is too long. */
START_TEST(test_long_request)
{
    static char bytes[CLI_SCRAPE_REQUEST_MAX];
    bool head;

    memset(bytes, 'x', sizeof bytes);
    ck_assert_int_eq(cli_scrape_request(bytes, sizeof bytes - 1, &head), 0);
    ck_assert_int_eq(cli_scrape_request(bytes, sizeof bytes, &head), 431);
}
END_TEST

/* Random bytes never make the reader look past their end, and never look like a request. */
START_TEST(test_random_request)
{
    uint64_t seed = suite_seed();
    bool head;

    srand((unsigned)seed);
    for (unsigned turn = 0; turn < 20000; turn++) {
        static const char letters[] = "GET /metrics HTTP/1.\r\n\n\r\n";
        const size_t n = (size_t)rand() % 40;
        char *bytes = malloc(n > 0 ? n : 1);
        int status;

        suite_must(bytes != NULL, "no memory");
        for (size_t i = 0; i < n; i++) {
            bytes[i] = letters[(size_t)rand() % (sizeof letters - 1)];
        }
        status = cli_scrape_request(bytes, n, &head);
        suite_must(status == 0 || status == 400 || status == 404 || status == 405, "status %d",
                   status);
        free(bytes);
    }
}
END_TEST

/* -- addresses ------------------------------------------------------------------------------ */

static const struct {
    const char *text;
    sa_family_t family; /* 0: it is refused. */
    const char *words;  /* Of the refusal. */
} addresses[] = {
    {"127.0.0.1:9460", AF_INET, NULL},
    {"127.7.7.7:0", AF_INET, NULL},
    {"[::1]:9460", AF_INET6, NULL},
    {"/run/x/metrics.sock", AF_UNIX, NULL},
    {"0.0.0.0:9460", 0, "127.0.0.1:9460, and let a reverse proxy"},
    {"128.0.0.1:7", 0, "127.0.0.1:7, and let a reverse proxy"},
    {"[::]:9460", 0, "reverse proxy"},
    {"[::ffff:127.0.0.1]:9460", 0, "reverse proxy"},
    {"[2001:db8::1]:9460", 0, "reverse proxy"},
    {"localhost:9460", 0, "is none of 127.0.0.1:PORT"},
    {"127.0.0.1", 0, "is none of"},
    {"127.0.0.1:", 0, "is none of"},
    {"127.0.0.1:65536", 0, "is none of"},
    {"127.0.0.1:-1", 0, "is none of"},
    {"127.0.0.1:99999999999999999999", 0, "is none of"},
    {":9460", 0, "is none of"},
    {"[]:9460", 0, "is none of"},
    {"", 0, "is none of"},
    {"metrics.sock", 0, "is none of"},
};

/* Only addresses that no other machine reaches are taken. A refusal says what helps. */
START_TEST(test_address)
{
    struct sockaddr_storage address;
    struct cst_err err = {0};
    socklen_t n;
    bool is_port;
    int rc = cli_scrape_listen_read(addresses[_i].text, &is_port, &address, &n, &err);

    if (addresses[_i].family != 0) {
        ck_assert_int_eq(rc, CST_OK);
        ck_assert_int_eq(address.ss_family, addresses[_i].family);
        ck_assert_int_eq(is_port, address.ss_family != AF_UNIX);
    } else {
        ck_assert_int_eq(rc, CST_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, addresses[_i].words));
    }
}
END_TEST

/* A path that is too long for a socket is refused with the limit. */
START_TEST(test_long_path)
{
    struct sockaddr_storage address;
    struct cst_err err = {0};
    char path[200];
    socklen_t n;
    bool is_port;

    memset(path, '/', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    ck_assert_int_eq(cli_scrape_listen_read(path, &is_port, &address, &n, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "(107 bytes)"));
}
END_TEST

/* -- the server ----------------------------------------------------------------------------- */

enum { TEXT_BYTES = 4 << 20, DEAF = CLI_SCRAPE_CONNECTIONS + 4 };

/* Make a text that no buffers of a socket can hold. */
static int make_large(void *arg, char **text, size_t *n)
{
    (void)arg;
    *text = malloc(TEXT_BYTES);
    *n = TEXT_BYTES;
    if (*text == NULL) {
        return CST_ENOMEM;
    }
    memset(*text, 'x', TEXT_BYTES);
    return CST_OK;
}

/* Ask for the text at @path, and return the connection. */
static int ask(const char *path)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\n\r\n";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)strcpy(address.sun_path, path);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    return fd;
}

/* Peers that do not read a large text have all places, and the next one gets all of it. SIGTERM
 * ends the server. */
START_TEST(test_deaf_peers)
{
    struct cli_scrape_listen listener;
    struct cst_err err = {0};
    static char piece[65536];
    char path[64];
    size_t bytes = 0;
    ssize_t got;
    int fd, status;
    pid_t pid;
    sigset_t mask;

    (void)snprintf(path, sizeof path, SUITE_LOG "metrics.log", suite_pid());
    ck_assert_int_eq(cli_scrape_listen_open(&listener, path, &err), CST_OK);
    pid = fork();
    if (pid == 0) {
        cli_scrape_catch_signals(&mask);
        _exit(cli_scrape_serve(listener.fd, &mask, "text/plain", make_large, NULL, &err) != CST_OK);
    }
    for (unsigned i = 0; i < DEAF; i++) {
        (void)ask(path);
    }
    fd = ask(path);
    while ((got = recv(fd, piece, sizeof piece, 0)) > 0) {
        bytes += (size_t)got;
    }
    ck_assert_int_eq(got, 0);
    ck_assert_uint_gt(bytes, TEXT_BYTES);
    ck_assert_uint_lt(bytes, TEXT_BYTES + 300);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    cli_scrape_listen_close(&listener);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *text = suite_case(suite, "text", setup, teardown);
    TCase *request = suite_case(suite, "request", NULL, NULL);
    TCase *address = suite_case(suite, "address", NULL, NULL);
    TCase *server = suite_case(suite, "server", NULL, NULL);

    tcase_add_test(text, test_absent);
    tcase_add_test(text, test_sum);
    tcase_add_test(text, test_nodes);
    tcase_add_loop_test(text, test_numbers, 0, 6);
    tcase_add_test(text, test_whole);
    tcase_add_test(text, test_labels);
    tcase_add_test(text, test_engine);
    tcase_add_test(text, test_down);
    tcase_add_test(text, test_names);
    tcase_add_loop_test(request, test_request, 0, sizeof requests / sizeof *requests);
    tcase_add_test(request, test_long_request);
    tcase_add_test(request, test_random_request);
    tcase_add_loop_test(address, test_address, 0, sizeof addresses / sizeof *addresses);
    tcase_add_test(address, test_long_path);
    tcase_add_test(server, test_deaf_peers);
    return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/settings/settings: defaults, the file, the command line, sizes, times and rules
 * of access. */
#include "daemon/settings/settings.h"
#include "daemon/base/log.h"
#include "proto/size.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t GIB = UINT64_C(1) << 30;

static struct cstd_settings config;
static struct cst_err err;
static char path[64];

static void setup(void)
{
    int fd;

    (void)strcpy(path, "/tmp/cistern-config-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(close(fd), 0);
    cstd_settings_init(&config, 100 * GIB);
    err = (struct cst_err){0};
}

static void teardown(void)
{
    (void)unlink(path);
}

static int load(const char *text)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return cstd_settings_load(&config, path, true, &err);
}

/* Check that the error is CST_EINVAL at @line of the file, and that its message contains @words. */
static void assert_refused(const char *text, int line, const char *words)
{
    char where[96];

    cstd_settings_init(&config, 100 * GIB);
    err = (struct cst_err){0};
    ck_assert_int_eq(load(text), CST_EINVAL);
    (void)snprintf(where, sizeof where, "%s:%d: ", path, line);
    ck_assert_msg(strncmp(err.text, where, strlen(where)) == 0, "'%s' is not about line %d",
                  err.text, line);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' does not say '%s'", err.text, words);
}

/* -- defaults ------------------------------------------------------------------------------- */

/* Without a file the budgets are shares of the machine's memory, and together leave some of it
 * free. */
START_TEST(defaults_fit_the_machine)
{
    ck_assert_int_eq(cstd_settings_load(&config, "/nowhere/cistern.conf", false, &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_OK);
    ck_assert_uint_gt(config.host_bytes, 0);
    ck_assert_uint_gt(config.pool_bytes, 0);
    ck_assert_uint_lt(config.host_bytes + config.pool_bytes, config.memory_bytes);
    ck_assert_str_eq(config.socket, "/run/cistern/cistern.sock");
    ck_assert_str_eq(config.manager_socket, "/run/cistern/manager.sock");
    ck_assert(config.access.any);
    ck_assert_int_eq(config.log_level, CSTD_LOG_INFO);
}
END_TEST

/* A file that was named on the command line must exist. */
START_TEST(a_file_that_was_asked_for_must_be_there)
{
    ck_assert_int_eq(cstd_settings_load(&config, "/nowhere/cistern.conf", true, &err),
                     CST_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/cistern.conf"));
}
END_TEST

/* -- the file ------------------------------------------------------------------------------- */

/* Every key of the file sets its value. */
START_TEST(every_key_is_read)
{
    int rc = load("# a comment\n"
                  "[daemon]\nsocket = /a/b.sock\nmanager_socket = /a/m.sock\nlog_level = "
                  "debug\naccess = uid:7, gid:8\n"
                  "[host]\nmemory = 24G\nlock = yes\nnodes = 0, 2\n"
                  "[device host]\npool = 10%\n"
                  "[gpu]\ndevices = 0, GPU-12ab\npool = 40G\ncopies = worker\ngather = 2M\npeers = "
                  "no\nidle = "
                  "2m\nprogram = /x/cuda\n"
                  "[disk]\ntimeout = 30s\n"
                  "[engine]\nthreads = 3\ncopy_threads = 2\ncopy_share = 0.5\nprogram = /x/engine\n"
                  "[job]\nttl = 2h\ntimeout = 90\nmax_jobs = 5\nmax_sessions = 6\ncredits = 7\n"
                  "[node]\nname = n1\nlisten = 10.0.0.1:9\nkey = /n/key\ncertificate = /n/crt\n"
                  "trusted = /n/list\nauthorities = /n/ca\nnetwork = encrypted\nwait = 1m\n");

    ck_assert_msg(rc == CST_OK, "%s", err.text);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_OK);
    ck_assert_str_eq(config.socket, "/a/b.sock");
    ck_assert_str_eq(config.manager_socket, "/a/m.sock");
    ck_assert_int_eq(config.log_level, CSTD_LOG_DEBUG);
    ck_assert(!config.access.any);
    ck_assert_uint_eq(config.host_bytes, 24 * GIB);
    ck_assert_int_eq(config.lock, CSTD_LOCK_YES);
    ck_assert_uint_eq(config.n_nodes, 2);
    ck_assert_uint_eq(config.nodes[1], 2);
    ck_assert_uint_eq(config.pool_bytes, 10 * GIB);
    ck_assert_uint_eq(config.threads, 3);
    ck_assert_uint_eq(config.copy_threads, 2);
    ck_assert(config.copy_share == 0.5f);
    ck_assert_str_eq(config.node.name, "n1");
    ck_assert_str_eq(config.node.listen, "10.0.0.1:9");
    ck_assert_str_eq(config.node.key, "/n/key");
    ck_assert_str_eq(config.node.certificate, "/n/crt");
    ck_assert_str_eq(config.node.trusted, "/n/list");
    ck_assert_str_eq(config.node.authorities, "/n/ca");
    ck_assert_int_eq(config.node.network, CSTD_NETWORK_ENCRYPTED);
    ck_assert_uint_eq(config.node.wait_s, 60);
    ck_assert_str_eq(config.engine, "/x/engine");
    ck_assert_str_eq(config.gpu_devices, "0, GPU-12ab");
    ck_assert_str_eq(config.gpu_pool, "40G");
    ck_assert_int_eq(config.gpu_copies, CSTD_COPIES_WORKER);
    ck_assert_uint_eq(config.gpu_gather, 2u << 20);
    ck_assert(!config.gpu_peers);
    ck_assert_uint_eq(config.gpu_idle_s, 120);
    ck_assert_str_eq(config.gpu_engine, "/x/cuda");
    ck_assert_uint_eq(config.disk_timeout_s, 30);
    ck_assert_uint_eq(config.ttl_s, 7200);
    ck_assert_uint_eq(config.timeout_s, 90);
    ck_assert_uint_eq(config.max_jobs, 5);
    ck_assert_uint_eq(config.max_sessions, 6);
    ck_assert_uint_eq(config.credits, 7);
}
END_TEST

/* interleave is chosen by the daemon by default; the file can set it to none or a number. */
START_TEST(interleave_is_read)
{
    static const struct {
        const char *text;
        uint32_t k;
    } good[] = {{"", CSTD_SETTINGS_INTERLEAVE_AUTO},
                {"[plan]\ninterleave = auto\n", CSTD_SETTINGS_INTERLEAVE_AUTO},
                {"[plan]\ninterleave = none\n", 0},
                {"[plan]\ninterleave = 7\n", 7}};

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cstd_settings_init(&config, 100 * GIB);
        ck_assert_msg(load(good[i].text) == CST_OK, "%s", err.text);
        ck_assert_uint_eq(config.interleave, good[i].k);
    }
}
END_TEST

/* Unknown sections and keys, keys that are set twice, and malformed lines are refused with file,
 * line and the known names. */
START_TEST(unknown_and_repeated_keys_are_refused)
{
    assert_refused("[host]\nmemory = 1G\nmemroy = 2G\n", 3, "known: memory, lock, nodes");
    assert_refused("\n[hots]\nmemory = 1G\n", 3,
                   "known: daemon, host, device host, gpu, disk, paced, engine, plan, job");
    assert_refused("[host]\nmemory = 1G\n[job]\nttl = 1h\n[host]\nmemory = 1G\n", 6, "set twice");
    assert_refused("[host]\nmemory\n", 2, "key = value");
    assert_refused("[host\nmemory = 1G\n", 1, "key = value");
    assert_refused("memory = 1G\n", 1, "key 'memory' is before the first section");
    assert_refused("[hots]\nmemory = 1G\n", 2, "did you mean [host]?");
    assert_refused("[host]\nmemroy = 2G\n", 2, "did you mean 'memory'?");
    assert_refused("[host]\nttl = 1h\n", 2, "it is one of [job]");
    assert_refused("[host]\nmemory = 4X\n", 2, "[host] memory: '4X' is not a size");
    assert_refused("[quota]\njobs = x\n", 2, "[quota] jobs: 'x' is not a limit");
}
END_TEST

static char reports[CSTD_SETTINGS_MAX_ERRORS][640];
static unsigned n_reports;

static void report(const struct cst_err *each)
{
    ck_assert_uint_lt(n_reports, CSTD_SETTINGS_MAX_ERRORS);
    (void)snprintf(reports[n_reports++], sizeof reports[0], "%s", each->text);
}

/* A check reports each wrong line once, whether it cannot be parsed or has a wrong section, key or
 * value, in the order of the file. It reports none of a right file, and changes no setting. */
START_TEST(a_check_reports_every_wrong_line)
{
    static const int lines[] = {2, 4, 5, 6, 8};
    static const char *const words[] = {"[hots]", "memroy", "4X", "key = value", "twice"};
    const char text[] = "[hots]\nmemory = 1G\n[host]\nmemroy = 1G\nmemory = 4X\nlock yes\n"
                        "lock = yes\nlock = no\n";
    const uint64_t host_bytes = config.host_bytes;
    char where[96];

    n_reports = 0;
    (void)load(text);
    ck_assert_uint_eq(cstd_settings_check(&config, report), 5);
    ck_assert_uint_eq(n_reports, 5);
    for (unsigned i = 0; i < n_reports; i++) {
        (void)snprintf(where, sizeof where, "%s:%d: ", path, lines[i]);
        ck_assert_msg(strncmp(reports[i], where, strlen(where)) == 0, "%s", reports[i]);
        ck_assert_msg(strstr(reports[i], words[i]) != NULL, "%s", reports[i]);
    }
    ck_assert_uint_eq(config.host_bytes, host_bytes);
    ck_assert_int_eq(load("[host]\nlock = no\n"), CST_OK);
    ck_assert_uint_eq(cstd_settings_check(&config, report), 0);
    (void)unlink(path);
    ck_assert_uint_eq(cstd_settings_check(&config, report), 1);
    ck_assert_ptr_nonnull(strstr(reports[5], "No such file"));
}
END_TEST

/* A line is one line, however long: a comment is read over, another is refused with its length. */
START_TEST(a_long_line_is_one_line)
{
    static const char *const before[] = {"# ", "[host]\n", "[host]\n"};
    static const char *const after[] = {"\n[host]\nmemroy = 1G\n", "\nlock = no\n", ""};
    static const char *const words[] = {"memroy", "a line of 505 bytes: write at most 198",
                                        "a line of 504 bytes: write at most 198"};
    static const int lines[] = {3, 2, 2};
    char text[600];

    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        (void)snprintf(text, sizeof text, "%s%0500d = 1%s", before[i], 0, after[i]);
        assert_refused(text, lines[i], words[i]);
        n_reports = 0;
        ck_assert_uint_eq(cstd_settings_check(&config, report), 1);
    }
}
END_TEST

/* The keys below a section whose line is wrong are in no section, which is no error of theirs.
 * Those of the next section are checked. */
START_TEST(a_wrong_section_line_is_one_error)
{
    n_reports = 0;
    (void)load("[host\nmemory = 1G\nlock = no\n[job]\ntll = 1h\n");
    ck_assert_uint_eq(cstd_settings_check(&config, report), 2);
    ck_assert_ptr_nonnull(strstr(reports[0], ":1: neither '[section]' nor"));
    ck_assert_ptr_nonnull(strstr(reports[1], ":5: unknown key 'tll' in [job]"));
}
END_TEST

/* A check that has not reported all errors says so. */
START_TEST(a_check_says_that_there_are_more_errors)
{
    char text[2048] = "[host]\n";

    for (unsigned n = 1; n <= CSTD_SETTINGS_MAX_ERRORS + 1; n++) {
        (void)strcat(text, "memroy = 1G\n");
        n_reports = 0;
        (void)load(text);
        ck_assert_uint_eq(cstd_settings_check(&config, report), n);
    }
    ck_assert_uint_eq(n_reports, CSTD_SETTINGS_MAX_ERRORS);
}
END_TEST

/* An invalid value is refused with file, line, key and the allowed values. */
START_TEST(nonsense_values_are_refused)
{
    static const struct {
        const char *section, *line, *words;
    } bad[] = {
        {"host", "memory = much", "memory: 'much' is not a size"},
        {"host", "memory = -1", "is not a size"},
        {"host", "memory = 1X", "is not a size"},
        {"host", "memory = 1GBB", "is not a size"},
        {"host", "memory = 101%", "is not a size"},
        {"host", "memory = 99999999999T", "is not a size"},
        {"host", "memory =", "is not a size"},
        {"host", "lock = maybe", "none of try, yes, no"},
        {"host", "nodes = left", "list of at most 8"},
        {"host", "nodes = 1,2,3,4,5,6,7,8,9", "list of at most 8"},
        {"daemon", "socket = relative/path", "absolute path"},
        {"daemon", "log_level = 3", "error, warning, notice, info, debug"},
        {"daemon", "access = everybody", "user:NAME"},
        {"daemon", "access = user:no-such-user-here", "there is no user 'no-such-user-here'"},
        {"daemon", "access = ,", "the list is empty"},
        {"engine", "threads = -3", "a number from 0"},
        {"engine", "threads = 2.5", "a number from 0"},
        {"engine", "copy_share = 0.95", "a number from 0 to 0.9"},
        {"engine", "copy_share = 25%", "a number from 0 to 0.9"},
        {"engine", "copy_share = -0.1", "a number from 0 to 0.9"},
        {"plan", "interleave = some", "none of auto, none, 1 to"},
        {"plan", "interleave = 0", "none of auto, none, 1 to"},
        {"gpu", "devices = some", "list of at most 16"},
        {"gpu", "devices = cuda:0", "list of at most 16"},
        {"gpu", "pool = most", "is not a size"},
        {"gpu", "pool = 0", "'0' is too small or too long for the size of a pool"},
        {"gpu", "idle = 0", "at least 1 s"},
        {"gpu", "copies = gpu", "'gpu' is none of engine, worker"},
        {"gpu", "program = engine", "absolute path"},
        {"job", "ttl = 0", "at least 1 s"},
        {"job", "ttl = 1y", "is not a time"},
        {"job", "ttl = 99999d", "is not a time"},
        {"job", "timeout = 50d", "at most 2592000 s"},
        {"job", "max_jobs = 0", "a number from 1"},
        {"job", "credits = 99999", "a number from 1 to 1024"},
    };
    char text[256];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(text, sizeof text, "[%s]\n%s\n", bad[i].section, bad[i].line);
        assert_refused(text, 2, bad[i].words);
    }
}
END_TEST

/* The command line overrides the file, and a later option overrides an earlier one. */
START_TEST(the_command_line_beats_the_file)
{
    ck_assert_int_eq(load("[host]\nmemory = 1G\n"), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "2G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "3G", &err), CST_OK);
    ck_assert_uint_eq(config.host_bytes, 3 * GIB);
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "three", &err), CST_EINVAL);
    ck_assert_uint_eq(config.host_bytes, 3 * GIB);
}
END_TEST

/* -- budgets -------------------------------------------------------------------------------- */

/* Budgets that exceed the machine's memory, alone or together, are refused with the numbers. */
START_TEST(budgets_beyond_the_machine_are_refused)
{
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "101G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EBUDGET);
    ck_assert_ptr_nonnull(strstr(err.text, "101.0 GiB"));
    ck_assert_ptr_nonnull(strstr(err.text, "100.0 GiB"));
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "60G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "device host", "pool", "41G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EBUDGET);
    cstd_settings_init(&config, 100 * GIB);
    ck_assert_int_eq(cstd_settings_set(&config, "device host", "pool", "101G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EBUDGET);
}
END_TEST

/* The default of one budget shrinks so that the other, given budget fits. */
START_TEST(a_default_makes_room)
{
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "90G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_OK);
    ck_assert_uint_eq(config.pool_bytes, 10 * GIB);
    cstd_settings_init(&config, 100 * GIB);
    ck_assert_int_eq(cstd_settings_set(&config, "device host", "pool", "90G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_OK);
    ck_assert_uint_eq(config.host_bytes, 10 * GIB);
}
END_TEST

/* The memory of paced accelerators counts like the budgets: defaults shrink to leave space for it,
 * and given budgets are refused if they are too large together with it. */
START_TEST(paced_accelerators_take_their_memory)
{
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "devices", "2", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "memory", "10G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "host", "memory", "70G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_OK);
    ck_assert_uint_eq(config.pool_bytes, 10 * GIB);
    ck_assert_int_eq(cstd_settings_set(&config, "device host", "pool", "11G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EBUDGET);
    ck_assert_ptr_nonnull(strstr(err.text, "20.0 GiB"));
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "memory", "51G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EBUDGET);
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "devices", "9", &err), CST_EINVAL);
}
END_TEST

/* A rate is a number of units, and cannot be a percentage. */
START_TEST(rates_are_numbers)
{
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "up", "55G", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "down", "1024", &err), CST_OK);
    ck_assert_int_eq(cstd_settings_set(&config, "engine", "update_rate", "2G", &err), CST_OK);
    ck_assert_uint_eq(config.paced_up, 55 * GIB);
    ck_assert_uint_eq(config.paced_down, 1024);
    ck_assert_uint_eq(config.update_rate, 2 * GIB);
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "up", "50%", &err), CST_EINVAL);
    ck_assert_int_eq(cstd_settings_set(&config, "paced", "update", "fast", &err), CST_EINVAL);
}
END_TEST

/* The two sockets need different paths. */
START_TEST(the_sockets_differ)
{
    ck_assert_int_eq(cstd_settings_set(&config, "daemon", "socket", "/a/manager.sock", &err),
                     CST_OK);
    ck_assert_int_eq(cstd_settings_finish(&config, &err), CST_EINVAL);
}
END_TEST

/* -- access --------------------------------------------------------------------------------- */

/* A rule admits its user or group. Root is always admitted, and nobody else. */
START_TEST(rules_let_in_whom_they_name)
{
    static const gid_t groups[] = {100, 200}, others[] = {300};
    struct cstd_access access;

    ck_assert_int_eq(cstd_access_parse(&access, "uid:4001 gid:200, user:root", &err), CST_OK);
    ck_assert(cstd_access_allows(&access, 4001, others, 1));
    ck_assert(cstd_access_allows(&access, 4002, groups, 2));
    ck_assert(!cstd_access_allows(&access, 4002, groups, 1));
    ck_assert(!cstd_access_allows(&access, 4002, others, 1));
    ck_assert(cstd_access_allows(&access, 0, others, 1));
    ck_assert_int_eq(cstd_access_parse(&access, "any", &err), CST_OK);
    ck_assert(cstd_access_allows(&access, 4002, others, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("settings");
    TCase *tc = suite_case(suite, "settings", setup, teardown);

    tcase_add_test(tc, defaults_fit_the_machine);
    tcase_add_test(tc, a_file_that_was_asked_for_must_be_there);
    tcase_add_test(tc, every_key_is_read);
    tcase_add_test(tc, interleave_is_read);
    tcase_add_test(tc, unknown_and_repeated_keys_are_refused);
    tcase_add_test(tc, nonsense_values_are_refused);
    tcase_add_test(tc, the_command_line_beats_the_file);
    tcase_add_test(tc, budgets_beyond_the_machine_are_refused);
    tcase_add_test(tc, a_default_makes_room);
    tcase_add_test(tc, paced_accelerators_take_their_memory);
    tcase_add_test(tc, a_check_reports_every_wrong_line);
    tcase_add_test(tc, a_long_line_is_one_line);
    tcase_add_test(tc, a_wrong_section_line_is_one_error);
    tcase_add_test(tc, a_check_says_that_there_are_more_errors);
    tcase_add_test(tc, rates_are_numbers);
    tcase_add_test(tc, the_sockets_differ);
    tcase_add_test(tc, rules_let_in_whom_they_name);
    return suite_run(suite);
}

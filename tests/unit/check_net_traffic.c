/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the daemon counts of the bytes between this machine and others. */
#include "daemon/engine/net_engine.h"
#include "tests/lib/suite.h"

#include <check.h>

static struct cstd_net_engine net;

static void see(uint32_t machine, uint64_t pulled, uint64_t served)
{
    Engine__Pong pong = ENGINE__PONG__INIT;
    Engine__PeerTraffic peer = ENGINE__PEER_TRAFFIC__INIT, *pointer = &peer;

    peer.machine = machine;
    peer.pulled_bytes = pulled;
    peer.served_bytes = served;
    pong.n_peers = 1;
    pong.peers = &pointer;
    cstd_net_engine_see(&net, &pong);
}

static void is(uint32_t machine, uint64_t received, uint64_t sent)
{
    const struct cstd_net_traffic traffic = cstd_net_engine_traffic(&net, machine);

    ck_assert_uint_eq(traffic.received, received);
    ck_assert_uint_eq(traffic.sent, sent);
}

/* The counters of a process replace those that it sent before, and those of the next process add to
 * them. Each machine has its own. A number that no machine has changes nothing. */
START_TEST(processes)
{
    is(3, 0, 0);
    see(3, 100, 10);
    see(3, 120, 12);
    see(CSTD_NET_MACHINES - 1, 7, 8);
    see(CSTD_NET_MACHINES, 1, 1);
    see(UINT32_MAX, 1, 1);
    is(3, 120, 12);
    is(CSTD_NET_MACHINES - 1, 7, 8);
    is(0, 0, 0);
    cstd_net_engine_end_process(&net);
    is(3, 120, 12);
    see(3, 5, 0);
    is(3, 125, 12);
    cstd_net_engine_end_process(&net);
    is(3, 125, 12);
    is(CSTD_NET_MACHINES - 1, 7, 8);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net_traffic");
    TCase *tcase = suite_case(suite, "net_traffic", NULL, NULL);

    tcase_add_test(tcase, processes);
    return suite_run(suite);
}

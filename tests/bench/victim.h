/* SPDX-License-Identifier: Apache-2.0 */
/* USER_BOB, whose requests are measured while another user loads the daemon. All functions fail the
 * running test on an error. */
#ifndef CST_BENCH_VICTIM_H
#define CST_BENCH_VICTIM_H

#include "tests/lib/raw_client.h"

#define VICTIM_CHUNKS 4 /* Number of chunks of a victim's job, all of which fit into its pool. */

/* Connect to the daemon at @socket as USER_BOB. */
void victim_open(struct raw_client *client, const char *socket);

/* Connect and commit job @name. Returns the time in seconds. */
double victim_commit(struct raw_client *client, const char *socket, const char *name);

/* Fetch the weights of @chunk and release them. Returns the time of the fetch in us. */
double victim_request(struct raw_client *client, uint64_t attempt, uint32_t chunk);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `cistern run --nodes`: ranks on several nodes. On each node `cistern run` starts the ranks of the
 * node, and --rsh connects to it:
 *
 *   cistern run --nodes a,b --+-- ssh a 'cd DIR && exec env ... cistern run -n N --follow ... --'
 *                             +-- ssh b 'cd DIR && exec env ... cistern run -n N --follow ... --'
 *
 * Signals go to the standard input of these, one byte for each. When the connection ends, so does
 * this input, and the ranks of the node are killed. */
#ifndef CLI_RUN_NODES_H
#define CLI_RUN_NODES_H

#include "client/cli/cli.h"

/* Run the program on all nodes of cli->nodes. Returns as cli_run. */
int cli_run_nodes(struct cli *cli);

#endif

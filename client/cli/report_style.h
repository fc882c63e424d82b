/* SPDX-License-Identifier: Apache-2.0 */
/* The style sheet of the page of `cistern report`: light, dark, and for printers. */
#ifndef CLI_REPORT_STYLE_H
#define CLI_REPORT_STYLE_H

extern const char cli_report_style[];

#endif

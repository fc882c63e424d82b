/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/machine_address.h"

#include "proto/certificate.h"
#include "proto/value.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

int cstd_machine_address_read(struct cstd_machine_address *out, const char *text,
                              struct cst_err *err)
{
    static const struct cst_value number = CST_U32(0, 0, UINT16_MAX);
    const char *host = text, *end = text + strlen(text), *colon = strchr(text, ':');
    const char *port = NULL;
    uint32_t value = CST_NODE_PORT;

    if (text[0] == '[') {
        host = text + 1;
        end = strchr(text, ']');
        port = end != NULL && end[1] == ':' ? end + 2 : NULL;
        if (end == NULL || (end[1] != '\0' && port == NULL)) {
            return cst_err_set(err, CST_EINVAL, "'%s' is not of the form [ADDRESS]:PORT", text);
        }
    } else if (colon != NULL && strchr(colon + 1, ':') == NULL) { /* Not an address of IPv6. */
        end = colon;
        port = colon + 1;
    }
    if (port != NULL && cst_value_read(&number, &value, port, NULL) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "'%s': '%s' is not a port, a number up to %d", text,
                           port, UINT16_MAX);
    }
    if (end == host || end - host >= CSTD_MACHINE_ADDRESS_BYTES ||
        strcspn(host, " \t\n,/") < (size_t)(end - host)) {
        return cst_err_set(err, CST_EINVAL,
                           "'%s' is not of the form HOST or HOST:PORT with at most %d characters",
                           text, CSTD_MACHINE_ADDRESS_BYTES - 1);
    }
    *out = (struct cstd_machine_address){.port = (uint16_t)value};
    memcpy(out->host, host, (size_t)(end - host));
    return CST_OK;
}

bool cstd_machine_address_number(const struct cstd_machine_address *address,
                                 struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, address->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(address->port);
        return true;
    }
    if (inet_pton(AF_INET6, address->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(address->port);
        return true;
    }
    return false;
}

static bool is_any(const struct sockaddr_storage *at)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)at;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)at;

    return at->ss_family == AF_INET ? v4->sin_addr.s_addr == INADDR_ANY
                                    : IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

/* Return whether @at can be the address of an interface for other machines. */
static bool is_usable(const struct ifaddrs *at, const char *interface, int family)
{
    return at->ifa_addr != NULL && at->ifa_addr->sa_family == family &&
           strcmp(at->ifa_name, interface) == 0 &&
           (family != AF_INET6 ||
            !IN6_IS_ADDR_LINKLOCAL(
                &((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr));
}

/* Find the first address of @interface. */
static bool find_interface(const struct ifaddrs *all, const char *interface, uint16_t port,
                           struct sockaddr_storage *out)
{
    static const int families[] = {AF_INET, AF_INET6};

    for (unsigned i = 0; i < 2; i++) {
        for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
            if (is_usable(at, interface, families[i])) {
                memset(out, 0, sizeof *out);
                memcpy(out, at->ifa_addr,
                       i == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
                /* The port is at the same place in both. */
                ((struct sockaddr_in *)out)->sin_port = htons(port);
                return true;
            }
        }
    }
    return false;
}

int cstd_machine_address_own(const struct cstd_machine_address *address,
                             struct sockaddr_storage *out, struct cst_err *err)
{
    struct ifaddrs *all;
    bool found;

    if (cstd_machine_address_number(address, out)) {
        return !is_any(out)
                   ? CST_OK
                   : cst_err_set(
                         err, CST_EINVAL,
                         "%s would listen at all addresses of this machine: name the one, or "
                         "the interface, of the network that joins the nodes",
                         address->host);
    }
    if (getifaddrs(&all) != 0) {
        return cst_err_errno(err, CST_EIO, errno,
                             "the network interfaces cannot be listed (a service may not do so "
                             "without the drop-in nodes.conf, see cistern-nodes(7))");
    }
    found = find_interface(all, address->host, address->port, out);
    freeifaddrs(all);
    return found ? CST_OK
                 : cst_err_set(err, CST_ENOTFOUND,
                               "'%s' is neither an address nor a network interface with one ('ip "
                               "address' lists them)",
                               address->host);
}

const char *cstd_machine_address_text(const struct sockaddr *at,
                                      char out[CSTD_MACHINE_ADDRESS_BYTES])
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)at;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at;
    char host[INET6_ADDRSTRLEN] = "?";

    if (at->sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        (void)snprintf(out, CSTD_MACHINE_ADDRESS_BYTES, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        (void)inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        (void)snprintf(out, CSTD_MACHINE_ADDRESS_BYTES, "%s:%u", host, ntohs(v4->sin_port));
    }
    return out;
}

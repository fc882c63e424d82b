/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *text, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL,
                       "'%s' is no address: give one such as 10.0.0.1, 10.0.0.1:7000 or "
                       "[fd00::1]:7000",
                       text);
}

int cste_address_read(const char *text, struct sockaddr_storage *out, socklen_t *out_bytes,
                      struct cst_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_family = text[0] == '[' ? AF_INET6 : AF_INET,
                                   .ai_socktype = SOCK_STREAM};
    char host[CSTE_ADDRESS_MAX];
    const char *end = text[0] == '[' ? strchr(text, ']') : strchr(text, ':');
    const char *begin = text + (text[0] == '['), *port = "0";
    struct addrinfo *found;
    struct in_addr four;
    size_t n;

    if (end == NULL && text[0] == '[') {
        return refuse(text, err);
    }
    n = end != NULL ? (size_t)(end - begin) : strlen(begin);
    if (n >= sizeof host) {
        return refuse(text, err);
    }
    memcpy(host, begin, n);
    host[n] = '\0';
    end = end != NULL && *end == ']' ? end + 1 : end;
    if (end != NULL && *end != '\0') {
        port = end + 1;
        if (*end != ':' || strspn(port, "0123456789") != strlen(port) || strlen(port) > 5 ||
            *port == '\0' || strtoul(port, NULL, 10) > UINT16_MAX) {
            return refuse(text, err);
        }
    }
    /* getaddrinfo also takes "10.1". */
    if ((hints.ai_family == AF_INET && inet_pton(AF_INET, host, &four) != 1) ||
        getaddrinfo(host, port, &hints, &found) != 0) {
        return refuse(text, err);
    }
    memset(out, 0, sizeof *out);
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *out_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return CST_OK;
}

int cste_address_check_own(const struct sockaddr_storage *address, struct cst_err *err)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;
    bool all = address->ss_family == AF_INET ? four->sin_addr.s_addr == htonl(INADDR_ANY)
                                             : IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr);

    return !all ? CST_OK
                : cst_err_set(err, CST_EINVAL,
                              "an address of all interfaces: other machines need one of this "
                              "machine, in the network that is to be used");
}

void cste_address_write(const struct sockaddr_storage *address, char out[CSTE_ADDRESS_MAX])
{
    char host[64] = "?", port[8] = "?";
    bool six = address->ss_family == AF_INET6;

    (void)getnameinfo((const struct sockaddr *)(const void *)address,
                      six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), host,
                      sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(out, CSTE_ADDRESS_MAX, six ? "[%s]:%s" : "%s:%s", host, port);
}

/* Keeps what listens in a worker container on the cluster's own address.
 *
 * PyTorch's rendezvous store and Open MPI's transports listen on every address of a host, whichever interface they are told,
 * and ask nobody who connects. Loaded into every process of the container (/etc/ld.so.preload), this library changes one
 * call: bind() to "every address" becomes bind() to the address in ADDRESS_FILE, which the controller's deploy writes.
 * Without that file, or with nonsense in it, bind() is what it always was. Nothing else is touched: no call that moves data
 * passes through here, so no measurement does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef ADDRESS_FILE
#define ADDRESS_FILE "/var/lib/suite/ssh/listen_address"
#endif

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

/* The deployment's address, IPv4 or IPv6: returns its family, or 0 when there is none. */
static int own_address(struct in_addr *four, struct in6_addr *six)
{
    char text[INET6_ADDRSTRLEN + 1] = {0};
    int file = open(ADDRESS_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 0;
    text[strcspn(text, " \n")] = '\0';
    if (inet_pton(AF_INET, text, four) == 1)
        return AF_INET;
    return inet_pton(AF_INET6, text, six) == 1 ? AF_INET6 : 0;
}

static int bind_four(bind_function real, int socket, struct sockaddr_in asked)
{
    struct in_addr four;
    struct in6_addr six;
    int family = own_address(&four, &six);
    if (family == AF_INET)
        asked.sin_addr = four;
    else if (family == AF_INET6)
        asked.sin_addr.s_addr = htonl(INADDR_LOOPBACK); /* the cluster speaks IPv6: nobody is to come this way */
    return real(socket, (const struct sockaddr *)&asked, sizeof asked);
}

static int bind_six(bind_function real, int socket, struct sockaddr_in6 asked)
{
    struct in_addr four;
    struct in6_addr six;
    int family = own_address(&four, &six);
    if (family == AF_INET6) {
        asked.sin6_addr = six;
    } else if (family == AF_INET) {
        int only_six = 0;
        socklen_t size = sizeof only_six;
        getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only_six, &size);
        if (only_six) {
            struct sockaddr_in6 loopback = asked;
            loopback.sin6_addr = in6addr_loopback;
            int before = errno, result = real(socket, (const struct sockaddr *)&loopback, sizeof loopback);
            if (result == 0 || errno != EADDRNOTAVAIL)
                return result;
            errno = before; /* IPv6 is off, loopback included: "every address" is none */
        } else { /* a socket for both: as the IPv4 address written the IPv6 way */
            memset(&asked.sin6_addr, 0, sizeof asked.sin6_addr);
            asked.sin6_addr.s6_addr[10] = asked.sin6_addr.s6_addr[11] = 0xff;
            memcpy(&asked.sin6_addr.s6_addr[12], &four, sizeof four);
        }
    }
    return real(socket, (const struct sockaddr *)&asked, sizeof asked);
}

__attribute__((visibility("default"))) int bind(int socket, const struct sockaddr *address, socklen_t size)
{
    int before = errno;
    bind_function real;
    /* ISO C has no cast from an object's pointer to a function's. */
    *(void **)&real = dlsym(RTLD_NEXT, "bind");
    if (real == NULL) {
        errno = ENOSYS;
        return -1;
    }
    errno = before;
    if (address != NULL && address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in asked;
        memcpy(&asked, address, sizeof asked);
        if (asked.sin_addr.s_addr == htonl(INADDR_ANY))
            return bind_four(real, socket, asked);
    } else if (address != NULL && address->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 asked;
        memcpy(&asked, address, sizeof asked);
        if (IN6_IS_ADDR_UNSPECIFIED(&asked.sin6_addr))
            return bind_six(real, socket, asked);
    }
    return real(socket, address, size);
}

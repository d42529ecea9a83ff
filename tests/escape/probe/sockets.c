// Every family of sockets with every type, and every protocol of those that are let through.
#include "probe.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>

static long one(long family, long type, long protocol) { return syscall(SYS_socket, family, type, protocol); }
static long pair(long family, long type, long c) {
    int fds[2];
    return syscall(SYS_socketpair, family, type, 0, fds);
}

// Changes to the network itself, sent over the one netlink that is let through. The answer comes as a message.
static long netlink(long kind, long flags, long c) {
    struct { struct nlmsghdr head; union { struct ifinfomsg link; struct ifaddrmsg address; struct rtmsg route; }; char rest[64]; }
    message = {.head = {.nlmsg_type = kind, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags, .nlmsg_seq = 1}};
    message.head.nlmsg_len = NLMSG_LENGTH(sizeof message.link);
    if (kind == RTM_NEWLINK) message.link.ifi_index = 1, message.link.ifi_change = IFF_UP;
    if (kind == RTM_NEWADDR) {
        message.address = (struct ifaddrmsg){.ifa_family = AF_INET, .ifa_prefixlen = 8, .ifa_index = 1};
        struct rtattr *local = (void *)((char *)&message.address + NLMSG_ALIGN(sizeof message.address));
        *local = (struct rtattr){8, IFA_LOCAL};
        *(uint32_t *)(local + 1) = htonl(0x0a000001);
        message.head.nlmsg_len = NLMSG_LENGTH(sizeof message.address) + 8;
    }
    if (kind == RTM_NEWROUTE) {
        message.route = (struct rtmsg){.rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = 3, .rtm_type = 1};
        message.route.rtm_scope = RT_SCOPE_LINK;
        struct rtattr *device = (void *)((char *)&message.route + NLMSG_ALIGN(sizeof message.route));
        *device = (struct rtattr){8, RTA_OIF};
        *(uint32_t *)(device + 1) = 1;
        message.head.nlmsg_len = NLMSG_LENGTH(sizeof message.route) + 8;
    }
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0) return -1;
    if (send(fd, &message, message.head.nlmsg_len, 0) < 0) return -1;
    struct { struct nlmsghdr head; int error; char rest[512]; } answer = {0};
    if (recv(fd, &answer, sizeof answer, 0) < 0) return -1;
    if (answer.head.nlmsg_type != NLMSG_ERROR) return CANNOT_AS("understand the answer");
    errno = -answer.error;
    return answer.error ? -1 : 0;
}

static long interface_down(long a, long b, long c) {
    struct ifreq request = {.ifr_name = "lo"};
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), 0x8914 /* SIOCSIFFLAGS */, &request);
}

static long device_option(long option, long b, long c) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return setsockopt(fd, SOL_SOCKET, option, &(int){1}, sizeof(int));
}

// The old interface of iptables, on an ordinary socket.
static long iptables(long level, long b, long c) {
    int fd = socket(level == SOL_IP ? AF_INET : AF_INET6, SOCK_STREAM, 0);
    return setsockopt(fd, level, 64, (char[128]){0}, 128);
}

void sockets(void) {
    static const int types[] = {1, 2, 3, 4, 5, 6, 10};
    char name[64];
    for (int family = 0; family <= 46; family++) {
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
            snprintf(name, sizeof name, "socket %d %d", family, types[i]);
            attempt(name, one, family, types[i], 0);
        }
        // With a flag that is none, which the kernel refuses before it looks at the family.
        snprintf(name, sizeof name, "socket %d flag", family);
        attempt(name, one, family, 0x105, 0);
        snprintf(name, sizeof name, "socketpair %d flag", family);
        attempt(name, pair, family, 0x101, 0);
        snprintf(name, sizeof name, "socketpair %d", family);
        attempt(name, pair, family, 1, 0);
    }
    for (int protocol = 0; protocol <= 22; protocol++) {
        snprintf(name, sizeof name, "netlink %d", protocol);
        attempt(name, one, AF_NETLINK, SOCK_RAW, protocol);
    }
    static const int protocols[] = {6, 17, 33, 115, 132, 136, 255, 256, 262};
    for (unsigned i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        snprintf(name, sizeof name, "inet stream %d", protocols[i]);
        attempt(name, one, AF_INET, SOCK_STREAM, protocols[i]);
        snprintf(name, sizeof name, "inet6 dgram %d", protocols[i]);
        attempt(name, one, AF_INET6, SOCK_DGRAM, protocols[i]);
        snprintf(name, sizeof name, "inet stream %d flag", protocols[i]);
        attempt(name, one, AF_INET, 0x101, protocols[i]);
        snprintf(name, sizeof name, "inet6 dgram %d flag", protocols[i]);
        attempt(name, one, AF_INET6, 0x102, protocols[i]);
    }
    attempt("packet all", one, 17, 3, 0x0300);
    attempt("inet packet", one, 2, 10, 0x0300);
    attempt("inet raw flag", one, 2, 0x103, 1);
    attempt("inet raw icmp", one, 2, 3, 1);
    attempt("inet raw raw", one, 2, 3, 255);
    attempt("inet6 raw icmp", one, 10, 3, 58);
    attempt("vsock with high bits", one, 1l << 32 | 40, 1, 0);
    attempt("alg with high bits", one, 1l << 40 | 38, 5, 0);
    attempt("raw with flags", one, 2, 3 | SOCK_CLOEXEC | SOCK_NONBLOCK, 1);
    attempt("raw with high bits", one, 2, 1l << 32 | 3, 1);
    attempt("netfilter with high bits", one, 16, 3, 1l << 32 | 12);
    attempt("link down", netlink, RTM_NEWLINK, 0, 0);
    attempt("link add", netlink, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 0);
    attempt("address add", netlink, RTM_NEWADDR, NLM_F_CREATE, 0);
    attempt("route add", netlink, RTM_NEWROUTE, NLM_F_CREATE, 0);
    attempt("interface down", interface_down, 0, 0, 0);
    attempt("so_debug", device_option, SO_DEBUG, 0, 0);
    attempt("so_mark", device_option, 36, 0, 0);
    attempt("so_rcvbufforce", device_option, 33, 0, 0);
    attempt("iptables", iptables, SOL_IP, 0, 0);
    attempt("ip6tables", iptables, 41, 0, 0);
}

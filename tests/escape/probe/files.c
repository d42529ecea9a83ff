// What can be written, what is open, whom one can talk to.
#include "probe.h"
#include <ftw.h>
#include <net/if.h>
#include <poll.h>

static long tried;

static int try_one(const char *path, const struct stat *stat, int kind, struct FTW *where) {
    char file[PATH_MAX];
    tried++;
    if (kind == FTW_D || kind == FTW_DNR) {
        snprintf(file, sizeof file, "%s/glass-attack", path);
        int fd = open(file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0) {
            printf("made %s\n", file);
            unlink(file);
            close(fd);
        }
        if (mkdir(file, 0700) == 0) {
            printf("made %s/\n", file);
            rmdir(file);
        }
        return 0;
    }
    if (kind != FTW_F) return 0;
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        printf("opened %s\n", path);
        close(fd);
    }
    return 0;
}

void writes(char **roots) {
    for (; *roots; roots++) nftw(*roots, try_one, 32, FTW_PHYS);
    printf("tried %ld\n", tried);
}

void facts(void) {
    char path[64], target[4096];
    for (int fd = 0; fd < 4096; fd++) {
        if (fcntl(fd, F_GETFD) < 0) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        printf("fd %d %s\n", fd, target);
    }
    struct if_nameindex *names = if_nameindex();
    for (struct if_nameindex *i = names; i && i->if_index; i++) printf("interface %s\n", i->if_name);
    DIR *dir = opendir("/proc");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (atoi(entry->d_name)) printf("process %s\n", entry->d_name);
    // Those that are there and not in the list.
    for (int pid = 1; pid < 65536; pid++) {
        snprintf(path, sizeof path, "/proc/%d", pid);
        if ((kill(pid, 0) == 0 || errno == EPERM) && access(path, F_OK)) printf("process %d hidden\n", pid);
    }
}

static long finish(int fd, const struct sockaddr *address, socklen_t length) {
    if (connect(fd, address, length) == 0) return 0;
    if (errno != EINPROGRESS) return -1;
    struct pollfd one = {fd, POLLOUT, 0};
    if (poll(&one, 1, 3000) != 1) {
        errno = ETIMEDOUT;
        return -1;
    }
    socklen_t size = sizeof errno;
    int error = 0;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error ? -1 : 0;
}

static long reach(long host, long port, long type) {
    struct sockaddr_in six4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int is4 = inet_pton(AF_INET, (const char *)host, &six4.sin_addr) == 1;
    if (!is4 && inet_pton(AF_INET6, (const char *)host, &six.sin6_addr) != 1) return CANNOT_AS("read the address");
    int fd = socket(is4 ? AF_INET : AF_INET6, type | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    long done = is4 ? finish(fd, (void *)&six4, sizeof six4) : finish(fd, (void *)&six, sizeof six);
    return done == 0 && type == SOCK_DGRAM ? send(fd, "x", 1, 0) : done;
}

static long reach_unix(long name, long b, long c) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *text = (const char *)name;
    strncpy(address.sun_path, text, sizeof address.sun_path - 1);
    if (*text == '@') address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return connect(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + strlen(text));
}

// `HOST PORT` pairs, and names of Unix sockets that begin with `@` or `/`.
void network(char **targets) {
    char name[256];
    while (*targets) {
        char *host = *targets++;
        if (*host == '@' || *host == '/') {
            snprintf(name, sizeof name, "unix %s", host);
            attempt(name, reach_unix, (long)host, 0, 0);
            continue;
        }
        char *port = *targets++;
        snprintf(name, sizeof name, "tcp %s %s", host, port);
        attempt(name, reach, (long)host, atol(port), SOCK_STREAM);
        snprintf(name, sizeof name, "udp %s %s", host, port);
        attempt(name, reach, (long)host, atol(port), SOCK_DGRAM);
    }
}

// New namespaces one by one, by every call that makes them, and the way into those of others.
#include "probe.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

static const struct {
    const char *name;
    const char *file;
    unsigned long flag;
} kinds[] = {
    {"user", "user", CLONE_NEWUSER},     {"mnt", "mnt", CLONE_NEWNS},  {"pid", "pid", CLONE_NEWPID},
    {"net", "net", CLONE_NEWNET},        {"ipc", "ipc", CLONE_NEWIPC}, {"uts", "uts", CLONE_NEWUTS},
    {"cgroup", "cgroup", CLONE_NEWCGROUP}, {"time", "time", CLONE_NEWTIME},
};

static long by_unshare(long flag, long b, long c) { return syscall(SYS_unshare, flag); }

// Arguments in the order of both machines that we know; all but the flags are nothing.
static long by_clone(long flag, long b, long c) {
    long pid = syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid;
}

static long by_clone3(long flag, long b, long c) {
    uint64_t arguments[11] = {flag, 0, 0, 0, SIGCHLD};
    long pid = syscall(NR_clone3, arguments, sizeof arguments);
    if (pid == 0) _exit(0);
    return pid;
}

static long enter(long file, long flag, long c) {
    // If it cannot even be opened, the call is made all the same: the filter answers before the kernel looks.
    int fd = open((const char *)file, O_RDONLY);
    return syscall(SYS_setns, fd, flag);
}

static long enter_by_pidfd(long pid, long flag, long c) {
    int fd = syscall(NR_pidfd_open, pid, 0);
    return syscall(SYS_setns, fd, flag);
}

static long look(long file, long b, long c) {
    char target[256];
    return readlink((const char *)file, target, sizeof target);
}

static long map_ids(long file, long b, long c) {
    int fd = open((const char *)file, O_WRONLY);
    if (fd < 0) return -1;
    return write(fd, "0 0 1", 5);
}

static long name_host(long a, long b, long c) { return syscall(SYS_sethostname, "evil", 4); }
static long name_domain(long a, long b, long c) { return syscall(SYS_setdomainname, "evil", 4); }

void namespaces(void) {
    char name[128], file[64];
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(name, sizeof name, "unshare %s", kinds[i].name);
        attempt(name, by_unshare, kinds[i].flag, 0, 0);
        // The bit of the time namespace lies where clone keeps the exit signal.
        if (kinds[i].flag != CLONE_NEWTIME) {
            snprintf(name, sizeof name, "clone %s", kinds[i].name);
            attempt(name, by_clone, kinds[i].flag, 0, 0);
            snprintf(name, sizeof name, "clone %s with high bits", kinds[i].name);
            attempt(name, by_clone, kinds[i].flag | 1ul << 40, 0, 0);
        }
        snprintf(name, sizeof name, "clone3 %s", kinds[i].name);
        attempt(name, by_clone3, kinds[i].flag, 0, 0);
        snprintf(file, sizeof file, "/proc/1/ns/%s", kinds[i].file);
        snprintf(name, sizeof name, "setns 1 %s", kinds[i].name);
        attempt(name, enter, (long)file, kinds[i].flag, 0);
        snprintf(name, sizeof name, "setns 1 %s by pidfd", kinds[i].name);
        attempt(name, enter_by_pidfd, 1, kinds[i].flag, 0);
        snprintf(name, sizeof name, "readlink 1 %s", kinds[i].name);
        attempt(name, look, (long)file, 0, 0);
        snprintf(file, sizeof file, "/proc/self/ns/%s", kinds[i].file);
        snprintf(name, sizeof name, "setns self %s", kinds[i].name);
        attempt(name, enter, (long)file, 0, 0);
    }
    attempt("clone all", by_clone,
            CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, 0, 0);
    attempt("clone3 plain", by_clone3, 0, 0, 0);
    attempt("unshare files", by_unshare, CLONE_FILES, 0, 0);
    attempt("write own uid_map", map_ids, (long)"/proc/self/uid_map", 0, 0);
    attempt("write own gid_map", map_ids, (long)"/proc/self/gid_map", 0, 0);
    attempt("sethostname", name_host, 0, 0, 0);
    attempt("setdomainname", name_domain, 0, 0, 0);
}

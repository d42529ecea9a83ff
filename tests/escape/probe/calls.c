// System calls that nobody in a box needs, and arguments that nobody in a box should get through with.
// All are made so that they do no harm should they get through after all.
#include "probe.h"
#include <sys/quota.h>

static long first_pidfd(void) { return syscall(NR_pidfd_open, 1, 0); }

static long attach(pid_t pid) {
    if (syscall(SYS_ptrace, 16, pid, 0, 0)) return -1;
    // It worked; let it go on again.
    waitpid(pid, NULL, __WALL);
    return syscall(SYS_ptrace, 17, pid, 0, 0);
}

// A terminal of our own, and the one that controls us: whatever is done to it concerns nobody else.
static int terminal(void) {
    setsid();
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master < 0 || unlockpt(master)) return -1;
    return open(ptsname(master), O_RDWR);
}

static long terminal_ioctl(unsigned long request, void *argument) {
    int fd = terminal();
    if (fd < 0) return CANNOT_AS("open a terminal");
    return syscall(SYS_ioctl, fd, request, argument);
}

static long device(mode_t kind, unsigned long number) {
    unlink("node");
    return syscall(SYS_mknodat, AT_FDCWD, "node", kind | 0600, number);
}

static int scratch(const char *name) {
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    if (fd >= 0) close(fd);
    return fd;
}

static long rename_with_whiteout(void) {
    if (scratch("white") < 0) return CANNOT_AS("create a file");
    return syscall(SYS_renameat2, AT_FDCWD, "white", AT_FDCWD, "white2", 4);
}

static long attribute(const char *name, const void *value, size_t size) {
    if (scratch("marked") < 0) return CANNOT_AS("create a file");
    return setxattr("marked", name, value, size, 0);
}

// An attribute that overlay takes for a deletion mark must not become one.
static long forge_whiteout(const char *name) {
    if (mkdir("forge", 0700) && errno != EEXIST) return CANNOT_AS("mkdir");
    if (scratch("forge/file") < 0) return CANNOT_AS("create a file");
    if (setxattr("forge/file", name, "y", 1, 0)) return -1;
    return access("forge/file", F_OK) ? -1 : CANNOT_AS("be felt: the file is still there");
}

static long read_first(int call) {
    char buffer[16];
    struct iovec here = {buffer, sizeof buffer}, there = {(void *)0x400000, sizeof buffer};
    return syscall(call, 1, &here, 1, &there, 1, 0);
}

static long read_self(int call) {
    char buffer[16], other[16] = {0};
    struct iovec here = {buffer, sizeof buffer}, there = {other, sizeof other};
    return syscall(call, getpid(), &here, 1, &there, 1, 0);
}

static long handle(int open_it) {
    // Inode 2 is the root of an ext4 file system: the shocker's way out.
    struct { unsigned bytes; int type; uint64_t inode; } root = {8, 1, 2};
    int mount_id, fd = open("/usr", O_RDONLY);
    if (open_it) return syscall(SYS_open_by_handle_at, fd, &root, O_RDONLY);
    root.bytes = 0;
    return syscall(SYS_name_to_handle_at, AT_FDCWD, "/", &root, &mount_id, 0);
}

static long make_map(void) {
    uint32_t attr[18] = {2, 4, 4, 1};
    return syscall(SYS_bpf, 0, attr, sizeof attr);
}

static long count_self(void) {
    // A software clock of ourselves, user mode only: what ordinary users get where anybody does.
    struct { uint32_t type, size; uint64_t config, period, sample, read, flags; char rest[80]; } attr = {1, 64, 0};
    attr.flags = 1 << 5 | 1 << 6;
    return syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

#define C(name, call) static long attack_##name(long a, long b, long c) { return (long)(call); }
#include "calls.def"
#undef C

void calls(void) {
#define C(name, call) attempt(#name, attack_##name, 0, 0, 0);
#include "calls.def"
#undef C
}

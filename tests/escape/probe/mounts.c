// Mounts by the old calls and the new, and other roots.
#include "probe.h"

static long old_mount(long type, long target, long flags) {
    return syscall(SYS_mount, "none", (const char *)target, (const char *)type, flags, "");
}

static long remount(long target, long b, long c) {
    return syscall(SYS_mount, "none", (const char *)target, NULL, MS_REMOUNT | MS_BIND, NULL);
}

static long bind_mount(long source, long target, long c) {
    return syscall(SYS_mount, (const char *)source, (const char *)target, NULL, MS_BIND | MS_REC, NULL);
}

static long unmount(long target, long flags, long c) {
    return syscall(SYS_umount2, (const char *)target, flags);
}

static long new_fsopen(long type, long b, long c) { return syscall(NR_fsopen, (const char *)type, 0); }
static long new_fspick(long path, long b, long c) { return syscall(NR_fspick, AT_FDCWD, (const char *)path, 0); }
static long new_fsconfig(long a, long b, long c) { return syscall(NR_fsconfig, -1, 6, NULL, NULL, 0); }
static long new_fsmount(long a, long b, long c) { return syscall(NR_fsmount, -1, 0, 0); }
static long new_open_tree(long path, long flags, long c) {
    return syscall(NR_open_tree, AT_FDCWD, (const char *)path, flags);
}
static long new_open_tree_attr(long path, long flags, long c) {
    return syscall(NR_open_tree_attr, AT_FDCWD, (const char *)path, flags, NULL, 0);
}
static long new_move_mount(long a, long b, long c) {
    return syscall(NR_move_mount, AT_FDCWD, "/proc", AT_FDCWD, "/mnt", 0);
}
static long new_mount_setattr(long path, long b, long c) {
    // Clear read-only.
    uint64_t attr[4] = {0, 1, 0, 0};
    return syscall(NR_mount_setattr, AT_FDCWD, (const char *)path, 0, attr, sizeof attr);
}
static long new_statmount(long a, long b, long c) {
    char buffer[4096];
    uint64_t request[4] = {32, 1, 1, 0};
    return syscall(NR_statmount, request, buffer, sizeof buffer, 0);
}
static long new_listmount(long a, long b, long c) {
    uint64_t request[4] = {32, UINT64_MAX, 0, 0}, list[64];
    return syscall(NR_listmount, request, list, 64, 0);
}

static long root_chroot(long path, long b, long c) { return syscall(SYS_chroot, (const char *)path); }
static long root_pivot(long a, long b, long c) { return syscall(SYS_pivot_root, ".", "."); }

// The classic way out of a chroot, if one could be made.
static long root_fchdir_out(long a, long b, long c) {
    int here = open("/", O_RDONLY | O_DIRECTORY);
    if (mkdir("out", 0700) && errno != EEXIST) return CANNOT_AS("mkdir");
    if (chroot("out")) return -1;
    if (fchdir(here)) return -1;
    for (int i = 0; i < 64; i++)
        if (chdir("..")) return -1;
    return chroot(".");
}

#define AT(path) (long)(path)

void mounts(void) {
    static const char *const types[] = {"tmpfs",  "proc",    "sysfs",    "devpts",  "mqueue",      "overlay", "cgroup",
                                        "cgroup2", "ramfs",  "devtmpfs", "debugfs", "binfmt_misc", "fuse",    "bpf",
                                        "ext4",    "securityfs", "tracefs", "nfs"};
    char name[128];
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        snprintf(name, sizeof name, "mount %s", types[i]);
        attempt(name, old_mount, AT(types[i]), AT("/mnt"), 0);
        snprintf(name, sizeof name, "fsopen %s", types[i]);
        attempt(name, new_fsopen, AT(types[i]), 0, 0);
    }
    attempt("mount bind / on /mnt", bind_mount, AT("/"), AT("/mnt"), 0);
    attempt("mount bind /proc/1/root", bind_mount, AT("/proc/1/root"), AT("/mnt"), 0);
    attempt("mount make / shared", old_mount, 0, AT("/"), MS_SHARED | MS_REC);
    attempt("mount move /proc", old_mount, 0, AT("/mnt"), MS_MOVE);
    static const char *const held[] = {"/", "/usr", "/proc", "/proc/sys", "/proc/keys", "/sys", "/dev", "/dev/null"};
    for (unsigned i = 0; i < sizeof held / sizeof *held; i++) {
        snprintf(name, sizeof name, "remount writable %s", held[i]);
        attempt(name, remount, AT(held[i]), 0, 0);
        snprintf(name, sizeof name, "mount_setattr writable %s", held[i]);
        attempt(name, new_mount_setattr, AT(held[i]), 0, 0);
        snprintf(name, sizeof name, "umount %s", held[i]);
        attempt(name, unmount, AT(held[i]), 0, 0);
        snprintf(name, sizeof name, "umount lazily %s", held[i]);
        attempt(name, unmount, AT(held[i]), MNT_DETACH, 0);
    }
    attempt("open_tree clone /", new_open_tree, AT("/"), 1, 0);
    attempt("open_tree without clone", new_open_tree, AT("/"), 0, 0);
    attempt("open_tree_attr clone /", new_open_tree_attr, AT("/"), 1, 0);
    attempt("fspick /", new_fspick, AT("/"), 0, 0);
    attempt("fsconfig", new_fsconfig, 0, 0, 0);
    attempt("fsmount", new_fsmount, 0, 0, 0);
    attempt("move_mount /proc", new_move_mount, 0, 0, 0);
    attempt("statmount", new_statmount, 0, 0, 0);
    attempt("listmount", new_listmount, 0, 0, 0);
    attempt("chroot /tmp", root_chroot, AT("/tmp"), 0, 0);
    attempt("chroot and fchdir out", root_fchdir_out, 0, 0, 0);
    attempt("pivot_root", root_pivot, 0, 0, 0);
}

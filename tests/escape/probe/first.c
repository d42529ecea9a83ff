// The box's first process: its memory, its files, its root, its life.
#include "probe.h"

static long reach(long path, long flags, long c) { return open((const char *)path, flags | O_NONBLOCK); }

static long list(long path, long b, long c) {
    DIR *dir = opendir((const char *)path);
    if (!dir) return -1;
    errno = 0;
    struct dirent *entry;
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.') return 0;
    return errno ? -1 : CANNOT_AS("see anything in it");
}

static long put(long path, long text, long c) {
    int fd = open((const char *)path, O_WRONLY);
    if (fd < 0) return -1;
    return write(fd, (const char *)text, strlen((const char *)text));
}

static long through(long path, long b, long c) {
    char target[4096];
    return readlink((const char *)path, target, sizeof target);
}

// CVE-2019-5736: the program of the runtime, again and again, until it is not in use for a moment.
static long overwrite(long path, long b, long c) {
    for (int i = 0; i < 20000; i++) {
        int fd = open((const char *)path, O_WRONLY);
        if (fd >= 0) return 0;
    }
    return -1;
}

// Maps that are nothing to read show no addresses.
static long addresses(long path, long b, long c) {
    char text[256];
    int fd = open((const char *)path, O_RDONLY);
    if (fd < 0) return -1;
    return read(fd, text, sizeof text) > 0 ? 0 : CANNOT_AS("read anything");
}

static long signal_it(long signal, long b, long c) { return kill(1, signal); }
static long signal_by_pidfd(long signal, long b, long c) {
    return syscall(NR_pidfd_send_signal, syscall(NR_pidfd_open, 1, 0), signal, NULL, 0);
}
static long queue(long signal, long b, long c) {
    siginfo_t info = {.si_signo = signal, .si_code = SI_TKILL};
    return syscall(SYS_rt_sigqueueinfo, 1, signal, &info);
}

void first_process(void) {
    static const char *const secret[] = {"mem",    "environ",   "maps",   "auxv",  "stack",      "syscall",   "io",
                                         "smaps",  "pagemap",   "root",   "cwd",   "exe",        "map_files", "fd",
                                         "fdinfo", "personality", "mountstats", "task/1/mem", "task/1/environ"};
    char name[128], path[128];
    for (unsigned i = 0; i < sizeof secret / sizeof *secret; i++) {
        snprintf(path, sizeof path, "/proc/1/%s", secret[i]);
        snprintf(name, sizeof name, "open %s", secret[i]);
        attempt(name, strstr(secret[i], "maps") ? addresses : reach, (long)path, O_RDONLY, 0);
    }
    attempt("open mem for writing", reach, (long)"/proc/1/mem", O_RDWR, 0);
    attempt("list root", list, (long)"/proc/1/root/", 0, 0);
    attempt("list cwd", list, (long)"/proc/1/cwd/", 0, 0);
    attempt("list fd", list, (long)"/proc/1/fd", 0, 0);
    attempt("list fdinfo", list, (long)"/proc/1/fdinfo", 0, 0);
    attempt("list map_files", list, (long)"/proc/1/map_files", 0, 0);
    attempt("open root by thread", reach, (long)"/proc/1/task/1/root/etc/passwd", O_RDONLY, 0);
    attempt("open fd 3", reach, (long)"/proc/1/fd/3", O_RDONLY, 0);
    attempt("readlink root", through, (long)"/proc/1/root", 0, 0);
    attempt("readlink exe", through, (long)"/proc/1/exe", 0, 0);
    attempt("readlink fd 0", through, (long)"/proc/1/fd/0", 0, 0);
    attempt("overwrite exe", overwrite, (long)"/proc/1/exe", 0, 0);
    attempt("write oom_score_adj", put, (long)"/proc/1/oom_score_adj", (long)"1000", 0);
    attempt("write oom_adj", put, (long)"/proc/1/oom_adj", (long)"15", 0);
    attempt("write comm", put, (long)"/proc/1/comm", (long)"evil", 0);
    attempt("write clear_refs", put, (long)"/proc/1/clear_refs", (long)"1", 0);
    attempt("write uid_map", put, (long)"/proc/1/uid_map", (long)"0 0 1", 0);
    attempt("write gid_map", put, (long)"/proc/1/gid_map", (long)"0 0 1", 0);
    attempt("write setgroups", put, (long)"/proc/1/setgroups", (long)"allow", 0);
    attempt("write timerslack_ns", put, (long)"/proc/1/timerslack_ns", (long)"999999999", 0);
    attempt("write coredump_filter", put, (long)"/proc/1/coredump_filter", (long)"ff", 0);
    attempt("write sched", put, (long)"/proc/1/sched", (long)"0", 0);
    attempt("write autogroup", put, (long)"/proc/1/autogroup", (long)"19", 0);
    attempt("write loginuid", put, (long)"/proc/1/loginuid", (long)"0", 0);
    attempt("write attr", put, (long)"/proc/1/attr/current", (long)"x", 0);
    // Whatever these answer, the box must still answer afterwards.
    static const int signals[] = {SIGKILL, SIGSTOP, SIGTERM, SIGINT, SIGHUP, SIGSEGV, SIGSYS, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        snprintf(name, sizeof name, "kill %s", sigabbrev_np(signals[i]));
        attempt(name, signal_it, signals[i], 0, 0);
        snprintf(name, sizeof name, "pidfd_send_signal %s", sigabbrev_np(signals[i]));
        attempt(name, signal_by_pidfd, signals[i], 0, 0);
        snprintf(name, sizeof name, "rt_sigqueueinfo %s", sigabbrev_np(signals[i]));
        attempt(name, queue, signals[i], 0, 0);
    }
}

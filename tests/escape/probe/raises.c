// Becoming more: identity, capabilities, priority, limits.
#include "probe.h"

static long raise_limit(long resource, long b, long c) {
    struct rlimit limit;
    getrlimit(resource, &limit);
    if (limit.rlim_max == RLIM_INFINITY) return CANNOT_AS("be raised: there is no limit");
    limit.rlim_cur = limit.rlim_max = limit.rlim_max + 1;
    return setrlimit(resource, &limit);
}

static long policy(long policy, long pid, long c) {
    struct sched_param parameter = {policy == SCHED_FIFO || policy == SCHED_RR ? 1 : 0};
    return syscall(SYS_sched_setscheduler, pid, policy, &parameter);
}

static long attr(long policy, long nice, long pid) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t run, deadline, period; }
    attr = {48, policy, 0, nice, policy == SCHED_FIFO, 1000000, 5000000, 10000000};
    return syscall(SYS_sched_setattr, pid, &attr, 0);
}

static long nicer(long nice, long b, long c) { return setpriority(PRIO_PROCESS, 0, nice); }
static long disk_class(long class, long b, long c) { return syscall(SYS_ioprio_set, 1, 0, class << 13); }

static long capabilities(long a, long b, long c) {
    uint32_t header[2] = {0x20080522, 0}, data[6] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
    return syscall(SYS_capset, header, data);
}
static long ambient(long capability, long b, long c) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0); }

// Any capability left in the bounding set counts as a success of the attack.
static long bounding(long a, long b, long c) {
    int any = 0;
    for (int n = 0; prctl(PR_CAPBSET_READ, n) >= 0; n++) any |= prctl(PR_CAPBSET_READ, n);
    errno = EPERM;
    return any ? 0 : -1;
}

static long user(long uid, long b, long c) { return setresuid(uid, uid, uid); }
static long group(long gid, long b, long c) { return setresgid(gid, gid, gid); }
static long groups(long gid, long b, long c) { return syscall(SYS_setgroups, 1, &(gid_t){gid}); }
static long give_away(long uid, long b, long c) {
    int fd = open("given", O_CREAT | O_RDWR, 0600);
    if (fd < 0) return CANNOT_AS("create a file");
    return fchown(fd, uid, uid);
}

static long put(long path, long text, long c) {
    int fd = open((const char *)path, O_WRONLY);
    if (fd < 0) return -1;
    return write(fd, (const char *)text, strlen((const char *)text));
}

void raises(void) {
    // Whoever of the box's two users we are not; the third is unmapped or nobody.
    long other = getuid() ? 0 : 1000;
    attempt("setresuid other", user, other, 0, 0);
    attempt("setresuid nobody", user, 65534, 0, 0);
    attempt("setresgid other", group, other, 0, 0);
    attempt("setgroups other", groups, other, 0, 0);
    attempt("chown other", give_away, other, 0, 0);
    attempt("capset all", capabilities, 0, 0, 0);
    attempt("ambient sys_admin", ambient, 21, 0, 0);
    attempt("ambient net_raw", ambient, 13, 0, 0);
    attempt("bounding set", bounding, 0, 0, 0);
    attempt("nice -20", nicer, -20, 0, 0);
    attempt("nice -1", nicer, -1, 0, 0);
    attempt("scheduler fifo", policy, SCHED_FIFO, 0, 0);
    attempt("scheduler rr", policy, SCHED_RR, 0, 0);
    attempt("scheduler fifo, reset on fork", policy, SCHED_FIFO | 0x40000000, 0, 0);
    attempt("scheduler deadline", policy, 6, 0, 0);
    attempt("scheduler ext", policy, 7, 0, 0);
    attempt("scheduler fifo of nobody", policy, SCHED_FIFO, -1, 0);
    attempt("sched_setattr of nobody", attr, SCHED_OTHER, 0, -1);
    attempt("sched_setattr fifo", attr, SCHED_FIFO, 0, 0);
    attempt("sched_setattr deadline", attr, 6, 0, 0);
    attempt("sched_setattr nice -20", attr, SCHED_OTHER, -20, 0);
    attempt("ioprio real time", disk_class, 1, 0, 0);
    attempt("rlimit nofile", raise_limit, RLIMIT_NOFILE, 0, 0);
    attempt("rlimit core", raise_limit, RLIMIT_CORE, 0, 0);
    attempt("rlimit memlock", raise_limit, RLIMIT_MEMLOCK, 0, 0);
    attempt("rlimit rtprio", raise_limit, RLIMIT_RTPRIO, 0, 0);
    attempt("rlimit nice", raise_limit, RLIMIT_NICE, 0, 0);
    attempt("rlimit msgqueue", raise_limit, RLIMIT_MSGQUEUE, 0, 0);
    attempt("oom_score_adj -1000", put, (long)"/proc/self/oom_score_adj", (long)"-1000", 0);
    attempt("oom_score_adj 0", put, (long)"/proc/self/oom_score_adj", (long)"0", 0);
    attempt("oom_adj -17", put, (long)"/proc/self/oom_adj", (long)"-17", 0);
}

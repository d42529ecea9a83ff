// Runs a group of attacks. With `bare` before the group: in fresh namespaces but without any wall of ours, as root
// there, to learn what the kernel alone would have said.
#include "probe.h"

const char *cannot_why = "";
// Without our walls an attack may really change its mounts: each gets its own.
static int is_bare;

void attempt(const char *name, attack run, long a, long b, long c) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        printf("%s: cannot fork\n", name);
        return;
    }
    if (pid == 0) {
        alarm(20);
        if (is_bare && unshare(CLONE_NEWNS)) _exit(3);
        errno = 0;
        long result = run(a, b, c);
        char line[512];
        int n;
        if (result == CANNOT)
            n = snprintf(line, sizeof line, "%s: cannot %s\n", name, cannot_why);
        else if (result < 0)
            n = snprintf(line, sizeof line, "%s: %s\n", name, strerrorname_np(errno) ?: "E?");
        else
            n = snprintf(line, sizeof line, "%s: ok\n", name);
        _exit(write(1, line, n) == n ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s: SIG%s\n", name, sigabbrev_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        printf("%s: cannot report\n", name);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) {
        fprintf(stderr, "cannot write %s: %m\n", path);
        _exit(3);
    }
    close(fd);
}

// Everything that an ordinary user gets from the kernel for the asking.
static void go_bare(void) {
    char map[64];
    uid_t uid = getuid();
    gid_t gid = getgid();
    int all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    if (unshare(all)) {
        fprintf(stderr, "cannot unshare: %m\n");
        exit(3);
    }
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", uid);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", gid);
    put("/proc/self/gid_map", map);
    pid_t pid = fork();
    if (pid) {
        int status = 0;
        waitpid(pid, &status, 0);
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
    }
    // The first process stays; attacks on it are made by its child.
    pid = fork();
    if (pid) {
        waitpid(pid, NULL, 0);
        _exit(0);
    }
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/proc", "proc", 0, NULL)) {
        fprintf(stderr, "cannot mount: %m\n");
        exit(3);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    argv++;
    if (argc > 2 && !strcmp(*argv, "bare")) {
        go_bare();
        is_bare = 1;
        argv++;
    }
    const char *group = *argv ? *argv++ : "";
    if (!strcmp(group, "mounts")) mounts();
    else if (!strcmp(group, "namespaces")) namespaces();
    else if (!strcmp(group, "calls")) calls();
    else if (!strcmp(group, "foreign")) foreign();
    else if (!strcmp(group, "sockets")) sockets();
    else if (!strcmp(group, "first-process")) first_process();
    else if (!strcmp(group, "writes")) writes(argv);
    else if (!strcmp(group, "raises")) raises();
    else if (!strcmp(group, "network")) network(argv);
    else if (!strcmp(group, "facts")) facts();
    else if (!strcmp(group, "exhaust")) return exhaust(argv);
    else if (!strcmp(group, "act")) return act(argv);
    else return 2;
    return 0;
}

// Single acts that tests put together.
#include "probe.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static int fail(const char *what) {
    printf("%s: %s\n", what, strerrorname_np(errno) ?: "E?");
    return 1;
}

// Flips a directory and a link to somewhere else, for ever.
static int swap(const char *dir, const char *link) {
    for (;;)
        if (syscall(SYS_renameat2, AT_FDCWD, dir, AT_FDCWD, link, 2 /* RENAME_EXCHANGE */)) return fail("swap");
}

static int listen_at(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    if (*name == '@') address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + strlen(name))) return fail("bind");
    if (listen(fd, 8)) return fail("listen");
    puts("listening");
    fflush(stdout);
    for (;;) accept(fd, NULL, NULL);
}

static int make_segment(void) {
    int id = shmget(0x61747461, 4096, IPC_CREAT | 0666);
    if (id < 0) return fail("shmget");
    printf("%d\n", id);
    return 0;
}

static int find_segment(int id) {
    int key = shmget(0x61747461, 4096, 0);
    if (key >= 0) return puts("found by key"), 1;
    if (shmat(id, NULL, SHM_RDONLY) != (void *)-1) return puts("attached by number"), 1;
    struct shmid_ds all;
    for (int i = 0; i < 32768; i++)
        if (shmctl(i, SHM_STAT, &all) >= 0) return puts("found by counting"), 1;
    return puts("nothing"), 0;
}

// Leaves the session, the group and the parent, and writes its number.
static int daemonize(const char *mark) {
    if (fork()) return 0;
    setsid();
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (fork()) return 0;
    prctl(PR_SET_NAME, mark);
    for (;;) pause();
}

static int node(const char *kind, const char *path) {
    unlink(path);
    if (!strcmp(kind, "fifo")) return mkfifo(path, 0666) ? fail("mkfifo") : 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return bind(fd, (void *)&address, sizeof address) ? fail("bind") : 0;
}

// Runs a program and says whose rights it got: the program is this one again.
static int whoami(void) {
    char status[8192] = {0};
    int fd = open("/proc/self/status", O_RDONLY);
    if (fd < 0 || read(fd, status, sizeof status - 1) < 0) return fail("status");
    char *effective = strstr(status, "CapEff:"), *permitted = strstr(status, "CapPrm:");
    printf("%u %u %u %u %.16s %.16s\n", getuid(), geteuid(), getgid(), getegid(), permitted + 8, effective + 8);
    return 0;
}

static int kill_all(void) {
    // Everything that we may signal, but for ourselves.
    kill(-1, SIGKILL);
    puts("killed");
    return 0;
}

// Tries to write into the program of a process that was started from the guest's own.
static int poison(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    for (int i = 0; i < 1000; i++) {
        int fd = open(path, O_WRONLY);
        if (fd >= 0) return write(fd, "x", 1) == 1 ? (puts("written"), 1) : fail("write");
    }
    return fail("open");
}

static int type(void) {
    printf("TIOCSTI: %s\n", ioctl(0, TIOCSTI, "x") ? strerrorname_np(errno) : "ok");
    return 0;
}

// A call by the 32-bit gate, made by the main process itself.
static int foreign_call(void) {
#ifdef __x86_64__
    long result = 20;
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    printf("%ld\n", result);
#endif
    return 0;
}

int act(char **words) {
    const char *what = *words++;
    if (!what) return 2;
    if (!strcmp(what, "swap")) return swap(words[0], words[1]);
    if (!strcmp(what, "listen")) return listen_at(words[0]);
    if (!strcmp(what, "shm-make")) return make_segment();
    if (!strcmp(what, "shm-find")) return find_segment(atoi(words[0]));
    if (!strcmp(what, "shm-remove")) return shmctl(atoi(words[0]), IPC_RMID, NULL) ? fail("shmctl") : 0;
    if (!strcmp(what, "daemonize")) return daemonize(words[0]);
    if (!strcmp(what, "node")) return node(words[0], words[1]);
    if (!strcmp(what, "whoami")) return whoami();
    if (!strcmp(what, "type")) return type();
    if (!strcmp(what, "foreign")) return foreign_call();
    if (!strcmp(what, "kill-all")) return kill_all();
    if (!strcmp(what, "poison")) return poison(atoi(words[0]));
    return 2;
}

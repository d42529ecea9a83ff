// Taking all there is of something. Prints `COUNT ERRNO` when no more was to be had; what was taken is given back at
// the end of the process, or held until stdin ends if the last word is `hold`.
#include "probe.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <time.h>

static int told(long count) {
    int why = errno;
    printf("%ld %s\n", count, strerrorname_np(why) ?: "0");
    fflush(stdout);
    return 0;
}

static void hold(void) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static long forks(void) {
    long count = 0;
    for (;; count++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (;;) pause();
        }
        if (pid < 0) break;
    }
    // Takes all of them back, so that the next one finds room.
    int why = errno;
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(NULL) > 0) {}
    errno = why;
    return count;
}

static _Noreturn void *sleeper(void *nothing) {
    for (;;) pause();
}

static long threads(void) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (long count = 0;; count++) {
        pthread_t thread;
        errno = pthread_create(&thread, &small, sleeper, NULL);
        if (errno) return count;
    }
}

// Takes so many MiB and touches them.
static int take(long mib) {
    char *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return -1;
    for (long at = 0; at < mib << 20; at += 4096) memory[at] = 1;
    return 0;
}

static long processes(long count, long mib) {
    long failed = 0;
    for (long i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0) return i;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (take(mib)) _exit(9);
            for (;;) pause();
        }
    }
    int status;
    while (waitpid(-1, &status, 0) > 0 && ++failed < count / 2) {}
    return failed;
}

static long file(const char *path) {
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    long total = 0;
    for (ssize_t n; (n = write(fd, block, sizeof block)) > 0;) total += n;
    return total;
}

static long inodes(const char *dir) {
    char path[256];
    for (long count = 0;; count++) {
        snprintf(path, sizeof path, "%s/%ld", dir, count);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        if (fd < 0) return count;
        close(fd);
    }
}

static long descriptors(void) {
    for (long count = 0;; count++)
        if (open("/dev/null", O_RDONLY) < 0) return count;
}

static long watches(void) {
    for (long count = 0;; count++)
        if (inotify_init() < 0) return count;
}

static long terminals(void) {
    for (long count = 0;; count++)
        if (open("/dev/ptmx", O_RDWR | O_NOCTTY) < 0) return count;
}

static long segments(void) {
    for (long count = 0;; count++) {
        int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
        void *at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
        if (at == (void *)-1) return count;
        memset(at, 1, 1 << 20);
        shmdt(at);
    }
}

static long semaphores(void) {
    for (long count = 0;; count++)
        if (semget(IPC_PRIVATE, 100, IPC_CREAT | 0600) < 0) return count;
}

static long queues(void) {
    for (long count = 0;; count++)
        if (msgget(IPC_PRIVATE, IPC_CREAT | 0600) < 0) return count;
}

static long posix_queues(void) {
    char name[32];
    for (long count = 0;; count++) {
        snprintf(name, sizeof name, "/q%ld", count);
        if (mq_open(name, O_CREAT | O_RDWR, 0600, NULL) < 0) return count;
    }
}

// Signals that wait, for a process that does not take them.
static long signals(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (long count = 0;; count++)
        if (sigqueue(getpid(), SIGRTMIN, (union sigval){0})) return count;
}

static long timers(void) {
    for (long count = 0;; count++) {
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
        if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return count;
    }
}

static long listeners(void) {
    for (long count = 0;; count++)
        if (socket(AF_INET, SOCK_STREAM, 0) < 0) return count;
}

int exhaust(char **words) {
    const char *what = *words++;
    const char *first = *words, *second = first ? words[1] : NULL;
    if (!what) return 2;
    if (!strcmp(what, "bomb"))
        for (;;) fork();
    else if (!strcmp(what, "forks")) told(forks());
    else if (!strcmp(what, "threads")) told(threads());
    else if (!strcmp(what, "memory")) told(take(atol(first)));
    else if (!strcmp(what, "processes")) told(processes(atol(first), atol(second)));
    else if (!strcmp(what, "file")) told(file(first));
    else if (!strcmp(what, "inodes")) told(inodes(first));
    else if (!strcmp(what, "descriptors")) told(descriptors());
    else if (!strcmp(what, "inotify")) told(watches());
    else if (!strcmp(what, "terminals")) told(terminals());
    else if (!strcmp(what, "segments")) told(segments());
    else if (!strcmp(what, "semaphores")) told(semaphores());
    else if (!strcmp(what, "queues")) told(queues());
    else if (!strcmp(what, "posix-queues")) told(posix_queues());
    else if (!strcmp(what, "signals")) told(signals());
    else if (!strcmp(what, "timers")) told(timers());
    else if (!strcmp(what, "sockets")) told(listeners());
    else return 2;
    for (; *words; words++)
        if (!strcmp(*words, "hold")) hold();
    return 0;
}

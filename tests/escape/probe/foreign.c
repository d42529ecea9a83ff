// System calls of other ABIs. Their numbers mean other calls, so a filter that lets them through is none.
#include "probe.h"

#ifdef __x86_64__

// The 32-bit gate, open to 64-bit programs too.
static long gate32(long number, long first, long second) {
    long result = number;
    __asm__ volatile("int $0x80" : "+a"(result) : "b"(first), "c"(second), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    if (result < 0 && result > -4096) {
        errno = -result;
        return -1;
    }
    return result;
}

static long x32(long number, long b, long c) { return syscall(0x40000000 | number, b, c); }

// A whole 32-bit program: exit(42) in 12 bytes of code behind its headers.
static long program32(long a, long b, long c) {
    static const unsigned char image[] = {
        0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 1, 0, 0, 0,
        0x54, 0x80, 4, 8, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 4, 8, 0, 0x80, 4, 8, 0x60, 0, 0, 0, 0x60, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0,
        0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80,
    };
    unlink("program32");
    int fd = open("program32", O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
    if (fd < 0 || write(fd, image, sizeof image) != sizeof image) return CANNOT_AS("write the program");
    close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        execl("program32", "program32", NULL);
        _exit(errno == ENOEXEC ? 100 : 101);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    if (WEXITSTATUS(status) == 42) return 0;
    return CANNOT_AS(WEXITSTATUS(status) == 100 ? "be executed: the kernel takes no 32-bit programs" : "be executed");
}

void foreign(void) {
    attempt("int80 getpid", gate32, 20, 0, 0);
    attempt("int80 write", gate32, 4, -1, 0);
    attempt("int80 mount", gate32, 21, 0, 0);
    attempt("int80 unshare user", gate32, 310, CLONE_NEWUSER, 0);
    attempt("int80 socketcall", gate32, 102, 1, 0);
    attempt("int80 ptrace", gate32, 26, 0, 0);
    attempt("int80 nothing", gate32, 1000, 0, 0);
    attempt("x32 getpid", x32, 39, 0, 0);
    attempt("x32 ptrace", x32, 521, 0, 0);
    attempt("x32 mount", x32, 165, 0, 0);
    attempt("x32 unshare user", x32, 272, CLONE_NEWUSER, 0);
    attempt("x32 nothing", x32, 1000, 0, 0);
    attempt("i386 program", program32, 0, 0, 0);
}

#else

void foreign(void) {}

#endif

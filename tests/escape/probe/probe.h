// The attacker's program. It runs inside a box and reports, line by line, what the kernel answered: `name: ok`,
// `name: EPERM`, or how it died. What the answers should be is written down in the tests, not here.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

// Numbers that older headers lack. From 424 on all machines agree.
enum {
    NR_pidfd_send_signal = 424, NR_io_uring_setup = 425, NR_io_uring_enter = 426, NR_io_uring_register = 427,
    NR_open_tree = 428, NR_move_mount = 429, NR_fsopen = 430, NR_fsconfig = 431, NR_fsmount = 432, NR_fspick = 433,
    NR_pidfd_open = 434, NR_clone3 = 435, NR_pidfd_getfd = 438, NR_process_madvise = 440, NR_mount_setattr = 442,
    NR_quotactl_fd = 443, NR_memfd_secret = 447, NR_process_mrelease = 448, NR_statmount = 457, NR_listmount = 458,
    NR_open_tree_attr = 467,
};

typedef long (*attack)(long a, long b, long c);

// Makes an attack in a child of its own and prints how it went.
void attempt(const char *name, attack run, long a, long b, long c);

// An attack that did not come to its point returns this; the reason is printed as `name: cannot WHY`.
#define CANNOT (-1000)
extern const char *cannot_why;
#define CANNOT_AS(why) (cannot_why = (why), (long)CANNOT)

// The groups of attacks.
void mounts(void);
void namespaces(void);
void calls(void);
void foreign(void);
void sockets(void);
void first_process(void);
void writes(char **roots);
void raises(void);
void network(char **targets);
void facts(void);
int exhaust(char **words);
int act(char **words);

/* The one program of images that have nothing else. It does what tests ask of a shell elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

int main(int argc, char **argv) {
  const char *act = argc > 1 ? argv[1] : "";
  if (!strcmp(act, "say") && argc > 2) {
    const char *value = getenv(argv[2]);
    puts(value ? value : "none");
    return 0;
  }
  if (!strcmp(act, "exit") && argc > 2) return atoi(argv[2]);
  if (!strcmp(act, "copy")) {
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0) fwrite(piece, 1, n, stdout);
    return 0;
  }
  if (!strcmp(act, "mark") && argc > 2) {
    if (!setxattr(argv[2], "user.mark", "1", 1, 0)) return 0;
    perror(argv[2]);
    return 1;
  }
  if (!strcmp(act, "wait")) {
    for (;;) pause();
  }
  fputs("say NAME, exit CODE, copy, mark FILE or wait\n", stderr);
  return 64;
}

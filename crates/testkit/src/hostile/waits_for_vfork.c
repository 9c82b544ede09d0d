/* A parent that waits in the kernel for its vfork child, which neither executes nor exits: both ignore SIGTERM.
 * usage: waits_for_vfork MARK */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    (void)words;
    if (count < 2) return 2;
    signal(SIGTERM, SIG_IGN);
    puts("hostile waits");
    fflush(stdout);
    if (vfork() == 0) {
        for (int i = 0; i < 60; i++) sleep(10);
        _exit(0);
    }
    return 0;
}

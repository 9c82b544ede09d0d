/* A process with as many threads as it can start, up to 2000, that ignores SIGTERM.
 * usage: many_threads MARK */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void *idle(void *nothing) {
    for (;;) pause();
    return nothing;
}

int main(int count, char **words) {
    (void)words;
    if (count < 2) return 2;
    signal(SIGTERM, SIG_IGN);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_t thread;
    for (int i = 0; i < 2000 && pthread_create(&thread, &small, idle, 0) == 0; i++) {}
    puts("hostile threads");
    fflush(stdout);
    for (int i = 0; i < 60; i++) sleep(10);
    return 0;
}

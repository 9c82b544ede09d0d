/* The first thread exits while a second one continues: the process looks dead (state Z) but lives. It joins the group of
 * the process GROUP, if permitted.
 * usage: zombie_leader GROUP MARK */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *stay(void *nothing) {
    (void)nothing;
    for (int i = 0; i < 60; i++) sleep(10);
    _exit(0);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    if (fork() > 0) {
        for (int i = 0; i < 60; i++) sleep(10);
        return 0;
    }
    if (setpgid(0, atoi(words[1])) != 0) perror("setpgid");
    pthread_t thread;
    if (pthread_create(&thread, NULL, stay, NULL) != 0) return 3;
    /* A child process prints the line, because the first thread of this one has exited by then. */
    if (fork() == 0) {
        char path[64], state = 'R';
        snprintf(path, sizeof path, "/proc/%d/stat", getppid());
        for (int i = 0; i < 5000 && state != 'Z'; i++) {
            FILE *stat = fopen(path, "r");
            if (stat == NULL || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = '?';
            if (stat != NULL) fclose(stat);
            usleep(1000);
        }
        printf("hostile %c\n", state);
        return 0;
    }
    syscall(SYS_exit, 0);
    return 0;
}

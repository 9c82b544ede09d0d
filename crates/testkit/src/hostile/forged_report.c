/* Takes the socket of a warden and continues in its own session. Once the file GO exists, reports to the daemon that
 * everything has ended, and kills the warden.
 * usage: forged_report WARDEN MARK GO */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    static const char report[] =
        "{\"ended\":{\"code\":0,\"signal\":null,\"how\":\"exited\",\"told\":true,\"swept\":0,\"leftovers\":[]}}\n";
    if (count < 4) return 2;
    pid_t warden = atoi(words[1]);
    int process = (int)syscall(SYS_pidfd_open, warden, 0);
    int socket = (int)syscall(SYS_pidfd_getfd, process, 0, 0);
    if (fork() > 0) {
        for (int i = 0; i < 60; i++) sleep(10);
        return 0;
    }
    setsid();
    if (socket < 0) {
        printf("hostile refused\n");
    } else {
        printf("hostile taken\n");
    }
    fflush(stdout);
    while (access(words[3], F_OK) != 0) usleep(1000);
    if (socket >= 0 && write(socket, report, strlen(report)) > 0) kill(warden, SIGKILL);
    for (int i = 0; i < 60; i++) sleep(10);
    return 0;
}

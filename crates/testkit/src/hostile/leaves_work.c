/* A program with work in the kernel: an io_uring that a kernel thread polls, with reads that never end.
 * usage: leaves_work MARK */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    (void)words;
    if (count < 2) return 2;
    signal(SIGTERM, SIG_IGN);
    struct io_uring_params with;
    memset(&with, 0, sizeof with);
    with.flags = IORING_SETUP_SQPOLL;
    with.sq_thread_idle = 600000;
    int ring = syscall(SYS_io_uring_setup, 8, &with), ends[2];
    if (ring < 0 || pipe(ends) != 0) {
        puts("hostile refused");
        fflush(stdout);
        for (int i = 0; i < 60; i++) sleep(10);
        return 0;
    }
    char *queue = mmap(0, with.sq_off.array + with.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, with.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    static char read_into[64];
    for (unsigned i = 0; i < 8; i++) {
        memset(&entries[i], 0, sizeof *entries);
        entries[i].opcode = IORING_OP_READ;
        entries[i].flags = IOSQE_ASYNC;
        entries[i].fd = ends[0];
        entries[i].addr = (unsigned long)read_into;
        entries[i].len = 1;
        ((unsigned *)(queue + with.sq_off.array))[i] = i;
    }
    __atomic_store_n((unsigned *)(queue + with.sq_off.tail), 8, __ATOMIC_RELEASE);
    syscall(SYS_io_uring_enter, ring, 8, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
    /* The ring outlives this process in a child that shares it. */
    if (fork() == 0) setsid();
    puts("hostile leaves work");
    fflush(stdout);
    for (int i = 0; i < 60; i++) sleep(10);
    return 0;
}

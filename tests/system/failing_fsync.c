/* Preloaded into a broker: every fsync and fdatasync fails with EIO while the file that FAIL_FSYNC_WHEN names is there,
   as on a disk that could not keep what it was given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int is_told_to_fail(void) {
    const char *path = getenv("FAIL_FSYNC_WHEN");
    return path != NULL && access(path, F_OK) == 0;
}

static int sync_or_fail(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (is_told_to_fail()) {
        errno = EIO;
        return -1;
    }
    return real(file);
}

int fsync(int file) { return sync_or_fail("fsync", file); }
int fdatasync(int file) { return sync_or_fail("fdatasync", file); }

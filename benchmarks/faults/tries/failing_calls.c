/* Makes the n-th call of one kind, on paths with one prefix, fail: preloaded into a process, told by faults_arm.

   Built by system_calls.py. A call is counted where its path, or that of its descriptor, begins with the prefix. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, RENAME, MKDIR, UNLINK, ALLOCATE, OPENDIR };

static volatile int armed = 0, wanted = -1, failure = 0, persistent = 0;
static volatile long calls[OPENDIR + 1], nth = -1;
static char prefix[PATH_MAX];

/* failure: an errno, or 0 for a call that does half of what it is asked */
void faults_arm(int call, long n, int how, int forever, const char *where) {
    strncpy(prefix, where, sizeof prefix - 1);
    wanted = call; nth = n; failure = how; persistent = forever; armed = 1;
    memset((void *)calls, 0, sizeof calls);
}

long faults_count(int call) { return calls[call]; }

static int hit(int call, const char *path) {
    if (!armed || !path || strncmp(path, prefix, strlen(prefix))) return 0;
    long now = __sync_add_and_fetch(&calls[call], 1);
    return call == wanted && nth > 0 && (now == nth || (persistent && now > nth));
}

static int hit_fd(int call, int fd) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (size < 0) return 0;
    path[size] = 0;
    return hit(call, path);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__) = 0; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL(check) if (check) { errno = failure ? failure : EIO; return -1; }

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        REAL(int, name, const char *, int, ...); FAIL(hit(OPEN, path)); return real(path, flags, mode); }
OPENS(open)
OPENS(open64)

#define OPENATS(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        REAL(int, name, int, const char *, int, ...); FAIL(hit(OPEN, path)); return real(at, path, flags, mode); }
OPENATS(openat)
OPENATS(openat64)

ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, read, int, void *, size_t);
    if (hit_fd(READ, fd)) { if (failure) { errno = failure; return -1; } size = size > 1 ? size / 2 : size; }
    return real(fd, data, size);
}

#define PREADS(name, offset) \
    ssize_t name(int fd, void *data, size_t size, offset at) { \
        REAL(ssize_t, name, int, void *, size_t, offset); \
        if (hit_fd(READ, fd)) { if (failure) { errno = failure; return -1; } size = size > 1 ? size / 2 : size; } \
        return real(fd, data, size, at); }
PREADS(pread, off_t)
PREADS(pread64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (hit_fd(WRITE, fd)) { if (failure) { errno = failure; return -1; } size = size > 1 ? size / 2 : size; }
    return real(fd, data, size);
}

#define PWRITES(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset at) { \
        REAL(ssize_t, name, int, const void *, size_t, offset); \
        if (hit_fd(WRITE, fd)) { if (failure) { errno = failure; return -1; } size = size > 1 ? size / 2 : size; } \
        return real(fd, data, size, at); }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

int fsync(int fd) { REAL(int, fsync, int); FAIL(hit_fd(FSYNC, fd)); return real(fd); }
int fdatasync(int fd) { REAL(int, fdatasync, int); FAIL(hit_fd(FSYNC, fd)); return real(fd); }
int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *); FAIL(hit(RENAME, from)); return real(from, to); }
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t); FAIL(hit(MKDIR, path)); return real(path, mode); }
int unlink(const char *path) { REAL(int, unlink, const char *); FAIL(hit(UNLINK, path)); return real(path); }

#define ALLOCATES(name, offset) \
    int name(int fd, offset from, offset size) { \
        REAL(int, name, int, offset, offset); if (hit_fd(ALLOCATE, fd)) return failure ? failure : EIO; \
        return real(fd, from, size); }
ALLOCATES(posix_fallocate, off_t)
ALLOCATES(posix_fallocate64, off64_t)

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    if (hit(OPENDIR, path)) { errno = failure ? failure : EIO; return 0; }
    return real(path);
}

# ---- what the binding needs beside the headers (_headers.pxi, which mfsd/_build/extern.py writes) --------------------

cdef extern from "string.h" nogil:
    size_t strnlen(const char *text, size_t size)

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "errno.h":
    int EAGAIN, EALREADY, EBUSY, EINVAL, ENODEV, ENOTCONN, ETIMEDOUT

cdef extern from * nogil:
    """
    #include <mfs/abi.h>
    #include <mfs/outlook.h>
    #include <time.h>
    static uint64_t mfs_native_now_ns(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    static uint8_t mfs_dscp(const struct mfs_segment *s, unsigned i)
    {
        return atomic_load_explicit(&s->header.dscp[i], memory_order_relaxed);
    }
    static uint8_t mfs_apart(const struct mfs_segment *s)
    {
        return atomic_load_explicit(&s->header.apart, memory_order_relaxed);
    }
    static uint32_t mfs_load_u32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); }
    static uint64_t mfs_load_u64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED); }
    static const uint64_t mfs_outlook_unknown = MFS_OUTLOOK_UNKNOWN;
    """
    uint64_t mfs_native_now_ns()
    uint32_t mfs_load_u32(const void *p)
    uint64_t mfs_load_u64(const void *p)
    const uint64_t mfs_outlook_unknown
    uint8_t mfs_dscp(const mfs_segment *segment, unsigned wire_class)
    uint8_t mfs_apart(const mfs_segment *segment)

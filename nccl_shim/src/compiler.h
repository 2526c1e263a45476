/* Hints to the compiler for the data path. */
#ifndef MFS_SHIM_COMPILER_H
#define MFS_SHIM_COMPILER_H

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define always_inline inline __attribute__((always_inline))
#define never_inline __attribute__((noinline))

#endif

/* For a loop that waits for another thread's store: lets the other hardware thread of the core run. */
#ifndef MFS_BASE_PAUSE_H
#define MFS_BASE_PAUSE_H

static inline void mfs_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif

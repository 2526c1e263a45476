#include "rate.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLOCK_MAGIC 0x31656b6f6c63664dULL
#define NS_PER_S 1000000000ULL

enum {
	TURN_NS = 100 * 1000,  /* aim for a turn of this length ... */
	TURN_BYTES_MIN = 4096, /* ... within these bounds */
	TURN_BYTES_MAX = 64 * 1024,
	IDLE_CREDIT_NS = 100 * 1000,       /* how far a turn may begin in the past after the link was idle */
	LATE_CREDIT_NS = 50 * 1000 * 1000, /* the same for a sender that was waiting */
};

/* The file's layout. The launcher writes magic and rate. All words are independent, so relaxed order is
 * enough. */
struct mfs_rate_page {
	uint64_t magic;
	_Atomic uint64_t rate_bytes_per_s;
	_Atomic uint64_t taken_until_ns;
	uint64_t reserved[5];
};
static_assert(sizeof(struct mfs_rate_page) == 64, "clock file");

int mfs_rate_open(struct mfs_rate *rate, const char *device_path)
{
	char path[512];
	struct stat status;
	struct mfs_rate_page *page;
	int fd;

	rate->page = NULL;
	snprintf(path, sizeof(path), "%s/mfs_clock", device_path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &status) || status.st_size < (off_t)sizeof(*page)) {
		close(fd);
		return -EINVAL;
	}
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		return -errno;
	if (page->magic != CLOCK_MAGIC) {
		munmap(page, sizeof(*page));
		return -EINVAL;
	}
	rate->page = page;
	return 0;
}

void mfs_rate_close(struct mfs_rate *rate)
{
	if (rate->page)
		munmap(rate->page, sizeof(*rate->page));
	rate->page = NULL;
}

static uint64_t bytes_per_s(const struct mfs_rate *rate)
{
	return rate->page ? atomic_load_explicit(&rate->page->rate_bytes_per_s, memory_order_relaxed) : 0;
}

uint32_t mfs_rate_turn_bytes(const struct mfs_rate *rate)
{
	uint64_t speed = bytes_per_s(rate);
	uint64_t bytes = speed / (NS_PER_S / TURN_NS);

	if (!speed)
		return 0;
	return bytes < TURN_BYTES_MIN   ? TURN_BYTES_MIN
	       : bytes > TURN_BYTES_MAX ? TURN_BYTES_MAX
					: (uint32_t)bytes;
}

uint64_t mfs_rate_reserve(const struct mfs_rate *rate, uint32_t bytes, uint64_t now_ns,
			  uint64_t waiting_since_ns)
{
	uint64_t speed = bytes_per_s(rate);
	uint64_t oldest = now_ns - IDLE_CREDIT_NS;
	uint64_t taken, begin;

	if (!speed)
		return now_ns;
	if (waiting_since_ns < oldest)
		oldest = waiting_since_ns < now_ns - LATE_CREDIT_NS ? now_ns - LATE_CREDIT_NS
								    : waiting_since_ns;
	taken = atomic_load_explicit(&rate->page->taken_until_ns, memory_order_relaxed);
	do {
		begin = taken < oldest ? oldest : taken;
	} while (!atomic_compare_exchange_weak_explicit(&rate->page->taken_until_ns, &taken,
							begin + bytes * NS_PER_S / speed,
							memory_order_relaxed, memory_order_relaxed));
	return begin;
}

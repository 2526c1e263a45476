#include "counters.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_NS (MFS_COUNTERS_SHOWN_MS * 1000000ULL)

enum { WORD_BYTES = 4, PARTS = 3, PART_DIGITS = 8, DIGITS = PARTS * PART_DIGITS - 1 };

/* The file's layout. The launcher creates it filled with zeros. All words are independent sums, so relaxed
 * order is enough. */
struct mfs_counters_page {
	_Atomic uint64_t bytes[MFS_COUNTER_DIRECTIONS][MFS_PRIORITIES];
	_Atomic uint64_t shown_ns;
	uint64_t reserved[7];
};
static_assert(sizeof(struct mfs_counters_page) == 192, "file of counters");

/* A number with leading zeros and a newline, stored eight characters at a time. A reader can see half of a
 * change only while the number passes 10^7 or 10^15, and then its next reading is right. */
struct mfs_counter_text {
	_Atomic uint64_t part[PARTS];
};
static_assert(sizeof(struct mfs_counter_text) == DIGITS + 1, "text of a counter");

static void *map(const char *device_path, const char *name, size_t size)
{
	char path[512];
	struct stat status;
	void *page;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", device_path, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &status) || status.st_size < (off_t)size) {
		close(fd);
		errno = EINVAL;
		return NULL;
	}
	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return page == MAP_FAILED ? NULL : page;
}

static int map_texts(struct mfs_counters *counters, const char *device_path)
{
	static const char *const words[] = {"ports/1/counters/port_xmit_data",
					    "ports/1/counters/port_rcv_data"};
	static const char *const priority[] = {"tx", "rx"};
	char name[64];

	for (unsigned d = 0; d < MFS_COUNTER_DIRECTIONS; d++) {
		counters->words[d] = map(device_path, words[d], sizeof(struct mfs_counter_text));
		if (!counters->words[d])
			return -errno;
		for (unsigned p = 0; p < MFS_PRIORITIES; p++) {
			snprintf(name, sizeof(name), "ports/1/hw_counters/%s_prio%u_bytes", priority[d], p);
			counters->priority[d][p] = map(device_path, name, sizeof(struct mfs_counter_text));
			if (!counters->priority[d][p])
				return -errno;
		}
	}
	return 0;
}

int mfs_counters_open(struct mfs_counters *counters, const char *device_path)
{
	int ret;

	memset(counters, 0, sizeof(*counters));
	counters->page = map(device_path, "mfs_counters", sizeof(*counters->page));
	if (!counters->page)
		return errno == ENOENT ? 0 : -errno;
	ret = map_texts(counters, device_path);
	if (ret)
		mfs_counters_close(counters);
	return ret;
}

static void unmap(void *page, size_t size)
{
	if (page)
		munmap(page, size);
}

static void text_write(struct mfs_counter_text *text, uint64_t value)
{
	char digits[DIGITS + 1];
	uint64_t part;

	digits[DIGITS] = '\n';
	for (unsigned at = DIGITS; at-- > 0; value /= 10)
		digits[at] = (char)('0' + value % 10);
	for (unsigned at = 0; at < PARTS; at++) {
		memcpy(&part, digits + at * PART_DIGITS, sizeof(part));
		atomic_store_explicit(&text->part[at], part, memory_order_relaxed);
	}
}

static void write_all(struct mfs_counters *counters)
{
	for (unsigned d = 0; d < MFS_COUNTER_DIRECTIONS; d++) {
		uint64_t sum = 0;

		for (unsigned p = 0; p < MFS_PRIORITIES; p++) {
			uint64_t bytes =
				atomic_load_explicit(&counters->page->bytes[d][p], memory_order_relaxed);

			text_write(counters->priority[d][p], bytes);
			sum += bytes;
		}
		text_write(counters->words[d], sum / WORD_BYTES);
	}
}

void mfs_counters_close(struct mfs_counters *counters)
{
	if (counters->page && atomic_load_explicit(&counters->pending, memory_order_relaxed))
		write_all(counters);
	for (unsigned d = 0; d < MFS_COUNTER_DIRECTIONS; d++) {
		unmap(counters->words[d], sizeof(struct mfs_counter_text));
		for (unsigned p = 0; p < MFS_PRIORITIES; p++)
			unmap(counters->priority[d][p], sizeof(struct mfs_counter_text));
	}
	unmap(counters->page, sizeof(*counters->page));
	memset(counters, 0, sizeof(*counters));
}

void mfs_counters_add(struct mfs_counters *counters, enum mfs_counter direction, uint8_t traffic_class,
		      uint64_t bytes)
{
	if (!counters->page)
		return;
	atomic_fetch_add_explicit(&counters->page->bytes[direction][traffic_class >> 5], bytes,
				  memory_order_relaxed);
	atomic_store_explicit(&counters->pending, true, memory_order_relaxed);
}

void mfs_counters_show(struct mfs_counters *counters, uint64_t now_ns)
{
	uint64_t shown;

	if (!atomic_load_explicit(&counters->pending, memory_order_relaxed))
		return;
	shown = atomic_load_explicit(&counters->page->shown_ns, memory_order_relaxed);
	if (now_ns - shown < SHOWN_NS ||
	    !atomic_compare_exchange_strong_explicit(&counters->page->shown_ns, &shown, now_ns,
						     memory_order_relaxed, memory_order_relaxed))
		return;
	/* cleared before writing: what is counted meanwhile is then pending again */
	atomic_store_explicit(&counters->pending, false, memory_order_relaxed);
	write_all(counters);
}

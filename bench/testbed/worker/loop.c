/* The event loop: descriptors and one timer. */
#include "worker.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { WATCHED_MAX = 8 };

static struct {
	int fd;
	void (*ready)(void);
} watched[WATCHED_MAX];
static unsigned watched_count;
static int epoll_fd, timer_fd;
static void (*timer_due)(void);

void loop_watch(int fd, void (*ready)(void))
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = watched_count };

	if (watched_count == WATCHED_MAX || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
		fail("cannot watch descriptor %d: %s", fd, strerror(errno));
	watched[watched_count].fd = fd;
	watched[watched_count++].ready = ready;
}

void loop_timer_set(uint64_t due_ns)
{
	const struct itimerspec when = {
		.it_value = { .tv_sec = (time_t)(due_ns / 1000000000u), .tv_nsec = (long)(due_ns % 1000000000u) },
	};
	timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void timer_ready(void)
{
	uint64_t times;

	if (read(timer_fd, &times, sizeof(times)) == sizeof(times))
		timer_due();
}

void loop_open(void (*due)(void))
{
	timer_due = due;
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	loop_watch(timer_fd, timer_ready);
}

void loop_turn(int wait_ms)
{
	struct epoll_event event[WATCHED_MAX];
	const int n = epoll_wait(epoll_fd, event, WATCHED_MAX, wait_ms);

	for (int i = 0; i < n; i++)
		watched[event[i].data.u32].ready();
}

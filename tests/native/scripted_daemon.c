#define _GNU_SOURCE
#include "scripted_daemon.h"

#include <mfs/nic_tables.h>
#include <mfs/ring.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WAITING_MAX 65536

struct daemon {
	struct daemon_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	_Atomic int stop, paused;
	int listener, peer;
	struct mfs_segment *segment;
	struct mfs_submit_reader reader;
	uint64_t grant_tail;
	struct mfs_message waiting[WAITING_MAX];
	unsigned waiting_head, waiting_tail;
	unsigned to_grant, answers_due;
	struct daemon_counts counts;
	char nic[sizeof(((struct mfs_hello *)0)->nic_name)];
};

static struct daemon *latest;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort();
}

/* Checks a send. Returns false if the client is gone: one that has waited too long leaves, and comes
 * again. */
static bool answered(ssize_t sent, size_t bytes, const char *what)
{
	check(sent == (ssize_t)bytes || errno == EPIPE || errno == ECONNRESET, what);
	return sent == (ssize_t)bytes;
}

static void write_rules(struct mfs_segment *s, const struct mfs_rule *rules, int n)
{
	atomic_fetch_add(&s->rules.version, 1);
	memcpy(s->rules.rule, rules, (size_t)n * sizeof(*rules));
	atomic_store(&s->rules.count, (uint32_t)n);
	atomic_fetch_add(&s->rules.version, 1);
}

static uint16_t minor_of(const struct daemon *d)
{
	return (uint16_t)(MFS_ABI_MINOR - d->options.older);
}

/* Returns the size of the segment in the daemon's version. Before minor 1 it ended where the requests are
 * now, before minor 4 where the lanes of counters are. */
static size_t segment_bytes(const struct daemon *d)
{
	return minor_of(d) >= 6	 ? sizeof(struct mfs_segment)
	       : minor_of(d) >= 4 ? offsetof(struct mfs_segment, nic_tables)
	       : minor_of(d) ? offsetof(struct mfs_segment, posted_shard)
			     : offsetof(struct mfs_segment, request);
}

static void welcome(struct daemon *d, int fd, int memfd, int doorbell, int error)
{
	struct mfs_welcome w = {.magic = MFS_ABI_MAGIC,
				.major = d->options.major ? d->options.major : MFS_ABI_MAJOR,
				.minor = minor_of(d),
				.error = error,
				.segment_bytes = segment_bytes(d),
				.client_id = 1};
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec vector = {&w, sizeof(w)};
	struct msghdr m = {.msg_iov = &vector, .msg_iovlen = 1};
	int descriptors[2] = {memfd, doorbell};

	if (memfd >= 0) {
		m.msg_control = control;
		m.msg_controllen = sizeof(control);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(descriptors));
		memcpy(CMSG_DATA(c), descriptors, sizeof(descriptors));
	}
	answered(sendmsg(fd, &m, MSG_NOSIGNAL), sizeof(w), "welcome");
}

static void gates_write(const struct daemon *d, struct mfs_segment *s)
{
	for (uint32_t i = 0; i < (minor_of(d) < MFS_NICS_MINOR ? MFS_NICS_FIRST : MFS_NICS_MAX); i++)
		atomic_store(&mfs_gate_of(s, i)->word, d->options.gate);
}

static void give_segment(struct daemon *d, int fd)
{
	int memfd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct mfs_segment *s;

	check(memfd >= 0 && ftruncate(memfd, (off_t)segment_bytes(d)) == 0, "memfd");
	check(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
	s = mmap(NULL, segment_bytes(d), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	check(s != MAP_FAILED, "mmap");
	s->header.magic = MFS_ABI_MAGIC;
	s->header.major = MFS_ABI_MAJOR;
	s->header.minor = minor_of(d);
	s->header.header_bytes = sizeof(s->header);
	s->header.segment_bytes = segment_bytes(d);
	s->header.epoch = now_ns();
	s->header.stale_after_ns = d->options.stale_after_ns ? d->options.stale_after_ns : 1000000000000ull;
	s->header.max_hold_ns = d->options.max_hold_ns ? d->options.max_hold_ns : 3600000000000ull;
	atomic_store(&s->header.heartbeat_ns, now_ns());
	atomic_store(&s->header.state, MFS_SEGMENT_ACTIVE);
	atomic_store(&s->header.mode, d->options.mode);
	mfs_nic_of(s, (uint32_t)d->options.nic)->rate_bytes_per_s = d->options.rate_bytes_per_s;
	write_rules(s, d->options.rules, d->options.rules_count);
	for (int i = 0; i < MFS_CLASSES_MAX; i++)
		atomic_store(&s->header.dscp[i], d->options.dscp[i]);
	gates_write(d, s);
	d->segment = s; /* an earlier one stays mapped: its client may still read it */
	d->reader = (struct mfs_submit_reader){0};
	d->grant_tail = 0;
	d->waiting_head = d->waiting_tail = 0;
	d->counts.attached++;
	welcome(d, fd, memfd, doorbell, 0);
	close(memfd);
	close(doorbell);
}

/* Answers a question for a NIC's index. Every question gets its answer, in order. */
static void answer_nic(struct daemon *d)
{
	struct mfs_nic_reply reply = {
		.magic = MFS_ABI_MAGIC, .nic = (uint32_t)d->options.nic, .error = d->options.nic_error};

	d->answers_due++;
	if (d->options.nics_unanswered) {
		d->options.nics_unanswered--;
		return;
	}
	for (; d->answers_due; d->answers_due--)
		if (answered(send(d->peer, &reply, sizeof(reply), MSG_NOSIGNAL), sizeof(reply), "nic reply"))
			d->counts.named++;
}

static void serve_socket(struct daemon *d)
{
	struct pollfd fds[2] = {{.fd = d->listener, .events = POLLIN}, {.fd = d->peer, .events = POLLIN}};
	struct mfs_hello hello;

	if (poll(fds, d->peer >= 0 ? 2 : 1, 0) <= 0)
		return;
	if (d->peer >= 0 && fds[1].revents) {
		if (recv(d->peer, &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello)) {
			close(d->peer);
			d->peer = -1;
		} else if (hello.kind == MFS_HELLO_NIC) {
			memcpy(d->nic, hello.nic_name, sizeof(d->nic));
			answer_nic(d);
		} else if (d->options.welcome_error) {
			welcome(d, d->peer, -1, -1, d->options.welcome_error);
		} else if (hello.minor > minor_of(d)) {
			welcome(d, d->peer, -1, -1, -EPROTO);
			close(d->peer);
			d->peer = -1;
		} else {
			give_segment(d, d->peer);
		}
	}
	if (fds[0].revents) {
		int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0) {
			if (d->peer >= 0)
				close(d->peer);
			d->peer = fd;
		}
	}
}

static void push_grant(struct daemon *d, uint64_t task)
{
	struct mfs_segment *s = d->segment;
	struct mfs_grant grant = {.task = task, .class_epoch = s->header.epoch << 32};

	check(mfs_spmc_push(&s->grant, s->grant_slot, MFS_GRANT_SLOTS, &d->grant_tail, &grant, 1) == 1, "grant ring");
	d->counts.granted++;
	atomic_fetch_add(&s->header.grant_word, 1);
	if (atomic_load(&s->header.grant_waiters))
		syscall(SYS_futex, &s->header.grant_word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void serve_segment(struct daemon *d)
{
	struct mfs_segment *s = d->segment;
	struct mfs_message messages[64];
	int n;

	atomic_store(&s->header.heartbeat_ns, now_ns());
	while ((n = mfs_submit_pop(&d->reader, s->submit, s->submit_slot[0], MFS_SUBMIT_SLOTS, messages, 64, now_ns(),
				 1000000000)) > 0)
		for (int i = 0; i < n; i++) {
			switch (messages[i].kind) {
			case MFS_MESSAGE_SUBMIT:
				d->counts.submitted++;
				d->counts.submitted_bytes += messages[i].bytes;
				d->waiting[d->waiting_tail++ % WAITING_MAX] = messages[i];
				break;
			case MFS_MESSAGE_COMPLETE:
				d->counts.completed++;
				break;
			case MFS_MESSAGE_CANCEL:
				d->counts.cancelled++;
				d->counts.bypassed += messages[i].flags & MFS_TASK_BYPASSED ? 1 : 0;
				break;
			case MFS_MESSAGE_REQUEST:
				d->counts.requests++;
				break;
			}
		}
	while ((d->to_grant || d->options.grant_all) && d->waiting_head != d->waiting_tail) {
		const struct mfs_message *next = &d->waiting[d->waiting_head++ % WAITING_MAX];

		if (next->flags & MFS_TASK_TAKEN) /* it went on credit */
			continue;
		d->to_grant -= d->to_grant ? 1 : 0;
		push_grant(d, next->task);
	}
}

static void *run(void *argument)
{
	struct daemon *d = argument;

	while (!atomic_load(&d->stop)) {
		if (!atomic_load(&d->paused)) {
			pthread_mutex_lock(&d->lock);
			serve_socket(d);
			if (d->segment)
				serve_segment(d);
			pthread_mutex_unlock(&d->lock);
		}
		usleep(100); /* pause between turns, like an arbiter that no longer spins; tests wait for what a turn does */
	}
	return NULL;
}

/* A forked child has the daemon's counts but not its thread. So the thread must not hold the lock during
 * fork. */
static struct daemon *forked;

static void fork_begins(void)
{
	forked = latest;
	if (forked)
		pthread_mutex_lock(&forked->lock);
}

static void fork_ended(void)
{
	if (forked)
		pthread_mutex_unlock(&forked->lock);
}

static void watch_forks(void)
{
	pthread_atfork(fork_begins, fork_ended, fork_ended);
}

struct daemon *daemon_start(const struct daemon_options *options)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct daemon *d = calloc(1, sizeof(*d));

	pthread_once(&once, watch_forks);
	d->options = *options;
	d->peer = -1;
	pthread_mutex_init(&d->lock, NULL);
	d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strncpy(address.sun_path, options->path, sizeof(address.sun_path) - 1);
	unlink(options->path);
	check(bind(d->listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(d->listener, 8) == 0,
	      options->path);
	check(pthread_create(&d->thread, NULL, run, d) == 0, "thread");
	latest = options->major || options->welcome_error ? NULL : d;
	return d;
}

bool daemon_has_named(void)
{
	return !latest || daemon_counts(latest).named;
}

void daemon_kill(struct daemon *d)
{
	if (latest == d)
		latest = NULL;
	atomic_store(&d->stop, 1);
	pthread_join(d->thread, NULL);
	close(d->listener);
	if (d->peer >= 0)
		close(d->peer);
	unlink(d->options.path);
}

void daemon_pause(struct daemon *d, bool yes)
{
	pthread_mutex_lock(&d->lock); /* not in the middle of a step */
	atomic_store(&d->paused, yes);
	pthread_mutex_unlock(&d->lock);
}

#define LOCKED(...)                                                                                                    \
	do {                                                                                                           \
		pthread_mutex_lock(&d->lock);                                                                          \
		__VA_ARGS__;                                                                                           \
		pthread_mutex_unlock(&d->lock);                                                                        \
	} while (0)

void daemon_grant(struct daemon *d, unsigned n)
{
	LOCKED(d->to_grant += n);
}

void daemon_grant_last(struct daemon *d)
{
	LOCKED(push_grant(d, d->waiting[--d->waiting_tail % WAITING_MAX].task));
}

void daemon_grant_all(struct daemon *d, bool yes)
{
	LOCKED(d->options.grant_all = yes);
}

void daemon_gate(struct daemon *d, uint32_t gate)
{
	LOCKED(d->options.gate = gate; if (d->segment) gates_write(d, d->segment));
}

void daemon_mode(struct daemon *d, enum mfs_mode mode)
{
	LOCKED(atomic_store(&d->segment->header.mode, mode));
}

void daemon_rules(struct daemon *d, const struct mfs_rule *rules, int n)
{
	LOCKED(write_rules(d->segment, rules, n));
}

struct daemon_counts daemon_counts(struct daemon *d)
{
	struct daemon_counts counts;

	LOCKED(counts = d->counts);
	return counts;
}

struct mfs_message daemon_submitted(struct daemon *d, unsigned i)
{
	struct mfs_message message;

	LOCKED(message = d->waiting[i % WAITING_MAX]);
	return message;
}

bool daemon_was_asked_for(struct daemon *d, const char *nic)
{
	bool same;

	LOCKED(same = !strncmp(d->nic, nic, sizeof(d->nic)));
	return same;
}

struct mfs_segment *daemon_segment(struct daemon *d)
{
	struct mfs_segment *segment;

	LOCKED(segment = d->segment);
	return segment;
}

/* Attaching: the handshake with the daemon, the checks on what it hands over, and everything else that
 * uses its socket. */
#define _GNU_SOURCE
#include "state.h"

#include "../base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_PATH_DEFAULT "/run/mfs/mfsd.sock"
#define TIMEOUT_MS_DEFAULT 200
#define FEW_CORES 4 /* the same number as in the arbiter */
#define RULES_TRIES 100
#define DESCRIPTORS_MAX 3 /* in a welcome: segment, doorbell, outlook page */
#define DESCRIPTOR_KEPT_FIRST 512

static const char no_descriptor[] =
	"this program has no free descriptor for its session: raise its limit of open files";

static _Atomic uint64_t clients_made;

static int fail(const char **why, const char *line, int rc)
{
	if (why)
		*why = line;
	return rc;
}

/* Sets both timeouts of the socket to the time left until deadline_ns. -ETIMEDOUT when none is left. */
static int socket_bound(int fd, uint64_t deadline_ns)
{
	uint64_t now = mfs_clock_ns();

	if (now >= deadline_ns)
		return -ETIMEDOUT;

	uint64_t left_us = (deadline_ns - now) / 1000 + 1;
	struct timeval t = {.tv_sec = (time_t)(left_us / 1000000),
			    .tv_usec = (suseconds_t)(left_us % 1000000)};

	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)))
		return -errno;
	return 0;
}

static int timeout_error(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINPROGRESS ? -ETIMEDOUT : -error;
}

/* Moves a descriptor that stays open out of the program's way, to a high number. It then does not take the
 * place of a standard descriptor that the program has closed and opens again later. And when the program
 * has closed all descriptors that it does not know, its own files are not soon given this number. */
static int descriptor_keep(int fd)
{
	int kept = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR_KEPT_FIRST);

	if (kept < 0) /* the limit of open files is lower */
		kept = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (kept < 0)
		return fd;
	close(fd);
	return kept;
}

/* True if the process has no descriptor left: the kernel had no place for those that came with a packet. */
static bool descriptors_used_up(int fd)
{
	int spare = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (spare < 0)
		return true;
	close(spare);
	return false;
}

/* True while the session's descriptors are still its own. A program may have closed them, as daemons close
 * all descriptors that they find; the numbers may then belong to the program's own files. Only the socket
 * is checked, and it stands for the doorbell too: one eventfd cannot be told from another. */
static bool descriptors_own(const struct mfs_client *client)
{
	struct stat status;

	return fstat(client->socket, &status) == 0 && status.st_dev == client->socket_device &&
	       status.st_ino == client->socket_inode;
}

static int socket_connect(const char *path, uint64_t deadline_ns)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = strlen(path);
	int fd, rc;

	if (length == 0 || length >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, length);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	do {
		rc = socket_bound(fd, deadline_ns);
		if (rc == 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			rc = timeout_error(errno);
	} while (rc == -EINTR);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

static int socket_send(int fd, const struct mfs_hello *hello, uint64_t deadline_ns)
{
	int rc;

	do {
		rc = socket_bound(fd, deadline_ns);
		if (rc == 0 && send(fd, hello, sizeof(*hello), MSG_NOSIGNAL) < 0)
			rc = timeout_error(errno);
	} while (rc == -EINTR);
	return rc;
}

/* Receives one packet of exactly `answer_bytes`, with up to DESCRIPTORS_MAX descriptors (-1 where there is none). */
static int socket_receive(int fd, void *answer, size_t answer_bytes, int descriptors[DESCRIPTORS_MAX],
			  uint64_t deadline_ns)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
	struct iovec vector = {.iov_base = answer, .iov_len = answer_bytes};
	struct msghdr message = {.msg_iov = &vector,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	unsigned n = 0;
	ssize_t got;
	int rc;

	for (unsigned i = 0; i < DESCRIPTORS_MAX; i++)
		descriptors[i] = -1;
	do {
		rc = socket_bound(fd, deadline_ns);
		if (rc < 0)
			return rc;
		got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return timeout_error(errno);

	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int received;

			memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n < DESCRIPTORS_MAX)
				descriptors[n++] = received;
			else
				close(received);
		}
	}
	if (got == 0)
		return -ECONNRESET;
	return (size_t)got == answer_bytes && !(message.msg_flags & MSG_TRUNC) ? 0 : -EPROTO;
}

static void descriptors_close(const int descriptors[DESCRIPTORS_MAX])
{
	for (unsigned i = 0; i < DESCRIPTORS_MAX; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
}

/* Size of the part of the segment that a daemon of this minor version has and this code knows. */
static size_t segment_known_bytes(uint32_t minor)
{
	return minor < MINOR_REQUESTS           ? offsetof(struct mfs_segment, request)
	       : minor < MFS_USAGE_SHARDS_MINOR ? offsetof(struct mfs_segment, posted_shard)
	       : minor < MFS_NICS_MINOR         ? offsetof(struct mfs_segment, nic_tables)
						: sizeof(struct mfs_segment);
}

/* Maps the segment, after checking that it cannot shrink while it is mapped and that both sides mean the
 * same layout. What the segment of an older daemon lacks at its end is replaced by private memory, so no
 * other code has to ask. */
static int segment_map(int memfd, struct mfs_client *client, const char **why)
{
	struct stat status;
	int seals = fcntl(memfd, F_GET_SEALS);
	struct mfs_segment_header header;
	size_t bytes;
	void *memory;

	if (fstat(memfd, &status) || status.st_size < (off_t)sizeof(header) ||
	    pread(memfd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return fail(
			why,
			"the daemon's segment has another size: restart mfsd and this program with one version",
			-EPROTO);
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return fail(why, "the daemon's segment is not sealed", -EPROTO);
	bytes = segment_known_bytes(header.minor);
	if (header.magic != MFS_ABI_MAGIC || header.major != MFS_ABI_MAJOR ||
	    header.header_bytes != sizeof(header) || header.segment_bytes < bytes ||
	    status.st_size < (off_t)bytes)
		return fail(
			why,
			"the daemon speaks another ABI version: restart mfsd and this program with one version",
			-EPROTO);
	memory = mmap(NULL, sizeof(struct mfs_segment), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	if (memory != MAP_FAILED &&
	    mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd, 0) == MAP_FAILED) {
		munmap(memory, sizeof(struct mfs_segment));
		memory = MAP_FAILED;
	}
	if (memory == MAP_FAILED)
		return fail(why, "the daemon's segment cannot be mapped", -errno);
	client->segment = memory;
	client->minor = header.minor < MFS_ABI_MINOR ? header.minor : MFS_ABI_MINOR;
	return 0;
}

/* Maps the outlook page. A page that cannot be used counts as absent: no program fails because of it. The
 * page of an older daemon is shorter; zeros are mapped behind it. */
static void outlook_map(int memfd, struct mfs_client *client)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	const struct mfs_outlook *page;
	struct stat status;
	size_t bytes;

	if (memfd < 0 || fstat(memfd, &status) || status.st_size < MFS_OUTLOOK_BYTES_FIRST ||
	    (fcntl(memfd, F_GET_SEALS) & wanted) != wanted)
		return;
	bytes = (size_t)status.st_size < sizeof(*page) ? (size_t)status.st_size : sizeof(*page);
	page = mmap(NULL, sizeof(*page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return;
	if (mmap((void *)page, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, memfd, 0) != MAP_FAILED &&
	    page->magic == MFS_OUTLOOK_MAGIC && page->bytes >= MFS_OUTLOOK_BYTES_FIRST)
		client->outlook = page;
	else
		munmap((void *)page, sizeof(*page));
}

static void process_name(char *name, size_t size, const char *wanted)
{
	strncpy(name, wanted ? wanted : program_invocation_short_name, size - 1);
}

/* `minor` is the version to ask for. It is set to the daemon's version if the daemon refuses a higher one. */
static int handshake(const struct mfs_client_options *options, struct mfs_client *client,
		     uint64_t deadline_ns, uint16_t *minor, const char **why)
{
	struct mfs_hello hello = {.magic = MFS_ABI_MAGIC,
				  .major = MFS_ABI_MAJOR,
				  .minor = *minor,
				  .kind = MFS_HELLO_ATTACH,
				  .pid = (uint32_t)getpid(),
				  .mode = options->mode};
	struct mfs_welcome welcome = {0};
	int descriptors[DESCRIPTORS_MAX] = {-1, -1, -1};
	int rc;

	process_name(hello.process, sizeof(hello.process), options->process);
	rc = socket_send(client->socket, &hello, deadline_ns);
	if (rc == 0)
		rc = socket_receive(client->socket, &welcome, sizeof(welcome), descriptors, deadline_ns);
	if (rc < 0)
		fail(why,
		     rc == -EPROTO
			     ? "the daemon speaks another protocol: restart mfsd and this program with one version"
		     : rc == -ETIMEDOUT ? "the daemon does not answer in time"
					: "the daemon closed the connection",
		     rc);
	else if (welcome.magic != MFS_ABI_MAGIC || welcome.major != MFS_ABI_MAJOR)
		rc = fail(
			why,
			"the daemon speaks another ABI version: restart mfsd and this program with one version",
			-EPROTO);
	else if (welcome.error != 0)
		rc = fail(why,
			  welcome.error == -EACCES   ? "the daemon refused this user"
			  : welcome.error == -EUSERS ? "the daemon has too many clients"
			  : welcome.error == -ENOSPC ? "the daemon has no memory for another segment"
			  : welcome.error == -EPROTO
				  ? "the daemon serves another ABI version: install one version of mfsd"
				  : "the daemon refused",
			  welcome.error < 0 && welcome.error > -4096 ? welcome.error : -EPROTO);
	else if (descriptors[1] < 0)
		rc = descriptors_used_up(client->socket)
			     ? fail(why, no_descriptor, -EMFILE)
			     : fail(why, "the daemon's welcome lacks its descriptors", -EPROTO);
	else
		rc = segment_map(descriptors[0], client, why);
	if (rc == -EPROTO && welcome.error == -EPROTO && welcome.major == MFS_ABI_MAJOR &&
	    welcome.minor < *minor)
		*minor = welcome.minor;

	if (rc == 0) {
		client->doorbell = descriptor_keep(descriptors[1]);
		descriptors[1] = -1;
		outlook_map(descriptors[2], client);
	}
	descriptors_close(descriptors);
	return rc;
}

/* Connects and shakes hands. A daemon before minor 4 refuses a client of a higher minor version and closes
 * the connection; the client then connects again and asks for the daemon's version. */
static int connect_and_shake_hands(const struct mfs_client_options *options, const char *path,
				   struct mfs_client *client, uint64_t deadline_ns, const char **why)
{
	uint16_t minor = MFS_ABI_MINOR, asked;
	struct stat status;
	int rc;

	do {
		asked = minor;
		rc = socket_connect(path, deadline_ns);
		if (rc < 0)
			return fail(why,
				    rc == -ETIMEDOUT ? "the daemon does not accept connections in time"
				    : rc == -EACCES  ? "this user may not open the daemon's socket"
				    : rc == -EMFILE  ? no_descriptor
				    : rc == -ENAMETOOLONG
					    ? "the daemon's socket path is too long: at most 107 bytes"
					    : "no daemon listens on its socket: start mfsd or set MFS_SOCKET",
				    rc);
		client->socket = descriptor_keep(rc);
		rc = handshake(options, client, deadline_ns, &minor, why);
		if (rc < 0)
			close(client->socket);
	} while (rc < 0 && minor < asked);
	if (rc == 0 && fstat(client->socket, &status) == 0) {
		client->socket_device = status.st_dev;
		client->socket_inode = status.st_ino;
	}
	return rc;
}

static int attach(const struct mfs_client_options *options, struct mfs_client **result, const char **why)
{
	unsigned timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS_DEFAULT;
	uint64_t deadline_ns = mfs_clock_ns() + timeout_ms * MFS_NS_PER_MS;
	const char *path = options->socket_path;
	struct mfs_client *client;
	int rc;

	if (getauxval(AT_SECURE))
		return fail(why, "a set-user-ID program does not attach", -EPERM);
	if (!path)
		path = getenv("MFS_SOCKET");
	if (!path || !*path)
		path = SOCKET_PATH_DEFAULT;
	/* mmap, so that mfs_client_forget needs no allocator */
	client = mmap(NULL, sizeof(*client), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (client == MAP_FAILED)
		return fail(why, "no memory for the task table", -ENOMEM);

	client->timeout_ms = timeout_ms;
	rc = connect_and_shake_hands(options, path, client, deadline_ns, why);
	if (rc < 0) {
		munmap(client, sizeof(*client));
		return rc;
	}

	client->stale_after_ns = client->segment->header.stale_after_ns;
	/* The clock makes serials unique across the copies of this file in one process: an engine's
	 * binding may use the shim's client. */
	client->serial = mfs_clock_ns() << 8 |
			 (1 + atomic_fetch_add_explicit(&clients_made, 1, memory_order_relaxed) % 255);
	client->epoch = (uint32_t)client->segment->header.epoch;
	client->few_cores = sysconf(_SC_NPROCESSORS_ONLN) <= FEW_CORES;
	for (uint32_t i = 0; i < MFS_TASKS_MAX; i++) {
		bool last = i + 1 == MFS_TASKS_MAX || task_ring(i + 1) != task_ring(i);

		atomic_init(&client->task[i].next_free, last ? 0 : i + 2);
	}
	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		atomic_init(&client->ring[ring].free_head, ring * (MFS_TASKS_MAX / MFS_SUBMIT_RINGS) + 1);
	*result = client;
	return 0;
}

/* A thread that is cancelled on the way would leave its caller's locks taken and its descriptors open. */
static int cancellation_defer(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static void cancellation_allow(int before)
{
	pthread_setcancelstate(before, NULL);
}

int mfs_client_attach(const struct mfs_client_options *options, struct mfs_client **result, const char **why)
{
	int before = cancellation_defer();
	int rc = attach(options, result, why);

	cancellation_allow(before);
	return rc;
}

void mfs_client_forget(struct mfs_client *client)
{
	munmap(client->segment, sizeof(struct mfs_segment));
	if (client->outlook)
		munmap((void *)client->outlook, sizeof(*client->outlook));
	if (descriptors_own(client)) {
		close(client->socket);
		close(client->doorbell);
	}
	munmap(client, sizeof(*client));
}

void mfs_client_detach(struct mfs_client *client)
{
	mfs_client_forget(client); /* the daemon sees the closed socket */
}

static int nic_ask(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
{
	uint64_t deadline_ns = mfs_clock_ns() + client->timeout_ms * MFS_NS_PER_MS;
	struct mfs_hello hello = {.magic = MFS_ABI_MAGIC,
				  .major = MFS_ABI_MAJOR,
				  .minor = (uint16_t)client->minor,
				  .kind = MFS_HELLO_NIC,
				  .pid = (uint32_t)getpid(),
				  .nic_guid = guid,
				  .nic_rate_bytes_per_s = rate_bytes_per_s};
	struct mfs_nic_reply reply;
	int descriptors[DESCRIPTORS_MAX];
	int rc;

	strncpy(hello.nic_name, name, sizeof(hello.nic_name) - 1);
	while (atomic_exchange_explicit(&client->socket_busy, 1, memory_order_acquire)) {
		if (mfs_clock_ns() >= deadline_ns)
			return -ETIMEDOUT;
		sched_yield();
	}
	rc = descriptors_own(client) ? socket_send(client->socket, &hello, deadline_ns) : -ENOTCONN;
	if (rc == 0)
		client->answers_due++;
	/* Replies name no NIC, but come in the order of the questions. Replies to questions that timed out
	 * come first. */
	while (rc == 0 && client->answers_due) {
		rc = socket_receive(client->socket, &reply, sizeof(reply), descriptors, deadline_ns);
		descriptors_close(descriptors);
		if (rc == 0 || rc == -EPROTO)
			client->answers_due--;
	}
	atomic_store_explicit(&client->socket_busy, 0, memory_order_release);
	if (rc < 0)
		return rc;
	if (reply.magic != MFS_ABI_MAGIC || reply.error > 0 || reply.error <= -4096 ||
	    reply.nic >= client_nics(client))
		return -EPROTO;
	return reply.error ? reply.error : (int)reply.nic;
}

int mfs_client_nic(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
{
	int before = cancellation_defer();
	int rc = nic_ask(client, name, guid, rate_bytes_per_s);

	cancellation_allow(before);
	return rc;
}

bool mfs_client_hung_up(struct mfs_client *client)
{
	struct pollfd p = {.fd = client->socket};
	int saved = errno;
	bool gone = !descriptors_own(client) ||
		    (poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR | POLLNVAL));

	errno = saved;
	return gone;
}

int mfs_client_rules(struct mfs_client *client, struct mfs_rule *rules, int n, uint32_t *version)
{
	struct mfs_rules *table = &client->segment->rules;

	for (int tries = 0; tries < RULES_TRIES; tries++) {
		uint32_t before = atomic_load_explicit(&table->version, memory_order_acquire);
		uint32_t count = atomic_load_explicit(&table->count, memory_order_relaxed);

		if (before & 1 || count > MFS_RULES_MAX) {
			sched_yield();
			continue;
		}
		if ((int)count > n)
			count = (uint32_t)(n < 0 ? 0 : n);
		for (size_t i = 0; i < count * sizeof(*rules) / sizeof(uint64_t); i++)
			((uint64_t *)rules)[i] =
				__atomic_load_n((uint64_t *)table->rule + i, __ATOMIC_RELAXED);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&table->version, memory_order_relaxed) == before) {
			*version = before;
			return (int)count;
		}
	}
	return 0;
}

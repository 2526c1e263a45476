/* The client side of the shared segment: attach, submit, permit, completion.
 *
 * Linked into the preloaded shim and into the Python binding, so it needs libc only, never prints, never exits, and
 * keeps errno as it found it on every call of the data path.
 *
 * Tasks live in a fixed table. `state` of a slot is generation << 32 | phase; every step of a task's life is one
 * compare-and-swap on it, so that of two threads that finish, cancel or grant the same task exactly one wins:
 *
 *   FREE -submit-> WAITING -permit-> GRANTED -complete, cancel-> FREE
 *                     `---------------cancel, complete-----------^
 *
 * What finds the ring full is remembered in the phase and in a bitmap, and sent by a later call; its slot stays taken
 * until then, so no message is ever lost. System calls are made with syscall(): they are no cancellation points then.
 */
#define _GNU_SOURCE
#include <mfs/client.h>
#include <mfs/ring.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_PATH_DEFAULT "/run/mfs/mfsd.sock"
#define TIMEOUT_MS_DEFAULT 200
#define RULES_TRIES 100
#define WORD_BITS 64
#define BATCH_CLAIMED UINT64_MAX /* batch_id while begin fills the slot */

enum phase {
	PHASE_FREE = 0,
	PHASE_WAITING = 1,
	PHASE_GRANTED = 2,
	/* finished; the message could not be sent yet */
	PHASE_OWES_COMPLETE = 3,
	PHASE_OWES_CANCEL = 4,
	PHASE_OWES_BYPASS = 5,
};

struct task_slot {
	_Atomic uint64_t state;
	void *cookie; /* written before state turns WAITING, read after it turned GRANTED */
	_Atomic uint32_t next_free;
};

struct mfs_client {
	struct mfs_segment *segment;
	uint64_t stale_after_ns;
	uint32_t epoch;
	int socket;
	int doorbell;
	unsigned timeout_ms;
	_Atomic uint32_t socket_busy;
	/* free slots: a stack; low half slot + 1 or 0, high half a tag against ABA */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t free_head;
	_Atomic uint32_t waiting; /* tasks in PHASE_WAITING */
	_Atomic uint32_t owed;	  /* bits set in the two maps below */
	_Atomic uint64_t owed_batches;
	_Atomic uint64_t owed_tasks[MFS_TASKS_MAX / WORD_BITS];
	struct task_slot task[MFS_TASKS_MAX];
};

static uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- attach ------------------------------------------------------------------------------------------------------ */

static int fail(const char **why, const char *line, int rc)
{
	if (why)
		*why = line;
	return rc;
}

/* Applies what is left until deadline_ns to both directions of the socket. -ETIMEDOUT when nothing is. */
static int socket_bound(int fd, uint64_t deadline_ns)
{
	uint64_t now = monotonic_ns();

	if (now >= deadline_ns)
		return -ETIMEDOUT;

	uint64_t left_us = (deadline_ns - now) / 1000 + 1;
	struct timeval t = {.tv_sec = (time_t)(left_us / 1000000), .tv_usec = (suseconds_t)(left_us % 1000000)};

	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)))
		return -errno;
	return 0;
}

static int timeout_error(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINPROGRESS ? -ETIMEDOUT : -error;
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

/* Sends one packet and receives one of exactly `answer_bytes`, with up to two descriptors (-1 where there is none). */
static int socket_exchange(int fd, const struct mfs_hello *hello, void *answer, size_t answer_bytes, int descriptors[2],
			   uint64_t deadline_ns)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
	struct iovec vector = {.iov_base = answer, .iov_len = answer_bytes};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	unsigned n = 0;
	ssize_t got;
	int rc;

	descriptors[0] = descriptors[1] = -1;
	do {
		rc = socket_bound(fd, deadline_ns);
		if (rc == 0 && send(fd, hello, sizeof(*hello), MSG_NOSIGNAL) < 0)
			rc = timeout_error(errno);
	} while (rc == -EINTR);
	if (rc < 0)
		return rc;
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
			if (n < 2)
				descriptors[n++] = received;
			else
				close(received);
		}
	}
	if (got == 0)
		return -ECONNRESET;
	return (size_t)got == answer_bytes && !(message.msg_flags & MSG_TRUNC) ? 0 : -EPROTO;
}

/* Maps the segment after checking that it cannot shrink under us and that both sides mean the same layout. */
static int segment_map(int memfd, struct mfs_segment **segment, const char **why)
{
	struct stat status;
	int seals = fcntl(memfd, F_GET_SEALS);
	void *memory;

	if (fstat(memfd, &status) || status.st_size != (off_t)sizeof(struct mfs_segment))
		return fail(why, "the daemon's segment has another size: restart mfsd and this program with one version",
			    -EPROTO);
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return fail(why, "the daemon's segment is not sealed", -EPROTO);
	memory = mmap(NULL, sizeof(struct mfs_segment), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (memory == MAP_FAILED)
		return fail(why, "the daemon's segment cannot be mapped", -errno);

	const struct mfs_segment_header *header = memory;

	if (header->magic != MFS_ABI_MAGIC || header->major != MFS_ABI_MAJOR || header->minor - MFS_ABI_MINOR < 0 ||
	    header->header_bytes != sizeof(*header) || header->segment_bytes != sizeof(struct mfs_segment)) {
		munmap(memory, sizeof(struct mfs_segment));
		return fail(why, "the daemon speaks another ABI version: restart mfsd and this program with one version",
			    -EPROTO);
	}
	*segment = memory;
	return 0;
}

static void process_name(char *name, size_t size, const char *wanted)
{
	strncpy(name, wanted ? wanted : program_invocation_short_name, size - 1);
}

static int handshake(const struct mfs_client_options *options, struct mfs_client *client, uint64_t deadline_ns,
		     const char **why)
{
	struct mfs_hello hello = {.magic = MFS_ABI_MAGIC, .major = MFS_ABI_MAJOR, .minor = MFS_ABI_MINOR,
				  .kind = MFS_HELLO_ATTACH, .pid = (uint32_t)getpid(), .mode = options->mode};
	struct mfs_welcome welcome;
	int descriptors[2];
	int rc;

	process_name(hello.process, sizeof(hello.process), options->process);
	rc = socket_exchange(client->socket, &hello, &welcome, sizeof(welcome), descriptors, deadline_ns);
	if (rc < 0)
		fail(why, rc == -EPROTO ? "the daemon speaks another protocol: restart mfsd and this program with one version"
			  : rc == -ETIMEDOUT ? "the daemon does not answer in time"
					     : "the daemon closed the connection",
		     rc);
	else if (welcome.magic != MFS_ABI_MAGIC || welcome.major != MFS_ABI_MAJOR)
		rc = fail(why, "the daemon speaks another ABI version: restart mfsd and this program with one version",
			  -EPROTO);
	else if (welcome.error != 0)
		rc = fail(why, welcome.error == -EACCES	  ? "the daemon refused this user"
			       : welcome.error == -EUSERS ? "the daemon has too many clients"
			       : welcome.error == -ENOSPC ? "the daemon has no memory for another segment"
			       : welcome.error == -EPROTO ? "the daemon serves another ABI version: install one version of mfsd"
							  : "the daemon refused",
			  welcome.error < 0 && welcome.error > -4096 ? welcome.error : -EPROTO);
	else if (descriptors[1] < 0)
		rc = fail(why, "the daemon's welcome lacks its descriptors", -EPROTO);
	else
		rc = segment_map(descriptors[0], &client->segment, why);

	if (descriptors[0] >= 0)
		close(descriptors[0]);
	if (rc < 0 && descriptors[1] >= 0)
		close(descriptors[1]);
	if (rc == 0)
		client->doorbell = descriptors[1];
	return rc;
}

int mfs_client_attach(const struct mfs_client_options *options, struct mfs_client **result, const char **why)
{
	unsigned timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS_DEFAULT;
	uint64_t deadline_ns = monotonic_ns() + timeout_ms * 1000000ull;
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
	client->socket = rc = socket_connect(path, deadline_ns);
	if (rc < 0) {
		fail(why, rc == -ETIMEDOUT	? "the daemon does not accept connections in time"
			  : rc == -EACCES	? "this user may not open the daemon's socket"
			  : rc == -ENAMETOOLONG ? "the daemon's socket path is too long: at most 107 bytes"
						: "no daemon listens on its socket: start mfsd or set MFS_SOCKET",
		     rc);
		goto unmap;
	}
	rc = handshake(options, client, deadline_ns, why);
	if (rc < 0) {
		close(client->socket);
		goto unmap;
	}

	client->stale_after_ns = client->segment->header.stale_after_ns;
	client->epoch = (uint32_t)client->segment->header.epoch;
	for (uint32_t i = 0; i < MFS_TASKS_MAX; i++)
		atomic_init(&client->task[i].next_free, i + 1 < MFS_TASKS_MAX ? i + 2 : 0);
	atomic_init(&client->free_head, 1);
	*result = client;
	return 0;
unmap:
	munmap(client, sizeof(*client));
	return rc;
}

void mfs_client_forget(struct mfs_client *client)
{
	munmap(client->segment, sizeof(struct mfs_segment));
	close(client->socket);
	close(client->doorbell);
	munmap(client, sizeof(*client));
}

void mfs_client_detach(struct mfs_client *client)
{
	mfs_client_forget(client); /* the closed socket tells the daemon */
}

int mfs_client_nic(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
{
	uint64_t deadline_ns = monotonic_ns() + client->timeout_ms * 1000000ull;
	struct mfs_hello hello = {.magic = MFS_ABI_MAGIC, .major = MFS_ABI_MAJOR, .minor = MFS_ABI_MINOR,
				  .kind = MFS_HELLO_NIC, .pid = (uint32_t)getpid(), .nic_guid = guid,
				  .nic_rate_bytes_per_s = rate_bytes_per_s};
	struct mfs_nic_reply reply;
	char late[sizeof(struct mfs_welcome)];
	int descriptors[2];
	int rc;

	strncpy(hello.nic_name, name, sizeof(hello.nic_name) - 1);
	while (atomic_exchange_explicit(&client->socket_busy, 1, memory_order_acquire)) {
		if (monotonic_ns() >= deadline_ns)
			return -ETIMEDOUT;
		sched_yield();
	}
	/* the answer to a request that timed out before */
	while (recv(client->socket, late, sizeof(late), MSG_DONTWAIT) > 0)
		;
	rc = socket_exchange(client->socket, &hello, &reply, sizeof(reply), descriptors, deadline_ns);
	atomic_store_explicit(&client->socket_busy, 0, memory_order_release);
	for (int i = 0; i < 2; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	if (rc < 0)
		return rc;
	if (reply.magic != MFS_ABI_MAGIC || reply.error > 0 || reply.error <= -4096 || reply.nic >= MFS_NICS_MAX)
		return -EPROTO;
	return reply.error ? reply.error : (int)reply.nic;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

struct mfs_segment *mfs_client_segment(struct mfs_client *client)
{
	return client->segment;
}

bool mfs_client_alive(const struct mfs_client *client, uint64_t now_ns)
{
	const struct mfs_segment_header *header = &client->segment->header;
	uint64_t heartbeat_ns = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);

	return atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE &&
	       (int64_t)(now_ns - heartbeat_ns) < (int64_t)client->stale_after_ns;
}

bool mfs_client_hung_up(struct mfs_client *client)
{
	struct pollfd p = {.fd = client->socket};
	int saved = errno;
	bool gone = poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR | POLLNVAL);

	errno = saved;
	return gone;
}

/* ---- messages to the arbiter ------------------------------------------------------------------------------------- */

/* Call after what the arbiter should see was stored. The fence and the arbiter's own are a Dekker pair: abi.h. */
static void doorbell_ring(struct mfs_client *client)
{
	_Atomic uint32_t *asleep = &client->segment->header.arbiter_asleep;

	atomic_thread_fence(memory_order_seq_cst);
	if (__builtin_expect(atomic_load_explicit(asleep, memory_order_relaxed), 0) &&
	    atomic_exchange_explicit(asleep, 0, memory_order_relaxed)) {
		uint64_t one = 1;
		int saved = errno;

		syscall(SYS_write, client->doorbell, &one, sizeof(one));
		errno = saved;
	}
}

static bool message_send(struct mfs_client *client, const struct mfs_message *message)
{
	struct mfs_segment *segment = client->segment;

	if (!mfs_mpsc_push(&segment->submit, segment->submit_slot, MFS_SUBMIT_SLOTS, message, 1))
		return false;
	doorbell_ring(client);
	return true;
}

static bool finish_send(struct mfs_client *client, uint64_t task_id, enum phase phase)
{
	struct mfs_message message = {
		.task = task_id,
		.batch = MFS_NONE_U32,
		.kind = phase == PHASE_OWES_COMPLETE ? MFS_MESSAGE_COMPLETE : MFS_MESSAGE_CANCEL,
		.flags = phase == PHASE_OWES_BYPASS ? MFS_TASK_BYPASSED : 0,
	};

	return message_send(client, &message);
}

static uint32_t slot_take(struct mfs_client *client)
{
	uint64_t head = atomic_load_explicit(&client->free_head, memory_order_acquire);

	for (;;) {
		uint32_t top = (uint32_t)head;

		if (top == 0)
			return MFS_NONE_U32;

		uint64_t next = atomic_load_explicit(&client->task[top - 1].next_free, memory_order_relaxed);

		if (atomic_compare_exchange_weak_explicit(&client->free_head, &head, ((head >> 32) + 1) << 32 | next,
							  memory_order_acquire, memory_order_acquire))
			return top - 1;
	}
}

static void slot_give(struct mfs_client *client, uint32_t slot)
{
	uint64_t head = atomic_load_explicit(&client->free_head, memory_order_relaxed);

	do {
		atomic_store_explicit(&client->task[slot].next_free, (uint32_t)head, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(&client->free_head, &head, ((head >> 32) + 1) << 32 | (slot + 1),
							memory_order_release, memory_order_relaxed));
}

static bool batch_send(struct mfs_client *client, uint32_t batch)
{
	struct mfs_message message = {.batch = batch, .kind = MFS_MESSAGE_BATCH};

	return message_send(client, &message);
}

/* Sends what found the ring full. Any thread may; each bit is taken by one. */
static void owed_flush(struct mfs_client *client)
{
	uint64_t batches = atomic_load_explicit(&client->owed_batches, memory_order_relaxed);

	for (; batches; batches &= batches - 1) {
		uint64_t bit = batches & -batches;

		if (!(atomic_fetch_and_explicit(&client->owed_batches, ~bit, memory_order_acquire) & bit))
			continue;
		atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
		if (!batch_send(client, (uint32_t)__builtin_ctzll(bit))) {
			if (!(atomic_fetch_or_explicit(&client->owed_batches, bit, memory_order_release) & bit))
				atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
			return;
		}
	}
	for (uint32_t word = 0; word < MFS_TASKS_MAX / WORD_BITS; word++) {
		uint64_t bits = atomic_load_explicit(&client->owed_tasks[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1) {
			uint64_t bit = bits & -bits;
			uint32_t slot = word * WORD_BITS + (uint32_t)__builtin_ctzll(bit);

			if (!(atomic_fetch_and_explicit(&client->owed_tasks[word], ~bit, memory_order_acquire) & bit))
				continue;

			uint64_t state = atomic_load_explicit(&client->task[slot].state, memory_order_relaxed);

			if (!finish_send(client, (state >> 32) << 32 | slot, (enum phase)(uint32_t)state)) {
				atomic_fetch_or_explicit(&client->owed_tasks[word], bit, memory_order_release);
				return;
			}
			atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
			atomic_store_explicit(&client->task[slot].state, state & ~0xffffffffull, memory_order_relaxed);
			slot_give(client, slot);
		}
	}
}

static inline void owed_check(struct mfs_client *client)
{
	if (__builtin_expect(atomic_load_explicit(&client->owed, memory_order_relaxed) != 0, 0))
		owed_flush(client);
}

/* ---- the three primitives ---------------------------------------------------------------------------------------- */

int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie, uint64_t *task_id)
{
	uint64_t now_ns = monotonic_ns();

	if (!mfs_client_alive(client, now_ns))
		return -ENOTCONN;
	owed_check(client);

	uint32_t slot = slot_take(client);

	if (slot == MFS_NONE_U32)
		return -EAGAIN;

	struct task_slot *entry = &client->task[slot];
	uint64_t generation = (atomic_load_explicit(&entry->state, memory_order_relaxed) >> 32) + 1;
	struct mfs_message message = {
		.task = generation << 32 | slot,
		.bytes = task->bytes,
		.request_id = task->request_id,
		.deadline_ns = task->deadline_ns,
		.submit_ns = now_ns,
		.batch = task->batch,
		.layer = task->layer,
		.kind = MFS_MESSAGE_SUBMIT,
		.stage = task->stage,
		.nic = task->nic,
		.role = task->role,
	};

	entry->cookie = cookie;
	*task_id = message.task; /* before the message: the permit may arrive at another thread at once */
	atomic_store_explicit(&entry->state, generation << 32 | PHASE_WAITING, memory_order_release);
	atomic_fetch_add_explicit(&client->waiting, 1, memory_order_relaxed);
	if (message_send(client, &message))
		return 0;
	atomic_fetch_sub_explicit(&client->waiting, 1, memory_order_relaxed);
	atomic_store_explicit(&entry->state, generation << 32 | PHASE_FREE, memory_order_relaxed);
	slot_give(client, slot);
	return -EAGAIN;
}

int mfs_client_permits(struct mfs_client *client, struct mfs_permit *permits, int n)
{
	struct mfs_segment *segment = client->segment;
	struct mfs_grant grants[64];
	int taken = 0;

	owed_check(client);
	while (taken < n) {
		unsigned want = n - taken < 64 ? (unsigned)(n - taken) : 64;
		int got = mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, grants, want);

		if (got < 0)
			return taken ? taken : got;
		if (got == 0)
			break;
		for (int i = 0; i < got; i++) {
			uint64_t task_id = atomic_load_explicit(&grants[i].task, memory_order_relaxed);
			uint64_t class_epoch = atomic_load_explicit(&grants[i].class_epoch, memory_order_relaxed);
			uint32_t slot = (uint32_t)task_id;
			uint64_t waiting = (task_id >> 32) << 32 | PHASE_WAITING;
			uint64_t granted = (task_id >> 32) << 32 | PHASE_GRANTED;

			if (slot >= MFS_TASKS_MAX || class_epoch >> 32 != client->epoch ||
			    !atomic_compare_exchange_strong_explicit(&client->task[slot].state, &waiting, granted,
								     memory_order_acquire, memory_order_relaxed))
				continue;
			atomic_fetch_sub_explicit(&client->waiting, 1, memory_order_relaxed);
			permits[taken++] = (struct mfs_permit){
				.task_id = task_id,
				.cookie = client->task[slot].cookie,
				.wire_class = (uint32_t)class_epoch,
			};
		}
	}
	return taken;
}

bool mfs_client_permits_pending(const struct mfs_client *client)
{
	return mfs_spmc_pending(&client->segment->grant) ||
	       atomic_load_explicit(&client->owed, memory_order_relaxed) != 0;
}

int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns)
{
	struct mfs_segment_header *header = &client->segment->header;
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
				   .tv_nsec = (long)(timeout_ns % 1000000000u)};
	uint32_t word = atomic_load_explicit(&header->grant_word, memory_order_acquire);
	int saved = errno;

	owed_check(client);
	/* Dekker with the arbiter's grants_announce: abi.h */
	atomic_fetch_add_explicit(&header->grant_waiters, 1, memory_order_seq_cst);
	atomic_thread_fence(memory_order_seq_cst);
	if (!mfs_spmc_pending(&client->segment->grant) &&
	    atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE)
		syscall(SYS_futex, &header->grant_word, FUTEX_WAIT, word, &timeout, NULL, 0);
	atomic_fetch_sub_explicit(&header->grant_waiters, 1, memory_order_relaxed);
	errno = saved;
	return mfs_spmc_pending(&client->segment->grant) ? 0 : -ETIMEDOUT;
}

static void task_finish(struct mfs_client *client, uint64_t task_id, enum phase owes)
{
	uint32_t slot = (uint32_t)task_id;
	uint64_t generation = (task_id >> 32) << 32;

	if (slot >= MFS_TASKS_MAX)
		return;
	owed_check(client);

	struct task_slot *entry = &client->task[slot];
	uint64_t state = atomic_load_explicit(&entry->state, memory_order_relaxed);

	do {
		if (state != (generation | PHASE_WAITING) && state != (generation | PHASE_GRANTED))
			return; /* finished before */
	} while (!atomic_compare_exchange_weak_explicit(&entry->state, &state, generation | owes, memory_order_acq_rel,
							memory_order_relaxed));
	if ((uint32_t)state == PHASE_WAITING)
		atomic_fetch_sub_explicit(&client->waiting, 1, memory_order_relaxed);
	if (finish_send(client, task_id, owes)) {
		atomic_store_explicit(&entry->state, generation | PHASE_FREE, memory_order_relaxed);
		slot_give(client, slot);
		return;
	}
	atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
	atomic_fetch_or_explicit(&client->owed_tasks[slot / WORD_BITS], 1ull << slot % WORD_BITS, memory_order_release);
}

void mfs_client_complete(struct mfs_client *client, uint64_t task_id)
{
	task_finish(client, task_id, PHASE_OWES_COMPLETE);
}

void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool bypassed)
{
	task_finish(client, task_id, bypassed ? PHASE_OWES_BYPASS : PHASE_OWES_CANCEL);
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */

static void usage_add(struct mfs_usage_half *half, unsigned stage, uint64_t bytes)
{
	atomic_fetch_add_explicit(&half->bytes[stage], bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&half->work_requests[stage], 1, memory_order_relaxed);
}

void mfs_client_count_posted(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	if (nic < MFS_NICS_MAX)
		usage_add(&client->segment->usage[nic].posted, stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
}

void mfs_client_count_completed(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	struct mfs_segment *segment = client->segment;

	if (nic >= MFS_NICS_MAX)
		return;

	struct mfs_usage *usage = &segment->usage[nic];

	usage_add(&usage->completed, stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
	if (__builtin_expect(!(atomic_load_explicit(&segment->gate[nic].word, memory_order_relaxed) & MFS_GATE_IDLE_BELL), 1))
		return;
	for (unsigned s = 0; s < MFS_STAGES_MAX; s++)
		if (MFS_STAGES_UNSCHEDULED >> s & 1 &&
		    atomic_load_explicit(&usage->posted.bytes[s], memory_order_relaxed) !=
			    atomic_load_explicit(&usage->completed.bytes[s], memory_order_relaxed))
			return;
	doorbell_ring(client);
}

/* ---- batches and rules ------------------------------------------------------------------------------------------- */

static void batch_tell(struct mfs_client *client, uint32_t batch)
{
	owed_check(client);
	if (batch_send(client, batch))
		return;
	if (!(atomic_fetch_or_explicit(&client->owed_batches, 1ull << batch, memory_order_release) >> batch & 1))
		atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
}

int mfs_client_batch_begin(struct mfs_client *client, uint64_t batch_id, uint32_t layers, uint64_t deadline_ns,
			   uint64_t compute_ns)
{
	if (batch_id == 0 || batch_id == BATCH_CLAIMED)
		return -EINVAL;
	for (int i = 0; i < MFS_BATCHES_MAX; i++) {
		struct mfs_batch *batch = &client->segment->batch[i];
		uint64_t free_id = 0;

		if (!atomic_compare_exchange_strong_explicit(&batch->batch_id, &free_id, BATCH_CLAIMED, memory_order_acquire,
							     memory_order_relaxed))
			continue;
		atomic_store_explicit(&batch->layer_current, 0, memory_order_relaxed);
		atomic_store_explicit(&batch->layers, layers, memory_order_relaxed);
		atomic_store_explicit(&batch->deadline_ns, deadline_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->compute_ns, compute_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->batch_id, batch_id, memory_order_release);
		batch_tell(client, (uint32_t)i);
		return i;
	}
	return -ENOSPC;
}

int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer_current)
{
	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	atomic_store_explicit(&client->segment->batch[batch].layer_current, layer_current, memory_order_relaxed);
	/* The arbiter reads the context with every submit; a message is due only for what waits already. */
	if (atomic_load_explicit(&client->waiting, memory_order_relaxed))
		batch_tell(client, batch);
	return 0;
}

int mfs_client_batch_end(struct mfs_client *client, uint32_t batch)
{
	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	atomic_store_explicit(&client->segment->batch[batch].batch_id, 0, memory_order_release);
	batch_tell(client, batch);
	return 0;
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
			((uint64_t *)rules)[i] = __atomic_load_n((uint64_t *)table->rule + i, __ATOMIC_RELAXED);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&table->version, memory_order_relaxed) == before) {
			*version = before;
			return (int)count;
		}
	}
	return 0;
}

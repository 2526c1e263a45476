/* Sessions, one for each client process, with a private segment each; and what the daemon writes there. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- life of a session ------------------------------------------------------------------------------------------- */

static int segment_create(int *memfd, struct mfs_segment **segment)
{
	void *memory;
	int fd = memfd_create("mfs-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	/* Allocate all pages now: if memory ran out later, the client's program would get a SIGBUS. */
	if (ftruncate(fd, sizeof(**segment)) || fallocate(fd, 0, 0, sizeof(**segment)) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		close(fd);
		return -ENOSPC;
	}
	memory = mmap(NULL, sizeof(**segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		close(fd);
		return -ENOSPC;
	}
	*memfd = fd;
	*segment = memory;
	return 0;
}

int session_create(struct mfs_arbiter *arbiter, struct session **result, int *memfd, int *doorbell)
{
	/* mmap, because the tables are large and pages that are never touched cost nothing. */
	struct session *session =
		mmap(NULL, sizeof(*session), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (session == MAP_FAILED)
		return -ENOSPC;
	rc = segment_create(memfd, &session->segment);
	if (rc < 0)
		goto free_session;
	session->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	*doorbell = session->doorbell < 0 ? -1 : fcntl(session->doorbell, F_DUPFD_CLOEXEC, 0);
	if (*doorbell < 0) {
		rc = -errno;
		goto free_segment;
	}

	struct mfs_segment_header *header = &session->segment->header;

	header->magic = MFS_ABI_MAGIC;
	header->major = MFS_ABI_MAJOR;
	header->minor = MFS_ABI_MINOR;
	header->header_bytes = sizeof(*header);
	header->segment_bytes = sizeof(struct mfs_segment);
	header->epoch = arbiter->config.epoch;
	header->daemon_pid = (uint32_t)getpid();
	header->stale_after_ns = arbiter->config.stale_after_ns;
	header->max_hold_ns = arbiter->config.max_hold_ns;
	header->classes = arbiter->config.policy.classes;
	header->class_reuse = mfs_policy_class(&arbiter->config.policy, MFS_STAGE_REUSE, 0);
	header->class_reuse_least = mfs_policy_class(&arbiter->config.policy, MFS_STAGE_REUSE, UINT32_MAX);
	header->class_last = mfs_policy_class(&arbiter->config.policy, MFS_STAGE_P2D, 0);
	if (arbiter->config.policy.classes >= MFS_SOON_CLASSES)
		atomic_init(&header->soon_ns, arbiter->config.policy.soon_ns);
	*result = session;
	return 0;

free_segment:
	if (session->doorbell >= 0)
		close(session->doorbell);
	munmap(session->segment, sizeof(*session->segment));
	close(*memfd);
free_session:
	munmap(session, sizeof(*session));
	return rc;
}

void session_admit(struct mfs_arbiter *arbiter, struct session *session)
{
	struct mfs_segment_header *header = &session->segment->header;

	session->client_id = ++arbiter->next_client_id;
	session->state = MFS_SEGMENT_ACTIVE;
	session->key_salt = key_mix(arbiter->key_secret, session->client_id);
	header->client_id = session->client_id;
	atomic_store_explicit(&header->heartbeat_ns, arbiter->now_ns, memory_order_release);
	atomic_store_explicit(&header->mode, arbiter->config.mode, memory_order_release);
	session_rules_write(arbiter, session);
	session_dscp_write(arbiter, session);
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		session->nic[i].read_ns = arbiter->now_ns;
		session_nic_write(arbiter, session, i);
	}
	atomic_store_explicit(&header->state, MFS_SEGMENT_ACTIVE, memory_order_release);
	arbiter->session[arbiter->sessions++] = session;
}

struct session *session_find(struct mfs_arbiter *arbiter, uint32_t client_id)
{
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		if (arbiter->session[i]->client_id == client_id)
			return arbiter->session[i];
	return NULL;
}

void session_destroy(struct session *session)
{
	munmap(session->segment, sizeof(*session->segment));
	close(session->doorbell);
	munmap(session, sizeof(*session));
}

/* ---- what the daemon writes --------------------------------------------------------------------------------------- */

void session_nic_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	const struct nic *nic = &arbiter->nic[index];
	struct mfs_nic *shared = mfs_nic_of(session->segment, index);

	if (session->state != MFS_SEGMENT_ACTIVE)
		return;
	memcpy(shared->name, nic->name, sizeof(shared->name));
	shared->guid = nic->guid;
	shared->rate_bytes_per_s = nic->rate_bytes_per_s;
	session_gate_write(arbiter, session, index);
}

void session_gate_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	bool bell = arbiter->nic[index].bell && session->nic[index].member;

	if (session->state == MFS_SEGMENT_ACTIVE)
		atomic_store_explicit(&mfs_gate_of(session->segment, index)->word,
				      arbiter->gate_mask | (bell ? MFS_GATE_IDLE_BELL : 0),
				      memory_order_release);
}

void session_rules_write(const struct mfs_arbiter *arbiter, struct session *session)
{
	struct mfs_rules *table = &session->segment->rules;
	const uint64_t *from = (const uint64_t *)arbiter->rules;
	uint32_t version = atomic_load_explicit(&table->version, memory_order_relaxed) & ~1u;

	atomic_store_explicit(&table->version, version + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	for (size_t i = 0; i < arbiter->rules_count * sizeof(struct mfs_rule) / sizeof(uint64_t); i++)
		__atomic_store_n((uint64_t *)table->rule + i, from[i], __ATOMIC_RELAXED);
	atomic_store_explicit(&table->count, arbiter->rules_count, memory_order_relaxed);
	atomic_store_explicit(&table->version, version + 2, memory_order_release);
}

void session_dscp_write(const struct mfs_arbiter *arbiter, struct session *session)
{
	uint8_t apart = 0;

	for (unsigned i = 0; i < MFS_CLASSES_MAX; i++) {
		atomic_store_explicit(&session->segment->header.dscp[i], arbiter->dscp[i],
				      memory_order_relaxed);
		apart |= (uint8_t)(class_apart(arbiter, i) << i);
	}
	atomic_store_explicit(&session->segment->header.apart, apart, memory_order_relaxed);
}

void session_permit(struct mfs_arbiter *arbiter, struct session *session, uint64_t task_id,
		    uint32_t wire_class)
{
	struct mfs_segment *segment = session->segment;
	struct mfs_grant grant;
	int rc;

	atomic_init(&grant.task, task_id);
	atomic_init(&grant.class_epoch, arbiter->config.epoch << 32 | wire_class);
	/* Only a client that cancels tasks without reading its permits can have a full ring. It has cancelled
	 * this task, or will. */
	rc = mfs_spmc_push(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &session->grant_tail,
			   &grant, 1);
	if (rc < 0)
		session->failed = rc;
	if (!session->announce)
		arbiter->announcing[arbiter->announcings++] = session;
	session->announce = true;
}

void session_announce(struct session *session)
{
	struct mfs_segment_header *header = &session->segment->header;

	if (!session->announce)
		return;
	session->announce = false;
	atomic_fetch_add_explicit(&header->grant_word, 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst); /* Dekker with mfs_client_wait: abi.h */
	if (atomic_load_explicit(&header->grant_waiters, memory_order_relaxed))
		arbiter_futex_wake(&header->grant_word);
}

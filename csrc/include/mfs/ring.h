/* Two bounded, lock-free rings over shared memory: many producers to one consumer (a client's threads to
 * the arbiter) and one producer to many consumers (the arbiter to a client's threads). Layouts are in
 * abi.h; the algorithm is here.
 *
 * A ring position is a ticket: a 64-bit count that never wraps in practice. slot = ticket modulo size,
 * which is a power of two. Zeroed memory is an empty ring. Neither side ever waits for the other.
 *
 * MPSC. A producer claims tickets by moving `tail`, fills the slots, and publishes each by storing ticket
 * + 1 in its sequence. The consumer takes a slot when its sequence is exactly that, and gives slots back
 * by moving `head`.
 *
 *   producer                                     consumer
 *   P1 load    head_seen / head     acquire      C1 load  slot.sequence == head + 1   acquire
 *   P2 load    quarantine           relaxed      C2 copy  message
 *   P3 cas     tail                 release      C3 store head                        release
 *   P4 write   message                           C4 load  tail (stalls only)          acquire
 *   P5 store   slot.sequence        release
 *
 *   P5 -> C1: a message is read whole.
 *   C3 -> P1: a slot is overwritten only after it was copied. A producer that knows `head` only from
 *   `head_seen` inherits this order, because head_seen is stored with release after `head` was loaded
 *   with acquire.
 *
 * A producer that stops for ever between P3 and P5 (thread cancelled, longjmp out of a signal handler)
 * leaves a torn slot. After torn_slot_ns the consumer skips it and puts it in quarantine: no ticket that
 * falls on this slot is used. If the producer was only slow and publishes after all, it overwrites
 * nothing, and its message is delivered late instead of being lost. The slot is used again from the first
 * pass after that.
 *
 *   C3 -> P1 -> P2: a producer that may claim a slot sees whether it is in quarantine. An entry is
 *   removed only when the consumer skips a ticket on its slot (C4). The producer that claimed this
 *   ticket read the table before its claim (P2 before P3, and P3 -> C4), so both sides treat each
 *   ticket alike.
 *
 * The consumer trusts nothing in the ring. `head`, the quarantine and all counts are its own (struct
 * mfs_mpsc_reader); it stores them in shared memory for producers only. An impossible tail or too many
 * torn slots are reported as -EPROTO.
 *
 * SPMC. The producer fills slots, then moves `tail` (release). Consumers copy slots between `head` and
 * `tail` (acquire), then move `head` by compare-and-swap (release). A consumer that loses the race throws
 * its copy away and takes nothing. The producer reuses a slot only after it saw `head` beyond it
 * (acquire), so a copy that was overwritten is never the one that wins. */
#ifndef MFS_RING_H
#define MFS_RING_H

#include <errno.h>
#include <mfs/abi.h>
#include <stdbool.h>
#include <string.h>

/* ---- MPSC, producer ---------------------------------------------------------------------------------------------- */

#define MFS_TRIES_MAX 64      /* tries at a ring whose ends contradict each other, before it counts as full */
#define MFS_PREFETCH_SLOTS 24 /* how many slots ahead to prefetch; measured: bench micro ring */

typedef uint64_t mfs_two_words __attribute__((vector_size(16), aligned(8), may_alias));
typedef uint64_t mfs_four_words __attribute__((vector_size(32), aligned(8), may_alias));

/* Reads word by word and writes in few large pieces. The caller has just written the message word by word.
 * A wide load would have to wait until those stores have left the store buffer, which cost more than all
 * the rest of a push. */
static inline void mfs_message_store(struct mfs_message *to, const struct mfs_message *from)
{
	uint64_t *t = (uint64_t *)to;

/* atomic, so the compiler does not merge them */
#define WORD(i) __atomic_load_n((const uint64_t *)from + (i), __ATOMIC_RELAXED)
	t[0] = WORD(0);
	*(mfs_two_words *)&t[1] = (mfs_two_words){WORD(1), WORD(2)};
	*(mfs_four_words *)&t[3] = (mfs_four_words){WORD(3), WORD(4), WORD(5), WORD(6)};
#undef WORD
}

static inline bool mfs_mpsc_quarantine_has(const uint32_t *quarantine, uint32_t index)
{
	for (unsigned i = 0; i < MFS_QUARANTINE_MAX; i++)
		if (quarantine[i] == index + 1)
			return true;
	return false;
}

/* Claims up to n tickets and publishes one message in each, except in slots that are in quarantine.
 * Returns the number of messages published, or -EAGAIN when the ring is full. */
static inline int mfs_mpsc_push_some(struct mfs_mpsc *ring, struct mfs_mpsc_slot *slots, uint64_t size,
				     const struct mfs_message *messages, unsigned n)
{
	uint32_t quarantine[MFS_QUARANTINE_MAX];
	uint32_t quarantined;
	unsigned tries = 0;
	uint64_t ticket = atomic_load_explicit(&ring->tail, memory_order_relaxed);

	for (;;) {
		uint64_t head = atomic_load_explicit(&ring->head_seen, memory_order_acquire);
		uint64_t room = size - (ticket - head);

		if (__builtin_expect(room < n || room > size, 0)) {
			head = atomic_load_explicit(&ring->head, memory_order_acquire);
			atomic_store_explicit(&ring->head_seen, head, memory_order_release);
			ticket = atomic_load_explicit(&ring->tail, memory_order_relaxed);
			room = size - (ticket - head);
			/* others claimed slots and the consumer took them meanwhile: try again */
			if (room > size) {
				if (++tries == MFS_TRIES_MAX) /* or a stray write has hit the ring */
					return -EAGAIN;
				continue;
			}
			if (room == 0)
				return -EAGAIN;
			if (room < n)
				n = (unsigned)room;
		}
		quarantined = atomic_load_explicit(&ring->quarantined, memory_order_relaxed);
		if (__builtin_expect(quarantined != 0, 0))
			for (unsigned i = 0; i < MFS_QUARANTINE_MAX; i++)
				quarantine[i] =
					atomic_load_explicit(&ring->quarantine[i], memory_order_relaxed);
		if (atomic_compare_exchange_weak_explicit(&ring->tail, &ticket, ticket + n,
							  memory_order_release, memory_order_relaxed))
			break;
	}

	int published = 0;

	for (unsigned i = 0; i < n; i++, ticket++) {
		uint32_t index = (uint32_t)(ticket & (size - 1));
		struct mfs_mpsc_slot *slot = &slots[index];

		__builtin_prefetch(&slots[(ticket + MFS_PREFETCH_SLOTS) & (size - 1)], 1);
		if (__builtin_expect(quarantined != 0, 0) && mfs_mpsc_quarantine_has(quarantine, index))
			continue;
		mfs_message_store(&slot->message, &messages[published++]);
		atomic_store_explicit(&slot->sequence, ticket + 1, memory_order_release);
	}
	return published;
}

/* Publishes up to n messages in order. Returns how many were published before the ring was full. */
static inline unsigned mfs_mpsc_push(struct mfs_mpsc *ring, struct mfs_mpsc_slot *slots, uint64_t size,
				     const struct mfs_message *messages, unsigned n)
{
	unsigned done = 0;

	while (done < n) {
		int published = mfs_mpsc_push_some(ring, slots, size, messages + done, n - done);

		if (published < 0)
			break;
		done += (unsigned)published;
	}
	return done;
}

/* Publishes up to n messages in order on a ring of which this thread is the only producer. Returns how
 * many were published before the ring was full. No read-modify-write is needed: the memory order is as
 * above without P3. Nothing is claimed either, so no slot can be torn. `tail` is stored last; if the
 * thread ends before that, mfs_mpsc_adopt finds what it published. */
static inline unsigned mfs_mpsc_push_owned(struct mfs_mpsc *ring, struct mfs_mpsc_slot *slots, uint64_t size,
					   const struct mfs_message *messages, unsigned n)
{
	uint64_t ticket = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint64_t room = size - (ticket - atomic_load_explicit(&ring->head_seen, memory_order_relaxed));

	if (__builtin_expect(room < n, 0)) {
		uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

		atomic_store_explicit(&ring->head_seen, head, memory_order_relaxed);
		room = size - (ticket - head);
		if (room < n)
			n = (unsigned)room;
	}
	for (unsigned i = 0; i < n; i++, ticket++) {
		struct mfs_mpsc_slot *slot = &slots[ticket & (size - 1)];

		mfs_message_store(&slot->message, &messages[i]);
		atomic_store_explicit(&slot->sequence, ticket + 1, memory_order_release);
	}
	atomic_store_explicit(&ring->tail, ticket, memory_order_release);
	return n;
}

/* True when at least half of the slots are in use: it is time for the consumer to read. */
static inline bool mfs_mpsc_crowded(struct mfs_mpsc *ring, uint64_t size)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed), head;

	if (__builtin_expect(tail - atomic_load_explicit(&ring->head_seen, memory_order_relaxed) < size / 2,
			     1))
		return false;
	head = atomic_load_explicit(&ring->head, memory_order_acquire);
	atomic_store_explicit(&ring->head_seen, head, memory_order_release);
	return tail - head >= size / 2;
}

/* Prepares the ring of a thread that has ended for its next owner: moves `tail` behind what was published. */
static inline void mfs_mpsc_adopt(struct mfs_mpsc *ring, struct mfs_mpsc_slot *slots, uint64_t size)
{
	uint64_t ticket = atomic_load_explicit(&ring->tail, memory_order_relaxed);

	while (atomic_load_explicit(&slots[ticket & (size - 1)].sequence, memory_order_acquire) == ticket + 1)
		ticket++;
	atomic_store_explicit(&ring->tail, ticket, memory_order_relaxed);
}

/* ---- MPSC, consumer ---------------------------------------------------------------------------------------------- */

struct mfs_mpsc_torn {
	uint64_t ticket;
	bool used;
	bool delivered; /* published late and taken: the slot is free again at the next pass */
};

/* The consumer's own state of one ring. Zeroed for a new ring. */
struct mfs_mpsc_reader {
	uint64_t head;
	uint64_t stalled_ns;  /* when `head` was first found unpublished; 0: it is not stalled */
	bool claimed;         /* at that time, `head` was seen to be claimed */
	bool backlog;         /* the last call left messages behind */
	unsigned quarantined; /* entries in use below */
	uint64_t torn_slots;  /* slots ever skipped */
	uint64_t late;        /* of those, published and delivered after all */
	struct mfs_mpsc_torn torn[MFS_QUARANTINE_MAX];
};

static inline void mfs_mpsc_quarantine_set(struct mfs_mpsc_reader *reader, struct mfs_mpsc *ring, unsigned i,
					   bool used, uint64_t size)
{
	uint32_t index = (uint32_t)(reader->head & (size - 1));

	reader->torn[i] = (struct mfs_mpsc_torn){.ticket = reader->head, .used = used};
	reader->quarantined += used ? 1 : -1u;
	atomic_store_explicit(&ring->quarantine[i], used ? index + 1 : 0, memory_order_relaxed);
	atomic_store_explicit(&ring->quarantined, reader->quarantined, memory_order_relaxed);
}

/* Returns the quarantine entry of the slot that `head` is on, or -1. */
static inline int mfs_mpsc_torn_find(const struct mfs_mpsc_reader *reader, uint64_t size)
{
	for (int i = 0; i < MFS_QUARANTINE_MAX; i++)
		if (reader->torn[i].used && ((reader->torn[i].ticket ^ reader->head) & (size - 1)) == 0)
			return i;
	return -1;
}

/* Takes messages that were published late out of quarantined slots. Returns how many it put in `messages`. */
static inline unsigned mfs_mpsc_take_late(struct mfs_mpsc_reader *reader, struct mfs_mpsc_slot *slots,
					  uint64_t size, struct mfs_message *messages, unsigned n)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < MFS_QUARANTINE_MAX && taken < n; i++) {
		struct mfs_mpsc_torn *torn = &reader->torn[i];
		struct mfs_mpsc_slot *slot = &slots[torn->ticket & (size - 1)];

		if (!torn->used || torn->delivered ||
		    atomic_load_explicit(&slot->sequence, memory_order_acquire) != torn->ticket + 1)
			continue;
		messages[taken++] = slot->message;
		torn->delivered = true;
		reader->late++;
	}
	return taken;
}

/* `head` is on a slot that is not published. Returns 1 when the slot was skipped, 0 when there is nothing
 * to take yet, -EPROTO when the ring is corrupt. Reads `tail` only when it must, because each read takes
 * the cache line from the producers. */
static inline int mfs_mpsc_stall(struct mfs_mpsc_reader *reader, struct mfs_mpsc *ring, uint64_t size,
				 uint64_t now_ns, uint64_t torn_slot_ns)
{
	if (reader->quarantined == 0) {
		if (reader->stalled_ns == 0) {
			reader->stalled_ns = now_ns | 1;
			reader->claimed = false;
			return 0;
		}
		if (now_ns - reader->stalled_ns < torn_slot_ns)
			return 0;
	}

	uint64_t claimed = atomic_load_explicit(&ring->tail, memory_order_acquire) - reader->head;

	/* `tail` is behind `head`: the ring's owner ended after it had published and before it moved `tail`. */
	if (claimed == 0 || -claimed <= size) {
		reader->stalled_ns = 0;
		return 0;
	}
	if (claimed > size)
		return -EPROTO;

	int i = reader->quarantined ? mfs_mpsc_torn_find(reader, size) : -1;

	if (i >= 0) {
		if (reader->torn[i].delivered)
			mfs_mpsc_quarantine_set(reader, ring, (unsigned)i, false, size);
		reader->head++;
		return 1;
	}
	/* Wait for torn_slot_ns from the first read that saw the slot claimed, not from when the ring ran empty. */
	if (reader->stalled_ns == 0 || !reader->claimed) {
		reader->stalled_ns = now_ns | 1;
		reader->claimed = true;
		return 0;
	}
	if (now_ns - reader->stalled_ns < torn_slot_ns)
		return 0;
	for (i = 0; i < MFS_QUARANTINE_MAX && reader->torn[i].used; i++)
		;
	if (i == MFS_QUARANTINE_MAX)
		return -EPROTO;
	mfs_mpsc_quarantine_set(reader, ring, (unsigned)i, true, size);
	reader->torn_slots++;
	reader->stalled_ns = 0;
	reader->head++;
	return 1;
}

/* Copies up to n messages out. Returns how many, or -EPROTO. `now_ns` is used only to measure how long a
 * slot has been torn. */
static inline int mfs_mpsc_pop(struct mfs_mpsc_reader *reader, struct mfs_mpsc *ring,
			       struct mfs_mpsc_slot *slots, uint64_t size, struct mfs_message *messages,
			       unsigned n, uint64_t now_ns, uint64_t torn_slot_ns)
{
	uint64_t first = reader->head;
	unsigned taken = 0;
	int rc = 0;

	if (__builtin_expect(reader->quarantined != 0, 0))
		taken = mfs_mpsc_take_late(reader, slots, size, messages, n);
	while (taken < n) {
		struct mfs_mpsc_slot *slot = &slots[reader->head & (size - 1)];

		if (__builtin_expect(atomic_load_explicit(&slot->sequence, memory_order_acquire) !=
					     reader->head + 1,
				     0)) {
			rc = mfs_mpsc_stall(reader, ring, size, now_ns, torn_slot_ns);
			if (rc <= 0)
				break;
			continue;
		}
		/* otherwise producers are writing these lines right now: leave them there */
		if (reader->backlog)
			__builtin_prefetch(&slots[(reader->head + MFS_PREFETCH_SLOTS) & (size - 1)], 0);
		messages[taken++] = slot->message;
		reader->head++;
	}
	reader->backlog = taken == n;
	/* only the copies are checked and used: no second read of shared memory */
	atomic_signal_fence(memory_order_seq_cst);
	if (reader->head != first) {
		reader->stalled_ns = 0;
		atomic_store_explicit(&ring->head, reader->head, memory_order_release);
	}
	return rc < 0 ? rc : (int)taken;
}

/* ---- submit rings: several MPSC rings side by side ---------------------------------------------------------------- */

/* Producers that share a ring take the cache line of its tail from one another with every message. A
 * process therefore has several rings, and each thread has one to itself as long as there are enough
 * (mfs_mpsc_push_owned). Order holds within a ring only. */
struct mfs_submit_reader {
	struct mfs_mpsc_reader ring[MFS_SUBMIT_RINGS];
	unsigned first;   /* ring at which the next call begins */
	unsigned served;  /* messages in a row taken from ring `first` */
	uint32_t drained; /* rings that gave messages since the caller last cleared it, one bit each */
};

/* messages after which the next ring has its turn. Large, because polling another ring costs a cache miss */
#define MFS_SUBMIT_TURN 256

/* Polls only the rings whose bit is set in `mask`. */
static inline int mfs_submit_pop_some(struct mfs_submit_reader *reader, uint32_t mask, struct mfs_mpsc *rings,
				      struct mfs_mpsc_slot *slots, uint64_t ring_slots,
				      struct mfs_message *messages, unsigned n, uint64_t now_ns,
				      uint64_t torn_slot_ns)
{
	unsigned index = reader->first;
	unsigned taken = 0;

	for (unsigned i = 0; i < MFS_SUBMIT_RINGS; i++) {
		int rc = 0;

		if (mask >> index & 1)
			rc = mfs_mpsc_pop(&reader->ring[index], &rings[index], slots + index * ring_slots,
					  ring_slots, messages + taken, n - taken, now_ns, torn_slot_ns);
		if (rc < 0)
			return rc;
		if (rc > 0)
			reader->drained |= 1u << index;
		taken += (unsigned)rc;
		reader->served += (unsigned)rc;
		if (taken == n && reader->served < MFS_SUBMIT_TURN)
			break;
		reader->served = 0;
		index = (index + 1) % MFS_SUBMIT_RINGS;
		if (taken == n)
			break;
	}
	reader->first = index;
	return (int)taken;
}

static inline int mfs_submit_pop(struct mfs_submit_reader *reader, struct mfs_mpsc *rings,
				 struct mfs_mpsc_slot *slots, uint64_t ring_slots,
				 struct mfs_message *messages, unsigned n, uint64_t now_ns,
				 uint64_t torn_slot_ns)
{
	return mfs_submit_pop_some(reader, UINT32_MAX, rings, slots, ring_slots, messages, n, now_ns,
				   torn_slot_ns);
}

/* ---- SPMC -------------------------------------------------------------------------------------------------------- */

static inline void mfs_grant_copy(struct mfs_grant *to, struct mfs_grant *from)
{
	uint64_t task = atomic_load_explicit(&from->task, memory_order_relaxed);
	uint64_t class_epoch = atomic_load_explicit(&from->class_epoch, memory_order_relaxed);

	atomic_store_explicit(&to->task, task, memory_order_relaxed);
	atomic_store_explicit(&to->class_epoch, class_epoch, memory_order_relaxed);
}

/* `tail` is the producer's own copy. Returns how many of the n grants found room, or -EPROTO if `head` is
 * impossible. */
static inline int mfs_spmc_push(struct mfs_spmc *ring, struct mfs_grant *slots, uint64_t size, uint64_t *tail,
				struct mfs_grant *grants, unsigned n)
{
	uint64_t used = *tail - atomic_load_explicit(&ring->head, memory_order_acquire);

	if (used > size)
		return -EPROTO;
	if (n > size - used)
		n = (unsigned)(size - used);
	for (unsigned i = 0; i < n; i++) {
		struct mfs_grant *slot = &slots[(*tail)++ & (size - 1)];

		mfs_grant_copy(slot, &grants[i]);
	}
	atomic_store_explicit(&ring->tail, *tail, memory_order_release);
	return (int)n;
}

/* Returns the number of grants in the ring and writes the position of the first to *head. Returns 0 when
 * the indices claim more than the ring can hold: a stray write has hit them. The daemon finds the same at
 * its next push, and a consumer that walked through so many would never return. -EBUSY when another thread
 * took grants between the two reads. */
static inline int64_t mfs_spmc_used(struct mfs_spmc *ring, uint64_t size, uint64_t *head)
{
	*head = atomic_load_explicit(&ring->head, memory_order_acquire);

	uint64_t used = atomic_load_explicit(&ring->tail, memory_order_acquire) - *head;

	if (__builtin_expect(used > size, 0))
		return atomic_load_explicit(&ring->head, memory_order_acquire) != *head ? -EBUSY : 0;
	return (int64_t)used;
}

/* Returns how many grants were taken, or -EBUSY when another thread took some at this moment. */
static inline int mfs_spmc_pop(struct mfs_spmc *ring, struct mfs_grant *slots, uint64_t size,
			       struct mfs_grant *grants, unsigned n)
{
	uint64_t head;
	int64_t used = mfs_spmc_used(ring, size, &head);

	if (used <= 0)
		return (int)used;
	if (n > used)
		n = (unsigned)used;
	for (unsigned i = 0; i < n; i++) {
		struct mfs_grant *slot = &slots[(head + i) & (size - 1)];

		mfs_grant_copy(&grants[i], slot);
	}
	if (!atomic_compare_exchange_strong_explicit(&ring->head, &head, head + n, memory_order_acq_rel,
						     memory_order_relaxed))
		return -EBUSY;
	return (int)n;
}

static inline bool mfs_spmc_pending(struct mfs_spmc *ring, uint64_t size)
{
	uint64_t used = atomic_load_explicit(&ring->tail, memory_order_relaxed) -
			atomic_load_explicit(&ring->head, memory_order_relaxed);

	return used != 0 && used <= size;
}

#endif

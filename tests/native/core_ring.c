/* The rings under many threads: core_ring MESSAGES. Exits 0 if every message arrived as promised,
 * otherwise reports what did not.
 *
 * fifo:  all producers on one ring, in batches, no slot is torn: each message arrives exactly once and in its
 *        producer's order.
 * torn:  producers stop between claim and publish, some for ever; some publish long after their slot was skipped:
 *        every published message arrives exactly once, in any order.
 * spmc:  many consumers: every grant goes to exactly one of them, whole. */
#include <mfs/ring.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SLOTS 64 /* small, so that the ring is full and wraps all the time */
#define PRODUCERS 4
#define CONSUMERS 3
#define BATCH 8

struct ring {
	struct mfs_mpsc ring;
	struct mfs_mpsc_slot slot[SLOTS];
};

static uint64_t total;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what, uint64_t a, uint64_t b)
{
	fprintf(stderr, "%s: %lu, %lu\n", what, a, b);
	exit(1);
}

static struct mfs_message message(uint64_t producer, uint64_t number)
{
	return (struct mfs_message){.task = number, .bytes = producer, .request_id = ~number, .submit_ns = number * producer};
}

static void check_whole(const struct mfs_message *m)
{
	if (m->request_id != ~m->task || m->submit_ns != m->task * m->bytes || m->bytes >= PRODUCERS)
		fail("a message was not read whole", m->bytes, m->task);
}

/* ---- fifo -------------------------------------------------------------------------------------------------------- */

struct producer {
	struct ring *r;
	uint64_t index;
};

static void push_all(struct ring *r, const struct mfs_message *messages, unsigned n)
{
	unsigned done = 0;

	while ((done += mfs_mpsc_push(&r->ring, r->slot, SLOTS, messages + done, n - done)) < n)
		sched_yield();
}

static void *produce_fifo(void *argument)
{
	struct producer *p = argument;
	struct mfs_message batch[BATCH];

	for (uint64_t next = 0; next < total;) {
		unsigned n = 1 + (unsigned)(next * 7 + p->index) % BATCH;

		if (n > total - next)
			n = (unsigned)(total - next);
		for (unsigned i = 0; i < n; i++)
			batch[i] = message(p->index, next + i);
		push_all(p->r, batch, n);
		next += n;
	}
	return NULL;
}

static void fifo(void)
{
	static struct ring r;
	struct mfs_mpsc_reader reader = {0};
	struct producer p[PRODUCERS];
	pthread_t thread[PRODUCERS];
	uint64_t expected[PRODUCERS] = {0};
	struct mfs_message batch[5];

	for (unsigned i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){&r, i};
		pthread_create(&thread[i], NULL, produce_fifo, &p[i]);
	}
	for (uint64_t left = PRODUCERS * total; left;) {
		/* let the ring become full from time to time */
		for (int wait = 0; left % 50 == 0 && wait < 100 && atomic_load(&r.ring.tail) - reader.head < SLOTS; wait++)
			sched_yield();

		int n = mfs_mpsc_pop(&reader, &r.ring, r.slot, SLOTS, batch, 5, 1, 2); /* a clock that stands still */

		if (n < 0)
			fail("fifo: pop failed", (uint64_t)-n, left);
		if (n == 0)
			sched_yield();
		for (int i = 0; i < n; i++) {
			check_whole(&batch[i]);
			if (batch[i].task != expected[batch[i].bytes]++)
				fail("fifo: lost, doubled or reordered", batch[i].bytes, batch[i].task);
		}
		left -= (uint64_t)n;
	}
	for (unsigned i = 0; i < PRODUCERS; i++)
		pthread_join(thread[i], NULL);
	if (mfs_mpsc_pop(&reader, &r.ring, r.slot, SLOTS, batch, 5, 1, 2) != 0)
		fail("fifo: more came out than went in", 0, 0);
}

/* ---- torn -------------------------------------------------------------------------------------------------------- */

#define TORN_NS 200000

/* A push that stops after its claim. Returns the ticket; UINT64_MAX: there was no room, or the slot is in
 * quarantine. */
static uint64_t claim_only(struct ring *r)
{
	uint64_t ticket = atomic_load(&r->ring.tail);

	do {
		uint64_t head = atomic_load(&r->ring.head);

		if (ticket - head >= SLOTS)
			return UINT64_MAX;
		for (unsigned i = 0; i < MFS_QUARANTINE_MAX; i++)
			if (atomic_load(&r->ring.quarantine[i]) == ticket % SLOTS + 1)
				return UINT64_MAX;
	} while (!atomic_compare_exchange_strong(&r->ring.tail, &ticket, ticket + 1));
	return ticket;
}

static void *produce_torn(void *argument)
{
	struct producer *p = argument;
	uint64_t late = UINT64_MAX;

	for (uint64_t next = 0; next < total; next++) {
		struct mfs_message m = message(p->index, next);

		/* Message total / 2 of each producer is claimed, but published only when a hundred others
		 * have passed it. */
		if (next == total / 2) {
			while ((late = claim_only(p->r)) == UINT64_MAX)
				sched_yield();
			continue;
		}
		push_all(p->r, &m, 1);
		if (late != UINT64_MAX && next == total / 2 + 2 * SLOTS) {
			struct mfs_mpsc_slot *slot = &p->r->slot[late % SLOTS];

			slot->message = message(p->index, total / 2);
			atomic_store_explicit(&slot->sequence, late + 1, memory_order_release);
		}
	}
	return NULL;
}

static void torn(void)
{
	static struct ring r;
	struct mfs_mpsc_reader reader = {0};
	struct producer p[PRODUCERS];
	pthread_t thread[PRODUCERS];
	uint8_t *seen = calloc(PRODUCERS, total);
	struct mfs_message batch[5];

	for (int dead = 0; dead < 2; dead++)
		claim_only(&r); /* these are never published */
	for (unsigned i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){&r, i};
		pthread_create(&thread[i], NULL, produce_torn, &p[i]);
	}
	for (uint64_t left = PRODUCERS * total; left;) {
		int n = mfs_mpsc_pop(&reader, &r.ring, r.slot, SLOTS, batch, 5, now_ns(), TORN_NS);

		if (n < 0)
			fail("torn: pop failed", (uint64_t)-n, left);
		if (n == 0)
			sched_yield();
		for (int i = 0; i < n; i++) {
			check_whole(&batch[i]);
			if (seen[batch[i].bytes * total + batch[i].task]++)
				fail("torn: doubled", batch[i].bytes, batch[i].task);
		}
		left -= (uint64_t)n;
	}
	for (unsigned i = 0; i < PRODUCERS; i++)
		pthread_join(thread[i], NULL);
	if (reader.torn_slots < 2 + PRODUCERS || reader.late < PRODUCERS || reader.torn_slots - reader.late != 2)
		fail("torn: slots passed by, and of them late", reader.torn_slots, reader.late);
	free(seen);
}

/* ---- spmc -------------------------------------------------------------------------------------------------------- */

struct grants {
	struct mfs_spmc ring;
	struct mfs_grant slot[SLOTS];
	_Atomic uint64_t taken;
	_Atomic uint8_t *seen;
};

static void *consume(void *argument)
{
	struct grants *g = argument;
	struct mfs_grant batch[BATCH];

	while (atomic_load(&g->taken) < total) {
		int n = mfs_spmc_pop(&g->ring, g->slot, SLOTS, batch, BATCH);

		if (n <= 0)
			sched_yield();
		for (int i = 0; i < n; i++) {
			uint64_t task = atomic_load(&batch[i].task);

			if (atomic_load(&batch[i].class_epoch) != ~task)
				fail("spmc: a grant was not read whole", task, 0);
			if (atomic_fetch_add(&g->seen[task], 1))
				fail("spmc: taken twice", task, 0);
			atomic_fetch_add(&g->taken, 1);
		}
	}
	return NULL;
}

static void spmc(void)
{
	static struct grants g;
	pthread_t thread[CONSUMERS];
	struct mfs_grant batch[BATCH];
	uint64_t tail = 0;

	g.seen = calloc(total, 1);
	for (unsigned i = 0; i < CONSUMERS; i++)
		pthread_create(&thread[i], NULL, consume, &g);
	for (uint64_t next = 0; next < total;) {
		unsigned n = total - next < BATCH ? (unsigned)(total - next) : BATCH;

		for (unsigned i = 0; i < n; i++) {
			atomic_store(&batch[i].task, next + i);
			atomic_store(&batch[i].class_epoch, ~(next + i));
		}

		int pushed = mfs_spmc_push(&g.ring, g.slot, SLOTS, &tail, batch, n);

		if (pushed < 0)
			fail("spmc: push failed", (uint64_t)-pushed, next);
		if (pushed == 0)
			sched_yield();
		next += (uint64_t)pushed;
	}
	for (unsigned i = 0; i < CONSUMERS; i++)
		pthread_join(thread[i], NULL);
	free((void *)g.seen);
}

int main(int argc, char **argv)
{
	total = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
	fifo();
	torn();
	spmc();
	return 0;
}

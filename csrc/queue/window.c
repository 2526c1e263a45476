/* The windows of one direction of a NIC. See mfs/window.h; the reasoning is in docs/internals/window.md. */
#include <mfs/window.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../base/slab.h"

#define NS_PER_S 1e9
/* share of the rate that is payload: a link is never assumed to be faster than it is */
#define HEADERS_SHARE 0.95
#define DRAIN_SHARE_LEAST 0.05
#define CHARGE_NS 2e6 /* the longest time for which one task counts at the NIC, whatever size it claims */
#define PATIENCE_NS_MAX 1000000000ull
#define IDLE_NS 1000000000ull /* after this time without a task, what was found by trial is forgotten */
#define PAUSE_NS 2000000ull   /* a pause of the sender that ends a trial */
#define BEYOND 1.5
#define TRIAL_TASKS 4
#define TRIAL_WINDOWS 2 /* a trial takes this many windows of bytes */
#define REST_TRIALS 32  /* trials without a change after both a smaller and a larger window were worse */
#define GROWTH_MAX 64   /* limit of a destination's window, in windows of the NIC */
#define GAIN 1.1        /* in rate: a smaller gain is no reason for a larger window */
#define FULL 0.75 /* share of what the link can carry: beyond it, more for one would be less for others */

/* A trial changes the window, waits until what entered before has passed (settle), and compares the rate
 * with the rate before. */
enum phase { WATCH, SETTLE_LESS, LESS, SETTLE_MORE, MORE };

struct destination {
	struct mfs_record record;
	uint32_t pairs;   /* pairs that use it; 0: it is new */
	uint16_t waiting; /* first of the pairs that found it full, or MFS_DESTINATION_NONE */
	uint64_t in_flight_bytes;
	uint64_t window_bytes;
	uint64_t idle_ns; /* when it was last left empty */
	uint32_t in_flight_tasks;
	uint32_t tasks; /* completed in this trial */
	uint64_t bytes; /* completed in this trial */
	uint64_t begun_ns;
	uint64_t begun_bytes; /* bytes completed to all destinations before this trial */
	uint64_t least_ns;    /* time of the quickest task of this trial */
	uint64_t most_bytes,
		/* most bytes in flight at once in this trial, and in the trial that it is compared with */
		most_before;
	double rate, rate_before;
	/* share of the NIC that its bytes take while they go out: what waits beyond the NIC lets others pass */
	double share;
	uint64_t window_before;
	uint64_t patience_ns;
	uint8_t phase, rest;
	bool limited; /* something waited for this window in this trial */
};

/* What one program sends to one destination. */
struct pair {
	struct mfs_record record;
	uint32_t destination;
	uint32_t users;
	uint32_t newer, older; /* neighbours in the list of unused pairs, by when they were given back */
	uint32_t in_flight_tasks;
	/* neighbours in the list of those that found their destination full */
	uint16_t waiting_next, waiting_before;
	bool waits;
	uint8_t waits_tier; /* tier of the flow that found it full */
};

struct mfs_window {
	struct mfs_window_config config;
	uint64_t window_bytes;
	uint64_t charge_max;
	double drain; /* bytes per nanosecond */
	double owed;  /* bytes that the NIC still had to send at owed_ns */
	uint64_t owed_ns;
	uint64_t in_flight_bytes;
	uint64_t completed_bytes;
	uint32_t newest, oldest;                  /* ends of the list of unused pairs */
	uint32_t waiting[MFS_TIER_SCAVENGER + 1]; /* number of waiting pairs, by the tier of their flow */
	struct mfs_slab pairs, destinations;
	struct pair *pair; /* the records of the two tables */
	struct destination *destination;
	size_t memory_bytes;
};

/* ---- the tables ------------------------------------------------------------------------------------------------------ */

static void unused_add(struct mfs_window *w, uint32_t i)
{
	struct pair *p = &w->pair[i];

	p->newer = 0;
	p->older = w->newest;
	*(w->newest ? &w->pair[w->newest].newer : &w->oldest) = i;
	w->newest = i;
}

static void unused_remove(struct mfs_window *w, uint32_t i)
{
	struct pair *p = &w->pair[i];

	*(p->newer ? &w->pair[p->newer].older : &w->newest) = p->older;
	*(p->older ? &w->pair[p->older].newer : &w->oldest) = p->newer;
}

/* Only a pair whose destination has tasks in flight waits. All waiting pairs are taken off when one of
 * these tasks ends, so the list is short or empty. */
static void waiting_add(struct mfs_window *w, uint16_t i, enum mfs_tier tier)
{
	struct pair *p = &w->pair[i];
	struct destination *d = &w->destination[p->destination];

	if (p->waits)
		return;
	p->waits = true;
	p->waits_tier = (uint8_t)tier;
	w->waiting[tier]++;
	p->waiting_before = MFS_DESTINATION_NONE;
	p->waiting_next = d->waiting;
	if (d->waiting != MFS_DESTINATION_NONE)
		w->pair[d->waiting].waiting_before = i;
	d->waiting = i;
}

static void waiting_remove(struct mfs_window *w, uint16_t i)
{
	struct pair *p = &w->pair[i];

	if (!p->waits)
		return;
	p->waits = false;
	w->waiting[p->waits_tier]--;
	*(p->waiting_before == MFS_DESTINATION_NONE ? &w->destination[p->destination].waiting
						    : &w->pair[p->waiting_before].waiting_next) =
		p->waiting_next;
	if (p->waiting_next != MFS_DESTINATION_NONE)
		w->pair[p->waiting_next].waiting_before = p->waiting_before;
}

uint16_t mfs_window_waiting_take(struct mfs_window *w, uint16_t i)
{
	uint16_t first = w->destination[w->pair[i].destination].waiting;

	if (first != MFS_DESTINATION_NONE)
		waiting_remove(w, first);
	return first;
}

static void pair_forget(struct mfs_window *w, uint32_t i)
{
	struct pair *p = &w->pair[i];

	unused_remove(w, i);
	waiting_remove(w, (uint16_t)i);
	if (--w->destination[p->destination].pairs == 0)
		mfs_slab_give(&w->destinations, p->destination);
	mfs_slab_give(&w->pairs, i);
}

static void begin(const struct mfs_window *w, struct destination *d)
{
	d->window_bytes = w->window_bytes;
	d->rate = 0.0;
	d->share = 1.0;
	d->patience_ns = MFS_WINDOW_PATIENCE_NS;
	d->phase = WATCH;
	d->rest = 0;
}

static void trial_begin(const struct mfs_window *w, struct destination *d, uint64_t now_ns)
{
	d->begun_ns = now_ns;
	d->begun_bytes = w->completed_bytes;
	d->bytes = 0;
	d->tasks = 0;
	d->least_ns = UINT64_MAX;
	d->most_bytes = d->in_flight_bytes;
	d->limited = false;
}

/* Cannot fail: there is one for every pair. */
static uint32_t destination_find_or_make(struct mfs_window *w, uint64_t key, uint64_t now_ns)
{
	uint32_t i = mfs_slab_find(&w->destinations, key, 0);
	struct destination *d;

	if (i)
		return i;
	i = mfs_slab_take(&w->destinations, key, 0);
	d = &w->destination[i];
	*d = (struct destination){.record = d->record, .idle_ns = now_ns, .waiting = MFS_DESTINATION_NONE};
	begin(w, d);
	trial_begin(w, d, now_ns);
	return i;
}

static uint32_t pair_make(struct mfs_window *w, uint64_t key, uint64_t destination_key, uint64_t now_ns)
{
	struct pair *p;
	uint32_t i;

	if (w->pairs.live == w->pairs.capacity) {
		if (!w->oldest)
			return MFS_DESTINATION_SHARED;
		pair_forget(w, w->oldest);
	}
	i = mfs_slab_take(&w->pairs, key, 0);
	p = &w->pair[i];
	*p = (struct pair){.record = p->record,
			   .destination = destination_find_or_make(w, destination_key, now_ns)};
	w->destination[p->destination].pairs++;
	return i;
}

uint16_t mfs_window_destination(struct mfs_window *w, uint64_t key, uint64_t destination_key, uint64_t now_ns)
{
	uint32_t i = mfs_slab_find(&w->pairs, key, 0);

	if (!i)
		i = pair_make(w, key, destination_key, now_ns);
	else if (w->pair[i].users == 0)
		unused_remove(w, i);
	if (i != MFS_DESTINATION_SHARED)
		w->pair[i].users++;
	return (uint16_t)i;
}

bool mfs_window_destination_give(struct mfs_window *w, uint16_t i)
{
	if (i == MFS_DESTINATION_SHARED || --w->pair[i].users)
		return false;
	unused_add(w, i);
	return true;
}

uint32_t mfs_window_destination_users(const struct mfs_window *w, uint16_t i)
{
	return w->pair[i].users;
}

/* ---- the destination's window ---------------------------------------------------------------------------------------- */

static uint64_t window_least(const struct mfs_window *w)
{
	return w->config.window_bytes_min < w->window_bytes ? w->config.window_bytes_min / 2
							    : w->window_bytes / 2;
}

/* True if even the quickest task took far longer than the NIC's own window explains: bytes wait somewhere
 * beyond the NIC. */
static bool waits_beyond(const struct mfs_window *w, const struct destination *d)
{
	double own_ns =
		((double)w->window_bytes + (double)d->bytes / d->tasks) / (w->drain > 0 ? w->drain : 1);

	return (double)d->least_ns > BEYOND * own_ns;
}

/* True if the link was full during this trial. */
static bool link_full(const struct mfs_window *w, const struct destination *d, uint64_t now_ns)
{
	return (double)(w->completed_bytes - d->begun_bytes) >=
	       FULL * w->drain * (double)(now_ns - d->begun_ns);
}

static void try_window(struct destination *d, uint64_t window_bytes, enum phase settle)
{
	d->window_bytes = window_bytes;
	d->phase = (uint8_t)settle;
}

static void try_less(const struct mfs_window *w, struct destination *d)
{
	uint64_t least = window_least(w), half = d->window_bytes / 2 > least ? d->window_bytes / 2 : least;

	if (half < d->window_bytes)
		try_window(d, half, SETTLE_LESS);
}

/* Tries a window of twice what was in flight: if tasks are larger than the window, that is one task,
 * however large it is. */
static bool try_more(const struct mfs_window *w, struct destination *d, uint64_t now_ns)
{
	uint64_t most = d->most_before > d->window_before ? d->most_before : d->window_before;

	if (d->window_before >= w->window_bytes * GROWTH_MAX || link_full(w, d, now_ns))
		return false;
	try_window(d, most * 2, SETTLE_MORE);
	return true;
}

static void watched(const struct mfs_window *w, struct destination *d, bool waits)
{
	if (d->rest) {
		d->rest--;
		return;
	}
	d->window_before = d->window_bytes;
	d->most_before = d->most_bytes;
	d->rate_before = d->rate;
	if (waits)
		try_less(w, d);
	else if (d->window_bytes < w->window_bytes && !waits_beyond(w, d))
		d->window_bytes =
			d->window_bytes * 2 < w->window_bytes ? d->window_bytes * 2 : w->window_bytes;
}

/* Ends a trial. A smaller window that completes as fast as a larger one leaves more of the order to the
 * queue, so it is kept. If it completes more slowly, the time was not spent in a queue (for example, the
 * program polls for completions seldom), and a larger window may be faster. The same holds if the smaller
 * window let in as much as the larger one. */
static void trial_end(struct mfs_window *w, struct destination *d, uint64_t now_ns)
{
	bool waits = d->limited && waits_beyond(w, d);

	d->rate = now_ns > d->begun_ns ? (double)d->bytes / (double)(now_ns - d->begun_ns) : 0.0;
	if ((d->phase == SETTLE_LESS || d->phase == LESS) &&
	    !d->limited) { /* too little was submitted to tell */
		d->window_bytes = d->window_before;
		d->phase = WATCH;
	}
	switch ((enum phase)d->phase) {
	case WATCH:
		watched(w, d, waits);
		break;
	case SETTLE_LESS:
		d->phase = LESS;
		break;
	case LESS:
		if (d->rate * GAIN >= d->rate_before && d->most_bytes < d->most_before) {
			d->phase = WATCH;
		} else if (!try_more(w, d, now_ns)) {
			d->window_bytes = d->window_before;
			d->phase = WATCH;
			d->rest = REST_TRIALS;
		}
		break;
	case SETTLE_MORE:
		d->phase = MORE;
		break;
	case MORE:
		if (d->rate < GAIN * d->rate_before) {
			d->window_bytes = d->window_before;
			d->rest = REST_TRIALS;
		}
		d->phase = WATCH;
	}
	d->share = waits && d->rate < w->drain ? d->rate / w->drain : 1.0;
	trial_begin(w, d, now_ns);
}

/* ---- the NIC's window ------------------------------------------------------------------------------------------------ */

static double backlog(struct mfs_window *w, uint64_t now_ns)
{
	if (now_ns > w->owed_ns) {
		w->owed -= (double)(now_ns - w->owed_ns) * w->drain;
		w->owed_ns = now_ns;
	}
	if (w->owed > (double)w->in_flight_bytes)
		w->owed = (double)w->in_flight_bytes;
	if (w->owed < 1.0)
		w->owed = 0.0;
	return w->owed;
}

static bool waits_before(const struct mfs_window *w, enum mfs_tier tier)
{
	uint32_t waiting = 0;

	for (unsigned t = 0; t < (unsigned)tier; t++)
		waiting += w->waiting[t];
	return waiting;
}

enum mfs_room mfs_window_room(struct mfs_window *w, uint16_t i, uint64_t bytes, enum mfs_tier tier,
			      uint64_t now_ns, uint64_t *at_ns)
{
	struct destination *d = &w->destination[w->pair[i].destination];
	double owed, room;

	if (d->in_flight_tasks && d->in_flight_bytes + bytes > d->window_bytes) {
		d->limited = true;
		if (w->pair[i].in_flight_tasks) {
			waiting_add(w, i, tier);
			return MFS_ROOM_DESTINATION_FULL;
		}
	}
	owed = backlog(w, now_ns);
	/* A task larger than the window may go behind a full one, so the link need not fall silent for it.
	 * But not while something of a better tier waits only for its own destination: a completion there
	 * would let that go first. */
	if (bytes <= w->window_bytes)
		room = (double)(w->window_bytes - bytes);
	else
		room = waits_before(w, tier) ? 0.0 : (double)w->window_bytes;
	if (owed <= room)
		return MFS_ROOM;
	*at_ns = now_ns + (uint64_t)((owed - room) / w->drain) + 1;
	return MFS_ROOM_NIC_FULL;
}

void mfs_window_enter(struct mfs_window *w, uint16_t i, uint64_t bytes, uint64_t now_ns,
		      struct mfs_passage *passage)
{
	struct destination *d = &w->destination[w->pair[i].destination];
	double rate = d->rate > 0.0 && d->rate < w->drain ? d->rate : w->drain;

	bytes = bytes < w->charge_max ? bytes : w->charge_max;
	if (!d->in_flight_tasks) {
		if (now_ns - d->idle_ns > IDLE_NS)
			begin(w, d);
		if (now_ns - d->idle_ns > PAUSE_NS) {
			if (d->phase != WATCH)
				d->window_bytes = d->window_before;
			d->phase = WATCH;
			trial_begin(w, d, now_ns);
		}
	}
	w->owed = backlog(w, now_ns) + (double)bytes * d->share;
	w->in_flight_bytes += bytes;
	d->in_flight_bytes += bytes;
	d->in_flight_tasks++;
	if (d->in_flight_bytes > d->most_bytes)
		d->most_bytes = d->in_flight_bytes;
	w->pair[i].in_flight_tasks++;
	*passage = (struct mfs_passage){
		.entered_ns = now_ns,
		.due_ns = now_ns + d->patience_ns + (uint64_t)(4.0 * (double)d->in_flight_bytes / rate),
		.bytes = bytes,
		.destination = i,
	};
}

static void out(struct mfs_window *w, struct destination *d, const struct mfs_passage *passage,
		uint64_t now_ns)
{
	w->in_flight_bytes -= passage->bytes;
	w->pair[passage->destination].in_flight_tasks--;
	d->in_flight_bytes -= passage->bytes;
	if (--d->in_flight_tasks == 0)
		d->idle_ns = now_ns;
}

void mfs_window_complete(struct mfs_window *w, const struct mfs_passage *passage, uint64_t now_ns)
{
	struct destination *d = &w->destination[w->pair[passage->destination].destination];
	uint64_t took_ns = now_ns > passage->entered_ns ? now_ns - passage->entered_ns : 0;

	out(w, d, passage, now_ns);
	if (d->patience_ns > MFS_WINDOW_PATIENCE_NS)
		d->patience_ns /= 2;
	w->completed_bytes += passage->bytes;
	d->bytes += passage->bytes;
	d->tasks++;
	if (took_ns < d->least_ns)
		d->least_ns = took_ns;
	if (d->tasks >= TRIAL_TASKS && d->bytes >= TRIAL_WINDOWS * d->window_bytes)
		trial_end(w, d, now_ns);
}

void mfs_window_leave(struct mfs_window *w, const struct mfs_passage *passage, bool overdue, uint64_t now_ns)
{
	struct destination *d = &w->destination[w->pair[passage->destination].destination];

	out(w, d, passage, now_ns);
	if (!overdue)
		return;
	d->share = 0.0;
	if (d->patience_ns < PATIENCE_NS_MAX)
		d->patience_ns *= 2;
}

/* ---- creation and settings ------------------------------------------------------------------------------------------- */

static void sizes_set(struct mfs_window *w)
{
	double rate = (double)w->config.rate_bytes_per_s,
	       window = rate * (double)w->config.window_ns / NS_PER_S;
	double charge = rate * CHARGE_NS / NS_PER_S;

	w->window_bytes = window < 1e15 ? (uint64_t)window : (uint64_t)1e15;
	if (w->window_bytes < w->config.window_bytes_min)
		w->window_bytes = w->config.window_bytes_min;
	w->charge_max = charge < 1e15 ? (uint64_t)charge : (uint64_t)1e15;
	if (w->charge_max < w->window_bytes)
		w->charge_max = w->window_bytes;
	w->drain = rate * HEADERS_SHARE / NS_PER_S;
}

int mfs_window_create(const struct mfs_window_config *config, struct mfs_window **result)
{
	struct mfs_arena arena = {0};
	struct mfs_window *w = NULL;

	if (!config->rate_bytes_per_s || !config->window_bytes_min ||
	    config->rate_bytes_per_s > MFS_FLOW_BYTES_MAX << 8)
		return -EINVAL;
	for (unsigned pass = 0; pass < 2; pass++) {
		w = mfs_arena_take(&arena, sizeof(*w));
		struct mfs_slab pairs, destinations;

		mfs_slab_lay(&pairs, &arena, sizeof(struct pair), MFS_DESTINATIONS_MAX - 1,
			     2 * MFS_DESTINATIONS_MAX);
		mfs_slab_lay(&destinations, &arena, sizeof(struct destination), MFS_DESTINATIONS_MAX - 1,
			     2 * MFS_DESTINATIONS_MAX);

		if (pass == 0) {
			size_t bytes = arena.used;

			if (!mfs_arena_map(&arena))
				return -ENOMEM;
			((struct mfs_window *)arena.base)->memory_bytes = bytes;
			continue;
		}
		w->pairs = pairs;
		w->destinations = destinations;
		w->pair = (struct pair *)pairs.records;
		w->destination = (struct destination *)destinations.records;
	}
	w->config = *config;
	sizes_set(w);
	w->destination[MFS_DESTINATION_SHARED].waiting = MFS_DESTINATION_NONE;
	begin(w, &w->destination[MFS_DESTINATION_SHARED]);
	trial_begin(w, &w->destination[MFS_DESTINATION_SHARED], 0);
	*result = w;
	return 0;
}

void mfs_window_destroy(struct mfs_window *w)
{
	if (w)
		mfs_arena_unmap(w, w->memory_bytes);
}

int mfs_window_set_rate(struct mfs_window *w, uint64_t rate_bytes_per_s, uint64_t now_ns)
{
	if (!rate_bytes_per_s || rate_bytes_per_s > MFS_FLOW_BYTES_MAX << 8)
		return -EINVAL;
	backlog(w, now_ns);
	w->config.rate_bytes_per_s = rate_bytes_per_s;
	sizes_set(w);
	for (uint32_t i = 0; i <= w->destinations.used; i++)
		begin(w, &w->destination[i]);
	return 0;
}

void mfs_window_set_drain(struct mfs_window *w, double bytes_per_s, uint64_t now_ns)
{
	double rate = (double)w->config.rate_bytes_per_s;

	backlog(w, now_ns);
	if (!(bytes_per_s > DRAIN_SHARE_LEAST * rate))
		bytes_per_s = DRAIN_SHARE_LEAST * rate;
	w->drain = (bytes_per_s < rate ? bytes_per_s : rate) * HEADERS_SHARE / NS_PER_S;
}

uint64_t mfs_window_bytes(const struct mfs_window *w)
{
	return w->window_bytes;
}

uint64_t mfs_window_backlog(struct mfs_window *w, uint64_t now_ns)
{
	return (uint64_t)backlog(w, now_ns);
}

uint64_t mfs_window_in_flight(const struct mfs_window *w)
{
	return w->in_flight_bytes;
}

void mfs_window_snapshot(const struct mfs_window *w, uint16_t i, struct mfs_destination_window *snapshot)
{
	const struct destination *d = &w->destination[w->pair[i].destination];

	*snapshot = (struct mfs_destination_window){
		.key = d->record.key,
		.window_bytes = d->window_bytes,
		.in_flight_bytes = d->in_flight_bytes,
		.rate_bytes_per_s = (uint64_t)(d->rate * NS_PER_S),
	};
}

/* Returns 0 as soon as begin() would forget the rate with the next task. A caller that decides by the rate
 * might never send that task, and would otherwise see the old rate for ever. */
uint64_t mfs_window_rate_to(const struct mfs_window *w, uint64_t destination_key, uint64_t now_ns)
{
	uint32_t i = mfs_slab_find(&w->destinations, destination_key, 0);
	const struct destination *d = &w->destination[i];

	if (!i || (!d->in_flight_tasks && now_ns - d->idle_ns > IDLE_NS))
		return 0;
	return (uint64_t)(d->rate * NS_PER_S);
}

/* Asks MFS for permits through its public interface (mfs/api.h). When nothing is scheduled, messages go at
 * once in the fixed class of their stage.
 *
 * A thread sleeps until there are permits and then wakes the event loop, which takes them. The shim's hooks
 * take permits out of the ring, too, also those of our messages. They keep them for the caller, so we ask
 * again whenever permits were taken since we last asked. A message that waits when the daemon is gone, or
 * whose transfer stands still for longer than max_hold, goes out without a permit, in the lowest class
 * above the scavenger's.
 */
#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <mfs/api.h>

#define LOAD_BATCHES (1ull << 40) /* above the numbers of batches */
enum { LOOK_NS = 20 * 1000 * 1000, WAIT_NS = 100 * 1000 * 1000 };
#define ATTACH_NS 30000000000ull

/* A batch that was announced to the daemon. It ends when its last message is out. */
struct announcement {
	struct mfs_client *client;
	unsigned users; /* references: the running batch and its requests */
	uint32_t slot;
};

static const struct mfs_api *api;
static struct mfs_client *session;
static int nic = -1;
static int bell = -1;
static sem_t taken;
static struct message *waiting_first, *waiting_last; /* in the order of submission */
static uint32_t asked_at; /* value of permits_moved when all waiting messages were last asked for */
static uint64_t submitted, permitted, bypassed;

static uint32_t fallback_class(const struct mfs_client *client)
{
	const struct mfs_segment *segment = client ? mfs_client_segment((struct mfs_client *)client) : NULL;
	return segment && segment->header.classes >= 2 ? segment->header.classes - 2 : CLASSES_MAX - 2;
}

/* Returns the class of the lane for a message that may travel in wire_class. */
static unsigned lane_class(const struct message *message, int wire_class)
{
	return settings.one_lane ? settings.fixed_class[message->stage] : (unsigned)wire_class;
}

/* ---- permits ---------------------------------------------------------------------------------------------------- */

/* Returns a counter that changes with every permit that comes, and again when another thread has taken a
 * permit out of the ring and stored it for its task. */
static uint32_t permits_moved(void)
{
	struct mfs_client *client = api->client();

	return client ? atomic_load(&mfs_client_segment(client)->header.grant_word) : 0;
}

/* The thread that rings the bell when permits have come, and lets the event loop take them before it waits
 * again. Another thread may have taken them out of the ring before this one polls it, so the counter is
 * compared, too. gate_poll finds a permit that was taken between two waits. */
static void *wait_for_permits(void *unused)
{
	const uint64_t one = 1;
	uint32_t known = 0;

	(void)unused;
	pthread_setname_np(pthread_self(), "permits");
	for (;;) {
		struct mfs_client *client = api->client();

		if (!client) {
			usleep(WAIT_NS / 1000);
		} else if (!mfs_client_wait(client, WAIT_NS) || permits_moved() != known) {
			if (write(bell, &one, sizeof(one)) != sizeof(one))
				abort();
			while (sem_wait(&taken) && errno == EINTR)
				;
			known = permits_moved();
		}
	}
	return NULL;
}

static struct transfer *transfer_of(const struct message *message)
{
	return &message->request->transfer[message->stage];
}

static void transfer_stands_no_more(struct transfer *transfer)
{
	if (transfer->since_ns)
		transfer->stood_ns += now_ns() - transfer->since_ns;
	transfer->since_ns = 0;
}

static void transfer_moves(struct transfer *transfer)
{
	transfer_stands_no_more(transfer);
	transfer->under_way++;
}

static bool transfer_held_too_long(const struct transfer *transfer, uint64_t now, uint64_t max_hold_ns)
{
	return transfer->stood_ns + (transfer->since_ns ? now - transfer->since_ns : 0) >= max_hold_ns;
}

static void unlink_waiting(struct message *message)
{
	struct transfer *transfer = transfer_of(message);

	if (!--transfer->waiting)
		transfer_stands_no_more(transfer);
	*(message->waiting_before ? &message->waiting_before->waiting_after : &waiting_first) = message->waiting_after;
	*(message->waiting_after ? &message->waiting_after->waiting_before : &waiting_last) = message->waiting_before;
	message->waits = false;
}

/* Asks for the permit of every waiting message. This takes permits of other messages out of the ring, too,
 * perhaps of some that were already asked for. Then all are asked for again. */
static void permits_take(void)
{
	do {
		asked_at = permits_moved();
		for (struct message *message = waiting_first, *next; message; message = next) {
			const int wire_class = mfs_client_permit(message->client, message->task);

			next = message->waiting_after;
			if (wire_class < 0)
				continue;
			unlink_waiting(message);
			transfer_moves(transfer_of(message));
			permitted++;
			verbs_post(message, lane_class(message, wire_class));
		}
	} while (permits_moved() != asked_at);
}

static void bell_rang(void)
{
	uint64_t times;

	if (read(bell, &times, sizeof(times)) != sizeof(times))
		return;
	permits_take();
	sem_post(&taken);
}

/* ---- session ---------------------------------------------------------------------------------------------------- */

static struct mfs_client *session_now(void)
{
	struct mfs_client *client = api ? api->client() : NULL;

	if (client != session) {
		session = client;
		nic = client ? mfs_client_nic(client, verbs_device_name(), verbs_device_guid(), 0) : -1;
	}
	return client && nic >= 0 && mfs_client_alive(client, now_ns()) ? client : NULL;
}

void gate_open(void)
{
	pthread_t thread;

	if (!settings.scheduled)
		return;
	api = mfs_api();
	if (!api)
		fail("the shim is not preloaded");
	bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	loop_watch(bell, bell_rang);
	sem_init(&taken, 0, 0);
	if (pthread_create(&thread, NULL, wait_for_permits, NULL))
		fail("no thread for permits");
}

/* On a busy machine the first attempt may time out. The shim then tries again by itself. */
void gate_attach(void)
{
	const uint64_t until = now_ns() + ATTACH_NS;

	while (settings.scheduled && !session_now()) {
		if (now_ns() > until)
			fail("not attached to the daemon after %d s", (int)(ATTACH_NS / 1000000000));
		usleep(10000);
	}
}

void gate_lane(int wire_class)
{
	if (api && api->lane_set(wire_class))
		fail("class %d is not one of the daemon's", wire_class);
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

void gate_submit(struct message *message)
{
	const struct request *request = message->request;
	struct mfs_client *client;
	struct mfs_task task;

	if (!settings.scheduled) {
		verbs_post(message, request->fixed_class[message->stage]);
		return;
	}
	client = session_now();
	task = (struct mfs_task){
		.bytes = message->bytes,
		.request_id = request->number + 1,
		.deadline_ns = request->deadline_ns,
		.batch = request->announced && request->announced->client == client ? request->announced->slot : MFS_NONE_U32,
		.layer = (uint16_t)(request->loads && settings.loads_alone ? LOAD_LAYER : message->layer),
		.stage = (uint8_t)message->stage,
		.nic = (uint8_t)nic,
		.role = MFS_ROLE_KV,
		.class_marked = !settings.one_lane,
		.incoming = message->stage == STAGE_REUSE,
		.at_once = true,
		.peer = mfs_peer_hash(verbs_gid(message->peer)->raw),
	};
	int rc = client ? mfs_client_submit(client, &task, MFS_COOKIE_NONE, &message->task) : -ENOTCONN;

	if (rc < 0) {
		message->client = NULL;
		bypassed++;
		verbs_post(message, lane_class(message, (int)fallback_class(client)));
		return;
	}
	message->client = client;
	submitted++;
	if (rc > 0) { /* on credit */
		transfer_moves(transfer_of(message));
		permitted++;
		verbs_post(message, lane_class(message, mfs_client_permit(client, message->task)));
		return;
	}
	message->waits = true;
	transfer_of(message)->waiting++;
	if (!transfer_of(message)->under_way && !transfer_of(message)->since_ns)
		transfer_of(message)->since_ns = now_ns();
	message->waiting_before = waiting_last;
	message->waiting_after = NULL;
	*(waiting_last ? &waiting_last->waiting_after : &waiting_first) = message;
	waiting_last = message;
}

void gate_completed(struct message *message)
{
	if (message->client && !message->without_permit) {
		struct transfer *transfer = transfer_of(message);

		mfs_client_complete(message->client, message->task);
		if (!--transfer->under_way && transfer->waiting)
			transfer->since_ns = now_ns();
	}
	message->client = NULL;
}

bool gate_waits(void)
{
	return waiting_first;
}

/* Called after every event, as the shim's hook in ibv_poll_cq may have taken our permits. It also fails
 * open, as the shim does: a message goes out if its session is gone, or if its transfer has stood still for
 * too long in total. */
void gate_poll(void)
{
	static uint64_t looked_ns;
	const uint64_t now = now_ns();
	struct mfs_client *client;

	if (waiting_first && permits_moved() != asked_at)
		permits_take();
	if (!waiting_first || now - looked_ns < LOOK_NS)
		return;
	looked_ns = now;
	client = session_now();
	for (struct message *message = waiting_first, *next; message; message = next) {
		next = message->waiting_after;
		if (message->client == client &&
		    !transfer_held_too_long(transfer_of(message), now,
					    mfs_client_segment(client)->header.max_hold_ns))
			continue;
		mfs_client_cancel(message->client, message->task, true);
		message->without_permit = true;
		unlink_waiting(message);
		bypassed++;
		verbs_post(message, lane_class(message, (int)fallback_class(client)));
	}
}

/* Says for what the shim counts the bytes that are posted next. */
void gate_posting(const struct message *message)
{
	struct mfs_context context;

	if (!api)
		return;
	context = (struct mfs_context){ .stage = (uint8_t)message->stage, .batch = MFS_NONE_U32, .layer = (uint16_t)message->layer };
	if (message->request)
		context.request_id = message->request->number + 1;
	api->context_set(&context);
}

/* ---- batches ---------------------------------------------------------------------------------------------------- */

static void announcement_release(struct announcement *announced)
{
	if (--announced->users)
		return;
	mfs_client_batch_end(announced->client, announced->slot);
	free(announced);
}

static struct announcement *announce(struct mfs_client *client, const struct mfs_batch_info *info, unsigned users)
{
	const int slot = mfs_client_batch_begin_with(client, info);
	struct announcement *announced;

	if (slot < 0)
		return NULL; /* then its messages carry no batch */
	announced = malloc(sizeof(*announced));
	if (!announced) {
		mfs_client_batch_end(client, (uint32_t)slot);
		return NULL;
	}
	*announced = (struct announcement){ .client = client, .slot = (uint32_t)slot, .users = users };
	return announced;
}

static struct mfs_demand_info demand(enum stage stage, unsigned peer, uint64_t bytes, enum mfs_direction direction)
{
	struct mfs_demand_info info = { .bytes = bytes, .stage = (uint8_t)stage, .nic = (uint8_t)nic,
					.direction = (uint8_t)direction };

	memcpy(info.peer, verbs_gid(peer), sizeof(info.peer));
	return info;
}

void gate_batch_begin(struct batch *batch)
{
	static struct mfs_request_info requests[REQUESTS_MAX];
	static struct mfs_demand_info demands[2 * REQUESTS_MAX];
	struct mfs_client *client;
	struct mfs_batch_info info;

	if (!settings.scheduled || !(client = session_now()))
		return;
	for (uint32_t i = 0, used = 0; i < batch->requests; i++) {
		const struct request *request = batch->request[i];

		requests[i] = (struct mfs_request_info){
			.request_id = request->number + 1,
			.deadline_ns = request->deadline_ns,
			.budget_ns = request->budget_ns,
			.demands = &demands[used],
		};
		if (request->fetch_bytes)
			demands[used++] = demand(STAGE_REUSE, request->owner, request->fetch_bytes * batch->layers,
						 MFS_DIRECTION_IN);
		if (request->push_bytes)
			demands[used++] = demand(STAGE_P2D, request->decode, request->push_bytes * batch->layers, MFS_DIRECTION_OUT);
		requests[i].demands_count = (uint32_t)(&demands[used] - requests[i].demands);
	}
	info = (struct mfs_batch_info){
		.batch_id = batch->number,
		.layers = batch->layers,
		.deadline_ns = batch->deadline_ns,
		.compute_ns = batch->compute_ns,
		.requests = requests,
		.requests_count = batch->requests,
	};
	batch->announced = announce(client, &info, batch->requests + 1);
	for (uint32_t i = 0; i < batch->requests; i++)
		batch->request[i]->announced = batch->announced;
}

void gate_batch_layer(struct batch *batch)
{
	if (batch->announced)
		mfs_client_batch_layer(batch->announced->client, batch->announced->slot, batch->layer);
}

void gate_batch_computed(struct batch *batch)
{
	if (!batch->announced)
		return;
	gate_batch_layer(batch);
	announcement_release(batch->announced);
	batch->announced = NULL;
}

void gate_request_end(struct request *request)
{
	if (request->announced)
		announcement_release(request->announced);
}

/* ---- requests that queue ---------------------------------------------------------------------------------------- */

/* Announces a load as a batch of one, so that it has a rank by its request's deadline. To the daemon
 * all its messages are of LOAD_LAYER, behind every layer of the batches that run. */
static void load_announce_alone(struct mfs_client *client, struct request *request, const struct mfs_request_info *load)
{
	struct mfs_request_info alone = *load;
	const struct mfs_batch_info info = {
		.batch_id = LOAD_BATCHES + request->number,
		.layers = LOAD_LAYER + 1,
		.deadline_ns = alone.deadline_ns,
		.requests = &alone,
		.requests_count = 1,
	};

	alone.flags = 0;
	alone.rank = 0;
	request->announced = announce(client, &info, 1);
}

/* From now on what the request loads counts at the owner's port, as the coordinator adds it up. */
void gate_load_begin(struct request *request, uint64_t deadline_ns, uint32_t rank, uint64_t bytes)
{
	struct mfs_demand_info load;
	struct mfs_request_info info;
	struct mfs_client *client;
	int slot;

	if (!settings.scheduled || !(client = session_now()))
		return;
	load = demand(STAGE_REUSE, request->owner, bytes, MFS_DIRECTION_IN);
	info = (struct mfs_request_info){
		.request_id = request->number + 1,
		.deadline_ns = deadline_ns,
		.budget_ns = request->budget_ns,
		.flags = MFS_REQUEST_WAITING,
		.rank = rank,
		.demands = &load,
		.demands_count = 1,
	};
	if (settings.loads_alone) {
		load_announce_alone(client, request, &info);
		return;
	}
	slot = mfs_client_request_begin(client, &info, MFS_NONE_U32);
	if (slot < 0)
		return; /* its messages still go in order, but other nodes' ports do not know of them */
	request->queued_client = client;
	request->queued_slot = (uint32_t)slot;
}

void gate_load_end(struct request *request)
{
	if (request->queued_client)
		mfs_client_request_end(request->queued_client, request->queued_slot);
	request->queued_client = NULL;
}

int64_t gate_forecast(unsigned owner, uint64_t bytes, uint64_t needed_ns)
{
	struct mfs_client *client = settings.scheduled ? session_now() : NULL;
	const struct mfs_fetch fetch = {.bytes = bytes, .far_bytes = bytes}; /* the load is announced later */
	uint64_t ns;

	if (!client || mfs_client_fetch_ns(client, (unsigned)nic, &fetch, verbs_gid(owner)->raw, needed_ns, &ns) < 0)
		return -1;
	return ns < INT64_MAX ? (int64_t)ns : INT64_MAX;
}

void gate_statistics(void)
{
	tell("statistics submitted %lu permitted %lu bypassed %lu controls %lu", submitted, permitted, bypassed,
	     verbs_controls());
}

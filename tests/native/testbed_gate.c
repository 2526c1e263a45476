/* The testbed's gate beside a scripted daemon and shim: a permit that another thread takes out of the ring
 * is not lost.
 *
 * The gate is compiled in; what it calls is defined below. Exits 0 if every message was posted once, as
 * soon as it could be. */
#include "../../bench/testbed/worker/gate.c"

#include <stdio.h>

enum { MESSAGES = 4, PERMITTED_CLASS = 3, PEER = 7 };
#define MAX_HOLD_NS 1000000000ull

struct settings settings = { .scheduled = true };

static struct mfs_segment segment;
static struct mfs_client *const the_client = (struct mfs_client *)&segment;
static bool granted[MESSAGES + 1]; /* by task */
static uint64_t taken_with; /* asking for this task takes the permits of all */
static unsigned asked, posted[MESSAGES + 1];
static uint64_t tasks, clock_ns = 1000000000;
static bool without_permits; /* messages may be posted without permits now */

static void check(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	exit(1);
}

/* ---- the session ------------------------------------------------------------------------------------------------ */

struct mfs_segment *mfs_client_segment(struct mfs_client *client)
{
	(void)client;
	return &segment;
}

int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie, uint64_t *task_id)
{
	(void)client, (void)cookie;
	check(task->peer == PEER, "a task says where it goes");
	*task_id = ++tasks;
	return 0;
}

/* Takes all permits out of the ring, as the shim's hooks do, too. Every caller that asks then learns of
 * its permit. */
static void permits_leave_the_ring(void)
{
	for (uint64_t i = 1; i <= tasks; i++)
		granted[i] = true;
	atomic_fetch_add(&segment.grant.head, tasks);
	atomic_fetch_add(&segment.header.grant_word, 1);
}

int mfs_client_permit(struct mfs_client *client, uint64_t task_id)
{
	(void)client;
	asked++;
	if (task_id == taken_with) {
		taken_with = 0;
		permits_leave_the_ring();
	}
	return granted[task_id] ? PERMITTED_CLASS : -EAGAIN;
}

uint32_t mfs_peer_hash(const uint8_t gid[16])
{
	(void)gid;
	return PEER;
}

int mfs_client_nic(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate)
{
	(void)client, (void)name, (void)guid, (void)rate;
	return 0;
}

bool mfs_client_alive(const struct mfs_client *client, uint64_t now)
{
	(void)client, (void)now;
	return true;
}

int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns)
{
	(void)client, (void)timeout_ns;
	return -ETIMEDOUT;
}

void mfs_client_complete(struct mfs_client *client, uint64_t task_id)
{
	(void)client, (void)task_id;
}

void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool without)
{
	(void)client, (void)task_id, (void)without;
}

int mfs_client_batch_begin_with(struct mfs_client *client, const struct mfs_batch_info *reported)
{
	(void)client, (void)reported;
	return -1;
}

int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer)
{
	(void)client, (void)batch, (void)layer;
	return 0;
}

int mfs_client_batch_end(struct mfs_client *client, uint32_t batch)
{
	(void)client, (void)batch;
	return 0;
}

int mfs_client_request_begin(struct mfs_client *client, const struct mfs_request_info *info, uint32_t batch)
{
	(void)client, (void)info, (void)batch;
	return -1;
}

int mfs_client_request_end(struct mfs_client *client, uint32_t request)
{
	(void)client, (void)request;
	return 0;
}

int mfs_client_fetch_ns(const struct mfs_client *client, unsigned nic, const struct mfs_fetch *fetch,
			const uint8_t peer[16], uint64_t deadline_ns, uint64_t *ns)
{
	(void)client, (void)nic, (void)fetch, (void)peer, (void)deadline_ns, (void)ns;
	return -ENODATA;
}

static struct mfs_client *client_now(void)
{
	return the_client;
}

static const struct mfs_api scripted = { .version = 1, .client = client_now };

/* ---- the rest of the worker -------------------------------------------------------------------------------------- */

uint64_t now_ns(void)
{
	return clock_ns;
}

uint64_t verbs_controls(void)
{
	return 0;
}

void verbs_post(struct message *message, unsigned wire_class)
{
	check(without_permits || wire_class == PERMITTED_CLASS, "posted on another class than the permitted one");
	posted[message->task]++;
}

const char *verbs_device_name(void)
{
	return "mfs0";
}

uint64_t verbs_device_guid(void)
{
	return 1;
}

const union ibv_gid *verbs_gid(unsigned peer)
{
	static const union ibv_gid gid;

	(void)peer;
	return &gid;
}

void tell(const char *format, ...)
{
	(void)format;
}

void fail(const char *format, ...)
{
	fprintf(stderr, "%s\n", format);
	exit(1);
}

void loop_watch(int fd, void (*ready)(void))
{
	(void)fd, (void)ready;
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static struct request request = { .number = 1 };
static struct message message[MESSAGES];

static void submit_all(void)
{
	tasks = asked = 0;
	memset(granted, 0, sizeof(granted));
	memset(posted, 0, sizeof(posted));
	memset(request.transfer, 0, sizeof(request.transfer));
	for (unsigned i = 0; i < MESSAGES; i++) {
		message[i] = (struct message){ .request = &request, .bytes = 64, .stage = STAGE_P2D };
		gate_submit(&message[i]);
	}
	gate_poll();
	asked = 0;
}

static void check_posted(const char *what)
{
	for (unsigned i = 1; i <= MESSAGES; i++)
		check(posted[i] == 1, what);
	check(!gate_waits(), "nothing waits any more");
}

int main(void)
{
	api = &scripted;
	segment.header.max_hold_ns = MAX_HOLD_NS;

	submit_all();
	gate_poll();
	check(!asked && gate_waits(), "while no permit has moved none is asked for");
	permits_leave_the_ring();
	gate_poll();
	check_posted("permits that the shim took are found without a bell");

	submit_all();
	taken_with = MESSAGES;
	permits_take();
	check_posted("permits that asking for the last message took are found");

	submit_all();
	granted[1] = true;
	permits_take();
	check(posted[1] == 1, "the first message has its permit");
	clock_ns += 2 * MAX_HOLD_NS;
	gate_poll();
	check(gate_waits(), "a transfer of which a message is under way is not held, however long that takes");
	gate_completed(&message[0]);
	clock_ns += MAX_HOLD_NS - 1;
	gate_poll();
	check(gate_waits(), "it has not stood still for too long yet");
	without_permits = true;
	clock_ns += LOOK_NS;
	gate_poll();
	check_posted("what stands still for too long goes without permits");
	check(!request.transfer[STAGE_P2D].waiting && !request.transfer[STAGE_P2D].under_way, "all is counted");
	return 0;
}

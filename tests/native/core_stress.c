/* Arbiter and clients under many threads: core_stress SOCKET_PATH TASKS. Exits 0 if all accounts balance
 * at the end.
 *
 * Three clients with three threads each submit, take permits, complete and cancel tasks that they share,
 * and end layers of their batches. A fourth client comes and goes without finishing anything. Meanwhile
 * the main thread reads all statistics and changes mode, rules and ranks. */
#define _GNU_SOURCE
#include <mfs/arbiter.h>
#include <mfs/client.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 3
#define THREADS 3
#define NICS 2

static struct mfs_arbiter *arbiter;
static int listener;
static uint64_t tasks_each;

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);                      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* ---- what the daemon does on its socket -------------------------------------------------------------------------- */

static void send_welcome(int fd, int id, int memfd, int doorbell)
{
	struct mfs_welcome welcome = {.magic = MFS_ABI_MAGIC, .major = MFS_ABI_MAJOR, .minor = MFS_ABI_MINOR,
				      .segment_bytes = sizeof(struct mfs_segment), .client_id = (uint32_t)id};
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec vector = {&welcome, sizeof(welcome)};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	int descriptors[2] = {memfd, doorbell};

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(descriptors));
	memcpy(CMSG_DATA(c), descriptors, sizeof(descriptors));
	CHECK(sendmsg(fd, &message, 0) == sizeof(welcome));
	close(memfd);
	close(doorbell);
}

static void *serve_one(void *argument)
{
	int fd = (int)(intptr_t)argument, id = 0, memfd, doorbell;
	struct mfs_hello hello;

	while (recv(fd, &hello, sizeof(hello), 0) == sizeof(hello)) {
		if (hello.kind == MFS_HELLO_ATTACH) {
			id = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);
			CHECK(id > 0);
			send_welcome(fd, id, memfd, doorbell);
		} else {
			int nic = mfs_arbiter_nic(arbiter, hello.nic_name, hello.nic_guid, hello.nic_rate_bytes_per_s);
			struct mfs_nic_reply reply = {.magic = MFS_ABI_MAGIC, .error = nic < 0 ? nic : 0, .nic = (uint32_t)nic};

			CHECK(send(fd, &reply, sizeof(reply), 0) == sizeof(reply));
		}
	}
	CHECK(mfs_arbiter_client_remove(arbiter, (uint32_t)id) == 0);
	close(fd);
	return NULL;
}

static void *serve(void *argument)
{
	pthread_attr_t detached;
	int fd;

	(void)argument;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		pthread_t thread;

		CHECK(pthread_create(&thread, &detached, serve_one, (void *)(intptr_t)fd) == 0);
	}
	pthread_attr_destroy(&detached);
	return NULL;
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

struct worker {
	struct mfs_client *client;
	_Atomic uint64_t *ended; /* tasks of this client that were completed or cancelled, by any thread */
	int batch;
	unsigned seed;
};

static struct mfs_client *attach(const char *path)
{
	struct mfs_client_options options = {.socket_path = path, .mode = MFS_MODE_ENFORCE, .timeout_ms = 30000};
	struct mfs_client *client;
	const char *why = "";
	int rc = mfs_client_attach(&options, &client, &why);

	if (rc < 0)
		fprintf(stderr, "attach: %s (%d)\n", why, rc);
	CHECK(rc == 0);
	for (int i = 0; i < NICS; i++)
		CHECK(mfs_client_nic(client, i ? "rdma1" : "rdma0", 0, 1000000000) >= 0);
	return client;
}

/* Finishes permitted tasks, of this or another thread. */
static void finish_some(struct worker *w)
{
	struct mfs_permit permits[16];
	int n = mfs_client_permits(w->client, permits, 16);

	for (int i = 0; i < n; i++) {
		CHECK(permits[i].cookie == (void *)w->client && permits[i].wire_class < MFS_CLASSES_MAX);
		mfs_client_count_posted(w->client, 0, MFS_STAGE_P2D, 1000);
		mfs_client_count_completed(w->client, 0, MFS_STAGE_P2D, 1000);
		if (rand_r(&w->seed) % 4)
			mfs_client_complete(w->client, permits[i].task_id);
		else
			mfs_client_cancel(w->client, permits[i].task_id, true);
		atomic_fetch_add(w->ended, 1);
	}
	if (n <= 0)
		mfs_client_wait(w->client, 1000000);
}

/* The life of a batch on a client that others use for tasks with cookies: announced, asked for, completed,
 * ended. */
static void engine(struct worker *w)
{
	struct mfs_demand_info demands[3];
	struct mfs_request_info requests[2];
	const struct mfs_batch_info reported = {.batch_id = 100 + (uint64_t)(rand_r(&w->seed) % 4), .layers = 8,
					    .compute_ns = 1000000, .requests = requests, .requests_count = 2};
	uint64_t id;
	int slot, rc;

	for (int i = 0; i < 3; i++)
		demands[i] = (struct mfs_demand_info){.bytes = (uint64_t)(rand_r(&w->seed) % 100000), .stage = MFS_STAGE_P2D,
						      .nic = (uint8_t)(rand_r(&w->seed) % NICS), .layer = (uint16_t)i};
	for (int i = 0; i < 2; i++)
		requests[i] = (struct mfs_request_info){.request_id = 1 + (uint64_t)(rand_r(&w->seed) % 50),
							.demands = demands, .demands_count = 3};
	slot = mfs_client_batch_begin_with(w->client, &reported);
	CHECK(slot >= 0);

	const struct mfs_task task = {.bytes = 1000, .request_id = requests[0].request_id, .batch = (uint32_t)slot,
				      .stage = MFS_STAGE_P2D, .nic = demands[0].nic};

	rc = mfs_client_submit(w->client, &task, MFS_COOKIE_NONE, &id);
	CHECK(rc == 0 || rc == -EAGAIN);
	if (rc == 0) {
		/* its permit waits for tasks in the window, which others have taken: finish some of them */
		while ((rc = mfs_client_permit_wait(w->client, id, 1000000)) == -ETIMEDOUT)
			finish_some(w);
		CHECK(rc >= 0 && rc < MFS_CLASSES_MAX && mfs_client_permit(w->client, id) == rc);
		mfs_client_complete(w->client, id);
		CHECK(mfs_client_permit(w->client, id) == -ENOENT);
	}
	CHECK(mfs_client_batch_end(w->client, (uint32_t)slot) == 0);
}

static void *work(void *argument)
{
	struct worker *w = argument;

	for (uint64_t i = 0; i < tasks_each;) {
		struct mfs_task task = {
			.bytes = (uint64_t)(rand_r(&w->seed) % 300000),
			.request_id = (uint64_t)(rand_r(&w->seed) % 5),
			.batch = rand_r(&w->seed) % 2 ? (uint32_t)w->batch : MFS_NONE_U32,
			.layer = (uint16_t)(rand_r(&w->seed) % 8),
			.stage = (uint8_t)(rand_r(&w->seed) % 6),
			.nic = (uint8_t)(rand_r(&w->seed) % NICS),
			.at_once = rand_r(&w->seed) % 2,
		};
		uint64_t id;
		int rc = mfs_client_submit(w->client, &task, w->client, &id);

		CHECK(rc == 0 || rc == -EAGAIN || (rc == 1 && task.at_once));
		i += rc >= 0;
		if (rc == 1) { /* on credit: no permit will come */
			mfs_client_complete(w->client, id);
			atomic_fetch_add(w->ended, 1);
		}
		if (rc == -EAGAIN || rand_r(&w->seed) % 2)
			finish_some(w);
		if (rand_r(&w->seed) % 16 == 0)
			mfs_client_batch_layer(w->client, (uint32_t)w->batch, (uint32_t)(rand_r(&w->seed) % 8));
		if (rand_r(&w->seed) % 16 == 0)
			engine(w);
	}
	while (atomic_load(w->ended) < THREADS * tasks_each)
		finish_some(w);
	return NULL;
}

static void *come_and_go(void *path)
{
	unsigned seed = 99;

	for (int turn = 0; turn < 20; turn++) {
		struct mfs_client *client = attach(path);
		struct mfs_task task = {.bytes = 100000, .batch = MFS_NONE_U32, .stage = MFS_STAGE_P2D};
		uint64_t id;

		for (int i = 0; i < rand_r(&seed) % 500; i++)
			CHECK(mfs_client_submit(client, &task, client, &id) == 0);
		mfs_client_count_posted(client, 0, MFS_STAGE_COLLECTIVE, 12345);
		if (turn % 2)
			mfs_client_wait(client, 1000000);
		mfs_client_detach(client);
	}
	return NULL;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void read_snapshot(uint32_t client_id)
{
	static struct mfs_request_snapshot requests[MFS_REQUESTS_MAX];
	static struct mfs_demand_snapshot demands[MFS_DEMANDS_MAX];
	static struct mfs_task_snapshot tasks[64];
	struct mfs_change change;
	struct mfs_batch_snapshot batch;
	struct mfs_rmlq_facts facts;
	uint32_t slot = 0;

	while (mfs_arbiter_changed(arbiter, &change, &batch, requests, demands) > 1)
		CHECK(change.slot < MFS_BATCHES_MAX);
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++)
		if (mfs_arbiter_batch_snapshot(arbiter, client_id, i, &batch, requests, demands) == 0)
			CHECK(batch.requests <= 2 && batch.demands <= 6);
	while (slot < MFS_TASKS_MAX)
		CHECK(mfs_arbiter_tasks(arbiter, client_id, slot, tasks, 64, &slot) >= 0);
	CHECK(mfs_arbiter_facts(arbiter, 0, MFS_DIRECTION_OUT, &facts) == 0);
}

static void meddle(unsigned *seed)
{
	struct mfs_rule rules[3] = {{.library = "libnccl"}, {.process = "vllm"}};
	struct mfs_arbiter_stats stats;
	struct mfs_nic_stats nic;
	struct mfs_client_stats client;

	CHECK(mfs_arbiter_stats(arbiter, &stats) == 0);
	for (uint32_t i = 0; i < stats.nics; i++)
		CHECK(mfs_arbiter_nic_stats(arbiter, i, &nic) == 0);
	for (uint32_t id = 1; id < 8; id++)
		CHECK(mfs_arbiter_client_stats(arbiter, id, &client) != -EIO);
	CHECK(mfs_arbiter_rules(arbiter, rules, rand_r(seed) % 4) == 0);
	mfs_arbiter_batch_rank(arbiter, 1 + (uint32_t)(rand_r(seed) % 3), 1 + (uint64_t)(rand_r(seed) % 3),
			       (uint32_t)(rand_r(seed) % 9));
	mfs_arbiter_request_prune(arbiter, 1 + (uint32_t)(rand_r(seed) % 3), 1 + (uint64_t)(rand_r(seed) % 50),
				  rand_r(seed) % 2);
	read_snapshot(1 + (uint32_t)(rand_r(seed) % 3));
	CHECK(mfs_arbiter_mode(arbiter, rand_r(seed) % 8 ? MFS_MODE_ENFORCE : MFS_MODE_OBSERVE) == 0);
}

int main(int argc, char **argv)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10000000, .stale_after_ns = 60000000000, .max_hold_ns = 10000000000,
		.window_ns = 200000, .window_bytes_min = 131072, .quiet_ns = 1000, .gate_max_ns = 2000000, .spin_ns = 50000,
		.torn_slot_ns = 1000000000, .rate_default_bytes_per_s = 1000000000, .tasks_max = 20000,
		.load_time_constant_ns = 10000000,
		.mode = MFS_MODE_ENFORCE,
	};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct worker worker[CLIENTS][THREADS];
	struct mfs_client *client[CLIENTS];
	static _Atomic uint64_t ended[CLIENTS];
	pthread_t server, visitor, thread[CLIENTS][THREADS];
	struct mfs_arbiter_stats stats;
	struct mfs_nic_stats nic;
	unsigned seed = 1;

	CHECK(argc == 3 && strlen(argv[1]) < sizeof(address.sun_path));
	tasks_each = strtoull(argv[2], NULL, 10);
	mfs_policy_default(&config.policy, 8);
	CHECK(mfs_arbiter_create(&config, &arbiter) == 0 && mfs_arbiter_start(arbiter) == 0);
	strcpy(address.sun_path, argv[1]);
	listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 64) == 0);
	CHECK(pthread_create(&server, NULL, serve, NULL) == 0);

	for (int c = 0; c < CLIENTS; c++) {
		client[c] = attach(argv[1]);
		for (int t = 0; t < THREADS; t++) {
			worker[c][t] = (struct worker){client[c], &ended[c], 0, (unsigned)(c * THREADS + t)};
			worker[c][t].batch = mfs_client_batch_begin(client[c], (uint64_t)t + 1, 8, 0, 1000000);
			CHECK(worker[c][t].batch >= 0);
			CHECK(pthread_create(&thread[c][t], NULL, work, &worker[c][t]) == 0);
		}
	}
	CHECK(pthread_create(&visitor, NULL, come_and_go, argv[1]) == 0);
	for (int i = 0; i < 200; i++)
		meddle(&seed);
	CHECK(mfs_arbiter_mode(arbiter, MFS_MODE_ENFORCE) == 0);
	for (int c = 0; c < CLIENTS; c++)
		for (int t = 0; t < THREADS; t++)
			pthread_join(thread[c][t], NULL);
	pthread_join(visitor, NULL);
	for (int c = 0; c < CLIENTS; c++) {
		CHECK(ended[c] == THREADS * tasks_each);
		CHECK(mfs_client_alive(client[c], 0));
		mfs_client_detach(client[c]);
	}
	do { /* until the server's threads have seen all clients leave; each snapshot waits for a turn of the arbiter */
		CHECK(mfs_arbiter_stats(arbiter, &stats) == 0);
	} while (stats.clients);
	CHECK(stats.grants > 0 && stats.grants <= stats.messages);
	for (uint32_t i = 0; i < NICS; i++) {
		CHECK(mfs_arbiter_nic_stats(arbiter, i, &nic) == 0);
		CHECK(nic.in_flight_bytes[MFS_DIRECTION_OUT] == 0);
		CHECK(nic.in_flight_bytes[MFS_DIRECTION_IN] == 0);
		for (int k = 0; k < MFS_CLASSES_MAX; k++)
			CHECK(nic.held_tasks[k] == 0 && nic.held_bytes[k] == 0 && nic.in_flight_class_bytes[k] == 0);
	}
	shutdown(listener, SHUT_RDWR);
	close(listener);
	pthread_join(server, NULL);
	mfs_arbiter_destroy(arbiter);
	return 0;
}

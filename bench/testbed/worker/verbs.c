/* The device, its lanes and the messages on them.
 *
 * A lane consists of the queue pairs of one peer, stage and class. A message goes out on the queue pair
 * with the fewest messages on their way. Every queue pair has SLOTS buffers, which messages use in turn, so
 * at most SLOTS messages are on their way. A receiver posts the next receive after it has checked what was
 * in its slot, so nothing is overwritten unread. Every message carries a stamp in its first and last bytes.
 * A wrong stamp ends the worker.
 *
 * Every work request is signaled, unless those of collectives are to be signaled as NCCL does
 * (`nccl_signals`). Then only the last message of a transfer is, and any message that takes the last free
 * slot. Of the clear-to-send writes, which have a lane of their own and whose bytes are not read, one in
 * CONTROLS_A_SIGNAL is signaled.
 */
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LANES_MAX = 512,
	POLL = 64,
	QP_NUMBERS = 1 << 12,
	CONTROL_BYTES = 64,
	CONTROLS_A_SIGNAL = 256
};

struct pair {
	struct lane *lane;
	struct ibv_qp *qp;
	/* SLOTS buffers into which the peer writes, then SLOTS buffers that we write from or read into */
	uint8_t *memory;
	struct ibv_mr *mr;
	struct message *slot[SLOTS];
	uint64_t posted, done, received;
	uint64_t peer_address;
	uint32_t peer_key;
	bool connected;
};

struct lane {
	unsigned peer, wire_class, pairs;
	enum stage stage;
	bool sends, receives;
	struct pair pair[LANE_QPS_MAX];
	struct message *first, **last; /* waiting for a slot */
};

static struct lane *lanes[LANES_MAX];
static unsigned lane_count;
static struct pair *pair_by_number[QP_NUMBERS];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static union ibv_gid gid, peer_gids[HOSTS_MAX];
static uint8_t *pool_memory; /* blocks of the KV pool, of one message each */
static struct ibv_mr *pool_mr;
static struct message *free_messages;
static struct verbs_hooks hooks;

struct message *message_new(void)
{
	struct message *message = free_messages;

	if (message)
		free_messages = message->next;
	else if (!(message = malloc(sizeof(*message))))
		fail("no memory for a message");
	memset(message, 0, sizeof(*message));
	return message;
}

void message_free(struct message *message)
{
	message->next = free_messages;
	free_messages = message;
}

/* ---- stamps: who sent what -------------------------------------------------------------------------------------- */

static uint64_t stamp_of(unsigned from, enum stage stage, uint32_t what, uint64_t which)
{
	return ((uint64_t)from << 56 ^ (uint64_t)stage << 52 ^ (uint64_t)what << 16 ^ which) * 0x9e3779b97f4a7c15u | 1;
}

static void stamp(uint8_t *data, uint32_t bytes, uint64_t value)
{
	memcpy(data, &value, sizeof(value));
	memcpy(data + bytes - sizeof(value), &value, sizeof(value));
}

static void stamp_check(const uint8_t *data, uint32_t bytes, uint64_t value, const struct pair *pair)
{
	if (memcmp(data, &value, sizeof(value)) || memcmp(data + bytes - sizeof(value), &value, sizeof(value)))
		fail("wrong data from host %u, stage %d, class %u", pair->lane->peer, pair->lane->stage, pair->lane->wire_class);
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------ */

static struct pair **pair_place(uint32_t number)
{
	for (uint32_t i = 0; i < QP_NUMBERS; i++) {
		struct pair **place = &pair_by_number[(number * 2654435761u + i) % QP_NUMBERS];
		if (!*place || (*place)->qp->qp_num == number)
			return place;
	}
	fail("more than %d queue pairs", QP_NUMBERS);
}

static void receive_post(struct pair *pair)
{
	struct ibv_recv_wr receive = { .wr_id = 0 }, *bad;

	if (ibv_post_recv(pair->qp, &receive, &bad))
		fail("ibv_post_recv: %s", strerror(errno));
}

/* True if all work requests of the lane are signaled, without IBV_SEND_SIGNALED. */
static bool signals_all(const struct lane *lane)
{
	return !settings.nccl_signals || (lane->stage != STAGE_COLLECTIVE && lane->stage != STAGE_CONTROL);
}

static void pair_create(struct pair *pair, unsigned at)
{
	const struct lane *lane = pair->lane;
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = signals_all(lane),
		.cap = { .max_send_wr = 2 * SLOTS, .max_recv_wr = 2 * SLOTS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access };
	struct ibv_mr *remote;

	if (lane->stage == STAGE_CONTROL) { /* NCCL's numbers, by which the shim knows what the queue pair is for */
		init.cap.max_send_wr = 2 * CONTROLS_A_SIGNAL;
		init.cap.max_recv_wr = CONTROLS_A_SIGNAL;
	}
	hooks.lane((int)lane->wire_class);
	pair->qp = ibv_create_qp(pd, &init);
	hooks.lane(-1);
	if (!pair->qp)
		fail("ibv_create_qp: %s", strerror(errno));
	if (ibv_modify_qp(pair->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("ibv_modify_qp to INIT: %s", strerror(errno));
	*pair_place(pair->qp->qp_num) = pair;
	if (lane->sends || lane->receives || lane->stage == STAGE_CONTROL) {
		/* The peer writes into the first half. The second half holds what we write or read. */
		const size_t bytes = lane->stage == STAGE_CONTROL ? (size_t)2 * CONTROLS_A_SIGNAL * CONTROL_BYTES :
								    (size_t)2 * SLOTS * settings.message_bytes;

		pair->memory = aligned_alloc(4096, bytes);
		if (!pair->memory || !(pair->mr = ibv_reg_mr(pd, pair->memory, bytes, access)))
			fail("ibv_reg_mr of %zu bytes: %s", bytes, strerror(errno));
	}
	if (lane->receives)
		for (unsigned i = 0; i < SLOTS; i++)
			receive_post(pair);
	remote = pair->mr ? pair->mr : pool_mr;
	tell("to %u %d %u %u %x %x %" PRIx64 " %" PRIx64 " %" PRIx64, lane->peer, lane->stage, lane->wire_class, at,
	     pair->qp->qp_num, remote->rkey, (uint64_t)(uintptr_t)remote->addr, (uint64_t)gid.global.subnet_prefix,
	     (uint64_t)gid.global.interface_id);
}

static void pair_connect(struct pair *pair, uint32_t peer_number, const union ibv_gid *peer_gid)
{
	struct ibv_qp_attr ready_to_receive = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer_number,
		.max_dest_rd_atomic = SLOTS, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = *peer_gid, .hop_limit = 255,
				      .traffic_class = (uint8_t)(settings.dscp[pair->lane->wire_class] << 2) } },
	};
	struct ibv_qp_attr ready_to_send = { .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
					     .max_rd_atomic = SLOTS };

	if (ibv_modify_qp(pair->qp, &ready_to_receive,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("ibv_modify_qp to RTR: %s", strerror(errno));
	if (ibv_modify_qp(pair->qp, &ready_to_send,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		fail("ibv_modify_qp to RTS: %s", strerror(errno));
	pair->connected = true;
}

static struct lane *lane_of(unsigned peer, enum stage stage, unsigned wire_class)
{
	for (unsigned i = 0; i < lane_count; i++)
		if (lanes[i]->peer == peer && lanes[i]->stage == stage && lanes[i]->wire_class == wire_class)
			return lanes[i];
	fail("no lane to host %u for stage %d on class %u", peer, stage, wire_class);
}

void verbs_link(unsigned peer, enum stage stage, unsigned wire_class, unsigned queue_pairs, bool sends, bool receives)
{
	struct lane *lane = calloc(1, sizeof(*lane));

	if (!lane || lane_count == LANES_MAX || wire_class >= CLASSES_MAX || !queue_pairs || queue_pairs > LANE_QPS_MAX)
		fail("cannot make %u queue pairs to host %u on class %u", queue_pairs, peer, wire_class);
	*lane = (struct lane){ .peer = peer, .stage = stage, .wire_class = wire_class, .pairs = queue_pairs,
			       .sends = sends, .receives = receives, .last = &lane->first };
	lanes[lane_count++] = lane;
	for (unsigned i = 0; i < queue_pairs; i++) {
		lane->pair[i].lane = lane;
		pair_create(&lane->pair[i], i);
	}
}

/* `words`: STAGE CLASS INDEX QP_NUMBER KEY ADDRESS GID GID */
void verbs_peer(unsigned peer, char *words)
{
	unsigned stage, wire_class, at, number, key;
	uint64_t address;
	union ibv_gid peer_gid;
	struct pair *pair;

	if (sscanf(words, "%u %u %u %x %x %" SCNx64 " %" SCNx64 " %" SCNx64, &stage, &wire_class, &at, &number, &key, &address,
		   (uint64_t *)&peer_gid.global.subnet_prefix, (uint64_t *)&peer_gid.global.interface_id) != 8 ||
	    at >= LANE_QPS_MAX)
		fail("host %u describes a queue pair that I cannot read: %s", peer, words);
	if (peer < HOSTS_MAX)
		peer_gids[peer] = peer_gid;
	pair = &lane_of(peer, (enum stage)stage, wire_class)->pair[at];
	pair->peer_key = key;
	pair->peer_address = address;
	pair_connect(pair, number, &peer_gid);
}

const char *verbs_device_name(void)
{
	return ibv_get_device_name(context->device);
}

uint64_t verbs_device_guid(void)
{
	return ibv_get_device_guid(context->device);
}

const union ibv_gid *verbs_gid(unsigned peer)
{
	return &peer_gids[peer % HOSTS_MAX];
}

bool verbs_connected(void)
{
	for (unsigned i = 0; i < lane_count; i++)
		for (unsigned p = 0; p < lanes[i]->pairs; p++)
			if (!lanes[i]->pair[p].connected)
				return false;
	return true;
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static void pair_post(struct pair *pair, struct message *message)
{
	const unsigned slot = pair->posted % SLOTS;
	uint8_t *data = pair->memory + (size_t)(SLOTS + slot) * settings.message_bytes;
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = message->bytes, .lkey = pair->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	wr.wr.rdma.rkey = pair->peer_key;
	if (message->stage == STAGE_REUSE) {
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = pair->peer_address + message->block * settings.message_bytes;
	} else {
		stamp(data, message->bytes, stamp_of(settings.index, message->stage, message->immediate, pair->posted));
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = message->immediate;
		wr.wr.rdma.remote_addr = pair->peer_address + (uint64_t)slot * settings.message_bytes;
	}
	if (message->last || pair->posted - pair->done == SLOTS - 1)
		wr.send_flags = IBV_SEND_SIGNALED;
	hooks.posting(message);
	if (ibv_post_send(pair->qp, &wr, &bad))
		fail("ibv_post_send to host %u: %s", pair->lane->peer, strerror(errno));
	pair->slot[slot] = message;
	pair->posted++;
}

static uint64_t controls;

uint64_t verbs_controls(void)
{
	return controls;
}

void verbs_control(unsigned peer)
{
	const struct message message = { .stage = STAGE_CONTROL };
	struct pair *pair = &lane_of(peer, STAGE_CONTROL, settings.fixed_class[STAGE_CONTROL])->pair[0];
	const size_t at = (size_t)(pair->posted % CONTROLS_A_SIGNAL) * CONTROL_BYTES;
	struct ibv_sge sge = { .addr = (uintptr_t)(pair->memory + CONTROLS_A_SIGNAL * CONTROL_BYTES + at),
			       .length = CONTROL_BYTES,
			       .lkey = pair->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { .remote_addr = pair->peer_address + at, .rkey = pair->peer_key } },
			   *bad;

	if (++pair->posted % CONTROLS_A_SIGNAL == 0)
		wr.send_flags = IBV_SEND_SIGNALED;
	hooks.posting(&message);
	if (ibv_post_send(pair->qp, &wr, &bad))
		fail("ibv_post_send of a clear-to-send to host %u: %s", peer, strerror(errno));
	controls++;
}

static void lane_pump(struct lane *lane)
{
	while (lane->first) {
		struct message *message = lane->first;
		struct pair *best = &lane->pair[0];

		for (unsigned i = 1; i < lane->pairs; i++)
			if (lane->pair[i].posted - lane->pair[i].done < best->posted - best->done)
				best = &lane->pair[i];
		if (best->posted - best->done == SLOTS)
			return;
		if (!(lane->first = message->next))
			lane->last = &lane->first;
		pair_post(best, message);
	}
}

void verbs_post(struct message *message, unsigned wire_class)
{
	struct lane *lane = lane_of(message->peer, message->stage, wire_class);

	message->wire_class = wire_class;
	message->next = NULL;
	*lane->last = message;
	lane->last = &message->next;
	lane_pump(lane);
}

static void received(const struct ibv_wc *wc, struct pair *pair)
{
	const unsigned slot = pair->received % SLOTS;
	const enum stage stage = pair->lane->stage;

	stamp_check(pair->memory + (size_t)slot * settings.message_bytes, wc->byte_len,
		    stamp_of(pair->lane->peer, stage, wc->imm_data, pair->received), pair);
	pair->received++;
	receive_post(pair);
	hooks.received(stage, wc->imm_data, wc->byte_len);
}

/* Handles the completion of a message, and of those before it that were not signaled. */
static void sent(const struct ibv_wc *wc, struct pair *pair)
{
	struct message *done[SLOTS];
	unsigned count = 0;

	do {
		const unsigned slot = pair->done++ % SLOTS;
		struct message *message = pair->slot[slot];

		if (message->stage == STAGE_REUSE)
			stamp_check(pair->memory + (size_t)(SLOTS + slot) * settings.message_bytes, message->bytes,
				    stamp_of(message->peer, STAGE_REUSE, 0, message->block), pair);
		pair->slot[slot] = NULL;
		done[count++] = message;
	} while ((pair->done - 1) % SLOTS != wc->wr_id);
	lane_pump(pair->lane);
	for (unsigned i = 0; i < count; i++) {
		hooks.completed(done[i]);
		message_free(done[i]);
	}
}

static void channel_ready(void)
{
	struct ibv_wc wc[POLL];
	struct ibv_cq *from;
	void *context_of_cq;
	int n;

	if (ibv_get_cq_event(channel, &from, &context_of_cq))
		return;
	ibv_ack_cq_events(from, 1);
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq: %s", strerror(errno));
	do {
		n = ibv_poll_cq(cq, POLL, wc);
		if (n < 0)
			fail("ibv_poll_cq: %s", strerror(errno));
		for (int i = 0; i < n; i++) {
			struct pair *pair = *pair_place(wc[i].qp_num);

			if (wc[i].status != IBV_WC_SUCCESS)
				fail("a work request to host %u failed: %s", pair->lane->peer, ibv_wc_status_str(wc[i].status));
			if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
				received(&wc[i], pair);
			else if (pair->lane->stage != STAGE_CONTROL)
				sent(&wc[i], pair);
		}
	} while (n == POLL); /* completions that come after the request for notification ring again */
}

static bool owns_blocks(void)
{
	for (unsigned i = 0; i < settings.pools; i++)
		if (settings.pool[i] == settings.index)
			return true;
	return false;
}

void verbs_open(const struct verbs_hooks *above)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n), *device = NULL;

	hooks = *above;
	for (int i = 0; i < n && !device; i++)
		if (!settings.device || !strcmp(ibv_get_device_name(list[i]), settings.device))
			device = list[i];
	if (!device)
		fail("no RDMA device%s%s", settings.device ? " named " : "", settings.device ? settings.device : "");
	if (!(context = ibv_open_device(device)) || !(pd = ibv_alloc_pd(context)) ||
	    !(channel = ibv_create_comp_channel(context)) || !(cq = ibv_create_cq(context, 16384, NULL, channel, 0)) ||
	    ibv_query_gid(context, 1, 0, &gid) || ibv_req_notify_cq(cq, 0))
		fail("cannot open the device: %s", strerror(errno));
	loop_watch(channel->fd, channel_ready);
	if (owns_blocks()) {
		const size_t bytes = (size_t)POOL_BLOCKS * settings.message_bytes;

		pool_memory = aligned_alloc(4096, bytes);
		if (!pool_memory || !(pool_mr = ibv_reg_mr(pd, pool_memory, bytes, IBV_ACCESS_REMOTE_READ)))
			fail("ibv_reg_mr of %zu bytes: %s", bytes, strerror(errno));
		for (uint64_t *word = (uint64_t *)pool_memory, i = 0; i < bytes / 8; i++)
			word[i] = stamp_of(settings.index, STAGE_REUSE, 0, i * 8 / settings.message_bytes);
	}
}

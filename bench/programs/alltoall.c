/* An all-to-all that uses verbs as NCCL does: what a collective looks like to a NIC.
 *
 *   alltoall --ranks 2 --bytes 8388608 --rounds 10 --gap-ms 50 [--warmup 1] [--device mfs0]
 *
 * Every rank is a process of its own. It loads libibverbs with dlopen and dlvsym, as NCCL does, and its
 * queue pairs have NCCL's capabilities. A receiver posts zero-SGE receives and writes clear-to-send slots
 * of 64 bytes. The sender answers each slot with one signaled RDMA_WRITE_WITH_IMM of at most 128 KiB, with
 * at most eight in flight. Between rounds a rank "computes": it sleeps for gap-ms. Every byte received is
 * checked.
 *
 * Prints one JSON line for each round and rank: {"rank":0,"round":3,"start_ns":..,"end_ns":..,"bytes":..}.
 * Times are of CLOCK_MONOTONIC. Rounds below 0 are for warming up. Exits with 0; 1 on a verbs error, 2 on
 * wrong data, 64 on bad usage.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 8, CHUNK_BYTES = 128 << 10, IN_FLIGHT = 8, SLOTS = 16, SEND_WRS = 512, RECV_WRS = 256 };

static struct {
	int ranks, rounds, warmup, gap_ms;
	size_t bytes; /* each rank sends this much to each other rank, each round */
	const char *device;
} option = { .ranks = 2, .rounds = 10, .warmup = 1, .gap_ms = 50, .bytes = 8 << 20 };

static int my_rank;

static void die(const char *what)
{
	fprintf(stderr, "alltoall: rank %d: %s: %s\n", my_rank, what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* ---- libibverbs, looked up as NCCL does -------------------------------------------------------------------------- */

static struct {
	struct ibv_device **(*get_device_list)(int *);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	int (*close_device)(struct ibv_context *);
} verbs;

static void verbs_load(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	const struct { void *target; const char *name; } symbol[] = {
		{ &verbs.get_device_list, "ibv_get_device_list" }, { &verbs.get_device_name, "ibv_get_device_name" },
		{ &verbs.open_device, "ibv_open_device" },	   { &verbs.query_gid, "ibv_query_gid" },
		{ &verbs.alloc_pd, "ibv_alloc_pd" },		   { &verbs.reg_mr, "ibv_reg_mr" },
		{ &verbs.create_cq, "ibv_create_cq" },		   { &verbs.create_qp, "ibv_create_qp" },
		{ &verbs.modify_qp, "ibv_modify_qp" },		   { &verbs.destroy_qp, "ibv_destroy_qp" },
		{ &verbs.close_device, "ibv_close_device" },
	};

	if (!library) {
		fprintf(stderr, "alltoall: %s\n", dlerror());
		exit(1);
	}
	for (size_t i = 0; i < sizeof(symbol) / sizeof(symbol[0]); i++) {
		void *found = dlvsym(library, symbol[i].name, "IBVERBS_1.1");
		if (!found) {
			fprintf(stderr, "alltoall: libibverbs has no %s\n", symbol[i].name);
			exit(1);
		}
		memcpy(symbol[i].target, &found, sizeof(found));
	}
}

/* ---- one directed connection: a sender's end or a receiver's end ------------------------------------------------- */

struct clear_to_send { /* 64 bytes, like NCCL's fifo element */
	uint64_t address;
	uint32_t rkey;
	uint32_t bytes;
	uint64_t reserved[5];
	_Atomic uint64_t ready; /* number of the chunk, counted from 1; written last */
};

struct address {
	union ibv_gid gid;
	uint32_t qp_number;
	uint32_t rkey; /* key of the sender's slots, into which the receiver writes */
	uint64_t slots;
};

struct end {
	struct ibv_qp *qp;
	struct address peer;
	/* sender: the peer writes them; receiver: source of the writes to the peer */
	struct clear_to_send slot[SLOTS] __attribute__((aligned(64)));
	struct ibv_mr *slot_mr;
	uint8_t *data;
	struct ibv_mr *data_mr;
	uint64_t posted, done; /* chunks since the start: receives or writes that were posted, that have completed */
	uint64_t clear_posted; /* receiver: clear-to-send writes posted since the start */
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static struct end sender[RANKS_MAX], receiver[RANKS_MAX];

static void end_create(struct end *end, int receiving)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = SEND_WRS, .max_recv_wr = receiving ? RECV_WRS : 0, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE };
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	end->data = aligned_alloc(4096, option.bytes);
	if (!end->data || !(end->data_mr = verbs.reg_mr(pd, end->data, option.bytes, access)) ||
	    !(end->slot_mr = verbs.reg_mr(pd, end->slot, sizeof(end->slot), access)))
		die("reg_mr");
	memset(end->data, 0, option.bytes);
	if (!(end->qp = verbs.create_qp(pd, &init)))
		die("create_qp");
	if (verbs.modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("modify_qp INIT");
}

static void end_connect(struct end *end)
{
	struct ibv_qp_attr ready_to_receive = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = end->peer.qp_number,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end->peer.gid, .hop_limit = 255 } },
	};
	struct ibv_qp_attr ready_to_send = { .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
					     .max_rd_atomic = 1 };

	if (verbs.modify_qp(end->qp, &ready_to_receive,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("modify_qp RTR");
	if (verbs.modify_qp(end->qp, &ready_to_send,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC))
		die("modify_qp RTS");
}

static uint64_t chunks_per_round(void)
{
	return (option.bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static size_t chunk_bytes(uint64_t chunk)
{
	const size_t offset = (chunk % chunks_per_round()) * CHUNK_BYTES;
	return option.bytes - offset < CHUNK_BYTES ? option.bytes - offset : CHUNK_BYTES;
}

/* Receiver: posts a zero-SGE receive, then writes the clear-to-send slot that lets the sender write into
 * our buffer. */
static void receiver_clear(struct end *end)
{
	const uint64_t chunk = end->posted;
	struct clear_to_send *slot = &end->slot[chunk % SLOTS];
	struct ibv_recv_wr receive = { .wr_id = 0 }, *bad_receive;
	struct ibv_sge sge = { .addr = (uintptr_t)slot, .length = sizeof(*slot), .lkey = end->slot_mr->lkey };
	struct ibv_send_wr clear = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	if (ibv_post_recv(end->qp, &receive, &bad_receive))
		die("post_recv");
	slot->address = (uintptr_t)end->data + (chunk % chunks_per_round()) * CHUNK_BYTES;
	slot->rkey = end->data_mr->rkey;
	slot->bytes = chunk_bytes(chunk);
	atomic_store_explicit(&slot->ready, chunk + 1, memory_order_relaxed);
	clear.wr.rdma.remote_addr = end->peer.slots + (chunk % SLOTS) * sizeof(*slot);
	clear.wr.rdma.rkey = end->peer.rkey;
	if (++end->clear_posted % (SEND_WRS / 2) == 0) /* frees entries of the send queue now and then, as NCCL does */
		clear.send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(end->qp, &clear, &bad))
		die("post_send clear-to-send");
	end->posted++;
}

static int sender_try(struct end *end)
{
	const uint64_t chunk = end->posted;
	struct clear_to_send *slot = &end->slot[chunk % SLOTS];
	struct ibv_sge sge = { .lkey = end->data_mr->lkey };
	struct ibv_send_wr write = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				     .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (atomic_load_explicit(&slot->ready, memory_order_acquire) != chunk + 1)
		return 0;
	sge.addr = (uintptr_t)end->data + (chunk % chunks_per_round()) * CHUNK_BYTES;
	sge.length = slot->bytes;
	write.imm_data = slot->bytes;
	write.wr.rdma.remote_addr = slot->address;
	write.wr.rdma.rkey = slot->rkey;
	if (ibv_post_send(end->qp, &write, &bad))
		die("post_send data");
	end->posted++;
	return 1;
}

static struct end *end_of(uint32_t qp_number, struct end *ends)
{
	for (int i = 0; i < option.ranks; i++)
		if (ends[i].qp && ends[i].qp->qp_num == qp_number)
			return &ends[i];
	return NULL;
}

static void poll_completions(void)
{
	struct ibv_wc wc[4];
	const int n = ibv_poll_cq(cq, 4, wc);

	if (n < 0)
		die("poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "alltoall: rank %d: completion status %d, wr_id %" PRIu64 "\n", my_rank, wc[i].status,
				wc[i].wr_id);
			exit(1);
		}
		if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			end_of(wc[i].qp_num, receiver)->done++;
		else if (wc[i].wr_id == 2)
			end_of(wc[i].qp_num, sender)->done++;
	}
}

/* ---- data: every 8-byte word says which rank sent it, in which round, and where it belongs ----------------------- */

static uint64_t word_of(int from, int to, int round, size_t index)
{
	return ((uint64_t)from << 56 | (uint64_t)to << 48 | (uint64_t)(round & 0xffff) << 32) ^ (index * 0x9e3779b97f4a7c15u);
}

static void fill(int round)
{
	for (int to = 0; to < option.ranks; to++)
		for (size_t i = 0; to != my_rank && i < option.bytes / 8; i++)
			((uint64_t *)sender[to].data)[i] = word_of(my_rank, to, round, i);
}

static void check(int round)
{
	for (int from = 0; from < option.ranks; from++)
		for (size_t i = 0; from != my_rank && i < option.bytes / 8; i++)
			if (((uint64_t *)receiver[from].data)[i] != word_of(from, my_rank, round, i)) {
				fprintf(stderr, "alltoall: rank %d: wrong data from rank %d, round %d, word %zu\n", my_rank, from,
					round, i);
				exit(2);
			}
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static void play_round(int round)
{
	const uint64_t end_chunk = (uint64_t)(round + 1) * chunks_per_round();
	uint64_t start_ns;
	int busy = 1;

	fill(round);
	start_ns = now_ns();
	while (busy) {
		busy = 0;
		for (int i = 0; i < option.ranks; i++) {
			struct end *in = &receiver[i], *out = &sender[i];
			if (i == my_rank)
				continue;
			while (in->posted < end_chunk && in->posted < in->done + IN_FLIGHT)
				receiver_clear(in);
			while (out->posted < end_chunk && out->posted < out->done + IN_FLIGHT && sender_try(out))
				;
			busy |= in->done < end_chunk || out->done < end_chunk;
		}
		poll_completions();
	}
	printf("{\"rank\":%d,\"round\":%d,\"start_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64 ",\"bytes\":%zu}\n", my_rank,
	       round - option.warmup, start_ns, now_ns(), option.bytes * (option.ranks - 1));
	fflush(stdout);
	check(round);
	if (option.gap_ms)
		nanosleep(&(struct timespec){ option.gap_ms / 1000, option.gap_ms % 1000 * 1000000 }, NULL);
}

static void device_open(void)
{
	int n = 0;
	struct ibv_device **list = verbs.get_device_list(&n), *device = NULL;

	for (int i = 0; i < n && !device; i++)
		if (!option.device || !strcmp(verbs.get_device_name(list[i]), option.device))
			device = list[i];
	if (!device) {
		fprintf(stderr, "alltoall: no RDMA device%s%s; start me under mfs-soft-roce, or with a NIC\n",
			option.device ? " named " : "", option.device ? option.device : "");
		exit(1);
	}
	if (!(context = verbs.open_device(device)) || !(pd = verbs.alloc_pd(context)) ||
	    !(cq = verbs.create_cq(context, 4096, NULL, NULL, 0)) || verbs.query_gid(context, 1, 0, &gid))
		die("open device");
}

static void transfer(int fd, void *data, size_t bytes, int sending)
{
	while (bytes) {
		const ssize_t n = sending ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
		if (n <= 0)
			die("rendezvous");
		data = (char *)data + n;
		bytes -= n;
	}
}

/* Runs one rank. The parent relays all tables of addresses. A row is the rank that owns the ends, a column
 * its peer. */
static void rank_run(int rank, int fd)
{
	struct { struct address sender, receiver; } mine[RANKS_MAX] = { 0 }, all[RANKS_MAX][RANKS_MAX];
	char go;

	my_rank = rank;
	verbs_load();
	device_open();
	for (int i = 0; i < option.ranks; i++) {
		if (i == rank)
			continue;
		end_create(&sender[i], 0);
		end_create(&receiver[i], 1);
		mine[i].sender = (struct address){ gid, sender[i].qp->qp_num, sender[i].slot_mr->rkey, (uintptr_t)sender[i].slot };
		mine[i].receiver = (struct address){ .gid = gid, .qp_number = receiver[i].qp->qp_num };
	}
	transfer(fd, mine, sizeof(mine), 1);
	transfer(fd, all, sizeof(all), 0);
	for (int i = 0; i < option.ranks; i++) {
		if (i == rank)
			continue;
		sender[i].peer = all[i][rank].receiver;
		receiver[i].peer = all[i][rank].sender;
		end_connect(&sender[i]);
		end_connect(&receiver[i]);
	}
	transfer(fd, "c", 1, 1);
	transfer(fd, &go, 1, 0);
	for (int round = 0; round < option.warmup + option.rounds; round++)
		play_round(round);
	transfer(fd, "d", 1, 1);
	transfer(fd, &go, 1, 0); /* no rank destroys a queue pair while a peer still waits for an acknowledgement */
	for (int i = 0; i < option.ranks; i++)
		if (i != rank && (verbs.destroy_qp(sender[i].qp) || verbs.destroy_qp(receiver[i].qp)))
			die("destroy_qp");
	verbs.close_device(context);
	exit(0);
}

static void relay(const int *fd)
{
	static char table[RANKS_MAX][RANKS_MAX * 2 * sizeof(struct address)];
	char byte;

	for (int i = 0; i < option.ranks; i++)
		transfer(fd[i], table[i], sizeof(table[i]), 0);
	for (int i = 0; i < option.ranks; i++)
		transfer(fd[i], table, sizeof(table), 1);
	for (int step = 0; step < 2; step++) { /* all are connected, then all are done */
		for (int i = 0; i < option.ranks; i++)
			transfer(fd[i], &byte, 1, 0);
		for (int i = 0; i < option.ranks; i++)
			transfer(fd[i], &byte, 1, 1);
	}
}

static void usage(void)
{
	fprintf(stderr, "usage: alltoall [--ranks 2..%d] [--bytes N] [--rounds N] [--warmup N] [--gap-ms N] [--device NAME]\n",
		RANKS_MAX);
	exit(64);
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{ "ranks", 1, 0, 'r' },	 { "bytes", 1, 0, 'b' },  { "rounds", 1, 0, 'n' }, { "warmup", 1, 0, 'w' },
		{ "gap-ms", 1, 0, 'g' }, { "device", 1, 0, 'd' }, { "as-rank", 1, 0, 'k' }, { "fd", 1, 0, 'f' }, { 0 },
	};
	int rank = -1, rank_fd = -1, fd[RANKS_MAX], failed = 0, status;
	pid_t child[RANKS_MAX];

	for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
		switch (c) {
		case 'r': option.ranks = atoi(optarg); break;
		case 'b': option.bytes = strtoull(optarg, NULL, 0) & ~7ull; break;
		case 'n': option.rounds = atoi(optarg); break;
		case 'w': option.warmup = atoi(optarg); break;
		case 'g': option.gap_ms = atoi(optarg); break;
		case 'd': option.device = optarg; break;
		case 'k': rank = atoi(optarg); break;
		case 'f': rank_fd = atoi(optarg); break;
		default: usage();
		}
	}
	if (option.ranks < 2 || option.ranks > RANKS_MAX || !option.bytes || option.rounds < 1 || option.warmup < 0 || argc > 24)
		usage();
	if (rank >= 0)
		rank_run(rank, rank_fd);
	for (int i = 0; i < option.ranks; i++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			die("socketpair");
		fd[i] = pair[0];
		child[i] = fork();
		if (child[i] < 0)
			die("fork");
		if (child[i] == 0) { /* each rank is a newly started program, as with mpirun */
			char rank_text[16], fd_text[16];
			char *rank_argv[32];

			prctl(PR_SET_PDEATHSIG, SIGKILL); /* a rank does not outlive its launcher */
			snprintf(rank_text, sizeof(rank_text), "%d", i);
			snprintf(fd_text, sizeof(fd_text), "%d", pair[1]);
			for (int k = 0; k <= i; k++)
				close(fd[k]);
			memcpy(rank_argv, argv, argc * sizeof(*argv));
			memcpy(rank_argv + argc, (char *[]){ "--as-rank", rank_text, "--fd", fd_text, NULL }, 5 * sizeof(*argv));
			execv("/proc/self/exe", rank_argv);
			die("exec");
		}
		close(pair[1]);
	}
	relay(fd);
	for (int i = 0; i < option.ranks; i++) {
		waitpid(child[i], &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			failed = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	return failed;
}

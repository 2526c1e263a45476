/* A rank of a prefill unit. The steps of a layer are: wait for its reused KV (stage 1), attention, push its
 * new KV (stage 3), dispatch (stage 2), experts, combine (stage 2). To compute is to wait for the time that
 * the profile gives. A collective ends when the rank's own bytes are acknowledged and its peer's bytes have
 * arrived. So the ranks stay in step without further messages.
 */
#include "worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum step { IDLE, WAIT, ATTENTION, DISPATCH, EXPERTS, COMBINE };

static struct batch batch;
static enum step step;
static uint32_t phase; /* collectives since the start */
static uint64_t received[2]; /* the peer's bytes in this phase and the next: it is at most one ahead */
static uint32_t collective_messages; /* messages of the collective that are not acknowledged */
static uint64_t collective_start_ns, collective_ns[2 * LAYERS_MAX][2]; /* start and end of each */
static uint32_t collectives;
static uint64_t blocks; /* blocks read so far; the pool's hot blocks are read in turn */

static void layer_try(void);

/* Cuts a transfer into messages and submits them. All but the last have full size. */
static void submit(struct request *request, enum stage stage, unsigned peer, uint64_t bytes, uint32_t layer,
		   uint32_t immediate)
{
	for (uint64_t left = bytes; left;) {
		struct message *message = message_new();

		message->bytes = left < settings.message_bytes ? (uint32_t)left : settings.message_bytes;
		message->request = request;
		message->stage = stage;
		message->peer = peer;
		message->layer = layer;
		message->immediate = immediate;
		left -= message->bytes;
		message->last = !left;
		if (request)
			request->messages++;
		if (stage == STAGE_COLLECTIVE) {
			collective_messages++;
			verbs_post(message, settings.fixed_class[STAGE_COLLECTIVE]);
			continue;
		}
		if (stage == STAGE_REUSE)
			message->block = blocks++ % POOL_BLOCKS;
		gate_submit(message);
	}
}

static void request_release(struct request *request)
{
	if (request->messages || request->batch)
		return;
	if (request->loads) {
		gate_load_end(request);
		tell("loaded %u %" PRIu64, request->number, now_ns());
	}
	gate_request_end(request);
	free(request);
}

static void compute(enum step kind, uint64_t duration_ns)
{
	step = kind;
	loop_timer_set(now_ns() + duration_ns);
}

static void collective(enum step kind)
{
	step = kind;
	collective_start_ns = now_ns();
	if (settings.nccl_signals) /* one for each message to come; the peer does not wait for them, as there is room */
		for (uint64_t left = batch.receive_bytes[kind == COMBINE]; left;
		     left -= left < settings.message_bytes ? left : settings.message_bytes)
			verbs_control(settings.peer_rank);
	submit(NULL, STAGE_COLLECTIVE, settings.peer_rank, batch.send_bytes[kind == COMBINE], batch.layer, phase);
}

static void batch_end(void)
{
	static char text[4 * LAYERS_MAX * 24];
	int used = 0;

	step = IDLE;
	for (uint32_t i = 0; i < collectives; i++)
		used += snprintf(text + used, sizeof(text) - (size_t)used, " %" PRIu64 " %" PRIu64, collective_ns[i][0],
				 collective_ns[i][1]);
	gate_batch_computed(&batch);
	for (uint32_t i = 0; i < batch.requests; i++) {
		batch.request[i]->batch = NULL;
		request_release(batch.request[i]);
	}
	tell("end %" PRIu64 " %" PRIu64 "%s", batch.number, now_ns(), text);
}

static void collective_try(void)
{
	const uint64_t expected = batch.receive_bytes[step == COMBINE];

	if ((step != DISPATCH && step != COMBINE) || collective_messages || received[phase & 1] < expected)
		return;
	if (received[phase & 1] != expected)
		fail("collective %u: %" PRIu64 " bytes arrived, %" PRIu64 " expected", phase, received[phase & 1], expected);
	received[phase++ & 1] = 0;
	collective_ns[collectives][0] = collective_start_ns;
	collective_ns[collectives++][1] = now_ns();
	if (step == DISPATCH) {
		compute(EXPERTS, batch.experts_ns);
	} else if (++batch.layer == batch.layers) {
		batch_end();
	} else {
		step = WAIT;
		gate_batch_layer(&batch);
		layer_try();
	}
}

static void layer_try(void)
{
	for (uint32_t i = 0; i < batch.requests; i++)
		if (batch.request[i]->fetched[batch.layer] < batch.request[i]->fetch_bytes)
			return;
	compute(ATTENTION, batch.attention_ns);
}

void prefill_timer(void)
{
	if (step == EXPERTS) {
		collective(COMBINE);
		collective_try();
	} else if (step == ATTENTION) {
		collective(DISPATCH);
		for (uint32_t i = 0; i < batch.requests; i++) {
			struct request *request = batch.request[i];
			submit(request, STAGE_P2D, request->decode, request->push_bytes, batch.layer, request->number);
		}
		collective_try();
	}
}

void prefill_completed(struct message *message)
{
	struct request *request = message->request;

	if (!request) {
		collective_messages--;
		collective_try();
		return;
	}
	request->messages--;
	if (message->stage == STAGE_REUSE) {
		request->fetched[message->layer] += message->bytes;
		if (!request->loads && step == WAIT && request->batch && message->layer == batch.layer)
			layer_try();
	}
	request_release(request);
}

void prefill_collective_received(uint32_t of_phase, uint64_t bytes)
{
	if (of_phase - phase > 1)
		fail("bytes of collective %u arrive during %u", of_phase, phase);
	received[of_phase & 1] += bytes;
	collective_try();
}

/* `words`: NUMBER LAYERS ATTENTION EXPERTS SEND RECEIVE SEND RECEIVE DEADLINE COMPUTE REQUESTS, then for
 * each request a line NUMBER DEADLINE BUDGET DECODE OWNER FETCH PUSH FETCH_CLASS PUSH_CLASS. Bytes are
 * those of one layer, and times are in nanoseconds. The classes are used when nothing is scheduled. */
void prefill_batch(char *words)
{
	char *line = strchr(words, '\n');

	if (step != IDLE)
		fail("a batch arrives while batch %" PRIu64 " runs", batch.number);
	memset(&batch, 0, sizeof(batch));
	if (sscanf(words,
		   "%" SCNu64 " %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
		   " %" SCNu64 " %u",
		   &batch.number, &batch.layers, &batch.attention_ns, &batch.experts_ns, &batch.send_bytes[0],
		   &batch.receive_bytes[0], &batch.send_bytes[1], &batch.receive_bytes[1], &batch.deadline_ns,
		   &batch.compute_ns, &batch.requests) != 11 ||
	    batch.requests > REQUESTS_MAX || !batch.layers || batch.layers > LAYERS_MAX)
		fail("a batch that I cannot read: %.80s", words);
	for (uint32_t i = 0; i < batch.requests; i++) {
		struct request *request = calloc(1, sizeof(*request));

		if (!request || !line ||
		    sscanf(line + 1, "%u %" SCNu64 " %" SCNu64 " %u %u %" SCNu64 " %" SCNu64 " %u %u", &request->number,
			   &request->deadline_ns, &request->budget_ns, &request->decode, &request->owner,
			   &request->fetch_bytes, &request->push_bytes, &request->fixed_class[STAGE_REUSE],
			   &request->fixed_class[STAGE_P2D]) != 9)
			fail("request %u of batch %" PRIu64 " cannot be read", i, batch.number);
		request->batch = &batch;
		batch.request[i] = request;
		line = strchr(line + 1, '\n');
	}
	collectives = 0;
	gate_batch_begin(&batch);
	step = WAIT;
	for (uint32_t layer = 0; layer < batch.layers; layer++)
		for (uint32_t i = 0; i < batch.requests; i++)
			submit(batch.request[i], STAGE_REUSE, batch.request[i]->owner, batch.request[i]->fetch_bytes, layer,
			       0);
	layer_try();
}

/* Loads all layers that a request reuses at once. `words`: NUMBER OWNER LAYERS FETCH NEEDED DEADLINE BUDGET
 * RANK FETCH_CLASS. NEEDED is when the load must be there; RANK is the request's place in the order of the
 * engine. */
void prefill_load(const char *words)
{
	struct request *request = calloc(1, sizeof(*request));
	uint64_t deadline_ns;
	uint32_t layers;
	unsigned rank;

	if (!request ||
	    sscanf(words, "%u %u %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %u", &request->number,
		   &request->owner, &layers, &request->fetch_bytes, &request->deadline_ns, &deadline_ns,
		   &request->budget_ns, &rank, &request->fixed_class[STAGE_REUSE]) != 9 ||
	    !layers || layers > LAYERS_MAX || !request->fetch_bytes)
		fail("a load that I cannot read: %.80s", words);
	request->loads = true;
	gate_load_begin(request, deadline_ns, rank, request->fetch_bytes * layers);
	/* The load is needed as a whole, so all its layers are submitted as layer 0: none goes first. */
	while (layers--)
		submit(request, STAGE_REUSE, request->owner, request->fetch_bytes, 0, 0);
}

/* `words`: NUMBER OWNER BYTES NEEDED */
void prefill_forecast(const char *words)
{
	uint64_t bytes, needed_ns;
	unsigned number, owner;

	if (sscanf(words, "%u %u %" SCNu64 " %" SCNu64, &number, &owner, &bytes, &needed_ns) != 4)
		fail("forecast %s: want REQUEST OWNER BYTES NEEDED", words);
	tell("forecast %u %" PRId64, number, gate_forecast(owner, bytes, needed_ns));
}

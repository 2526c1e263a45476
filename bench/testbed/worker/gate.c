/* Asks MFS for leave, or gives it at once on the stage's fixed class when nobody schedules. */
#include "worker.h"

void gate_open(void)
{
}

void gate_lane(int wire_class)
{
	(void)wire_class;
}

void gate_submit(struct message *message)
{
	verbs_post(message, settings.fixed_class[message->stage]);
}

void gate_completed(struct message *message)
{
	(void)message;
}

void gate_batch_begin(struct batch *batch)
{
	(void)batch;
}

void gate_batch_layer(struct batch *batch)
{
	(void)batch;
}

void gate_batch_end(struct batch *batch)
{
	(void)batch;
}

void gate_statistics(void)
{
	tell("statistics");
}

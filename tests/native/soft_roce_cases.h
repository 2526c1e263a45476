/* The cases of soft_roce_cases.c, by file. */
#ifndef MFS_SOFT_ROCE_CASES_H
#define MFS_SOFT_ROCE_CASES_H

#include "verbs_pair.h"

static const struct pair_options defaults = { .rnr_retry = 7, .inline_bytes = 512 };

/* soft_roce_cases_data.c */
void data(void);
void scatter_gather(void);
void builders(void);
void atomics(void);
void both_directions(void);
void read_depth(void);
void many_queue_pairs(void);
void memory_polling(void);

/* soft_roce_cases_errors.c */
void bad_key(void);
void bad_bounds(void);
void bad_access(void);
void bad_alignment(void);
void bad_local_key(void);
void bad_request(void);
void foreign_keys(void);
void receive_too_small(void);
void receiver_not_ready(void);
void rnr_retries_exceeded(void);
void deregistered_target(void);
void registered_anew(void);
void reregistration_refused(void);

/* soft_roce_cases_states.c */
void peer_destroyed(void);
void peer_missing(void);
void late_peer(void);
void flush_order(void);
void state_machine(void);
void state_noted_late(void);
void send_queue_drained(void);
void forked_child(void);
void completions_of_the_parent(void);

/* soft_roce_cases_queues.c */
void shared_receives(void);
void completion_channel(void);
void queue_limits(void);
void destruction_awaits_readers(void);

/* soft_roce_cases_datagrams.c */
void datagrams(void);
void datagram_scatter(void);
void datagram_reply(void);
void datagram_builders(void);
void datagram_drops(void);
void datagram_send_errors(void);
void datagram_receive_errors(void);
void datagram_states(void);
void address_handles(void);
void datagram_shared_receives(void);
void datagram_completion_overflow(void);
void datagram_ports(void);
void datagram_number_connected(void);
void datagram_forked_child(void);

/* soft_roce_cases_wire.c */
void receiver_ready_again(void);
void rnr_retries_end(void);
void refused_takes_no_receive(void);
void shared_receives_in_turn(void);

/* soft_roce_cases_process.c */
void descriptors_used_up(void);
void events_of_the_destroyed(void);
void cancelled_threads(void);
void stopped_while_receiver_is_not_ready(void);

#endif

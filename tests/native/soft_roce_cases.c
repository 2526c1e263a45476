/* What RC and UD queue pairs promise, one case a run: soft_roce_cases NAME. Without a name it lists them. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "data", data },
	{ "scatter_gather", scatter_gather },
	{ "builders", builders },
	{ "bad_key", bad_key },
	{ "bad_bounds", bad_bounds },
	{ "bad_access", bad_access },
	{ "bad_alignment", bad_alignment },
	{ "bad_local_key", bad_local_key },
	{ "bad_request", bad_request },
	{ "foreign_keys", foreign_keys },
	{ "receive_too_small", receive_too_small },
	{ "receiver_not_ready", receiver_not_ready },
	{ "rnr_retries_exceeded", rnr_retries_exceeded },
	{ "peer_destroyed", peer_destroyed },
	{ "peer_missing", peer_missing },
	{ "late_peer", late_peer },
	{ "flush_order", flush_order },
	{ "state_machine", state_machine },
	{ "state_noted_late", state_noted_late },
	{ "send_queue_drained", send_queue_drained },
	{ "shared_receives", shared_receives },
	{ "atomics", atomics },
	{ "completion_channel", completion_channel },
	{ "queue_limits", queue_limits },
	{ "destruction_awaits_readers", destruction_awaits_readers },
	{ "both_directions", both_directions },
	{ "read_depth", read_depth },
	{ "many_queue_pairs", many_queue_pairs },
	{ "memory_polling", memory_polling },
	{ "forked_child", forked_child },
	{ "completions_of_the_parent", completions_of_the_parent },
	{ "deregistered_target", deregistered_target },
	{ "registered_anew", registered_anew },
	{ "reregistration_refused", reregistration_refused },
	{ "datagrams", datagrams },
	{ "datagram_scatter", datagram_scatter },
	{ "datagram_reply", datagram_reply },
	{ "datagram_builders", datagram_builders },
	{ "datagram_drops", datagram_drops },
	{ "datagram_send_errors", datagram_send_errors },
	{ "datagram_receive_errors", datagram_receive_errors },
	{ "datagram_states", datagram_states },
	{ "address_handles", address_handles },
	{ "datagram_shared_receives", datagram_shared_receives },
	{ "datagram_completion_overflow", datagram_completion_overflow },
	{ "datagram_ports", datagram_ports },
	{ "datagram_number_connected", datagram_number_connected },
	{ "datagram_forked_child", datagram_forked_child },
	{ "receiver_ready_again", receiver_ready_again },
	{ "rnr_retries_end", rnr_retries_end },
	{ "refused_takes_no_receive", refused_takes_no_receive },
	{ "shared_receives_in_turn", shared_receives_in_turn },
	{ "descriptors_used_up", descriptors_used_up },
	{ "events_of_the_destroyed", events_of_the_destroyed },
	{ "cancelled_threads", cancelled_threads },
	{ "stopped_while_receiver_is_not_ready", stopped_while_receiver_is_not_ready },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (argc < 2)
			puts(cases[i].name);
		else if (!strcmp(argv[1], cases[i].name) || !strcmp(argv[1], "all"))
			cases[i].run();
	}
	return 0;
}

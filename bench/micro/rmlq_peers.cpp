// The standard library's ordered set and priority queue on the keys of rmlq_load.c, in the same turns.
#include <chrono>
#include <cstdint>
#include <queue>
#include <set>
#include <vector>

namespace
{
struct Entry {
	uint64_t high, low, cookie;
	bool operator<(const Entry &other) const
	{
		return high != other.high ? high < other.high : low < other.low;
	}
	bool operator>(const Entry &other) const
	{
		return other < *this;
	}
};

struct Set {
	std::set<Entry> entries;
	void push(const Entry &entry) { entries.insert(entry); }
	uint64_t pop()
	{
		uint64_t cookie = entries.begin()->cookie;
		entries.erase(entries.begin());
		return cookie;
	}
};

struct PriorityQueue {
	std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> entries;
	void push(const Entry &entry) { entries.push(entry); }
	uint64_t pop()
	{
		uint64_t cookie = entries.top().cookie;
		entries.pop();
		return cookie;
	}
};

volatile uint64_t sink;

template <class Queue> double turn_ns(const Entry *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	Queue queue;
	uint64_t arrival = 0, sum = 0;
	for (uint32_t i = 0; i < flows; i++)
		queue.push({keys[i % templates].high, arrival, arrival}), arrival++;
	auto began = std::chrono::steady_clock::now();
	for (uint32_t i = 0; i < turns; i++) {
		queue.push({keys[i % templates].high, arrival, arrival});
		arrival++;
		sum += queue.pop();
	}
	auto ended = std::chrono::steady_clock::now();
	sink = sum;
	return std::chrono::duration<double, std::nano>(ended - began).count() / turns;
}
} // namespace

struct peer_key {
	uint64_t high, low;
};

template <class Queue> static double run(const peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	std::vector<Entry> entries;
	for (uint32_t i = 0; i < templates; i++)
		entries.push_back({keys[i].high, 0, 0});
	return turn_ns<Queue>(entries.data(), templates, flows, turns);
}

extern "C" double peer_set_ns(const peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	return run<Set>(keys, templates, flows, turns);
}

extern "C" double peer_priority_queue_ns(const peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	return run<PriorityQueue>(keys, templates, flows, turns);
}

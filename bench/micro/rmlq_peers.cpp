// The standard library's ordered set and priority queue on the keys of rmlq_load.c, in the same turns.
#include <cstdint>
#include <ctime>
#include <queue>
#include <set>
#include <vector>

struct peer_key {
	uint64_t high, low;
};

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
	void push(const Entry &entry)
	{
		entries.insert(entry);
	}
	uint64_t pop()
	{
		uint64_t cookie = entries.begin()->cookie;
		entries.erase(entries.begin());
		return cookie;
	}
};

struct PriorityQueue {
	std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> entries;
	void push(const Entry &entry)
	{
		entries.push(entry);
	}
	uint64_t pop()
	{
		uint64_t cookie = entries.top().cookie;
		entries.pop();
		return cookie;
	}
};

volatile uint64_t sink;

double cpu_ns()
{
	timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return double(now.tv_sec) * 1e9 + double(now.tv_nsec);
}

template <class Queue>
double turn_ns(const peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	Queue queue;
	uint64_t arrival = 0, sum = 0;
	for (uint32_t i = 0; i < flows; i++)
		queue.push({ keys[i % templates].high, arrival, arrival }), arrival++;
	double began = cpu_ns();
	for (uint32_t i = 0; i < turns; i++) {
		queue.push({ keys[i % templates].high, arrival, arrival });
		arrival++;
		sum += queue.pop();
	}
	double ended = cpu_ns();
	sink = sum;
	return (ended - began) / turns;
}
} // namespace

extern "C" double peer_set_ns(const peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns)
{
	return turn_ns<Set>(keys, templates, flows, turns);
}

extern "C" double peer_priority_queue_ns(const peer_key *keys, uint32_t templates, uint32_t flows,
					 uint32_t turns)
{
	return turn_ns<PriorityQueue>(keys, templates, flows, turns);
}

// moodycamel::ConcurrentQueue with tokens and bulk operations and a bound for each producer; and boost::lockfree::queue
// of fixed size.
#include "ring.h"

#include <boost/lockfree/queue.hpp>
#if __has_include(<concurrentqueue/concurrentqueue.h>)
#include <concurrentqueue/concurrentqueue.h>
#else
#include <concurrentqueue/moodycamel/concurrentqueue.h>
#endif
#include <memory>
#include <vector>

namespace {

struct Bounded : moodycamel::ConcurrentQueueDefaultTraits {
	static const size_t MAX_SUBQUEUE_SIZE = CAPACITY / 4;
};
using Camel = moodycamel::ConcurrentQueue<item, Bounded>;

struct CamelQueue;
struct CamelProducer {
	Camel *queue;
	moodycamel::ProducerToken token;
};
struct CamelQueue {
	Camel queue;
	moodycamel::ConsumerToken token;
	std::vector<std::unique_ptr<CamelProducer>> producers;
	explicit CamelQueue(int n) : queue(CAPACITY, n, 0), token(queue), producers(n) {}
};

void *camel_create(int producers)
{
	auto *q = new CamelQueue(producers);
	for (auto &p : q->producers)
		p.reset(new CamelProducer{&q->queue, moodycamel::ProducerToken(q->queue)});
	return q;
}
void camel_destroy(void *queue) { delete static_cast<CamelQueue *>(queue); }
void *camel_producer(void *queue, int index) { return static_cast<CamelQueue *>(queue)->producers[index].get(); }
unsigned camel_push(void *producer, const item *items, unsigned n)
{
	auto *p = static_cast<CamelProducer *>(producer);
	if (n == 1)
		return p->queue->enqueue(p->token, *items) ? 1 : 0;
	return p->queue->enqueue_bulk(p->token, items, n) ? n : 0;
}
unsigned camel_pop(void *queue, item *items, unsigned n)
{
	auto *q = static_cast<CamelQueue *>(queue);
	return static_cast<unsigned>(q->queue.try_dequeue_bulk(q->token, items, n));
}

using Boost = boost::lockfree::queue<item, boost::lockfree::capacity<CAPACITY>>;

void *boost_create(int) { return new Boost; }
void boost_destroy(void *queue) { delete static_cast<Boost *>(queue); }
void *boost_producer(void *queue, int) { return queue; }
unsigned boost_push(void *producer, const item *items, unsigned n)
{
	unsigned done = 0;
	while (done < n && static_cast<Boost *>(producer)->push(items[done]))
		done++;
	return done;
}
unsigned boost_pop(void *queue, item *items, unsigned n)
{
	unsigned done = 0;
	while (done < n && static_cast<Boost *>(queue)->pop(items[done]))
		done++;
	return done;
}

} // namespace

extern "C" {
const queue queue_moodycamel = {"moodycamel", camel_create, camel_destroy, camel_producer, camel_push, camel_pop};
const queue queue_boost = {"boost", boost_create, boost_destroy, boost_producer, boost_push, boost_pop};
}

package session

import "github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"

const sentMax = 128 // hellos and heartbeats whose send time is remembered: for minutes, while a lease lasts seconds

// outgoing collects the actions of all parts, in the order in which they were decided.
type outgoing struct {
	worker  string
	n       int64 // the last number used
	sentMS  *ordered[int64, float64]
	actions []Action
}

func newOutgoing(worker string) *outgoing {
	return &outgoing{worker: worker, sentMS: newOrdered[int64, float64]()}
}

func (o *outgoing) add(action Action) { o.actions = append(o.actions, action) }

func (o *outgoing) log(level Level, event string, facts Facts) { o.add(Log{level, event, facts}) }

func (o *outgoing) send(topic string, body []byte) { o.add(Send{topic, body}) }

func (o *outgoing) sendTo(peer *brokerPeer, message codec.Message) {
	o.add(Send{peer.topic, codec.Encode(message)})
}

func (o *outgoing) sendToAll(message codec.Message) {
	o.add(Send{codec.TopicWorkers, codec.Encode(message)})
}

// take returns the actions decided since the last call.
func (o *outgoing) take() []Action {
	actions := o.actions
	o.actions = nil
	return actions
}

func (o *outgoing) nextN() int64 {
	o.n++
	return o.n
}

// nextTimedN is the next number, for a message that brokers echo. The lease starts at the send time of this message.
func (o *outgoing) nextTimedN(nowMS float64) int64 {
	n := o.nextN()
	o.sentMS.set(n, nowMS)
	if o.sentMS.len() > sentMax {
		o.sentMS.remove(o.sentMS.first.key)
	}
	return n
}

// inParts calls `send` with parts of the items that fit into one message; once for an empty list.
func inParts[T any](items []T, send func(part []T)) {
	for len(items) > codec.BatchItemsMax {
		send(items[:codec.BatchItemsMax])
		items = items[codec.BatchItemsMax:]
	}
	send(items)
}

// distinct returns the items without repetitions: a broker may list an item twice, a worker may not.
func distinct(items []codec.Item) []codec.Item {
	if len(items) < 2 {
		return items
	}
	seen := make(map[codec.Item]bool, len(items))
	kept := make([]codec.Item, 0, len(items))
	for _, item := range items {
		if !seen[item] {
			seen[item] = true
			kept = append(kept, item)
		}
	}
	return kept
}

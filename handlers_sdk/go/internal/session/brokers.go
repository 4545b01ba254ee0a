package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// brokerPeer is the worker's knowledge of one broker: the session, the lease, and the broker's share of the load.
type brokerPeer struct {
	id            string
	topic         string
	next          int64 // the k of the current or next session; increases when a session is dropped
	epoch         int64
	session       string // "" without one
	deployment    string
	hasDeployment bool
	nAfter        int64 // only a welcome that echoes a later n counts
	lease         Lease
	leaseMS       int64
	heartbeatMS   int64
	bytesMax      int64
	floor         int64   // unknown batches of this session up to this number are stale
	load          int     // deliveries of this broker that need a slot or have one
	answeredMS    float64 // the time of the broker's last answer to a hello or heartbeat
	stepsMS       float64 // the time of the broker's last steps
	openedMS      float64 // the time at which the latest session opened
	dropWaitMS    float64 // the pause before the hello after the next drop
	promises      promises
	isHeldBack    bool // its latest credit is smaller than its share, because of promises to other brokers
	isQuiet       bool // `quiet` of the last heartbeat_ack: the broker sends no new steps
}

func newBrokerPeer(id string, nowMS float64, next int64) *brokerPeer {
	return &brokerPeer{
		id: id, topic: codec.TopicOfBroker(id), next: next, epoch: -1, nAfter: -1, leaseMS: codec.LeaseMS,
		heartbeatMS: codec.HeartbeatMS, bytesMax: codec.MessageBytesMax, floor: -1, answeredMS: nowMS,
		stepsMS: math.Inf(-1), openedMS: nowMS,
	}
}

// hasOther is true if the broker is known to have another database.
func (p *brokerPeer) hasOther(deployment string) bool {
	return p.hasDeployment && p.deployment != deployment
}

func (p *brokerPeer) setDeployment(deployment string) {
	p.deployment, p.hasDeployment = deployment, true
}

// brokers are the known brokers, in the order in which they became known.
type brokers struct {
	all    []*brokerPeer
	byID   map[string]*brokerPeer
	nextOf map[string]int64 // of forgotten brokers: no number is used twice
}

func newBrokers() *brokers {
	return &brokers{byID: map[string]*brokerPeer{}, nextOf: map[string]int64{}}
}

// get returns nil for an unknown broker.
func (b *brokers) get(id string) *brokerPeer { return b.byID[id] }

func (b *brokers) getOrAdd(id string, nowMS float64) *brokerPeer {
	peer := b.byID[id]
	if peer == nil {
		next := int64(1)
		if known, ok := b.nextOf[id]; ok {
			next = known
			delete(b.nextOf, id)
		}
		peer = newBrokerPeer(id, nowMS, next)
		b.byID[id] = peer
		b.all = append(b.all, peer)
	}
	return peer
}

// forget forgets a broker that has no session and owns nothing here.
func (b *brokers) forget(peer *brokerPeer) {
	delete(b.byID, peer.id)
	b.nextOf[peer.id] = peer.next
	for i, each := range b.all {
		if each == peer {
			b.all = append(b.all[:i:i], b.all[i+1:]...)
			return
		}
	}
}

// nextNumbers is the member `next` of hello and heartbeat.
func (b *brokers) nextNumbers() []codec.Count {
	counts := make([]codec.Count, len(b.all))
	for i, peer := range b.all {
		counts[i] = codec.Count{Broker: peer.id, N: peer.next}
	}
	return counts
}

// sessions is the member `sessions` of hello and heartbeat.
func (b *brokers) sessions() []codec.Named {
	var open []codec.Named
	for _, peer := range b.all {
		if peer.session != "" {
			open = append(open, codec.Named{Name: peer.id, Text: peer.session})
		}
	}
	return open
}

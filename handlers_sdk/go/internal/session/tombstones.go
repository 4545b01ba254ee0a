package session

import "github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"

const tombstonesMax = 20_000

// tombstones remembers deliveries that are over or were refused, which this process must not start, or not start again.
//
// Their number may be limited because batch numbers increase within a session. When a tombstone is forgotten, the floor
// of its session rises to its batch number, and unknown batches up to the floor are refused as stale. A delivery that
// was disowned before its receipt has no batch number, so its tombstone is kept for the full time.
type tombstones struct {
	received *ordered[codec.Item, tombstone]
	disowned *ordered[codec.Item, tombstone]
}

type tombstone struct {
	sinceMS float64
	peer    *brokerPeer
	batch   *heldBatch // nil: disowned
}

func newTombstones() *tombstones {
	return &tombstones{newOrdered[codec.Item, tombstone](), newOrdered[codec.Item, tombstone]()}
}

func (t *tombstones) has(item codec.Item) bool { return t.received.has(item) || t.disowned.has(item) }

func (t *tombstones) add(item codec.Item, peer *brokerPeer, batch *heldBatch, nowMS float64) {
	t.received.set(item, tombstone{nowMS, peer, batch})
	if t.received.len() > tombstonesMax {
		t.forgetOldest()
	}
}

// disown makes sure that this delivery, which may still be under way, never starts here.
func (t *tombstones) disown(item codec.Item, peer *brokerPeer, nowMS float64) {
	if !t.received.has(item) {
		t.disowned.set(item, tombstone{nowMS, peer, nil})
	}
}

// sweep forgets tombstones that are older than TombstoneMS.
func (t *tombstones) sweep(nowMS float64) {
	before := nowMS - codec.TombstoneMS
	for t.received.first != nil && t.received.first.value.sinceMS < before {
		t.forgetOldest()
	}
	for t.disowned.first != nil && t.disowned.first.value.sinceMS < before {
		t.disowned.remove(t.disowned.first.key)
	}
}

// forgetBroker forgets the tombstones of a broker whose database was replaced, because its ids now belong to other
// steps.
func (t *tombstones) forgetBroker(peer *brokerPeer) {
	for _, kind := range []*ordered[codec.Item, tombstone]{t.received, t.disowned} {
		for e := kind.first; e != nil; {
			following := e.behind
			if e.value.peer == peer {
				kind.remove(e.key)
			}
			e = following
		}
	}
}

func (t *tombstones) forgetOldest() {
	oldest, _ := t.received.remove(t.received.first.key)
	if oldest.batch.session == oldest.peer.session && oldest.batch.number > oldest.peer.floor {
		oldest.peer.floor = oldest.batch.number
	}
}

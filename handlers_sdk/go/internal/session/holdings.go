package session

import "github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"

// holdings has the held deliveries by item, from their receipt until their result is acknowledged: the list `holding` of
// heartbeats.
type holdings struct {
	load       int // deliveries that need a slot or have one
	pace       *pace
	tombstones *tombstones
	slots      *slots
	held       *ordered[codec.Item, *heldDelivery]
	orphans    map[codec.Item]*heldDelivery // still run, for a database that was replaced
}

func newHoldings(slots *slots, pace *pace) *holdings {
	return &holdings{
		pace: pace, tombstones: newTombstones(), slots: slots, held: newOrdered[codec.Item, *heldDelivery](),
		orphans: map[codec.Item]*heldDelivery{},
	}
}

func (h *holdings) len() int { return h.held.len() }

// get returns nil for a delivery that is not held.
func (h *holdings) get(item codec.Item) *heldDelivery {
	held, _ := h.held.get(item)
	return held
}

func (h *holdings) isOrphan(item codec.Item) bool { return h.orphans[item] != nil }

func (h *holdings) running() []*heldDelivery {
	return h.those(func(held *heldDelivery) bool { return held.state == running })
}

// withdraw returns all deliveries whose runs have not begun. They never will: the caller must end these deliveries.
func (h *holdings) withdraw() []*heldDelivery { return h.those((*heldDelivery).withdraw) }

func (h *holdings) ofBroker(peer *brokerPeer) []*heldDelivery {
	return h.those(func(held *heldDelivery) bool { return held.peer == peer })
}

func (h *holdings) those(isOne func(*heldDelivery) bool) []*heldDelivery {
	var those []*heldDelivery
	for e := h.held.first; e != nil; e = e.behind {
		if isOne(e.value) {
			those = append(those, e.value)
		}
	}
	return those
}

// withdrawNewest returns at most `count` deliveries of these brokers whose runs have not begun, the newest first. Not
// those that ask for permission.
func (h *holdings) withdrawNewest(count int, peers map[*brokerPeer]bool) []*heldDelivery {
	var withdrawn []*heldDelivery
	for e := h.held.last; e != nil && len(withdrawn) < count; e = e.before {
		held := e.value
		if peers[held.peer] && held.state != asking && !(held.isAtMostOnce && held.state == running) && held.withdraw() {
			withdrawn = append(withdrawn, held)
		}
	}
	return withdrawn
}

// report is the member `holding` of hello and heartbeat. Runs begin and end while it is made: those that are more than
// the slots have only just begun, and are reported as queued once more.
func (h *holdings) report(nowMS float64) []codec.HeldItem {
	items := make([]codec.HeldItem, 0, h.held.len())
	runs := 0
	for e := h.held.first; e != nil; e = e.behind {
		state := e.value.reportedState()
		if state == ended {
			continue
		}
		if state == running {
			if runs++; runs > h.slots.slots && !e.value.isAtMostOnce {
				state = queued
			}
		}
		items = append(items, codec.HeldItem{Item: e.key, State: state, AgeMS: e.value.ageMS(nowMS)})
	}
	return items
}

// add adds a delivery that was just received, and puts it into the run queue.
func (h *holdings) add(held *heldDelivery) {
	h.held.set(held.item, held)
	held.peer.load++
	h.load++
	held.batch.open++
	if h.load == 1 {
		h.pace.resume(held.receivedMS)
	}
	h.slots.queue(held)
}

// finish records the end of a run. Only its result is kept.
func (h *holdings) finish(held *heldDelivery, nowMS float64) {
	held.state = done
	held.step = nil
	h.pace.countEnd(nowMS)
	h.lighten(held, nowMS)
	h.slots.release(held, nowMS)
}

// bury forgets the delivery, but keeps its tombstone.
func (h *holdings) bury(held *heldDelivery, nowMS float64) {
	state := held.state
	held.state = ended
	if state == ended {
		return
	}
	h.held.remove(held.item)
	h.tombstones.add(held.item, held.peer, held.batch, nowMS)
	held.message = nil
	if state == done {
		return
	}
	held.step = nil
	h.lighten(held, nowMS)
	if state == asking {
		h.slots.asking.remove(held.item)
	}
	if state != queued {
		h.slots.release(held, nowMS)
	}
}

// buryUnread keeps tombstones of refused deliveries, so that they do not start if they are received again.
func (h *holdings) buryUnread(peer *brokerPeer, batch *heldBatch, items []codec.Item, nowMS float64) {
	for _, item := range items {
		if !h.held.has(item) {
			h.tombstones.add(item, peer, batch, nowMS)
		}
	}
}

// move changes the owner of a delivery to the broker that has adopted it.
func (h *holdings) move(held *heldDelivery, peer *brokerPeer) {
	if held.state != done {
		held.peer.load--
		peer.load++
	}
	held.peer = peer
	if held.run != nil {
		held.run.setLease(&peer.lease) // a run that has not begun now needs the lease of the new owner
	}
}

// orphan lets a run end whose broker's database was replaced, but drops its result.
func (h *holdings) orphan(held *heldDelivery, nowMS float64) {
	h.held.remove(held.item)
	h.orphans[held.item] = held
	h.lighten(held, nowMS)
}

func (h *holdings) releaseOrphan(item codec.Item, nowMS float64) {
	if held := h.orphans[item]; held != nil {
		delete(h.orphans, item)
		h.slots.release(held, nowMS)
	}
}

func (h *holdings) lighten(held *heldDelivery, nowMS float64) {
	held.peer.load--
	h.load--
	if h.load == 0 {
		h.pace.pause(nowMS)
	}
}

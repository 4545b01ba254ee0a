package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const recheckMS = 50.0 // a run that has not begun by its deadline is checked again after this time

// runs starts deliveries in the run queue, and asks runs to stop: permission for at_most_once steps, start, timeouts,
// cancels.
type runs struct {
	askAtMS     float64
	timeoutAtMS float64
	offers      []Offer
	slots       *slots
	holdings    *holdings
	out         *outgoing
}

func newRuns(offers *offers, slots *slots, holdings *holdings, out *outgoing) *runs {
	return &runs{Never, Never, offers.byNumber, slots, holdings, out}
}

func (r *runs) startQueued(nowMS float64) {
	for held := r.slots.takeNext(nowMS); held != nil; held = r.slots.takeNext(nowMS) {
		if !held.isAtMostOnce {
			r.start(held, nowMS)
			continue
		}
		held.state = asking
		held.askAtMS = nowMS
		held.askWaitMS = codec.StartRetransmitMS
		r.slots.asking.set(held.item, held)
		r.askAtMS = nowMS
	}
}

// ask sends `start` for the at_most_once steps that are due. Resent until the broker answers go or cancel.
func (r *runs) ask(nowMS float64) {
	due := newOrdered[*brokerPeer, []codec.Item]()
	atMS := Never
	for e := r.slots.asking.first; e != nil; e = e.behind {
		held := e.value
		if held.askAtMS <= nowMS {
			items, _ := due.get(held.peer)
			due.set(held.peer, append(items, held.item))
			held.askAtMS = nowMS + held.askWaitMS
			held.askWaitMS = math.Min(held.askWaitMS*2, codec.StartRetransmitMaxMS)
		}
		atMS = math.Min(atMS, held.askAtMS)
	}
	r.askAtMS = atMS
	for e := due.first; e != nil; e = e.behind {
		if peer := e.key; peer.session != "" {
			inParts(e.value, func(part []codec.Item) {
				r.out.sendTo(peer, &codec.Start{Worker: r.out.worker, Session: peer.session, Items: part})
			})
		}
	}
}

// hasten asks this broker with the next actions, because its session has just opened.
func (r *runs) hasten(peer *brokerPeer, nowMS float64) {
	for e := r.slots.asking.first; e != nil; e = e.behind {
		if e.value.peer == peer {
			e.value.askAtMS = nowMS
			r.askAtMS = nowMS
		}
	}
}

func (r *runs) onGo(peer *brokerPeer, items []codec.Item, nowMS float64) {
	for _, item := range items {
		if held, ok := r.slots.asking.get(item); ok && held.peer == peer {
			r.slots.asking.remove(item)
			r.start(held, nowMS)
		}
	}
}

// interrupt asks a run that has begun to stop. The first reason counts, and a run is asked once, although a broker
// repeats its cancel at every heartbeat that lists the run. `lease_lost` informs the handler, and stops nothing.
func (r *runs) interrupt(held *heldDelivery, reason string) {
	held.isInterrupted = true
	if !held.isStopping {
		held.isStopping = reason != ReasonLeaseLost
		r.out.add(CancelRun{held.item, reason})
	}
}

// interruptAll asks every run to stop. It returns their number.
func (r *runs) interruptAll(reason string) int {
	running := r.holdings.running()
	for _, held := range running {
		r.interrupt(held, reason)
	}
	return len(running)
}

func (r *runs) stopOverdue(nowMS float64) {
	atMS := Never
	for _, held := range r.holdings.running() {
		run := held.run
		if _, hasBegun := run.started(); !hasBegun { // may begin at any time
			atMS = math.Min(atMS, math.Min(nowMS+run.timeoutMS, math.Max(run.deadlineMS, nowMS+recheckMS)))
		} else if timeoutAtMS := run.TimeoutAtMS(); timeoutAtMS > nowMS {
			atMS = math.Min(atMS, timeoutAtMS)
		} else {
			r.interrupt(held, ReasonTimeout)
		}
	}
	r.timeoutAtMS = atMS
}

func (r *runs) start(held *heldDelivery, nowMS float64) {
	step := held.step
	if nowMS >= held.peer.lease.UntilMS() {
		panic("a step must not start after its broker's lease")
	}
	held.state = running
	timeoutMS := Never
	if step.Metadata.TimeoutMS > 0 {
		timeoutMS = float64(step.Metadata.TimeoutMS)
	}
	if own := r.offers[held.offer].TimeoutMS; own > 0 {
		timeoutMS = math.Min(timeoutMS, float64(own))
	}
	endsMS := Never
	if step.Metadata.DeadlineMS >= 0 {
		endsMS = held.receivedMS + float64(step.Metadata.DeadlineMS)
	}
	soonestMS := math.Min(nowMS+timeoutMS, endsMS) // if the run begins at once
	r.timeoutAtMS = math.Min(r.timeoutAtMS, soonestMS)
	held.run = NewRun(step, held.offer, &held.peer.lease, timeoutMS, endsMS)
	r.out.add(held.run)
}

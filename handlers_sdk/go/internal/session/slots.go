package session

import "github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"

// slots is the run queue: the deliveries that wait to be handed to the runner, and those that the runner has. A
// delivery is taken from its hand-over, or from its request for permission, to its end.
//
// A runner starts the next step the moment a slot is free. It can only do so if it has that step already, so
// at_least_once steps are handed over ahead of free slots: as many as the observed pace says. The runner itself keeps to
// the slots and to the concurrency of each handler. An at_most_once step asks its broker for permission, and a slot must
// be free for it from then on. So it is never handed over ahead, and while one asks, no step is.
type slots struct {
	asking    *ordered[codec.Item, *heldDelivery] // at_most_once: has a slot, and waits for the broker's go
	taken     int
	ahead     int // the number of steps that may be handed over ahead of free slots
	unblocked fifo[*heldDelivery]
	queued    fifo[*heldDelivery]
	slots     int
	limited   map[int]*limited
}

func newSlots(number int, offers *offers) *slots {
	s := &slots{asking: newOrdered[codec.Item, *heldDelivery](), slots: number, limited: map[int]*limited{}}
	for i, offer := range offers.byNumber {
		if offer.Concurrency > 0 {
			s.limited[i] = &limited{concurrency: offer.Concurrency, pace: newPace(0)}
		}
	}
	return s
}

func (s *slots) queue(held *heldDelivery) { s.queued.push(held) }

func (s *slots) hasQueue() bool { return s.queued.len() > 0 || s.unblocked.len() > 0 }

// head is the queue whose first delivery is next: those that waited for their handler come first.
func (s *slots) head() *fifo[*heldDelivery] {
	if s.unblocked.len() > 0 {
		return &s.unblocked
	}
	return &s.queued
}

// hasNext is true if the delivery at the head of the queue can be taken, unless its handler's concurrency is used up.
func (s *slots) hasNext() bool {
	queue := s.head()
	if queue.len() == 0 {
		return false
	}
	if s.asking.len() > 0 || queue.peek().isAtMostOnce {
		return s.taken < s.slots
	}
	return s.taken < s.slots+s.ahead
}

// takeNext takes the next delivery from the queue. nil: nothing in the queue can be taken now.
func (s *slots) takeNext(nowMS float64) *heldDelivery {
	for s.hasNext() {
		isUnblocked := s.unblocked.len() > 0
		held := s.head().pop()
		limited := s.limited[held.offer]
		if held.state != queued {
			if limited != nil { // cancelled while queued, perhaps after it was unblocked
				s.unblock(limited, nowMS)
			}
			continue
		}
		if limited != nil {
			if isUnblocked {
				if s.room(limited, held, nowMS) <= 0 {
					limited.blocked.pushFront(held)
					continue
				}
			} else if limited.blocked.len() > 0 || s.room(limited, held, nowMS) <= 0 {
				limited.blocked.push(held)
				continue
			}
			limited.take(nowMS)
		}
		s.taken++
		return held
	}
	return nil
}

// release : the delivery has ended, or will never start.
func (s *slots) release(held *heldDelivery, nowMS float64) {
	s.taken--
	if limited := s.limited[held.offer]; limited != nil {
		limited.release(nowMS)
		s.unblock(limited, nowMS)
	}
}

// unblock puts deliveries that waited for this handler's concurrency before the queue.
func (s *slots) unblock(limited *limited, nowMS float64) {
	unblocked := 0
	for limited.blocked.len() > 0 {
		first := limited.blocked.peek()
		if first.state == queued && s.room(limited, first, nowMS) <= unblocked {
			return
		}
		if held := limited.blocked.pop(); held.state == queued {
			s.unblocked.push(held)
			unblocked++
		}
	}
}

func (s *slots) room(limited *limited, held *heldDelivery, nowMS float64) int {
	return limited.room(s.asking.len() > 0 || held.isAtMostOnce, nowMS)
}

// limited has the deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it.
type limited struct {
	concurrency int
	taken       int
	blocked     fifo[*heldDelivery]
	pace        *pace
}

func (l *limited) room(withoutAhead bool, nowMS float64) int {
	ahead := 0
	if !withoutAhead {
		ahead = int(l.pace.stepsIn(codec.PrefetchMS, nowMS) + 0.5)
	}
	return l.concurrency + ahead - l.taken
}

func (l *limited) take(nowMS float64) {
	l.taken++
	l.pace.resume(nowMS)
}

func (l *limited) release(nowMS float64) {
	l.taken--
	l.pace.countEnd(nowMS)
	if l.taken == 0 {
		l.pace.pause(nowMS)
	}
}

// Package slots gives the slots of a worker to the calls that wait for one.
package slots

import "sync"

// Call is a call of a handler, with the number of the handler's offer.
type Call interface{ OfferNumber() int }

// RunSlots gives slots to calls. The calls start in the order in which they were handed over, and wait for a slot and
// for a place in the concurrency of their handler. Any goroutine may call the methods.
type RunSlots[C Call] struct {
	mutex   sync.Mutex
	free    int
	waiting []C
	places  map[int]int // by offer, of handlers with their own concurrency
	blocked map[int][]C
}

// New makes the slots. `concurrency` has the maximum number of runs of each offer; 0: no limit of its own.
func New[C Call](slots int, concurrency []int) *RunSlots[C] {
	s := &RunSlots[C]{free: slots, places: map[int]int{}, blocked: map[int][]C{}}
	for offer, limit := range concurrency {
		if limit > 0 {
			s.places[offer] = limit
		}
	}
	return s
}

// Add adds calls. It returns those that have a slot now, and must be started.
func (s *RunSlots[C]) Add(calls ...C) []C {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.waiting = append(s.waiting, calls...)
	var started []C
	for s.free > 0 {
		call, ok := s.next()
		if !ok {
			break
		}
		s.free--
		started = append(started, call)
	}
	return started
}

// Release releases the slot of a call. It returns the call that has the slot now, and must be started.
func (s *RunSlots[C]) Release(call C) (following C, ok bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	offer := call.OfferNumber()
	if _, isLimited := s.places[offer]; isLimited {
		if blocked := s.blocked[offer]; len(blocked) > 0 {
			s.blocked[offer] = blocked[1:]
			return blocked[0], true
		}
		s.places[offer]++
	}
	following, ok = s.next()
	if !ok {
		s.free++
	}
	return following, ok
}

// next returns the next call in the queue whose handler has a place. Calls before it wait for their own handlers.
func (s *RunSlots[C]) next() (call C, ok bool) {
	for len(s.waiting) > 0 {
		first := s.waiting[0]
		var none C
		s.waiting[0] = none
		s.waiting = s.waiting[1:]
		offer := first.OfferNumber()
		places, isLimited := s.places[offer]
		if !isLimited {
			return first, true
		}
		if places > 0 {
			s.places[offer]--
			return first, true
		}
		s.blocked[offer] = append(s.blocked[offer], first)
	}
	return call, false
}

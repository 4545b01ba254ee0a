package slots

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

type call struct{ name, offer int }

func (c call) OfferNumber() int { return c.offer }

func TestCallsStartInTheirOrderAndKeepToTheSlots(t *testing.T) {
	s := New[call](2, []int{0})
	if started := fmt.Sprint(s.Add(call{1, 0}, call{2, 0}, call{3, 0}, call{4, 0})); started != "[{1 0} {2 0}]" {
		t.Fatal(started)
	}
	for _, want := range []int{3, 4} {
		if following, ok := s.Release(call{1, 0}); !ok || following.name != want {
			t.Fatal(following, ok, want)
		}
	}
	if _, ok := s.Release(call{3, 0}); ok {
		t.Fatal("a call started from an empty queue")
	}
}

func TestACallThatWaitsForItsHandlerLetsOthersPass(t *testing.T) {
	s := New[call](3, []int{1, 0})
	if started := fmt.Sprint(s.Add(call{1, 0}, call{2, 0}, call{3, 1})); started != "[{1 0} {3 1}]" {
		t.Fatal(started)
	}
	if following, ok := s.Release(call{1, 0}); !ok || following.name != 2 {
		t.Fatal(following, ok)
	}
	if started := s.Add(call{4, 0}); started != nil {
		t.Fatal("a second run of a handler with concurrency 1 began", started)
	}
}

func TestConcurrentCallsNeverExceedSlotsAndConcurrency(t *testing.T) {
	const slots, calls = 4, 2000
	s := New[call](slots, []int{2, 0})
	var running, runningLimited, most, mostLimited, ended int64
	var done sync.WaitGroup
	done.Add(calls)
	run := func(c call) {
		for {
			raise(&most, atomic.AddInt64(&running, 1))
			if c.offer == 0 {
				raise(&mostLimited, atomic.AddInt64(&runningLimited, 1))
				atomic.AddInt64(&runningLimited, -1)
			}
			atomic.AddInt64(&running, -1)
			atomic.AddInt64(&ended, 1)
			following, ok := s.Release(c)
			done.Done()
			if !ok {
				return
			}
			c = following
		}
	}
	for i := 0; i < calls; i++ {
		for _, c := range s.Add(call{i, i % 2}) {
			go run(c)
		}
	}
	done.Wait()
	if most > slots || mostLimited > 2 || ended != calls {
		t.Fatal(most, mostLimited, ended)
	}
	if len(s.Add(call{0, 1}, call{1, 1}, call{2, 1}, call{3, 1})) != slots {
		t.Error("a slot was lost")
	}
}

func raise(most *int64, to int64) {
	for {
		before := atomic.LoadInt64(most)
		if to <= before || atomic.CompareAndSwapInt64(most, before, to) {
			return
		}
	}
}

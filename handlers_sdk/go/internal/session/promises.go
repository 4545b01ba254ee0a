package session

const promisesMax = 128 // unacknowledged hellos and heartbeats that are told apart

// promises are the credit that one broker may still use: what the worker has named to it, and has not taken back with
// certainty. There is an entry for each hello or heartbeat that the broker may not have read; messages without an n of
// a hello or heartbeat count for the latest entry.
//
// A worker takes credit back by naming less. The broker may send by the earlier number until it has read the later one,
// and only its ack of that heartbeat proves that. Until then, no other broker is offered the same places.
type promises struct{ entries []promise }

type promise struct {
	n    int64
	free int
}

// promised is the number of steps that the broker may still send.
func (p *promises) promised() int {
	most := 0
	for _, entry := range p.entries {
		most = max(most, entry.free)
	}
	return most
}

// announce : a hello or heartbeat with this number names this credit.
func (p *promises) announce(n int64, free int) {
	p.entries = append(p.entries, promise{n, free})
	if len(p.entries) > promisesMax {
		oldest := p.entries[0]
		p.entries = append(p.entries[:0], p.entries[1:]...)
		p.entries[0].free = max(p.entries[0].free, oldest.free)
	}
}

// name : another message names this credit.
func (p *promises) name(free int) {
	if len(p.entries) == 0 {
		p.entries = append(p.entries, promise{0, free})
		return
	}
	last := &p.entries[len(p.entries)-1]
	last.free = max(last.free, free)
}

// use : the broker has sent this number of steps.
func (p *promises) use(steps int) {
	for i := range p.entries {
		p.entries[i].free = max(0, p.entries[i].free-steps)
	}
}

// acknowledge : the broker has read the hello or heartbeat n, and with it everything before. True if fewer are promised.
func (p *promises) acknowledge(n int64) bool {
	before := p.promised()
	kept := p.entries[:0]
	for _, entry := range p.entries {
		if entry.n >= n {
			kept = append(kept, entry)
		}
	}
	p.entries = kept
	return p.promised() < before
}

// max and min are builtins only since Go 1.21.
func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

package wire

import "sync"

// Mailbox passes outcomes and requests from other goroutines to the thread that owns the sockets, and wakes it.
type Mailbox[O any] struct {
	mutex    sync.Mutex
	outcomes []O
	requests []func()
	isAwake  bool // the thread reads the mailbox soon without being woken
	waker    *Waker
}

// NewMailbox makes a mailbox. The thread is awake at first.
func NewMailbox[O any]() *Mailbox[O] { return &Mailbox[O]{isAwake: true} }

// SetWaker sets the waker of the thread, before it sleeps for the first time.
func (m *Mailbox[O]) SetWaker(waker *Waker) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.waker = waker
}

// PutOutcome adds the outcome of a run.
func (m *Mailbox[O]) PutOutcome(outcome O) {
	m.mutex.Lock()
	m.outcomes = append(m.outcomes, outcome)
	m.wakeAndUnlock()
}

// PutRequest adds a function, which the thread calls.
func (m *Mailbox[O]) PutRequest(request func()) {
	m.mutex.Lock()
	m.requests = append(m.requests, request)
	m.wakeAndUnlock()
}

func (m *Mailbox[O]) wakeAndUnlock() {
	mustWake := !m.isAwake
	m.isAwake = true
	waker := m.waker
	m.mutex.Unlock()
	if mustWake && waker != nil {
		waker.Wake()
	}
}

// MaySleep is called by the thread before it sleeps: from now on, additions wake it. False if there are some now.
func (m *Mailbox[O]) MaySleep() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.isAwake = len(m.outcomes) > 0 || len(m.requests) > 0
	return !m.isAwake
}

// Take is called by the thread after it slept: it returns all additions, and further ones need not wake it.
func (m *Mailbox[O]) Take() (outcomes []O, requests []func()) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.isAwake = true
	outcomes, requests = m.outcomes, m.requests
	m.outcomes, m.requests = nil, nil
	return outcomes, requests
}

package session

import (
	"math"
	"sync"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Never is a time that does not come.
var Never = codec.Never

// Action is what a session orders. Its caller performs it: Send, *Run, CancelRun, Connect, Disconnect, Rebuild, Quit,
// ResultTooLarge or Log.
type Action interface{}

// Link is one broker's pair of endpoints.
type Link struct {
	Steps   string
	Results string
}

// Lease is the time until which steps of one broker may start. The session sets it; runners read it before each start.
type Lease struct {
	mutex   sync.Mutex
	untilMS float64
}

// UntilMS is the end of the lease; 0 without one.
func (l *Lease) UntilMS() float64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.untilMS
}

func (l *Lease) set(untilMS float64) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.untilMS = untilMS
}

// Send : send this frame, the topic and then the body.
type Send struct {
	Topic string
	Body  []byte
}

// Run : run this step as soon as a slot is free. If Begin returns false, report that the step is given back.
//
// The session and a runner share this object. The runner begins the run; until then, the session may take it back. A run
// that was taken back never begins.
type Run struct {
	Item  codec.Item
	Step  *codec.StepRequest
	Offer int // the number of the offer that handles the step

	mutex       sync.Mutex
	lease       *Lease
	timeoutMS   float64
	deadlineMS  float64 // the time at which the run must end, whenever it begins
	isTakenBack bool
	hasEnded    bool
	startedMS   float64 // NaN: it has not begun
	timeoutAtMS float64 // the earlier of timeout and deadline, since the start
}

// NewRun makes a run that has not begun.
func NewRun(step *codec.StepRequest, offer int, lease *Lease, timeoutMS, deadlineMS float64) *Run {
	return &Run{
		Item: step.Item(), Step: step, Offer: offer, lease: lease, timeoutMS: timeoutMS, deadlineMS: deadlineMS,
		startedMS: math.NaN(), timeoutAtMS: Never,
	}
}

// OfferNumber is the number of the offer that handles the step.
func (r *Run) OfferNumber() int { return r.Offer }

// Begin is called by the runner when it has a slot: may the handler be called? Not after the end of the lease.
func (r *Run) Begin(nowMS float64) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.isTakenBack || nowMS >= r.lease.UntilMS() {
		return false
	}
	r.startedMS = nowMS
	r.timeoutAtMS = math.Min(nowMS+r.timeoutMS, r.deadlineMS)
	return true
}

// IsLeaseOver is asked by a runner that had to wait after Begin: the handler must not be called then.
func (r *Run) IsLeaseOver(nowMS float64) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return nowMS >= r.lease.UntilMS()
}

// End is called by the runner before it releases the slot of the run: from then on, another run may have that slot.
func (r *Run) End() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.hasEnded = true
}

func (r *Run) ended() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.hasEnded
}

// TimeoutAtMS is the time at which the run must end; Never before its start, or without a timeout.
func (r *Run) TimeoutAtMS() float64 {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.timeoutAtMS
}

// started returns the start of the run. False: it has not begun.
func (r *Run) started() (float64, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.startedMS, !math.IsNaN(r.startedMS)
}

// takeBack is called by the session: true if the run has not begun, and therefore never will.
func (r *Run) takeBack() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.isTakenBack = true
	return math.IsNaN(r.startedMS)
}

func (r *Run) setLease(lease *Lease) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.lease = lease
}

// Reasons to ask a run to stop, in addition to those of `cancel`.
const (
	ReasonTimeout    = "timeout"
	ReasonSuperseded = "superseded"
	ReasonLeaseLost  = "lease_lost"
	ReasonShutdown   = "shutdown"
)

// CancelRun : ask a run that has begun to stop. `lease_lost` only informs the handler: the run continues.
type CancelRun struct {
	Item   codec.Item
	Reason string
}

// Connect : connect to a broker that another broker has listed.
type Connect struct {
	Link      Link
	ServerKey string
}

// Disconnect : disconnect from a broker that no broker lists any more.
type Disconnect struct{ Link Link }

// Rebuild : disconnect this pair of endpoints and connect it again, because the pair was silent for too long.
type Rebuild struct{ Link Link }

// Quit : end the worker, which has drained and holds nothing.
type Quit struct{}

// ResultTooLarge : log that a run has failed, because no message can carry its output.
type ResultTooLarge struct {
	Step   *codec.StepRequest
	Result *codec.Result
}

// Level is the importance of a log line.
type Level int

// The levels.
const (
	Debug Level = iota
	Info
	Warning
	Error
)

func (l Level) String() string { return [...]string{"debug", "info", "warning", "error"}[l] }

// Facts are the facts of an event, by name.
type Facts map[string]any

// Log : log this event with its facts.
type Log struct {
	Level Level
	Event string
	Facts Facts
}

// NewLease makes a lease for a run outside of a session.
func NewLease(untilMS float64) *Lease { return &Lease{untilMS: untilMS} }

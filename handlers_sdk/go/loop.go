package stepwire

import (
	"fmt"
	"math"
	"math/rand"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/clock"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/slots"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

const (
	expelMS         = 2_000     // time for runs to end after a request to stop
	receiveMax      = 500       // frames received before actions are performed
	receiveBytesMax = 64 * 1024 // the same in bytes: the first steps run while the next are received
	pollMaxMS       = 60_000
	abandonAfter    = 500 * time.Millisecond // a run that does not stop in this time is left to itself
)

// loop runs a worker from its first hello until it has quit. Its goroutine is locked to a thread that owns both sockets.
// No handler runs on it, so heartbeats continue while handlers compute. It passes frames and ends of calls to the
// session, and the session's actions to sockets and handlers.
type loop struct {
	config     *session.Config
	handlers   []*handler
	keys       *wire.Keys
	edge       *edge.Edge
	logger     Logger
	session    *session.Session
	sockets    *wire.Sockets
	mailbox    *wire.Mailbox[callEnd]
	slots      *slots.RunSlots[*call]
	events     *workerEvents
	runLog     *runLog
	search     *brokerSearch
	calls      map[codec.Item]*call
	handed     []*call                 // handed over by the session, and not in the slots yet
	serverKeys map[session.Link]string // each link has its key, or "" for the configured one
	frame      []byte                  // reused for frames that are sent

	expelAtMS  float64
	leaveAtMS  float64
	hasQuit    bool
	isDraining bool
	ended      chan struct{}
	fault      error
	running    sync.WaitGroup // goroutines of handlers
}

func newLoop(config *session.Config, handlers []*handler, keys *wire.Keys, opener *edge.Edge, logger Logger) *loop {
	random := rand.New(rand.NewSource(time.Now().UnixNano())) // does not affect the program's own randomness
	l := &loop{
		config: config, handlers: handlers, keys: keys, edge: opener, logger: logger, session: session.New(config, random.Float64),
		mailbox: wire.NewMailbox[callEnd](), calls: map[codec.Item]*call{}, serverKeys: map[session.Link]string{}, runLog: &runLog{logger},
		expelAtMS: session.Never, leaveAtMS: session.Never, ended: make(chan struct{}),
	}
	concurrency := make([]int, len(handlers))
	for i, h := range handlers {
		concurrency[i] = h.offer.Concurrency
	}
	l.slots = slots.New[*call](config.Slots, concurrency)
	l.events = &workerEvents{logger, l.session.LinkOf, map[string]string{}, keys}
	l.search = &brokerSearch{reportAtMS: session.Never, report: l.reportNoBroker}
	return l
}

// -- called by other goroutines ---------------------------------------------------------------------------------------

func (l *loop) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (l *loop) quiet() { l.mailbox.PutRequest(func() { l.session.Quiet(clock.NowMS()) }) }

func (l *loop) drain(limit time.Duration) {
	l.mailbox.PutRequest(func() {
		nowMS := clock.NowMS()
		l.session.Drain(nowMS)
		l.expelAtMS = math.Min(l.expelAtMS, nowMS+float64(limit)/float64(time.Millisecond))
	})
}

func (l *loop) reportProgress(entry codec.ProgressItem) {
	l.mailbox.PutRequest(func() { l.session.Progressed(entry, clock.NowMS()) })
}

func (l *loop) reportNoBroker(link session.Link, seconds int) {
	endpoint, reason := diagnosis(link, l.keys)
	l.events.log(session.Warning, "no_broker", session.Facts{"endpoint": endpoint, "reason": reason, "seconds": seconds})
}

// serve runs calls one after the other, as long as there is one for the slot.
func (l *loop) serve(c *call) {
	defer l.running.Done()
	for c != nil {
		c = l.serveOne(c)
	}
}

// serveOne runs a call, and returns the one that has its slot now. If the handler ends this goroutine, the next call
// gets another one.
func (l *loop) serveOne(c *call) (following *call) {
	var end callEnd
	hasReturned := false
	defer func() {
		c.run.End()
		next, ok := l.slots.Release(c)
		l.mailbox.PutOutcome(end)
		if ok && hasReturned {
			following = next
		} else if ok {
			l.begin(next)
		}
	}()
	c.perform(l.runLog, &end)
	hasReturned = true
	return nil
}

func (l *loop) begin(c *call) {
	l.running.Add(1)
	go l.serve(c)
}

// -- the goroutine ----------------------------------------------------------------------------------------------------

func (l *loop) main() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(l.ended)
	defer func() {
		if fault := recover(); fault != nil {
			l.fail(fmt.Errorf("a fault of the SDK: %v", fault), stackOfPanic(stack()))
		}
	}()
	sockets, err := wire.Open([]string{codec.TopicOfWorker(l.config.Worker), codec.TopicBrokers}, l.keys)
	if err != nil {
		l.fail(fmt.Errorf("the sockets cannot be opened: %w", err), nil)
		return
	}
	l.sockets = sockets
	l.mailbox.SetWaker(sockets.Waker)
	defer sockets.CloseAtExit()
	for _, link := range l.config.Links {
		l.connect(link, "")
	}
	if err := l.work(); err != nil {
		l.fail(err, nil)
		return
	}
	l.abandon()
	l.events.log(session.Info, "worker_ended", session.Facts{"unacknowledged": l.session.Held()})
}

func (l *loop) fail(fault error, frames []string) {
	l.fault = fmt.Errorf("the worker's socket goroutine has failed: %w", fault)
	l.logger.Log(Record{
		Time: time.Now(), Level: LevelError, Event: "worker_failed", Stack: frames,
		Text: "the worker ends, because its socket goroutine has failed: " + fault.Error(),
	})
}

func stack() string {
	buffer := make([]byte, 64*1024)
	return string(buffer[:runtime.Stack(buffer, false)])
}

func (l *loop) work() error {
	l.session.Start(clock.NowMS())
	name, _, _ := strings.Cut(l.config.Worker, ":")
	offered := make([]string, len(l.config.Offers))
	for i, offer := range l.config.Offers {
		offered[i] = offer.Pattern
	}
	l.events.log(session.Info, "worker_started", session.Facts{
		"name": name, "handlers": offered, "slots": l.config.Slots, "pid": l.config.PID,
	})
	l.lookForBrokers()
	for !l.hasQuit {
		for _, action := range l.session.Actions(clock.NowMS()) {
			l.perform(action)
		}
		l.flush()
		if err := l.wait(); err != nil {
			return err
		}
		nowMS := clock.NowMS()
		if err := l.receive(nowMS); err != nil {
			return err
		}
		l.readMailbox()
		l.checkDrain(nowMS)
		if nowMS >= l.search.reportAtMS {
			l.lookForBrokers()
		}
	}
	return nil
}

// wait waits for a frame, an addition to the mailbox, or the time at which the session has to act.
func (l *loop) wait() error {
	atMS := math.Min(math.Min(l.session.WakeAt(), l.search.reportAtMS), math.Min(l.expelAtMS, l.leaveAtMS))
	waitMS := atMS - clock.NowMS()
	if waitMS <= 0 || l.hasQuit || !l.mailbox.MaySleep() {
		return nil
	}
	return l.sockets.Wait(time.Duration(math.Min(waitMS, pollMaxMS)+1) * time.Millisecond)
}

func (l *loop) receive(nowMS float64) error {
	leftBytes := receiveBytesMax
	for i := 0; i < receiveMax && leftBytes > 0; i++ {
		frame, err := l.sockets.Receive()
		if err == wire.ErrMultipart {
			l.events.log(session.Error, "message_unreadable", session.Facts{"code": "multipart", "why": err.Error()})
			continue
		}
		if err != nil {
			return err
		}
		if frame == nil {
			return nil
		}
		leftBytes -= len(frame)
		if topic, body, ok := codec.Split(frame); ok {
			l.session.Receive(topic, body, nowMS)
		}
	}
	return nil
}

func (l *loop) readMailbox() {
	ends, requests := l.mailbox.Take()
	for _, request := range requests {
		request()
	}
	nowMS := clock.NowMS()
	for _, end := range ends {
		delete(l.calls, end.item)
		if end.result == nil {
			l.session.GiveBack(end.item, nowMS)
		} else {
			l.session.Finished(end.item, end.result, nowMS)
		}
	}
}

// checkDrain asks runs to stop after the time to drain. After expelMS, it quits without waiting for them.
func (l *loop) checkDrain(nowMS float64) {
	if l.session.IsDraining() && !l.isDraining { // ordered by a broker, or by the program
		l.isDraining = true
		l.expelAtMS = math.Min(l.expelAtMS, nowMS+float64(DrainDefault.Milliseconds()))
	}
	if nowMS >= l.expelAtMS {
		l.expelAtMS = session.Never
		l.leaveAtMS = nowMS
		if l.session.Expel() > 0 {
			l.leaveAtMS += expelMS
		}
	}
	if nowMS >= l.leaveAtMS {
		l.hasQuit = true
	}
}

// abandon cancels the runs that are left, and waits a moment for them. A handler that hangs only keeps its goroutine.
func (l *loop) abandon() {
	for _, c := range l.calls {
		c.stop(session.ReasonShutdown)
	}
	done := make(chan struct{})
	go func() {
		l.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(abandonAfter):
	}
}

// -- actions of the session -------------------------------------------------------------------------------------------

func (l *loop) perform(action session.Action) {
	switch a := action.(type) {
	case session.Send:
		l.frame = append(append(l.frame[:0], a.Topic...), a.Body...)
		_ = l.sockets.Send(l.frame) // a message that was not sent is a lost message: the session resends what matters
		if cap(l.frame) > receiveBytesMax {
			l.frame = nil
		}
	case *session.Run:
		info := newStepInfo(a.Step, l.logger, l.reportProgress)
		c := &call{run: a, handler: l.handlers[a.Offer], info: info, edge: l.edge}
		l.calls[a.Item] = c
		l.handed = append(l.handed, c)
	case session.CancelRun:
		if c := l.calls[a.Item]; c != nil {
			l.runLog.interrupted(c.info, a.Reason)
			c.stop(a.Reason)
		}
	case session.Connect:
		l.connect(a.Link, a.ServerKey)
	case session.Disconnect:
		delete(l.serverKeys, a.Link)
		l.sockets.Disconnect(a.Link.Steps, a.Link.Results)
	case session.Rebuild:
		l.sockets.Disconnect(a.Link.Steps, a.Link.Results)
		l.connect(a.Link, l.serverKeys[a.Link])
	case session.ResultTooLarge:
		l.runLog.notReported(newStepInfo(a.Step, l.logger, l.reportProgress), a.Result)
	case session.Log:
		l.events.log(a.Level, a.Event, a.Facts)
		l.lookForBrokers()
	case session.Quit:
		l.hasQuit = true
	}
}

// flush puts the calls that were handed over into the slots, and begins those that have one.
func (l *loop) flush() {
	if len(l.handed) == 0 {
		return
	}
	for _, c := range l.slots.Add(l.handed...) {
		l.begin(c)
	}
	l.handed = l.handed[:0]
}

func (l *loop) connect(link session.Link, serverKey string) {
	l.serverKeys[link] = serverKey
	if endpoint, err := l.sockets.Connect(link.Steps, link.Results, serverKey); err != nil {
		l.events.log(session.Error, "connect_failed", session.Facts{"endpoint": endpoint, "error": err.Error()})
	}
}

func (l *loop) lookForBrokers() { l.search.update(l.session.WithoutSession(), clock.NowMS()) }

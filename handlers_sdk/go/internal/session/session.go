// Package session is the worker's half of the protocol, as pure logic: without sockets, clock, threads or its own
// randomness.
//
// The caller passes the time with every call, in milliseconds of a clock that counts sleep. It passes all facts that
// have arrived, then calls Actions, and calls it again at WakeAt at the latest. Results of one batch that finished in
// the meantime are sent in one message.
//
// The guarantees: a process runs a delivery at most once. No step starts after its broker may consider this worker dead.
// An at_most_once step starts only after the broker's go. A result is kept until a broker has committed it.
//
// Each file is one part with its own state, as in the SDKs of other languages: see handlers_sdk/README.md.
package session

import (
	"fmt"
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Session has one worker's sessions with all its brokers. Only one goroutine may use it.
type Session struct {
	inbox         string
	bytesMax      int64
	hasQuit       bool
	out           *outgoing
	brokers       *brokers
	slots         *slots
	holdings      *holdings
	outbox        *outbox
	runs          *runs
	credit        *credit
	intake        *intake
	reporting     *reporting
	progress      *progress
	announcements *announcements
	leases        *leases
	endpoints     *endpoints
}

// New makes a session. `random` returns numbers in [0, 1).
func New(config *Config, random func() float64) *Session {
	s := &Session{inbox: codec.TopicOfWorker(config.Worker), bytesMax: config.MaxMessageBytes}
	offers := newOffers(config.Offers)
	s.out = newOutgoing(config.Worker)
	s.brokers = newBrokers()
	s.slots = newSlots(config.Slots, offers)
	s.holdings = newHoldings(s.slots, newPace(float64(config.queueMax())))
	s.outbox = newOutbox(s.out)
	s.runs = newRuns(offers, s.slots, s.holdings, s.out)
	s.credit = newCredit(config, s.brokers, s.holdings, s.outbox)
	s.intake = newIntake(offers, config.AcceptDelayMS, s.brokers, s.holdings, s.credit, s.outbox, s.out)
	s.reporting = newReporting(s.holdings, s.credit, s.intake, s.outbox, s.out)
	s.progress = newProgress(s.holdings, s.out)
	s.announcements = newAnnouncements(config, random, s.brokers, s.holdings, s.credit, s.out)
	s.leases = newLeases(s.brokers, s.announcements, s.credit, s.holdings, s.runs, s.outbox, s.out)
	s.endpoints = newEndpoints(config, s.brokers, s.holdings, s.out)
	return s
}

// -- facts in ---------------------------------------------------------------------------------------------------------

// Start begins to send hello.
func (s *Session) Start(nowMS float64) {
	s.announcements.start(nowMS)
	s.endpoints.start(nowMS)
}

// Receive receives a frame of the SUB socket, split at its first space. The session keeps parts of the body.
func (s *Session) Receive(topic string, body []byte, nowMS float64) {
	s.leases.check(nowMS)
	if topic != s.inbox && topic != codec.TopicBrokers {
		return
	}
	if int64(len(body)) > s.bytesMax {
		s.intake.onUnreadable(body, "too_large", fmt.Sprintf("%d bytes", len(body)), nowMS)
		return
	}
	message, err := codec.DecodeBroker(body)
	if err != nil {
		if invalid, ok := err.(*codec.Invalid); !ok || invalid.Code != "unknown_type" {
			s.intake.onUnreadable(body, "bad_message", err.Error(), nowMS)
		}
		return
	}
	if _, isHere := message.(*codec.Here); isHere || topic == s.inbox {
		s.dispatch(message, len(body), nowMS)
	}
}

// Finished reports the end of a run that *Run started. The first report of a run counts.
func (s *Session) Finished(item codec.Item, result *codec.Result, nowMS float64) {
	held := s.holdings.get(item)
	if held == nil || held.state != running {
		s.holdings.releaseOrphan(item, nowMS)
		return
	}
	if result.Status != codec.StatusCompleted && (held.isInterrupted || nowMS >= held.timeoutAtMS()) {
		result = withoutVerdict(held, result)
	}
	s.reporting.add(held, result, nowMS)
	s.progress.forget(held)
	s.holdings.finish(held, nowMS)
}

// GiveBack returns a step to its broker: its run did not start, or had no effect, so another worker may run the step.
func (s *Session) GiveBack(item codec.Item, nowMS float64) {
	held := s.holdings.get(item)
	if held == nil || held.state != running {
		s.holdings.releaseOrphan(item, nowMS)
		return
	}
	code := "busy"
	if s.credit.isDraining {
		code = "draining"
	}
	s.intake.giveBack([]*heldDelivery{held}, code, nowMS)
}

// Progressed reports the progress of a run.
func (s *Session) Progressed(entry codec.ProgressItem, nowMS float64) {
	if held := s.holdings.get(entry.Item); held != nil && held.state == running {
		s.progress.add(entry, nowMS)
	}
}

// Quiet : accept no new steps, and finish those that are held.
func (s *Session) Quiet(nowMS float64) {
	s.credit.isQuiet = true
	s.announcements.requestHeartbeat(nowMS)
}

// Full reports whether the runner accepts no steps at the moment, although slots are free.
func (s *Session) Full(isFull bool, nowMS float64) {
	if isFull != s.credit.isFull {
		s.credit.isFull = isFull
		s.announcements.requestHeartbeat(nowMS)
	}
}

// Drain returns steps that have not started, finishes those that run, then Quit.
func (s *Session) Drain(nowMS float64) {
	if s.credit.isDraining {
		return
	}
	s.credit.isDraining = true
	s.leases.check(nowMS)
	s.intake.giveBack(s.holdings.withdraw(), "draining", nowMS)
	s.out.log(Info, "worker_drains", Facts{"running": len(s.holdings.running())})
	s.announcements.requestHeartbeat(nowMS)
}

// IsDraining is true after Drain, or after a broker ordered the worker to quit.
func (s *Session) IsDraining() bool { return s.credit.isDraining }

// Expel asks every run to stop, because the time to drain is over. It returns the number of runs.
func (s *Session) Expel() int { return s.runs.interruptAll(ReasonShutdown) }

// -- actions out ------------------------------------------------------------------------------------------------------

// Actions returns all actions that are due, in their order.
func (s *Session) Actions(nowMS float64) []Action {
	if nowMS >= s.leases.checkAtMS {
		s.leases.check(nowMS)
	}
	if nowMS >= s.runs.timeoutAtMS {
		s.runs.stopOverdue(nowMS)
	}
	s.handOver(nowMS)
	if nowMS >= s.credit.returnAtMS {
		s.returnExcess(nowMS)
	}
	if s.reporting.isDue(nowMS, s.slots.taken) {
		s.reporting.sendDue(nowMS, s.slots.taken)
	}
	if nowMS >= s.outbox.resendAtMS {
		s.outbox.resend(nowMS)
	}
	if nowMS >= s.runs.askAtMS {
		s.runs.ask(nowMS)
	}
	if nowMS >= s.intake.acceptAtMS {
		s.intake.acceptDue(nowMS)
	}
	if nowMS >= s.progress.sendAtMS {
		s.progress.send(nowMS)
	}
	if nowMS >= s.announcements.helloAtMS {
		s.announcements.hello(nowMS)
	}
	if nowMS >= s.announcements.heartbeatAtMS {
		s.heartbeat(nowMS)
	}
	if nowMS >= s.endpoints.checkAtMS {
		s.endpoints.check(nowMS)
	}
	if s.mayQuit() {
		s.hasQuit = true
		s.heartbeat(nowMS)
		s.out.add(Quit{})
	}
	return s.out.take()
}

// WakeAt is the latest time for the next call of Actions; minus infinity: now. At that time, nothing may be due.
func (s *Session) WakeAt() float64 {
	if len(s.out.actions) > 0 || s.slots.hasNext() || s.reporting.hasWhole() || s.mayQuit() {
		return math.Inf(-1)
	}
	if s.reporting.sendAtMS != Never && s.slots.taken == 0 {
		return math.Inf(-1)
	}
	atMS := s.leases.checkAtMS
	for _, each := range [...]float64{
		s.runs.timeoutAtMS, s.credit.returnAtMS, s.reporting.sendAtMS, s.outbox.resendAtMS, s.runs.askAtMS,
		s.intake.acceptAtMS, s.progress.sendAtMS, s.announcements.helloAtMS, s.announcements.heartbeatAtMS,
		s.endpoints.checkAtMS,
	} {
		if each < atMS {
			atMS = each
		}
	}
	return atMS
}

// AwaitsResults is true if results wait for others that are about to end. Then the caller need not report each end at
// once: within the next millisecond is soon enough.
func (s *Session) AwaitsResults() bool {
	return s.reporting.sendAtMS != Never && s.slots.taken >= s.holdings.load
}

// Held is the number of steps and results that are held.
func (s *Session) Held() int { return s.holdings.len() }

// Holding lists what is held, as in a heartbeat.
func (s *Session) Holding(nowMS float64) []codec.HeldItem { return s.holdings.report(nowMS) }

// LinkOf returns the endpoints of this broker, if they are known.
func (s *Session) LinkOf(broker string) (Link, bool) { return s.endpoints.linkOf(broker) }

// WithoutSession returns the links to brokers that no session is open with.
func (s *Session) WithoutSession() []Link { return s.endpoints.withoutSession() }

// -- messages ---------------------------------------------------------------------------------------------------------

func (s *Session) dispatch(message codec.FromBroker, size int, nowMS float64) {
	sender := message.Sender()
	switch m := message.(type) {
	case *codec.Ack:
		s.reporting.onAck(m, nowMS)
	case *codec.Here:
		s.leases.onHere(s.brokers.getOrAdd(sender.Broker, nowMS), m, nowMS)
	case *codec.Welcome:
		peer := s.brokers.getOrAdd(sender.Broker, nowMS)
		if s.leases.onWelcome(peer, m, nowMS) {
			s.endpoints.learn(peer, m.Brokers, nowMS)
		}
	case *codec.Reset:
		s.leases.onReset(s.brokers.getOrAdd(sender.Broker, nowMS), m, nowMS)
	case *codec.Refused:
		s.reporting.onRefused(m, nowMS)
	case *codec.Steps:
		if peer := s.inSession(sender, m.Session); peer != nil {
			isWaking := s.credit.isWaking(peer, nowMS)
			s.intake.onSteps(peer, m, size, nowMS)
			if isWaking {
				s.announcements.recallCredit(nowMS)
			}
		}
	case *codec.HeartbeatAck:
		if peer := s.inSession(sender, m.Session); peer != nil {
			s.leases.onHeartbeatAck(peer, m, nowMS)
			if m.HasBrokers {
				s.endpoints.learn(peer, m.Brokers, nowMS)
			}
			if m.Quit {
				s.Drain(nowMS)
			}
		}
	case *codec.Go:
		if peer := s.inSession(sender, m.Session); peer != nil {
			s.runs.onGo(peer, m.Items, nowMS)
		}
	case *codec.Cancel:
		if peer := s.inSession(sender, m.Session); peer != nil {
			s.onCancel(peer, m, nowMS)
		}
	case *codec.Adopt:
		if peer := s.inSession(sender, m.Session); peer != nil {
			s.onAdopt(peer, m, nowMS)
		}
	}
}

// inSession returns the broker, or nil if the message is not in its current session: the next heartbeat informs the
// sender.
func (s *Session) inSession(sender codec.From, session string) *brokerPeer {
	peer := s.brokers.get(sender.Broker)
	if peer == nil || peer.session != session || peer.epoch != sender.Epoch {
		return nil
	}
	return peer
}

func (s *Session) onCancel(peer *brokerPeer, message *codec.Cancel, nowMS float64) {
	var notStarted []*heldDelivery
	for _, item := range message.Items {
		held := s.holdings.get(item)
		if held == nil {
			s.holdings.tombstones.disown(item, peer, nowMS)
		} else if held.peer == peer && held.state != done {
			if held.withdraw() {
				notStarted = append(notStarted, held)
			} else {
				s.runs.interrupt(held, message.Reason)
			}
		}
	}
	s.intake.giveBack(notStarted, "stale", nowMS)
}

// onAdopt moves deliveries to another broker, or to the same one after a restart. Unknown ones will never start here.
func (s *Session) onAdopt(peer *brokerPeer, message *codec.Adopt, nowMS float64) {
	var answers []codec.HeldItem
	moved := newOrdered[*resultsMessage, []*heldDelivery]()
	for _, item := range distinct(message.Items) {
		held := s.holdings.get(item)
		if held == nil || held.state == ended {
			s.holdings.tombstones.disown(item, peer, nowMS)
			answers = append(answers, codec.HeldItem{Item: item, State: codec.Unknown})
			continue
		}
		answers = append(answers, codec.HeldItem{Item: item, State: held.reportedState(), AgeMS: held.ageMS(nowMS)})
		if held.message != nil {
			s.outbox.hasten(held.message, nowMS)
			if held.message.peer != peer {
				deliveries, _ := moved.get(held.message)
				moved.set(held.message, append(deliveries, held))
			}
		}
		s.holdings.move(held, peer)
	}
	inParts(answers, func(part []codec.HeldItem) {
		s.out.sendTo(peer, &codec.Adopted{Worker: s.out.worker, Session: peer.session, Items: part})
	})
	for e := moved.first; e != nil; e = e.behind {
		s.reporting.changeOwner(e.key, e.value, peer, nowMS)
	}
}

// -- helpers ----------------------------------------------------------------------------------------------------------

// handOver hands steps to the runner, as far as slots and pace permit, and watches those that still wait.
func (s *Session) handOver(nowMS float64) {
	if s.slots.hasQueue() {
		s.slots.ahead = s.credit.ahead(nowMS)
		if s.slots.hasNext() {
			s.runs.startQueued(nowMS)
		}
	}
	s.credit.watch(nowMS)
}

// returnExcess returns the newest steps that no longer fit, because steps have become longer.
func (s *Session) returnExcess(nowMS float64) {
	if count, peers := s.credit.excess(nowMS); count > 0 {
		s.intake.giveBack(s.holdings.withdrawNewest(count, peers), "busy", nowMS)
	}
}

func (s *Session) mayQuit() bool { return s.credit.isDraining && s.holdings.len() == 0 && !s.hasQuit }

func (s *Session) heartbeat(nowMS float64) {
	s.holdings.tombstones.sweep(nowMS)
	if !s.announcements.isForCredit {
		s.credit.rotate()
	}
	s.announcements.heartbeat(nowMS)
}

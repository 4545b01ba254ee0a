package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// leases opens, extends and drops the session with each broker.
//
// A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock. Therefore the lease ends at the
// worker before the broker may consider the worker dead, and their clocks need not agree.
type leases struct {
	checkAtMS     float64
	brokers       *brokers
	announcements *announcements
	credit        *credit
	holdings      *holdings
	runs          *runs
	outbox        *outbox
	out           *outgoing
}

func newLeases(
	brokers *brokers, announcements *announcements, credit *credit, holdings *holdings, runs *runs, outbox *outbox,
	out *outgoing,
) *leases {
	return &leases{Never, brokers, announcements, credit, holdings, runs, outbox, out}
}

// isPermanent is true for resets that a hello does not change.
func isPermanent(why string) bool { return why == "version" || why == "unauthorized" }

// check drops sessions whose lease is over: no step may start in them, and their messages are ignored.
func (l *leases) check(nowMS float64) {
	if nowMS < l.checkAtMS {
		return
	}
	for _, peer := range l.brokers.all {
		if untilMS := peer.lease.UntilMS(); untilMS != 0 && nowMS >= untilMS {
			l.drop(peer, "lease_over", nowMS, Warning)
		}
	}
	l.checkAtMS = Never
	for _, peer := range l.brokers.all {
		if untilMS := peer.lease.UntilMS(); untilMS != 0 {
			l.checkAtMS = math.Min(l.checkAtMS, untilMS)
		}
	}
}

func (l *leases) onHere(peer *brokerPeer, message *codec.Here, nowMS float64) {
	if peer.hasOther(message.Deployment) {
		l.replace(peer, message.Deployment, message.Epoch, nowMS)
		return
	}
	if message.Epoch < peer.epoch {
		return
	}
	if message.Epoch > peer.epoch {
		// The broker restarted. Its deliveries continue with the current lease; the new session will adopt them.
		peer.epoch = message.Epoch
		peer.session = ""
	}
	peer.setDeployment(message.Deployment)
	peer.nAfter = l.out.n
	l.announcements.requestHello(nowMS)
}

// onWelcome opens or extends a session. True if the message answers a hello with the current session number, and its
// lease is not over yet.
func (l *leases) onWelcome(peer *brokerPeer, message *codec.Welcome, nowMS float64) bool {
	epoch, k := codec.SessionParts(message.Session)
	sentMS, isKnown := l.out.sentMS.get(message.N)
	if epoch != message.Epoch || k != peer.next || message.N <= peer.nAfter || !isKnown {
		return false
	}
	if peer.hasOther(message.Deployment) {
		l.replace(peer, message.Deployment, message.Epoch, nowMS)
		return false
	}
	untilMS := sentMS + float64(message.LeaseMS)*codec.LeaseWorkerFactor
	if epoch < peer.epoch || untilMS <= nowMS {
		return false // sent before a restart, or its lease is over; the broker answers the next hello, too
	}
	isNew := message.Session != peer.session
	peer.epoch = epoch
	peer.setDeployment(message.Deployment)
	peer.bytesMax = message.MaxMessageBytes
	peer.leaseMS = message.LeaseMS
	peer.heartbeatMS = message.HeartbeatMS
	if peer.heartbeatMS == 0 {
		peer.heartbeatMS = codec.HeartbeatMS
	}
	if fifth := message.LeaseMS / 5; fifth < peer.heartbeatMS {
		peer.heartbeatMS = fifth
	}
	peer.promises.acknowledge(message.N)
	if isNew {
		peer.lease.set(0) // a restarted broker may have a shorter lease, which then applies
	}
	l.extend(peer, untilMS, nowMS)
	if isNew {
		l.open(peer, message.Session, nowMS)
	}
	return true
}

func (l *leases) onHeartbeatAck(peer *brokerPeer, message *codec.HeartbeatAck, nowMS float64) {
	if sentMS, ok := l.out.sentMS.get(message.N); ok {
		l.extend(peer, sentMS+float64(peer.leaseMS)*codec.LeaseWorkerFactor, nowMS)
	}
	if peer.promises.acknowledge(message.N) && l.credit.moves(peer) {
		l.announcements.moveCredit(nowMS)
	}
	if message.Quiet != peer.isQuiet {
		peer.isQuiet = message.Quiet
		l.announcements.requestHeartbeat(nowMS)
	}
}

func (l *leases) onReset(peer *brokerPeer, message *codec.Reset, nowMS float64) {
	if message.Next == peer.next && message.Epoch >= peer.epoch {
		level := Warning
		if isPermanent(message.Code) {
			level = Error
		}
		l.drop(peer, message.Code, nowMS, level)
	}
}

func (l *leases) open(peer *brokerPeer, session string, nowMS float64) {
	peer.session = session
	peer.openedMS = nowMS
	peer.floor = -1
	peer.isQuiet = false
	l.announcements.requestHeartbeat(nowMS) // carries the credit
	l.outbox.hastenAll(peer, nowMS)
	l.runs.hasten(peer, nowMS)
	l.announcements.stopHelloIfWelcomed()
	l.out.log(Info, "session_opened", Facts{"broker": peer.id, "session": session})
}

func (l *leases) extend(peer *brokerPeer, untilMS, nowMS float64) {
	peer.answeredMS = nowMS
	if untilMS > peer.lease.UntilMS() {
		peer.lease.set(untilMS)
		l.checkAtMS = math.Min(l.checkAtMS, untilMS)
	}
}

// drop ends the session. Deliveries that have not started here never start, because another worker may get them.
func (l *leases) drop(peer *brokerPeer, why string, nowMS float64, level Level) {
	dropped := 0
	for _, held := range l.holdings.ofBroker(peer) {
		if held.state == done {
			continue
		}
		if held.withdraw() {
			l.holdings.bury(held, nowMS)
			dropped++
		} else {
			l.runs.interrupt(held, ReasonLeaseLost)
		}
	}
	session := peer.session
	peer.session = ""
	peer.next++
	peer.lease.set(0)
	peer.nAfter = l.out.n
	l.out.log(level, "session_dropped", Facts{
		"broker": peer.id, "session": session, "why": why, "not_started": dropped,
	})
	l.requestHello(peer, session, why, nowMS)
}

// requestHello sends hello at once after a drop, and after a growing pause if the broker keeps ending the session.
func (l *leases) requestHello(peer *brokerPeer, session, why string, nowMS float64) {
	if session != "" && nowMS-peer.openedMS >= float64(peer.leaseMS)/2 {
		peer.dropWaitMS = 0
	}
	waitMS := peer.dropWaitMS
	if isPermanent(why) {
		waitMS = codec.DropWaitMaxMS
		peer.dropWaitMS = waitMS
	} else {
		peer.dropWaitMS = math.Min(codec.DropWaitMaxMS, math.Max(codec.DropWaitMS, 2*waitMS))
	}
	if waitMS > 0 {
		l.announcements.requestHelloAfter(waitMS, peer, nowMS)
	} else {
		l.announcements.requestHello(nowMS)
	}
}

// replace discards everything of a broker that has another database: earlier deliveries have no owner, and their ids
// now belong to other steps.
func (l *leases) replace(peer *brokerPeer, deployment string, epoch int64, nowMS float64) {
	discarded := l.outbox.discard(peer)
	for _, held := range l.holdings.ofBroker(peer) {
		if held.state != running || held.withdraw() {
			l.holdings.bury(held, nowMS)
		} else {
			l.runs.interrupt(held, ReasonSuperseded)
			l.holdings.orphan(held, nowMS)
		}
	}
	l.out.log(Error, "deployment_replaced", Facts{
		"broker": peer.id, "deployment": deployment, "results_discarded": discarded,
	})
	l.drop(peer, "deployment_replaced", nowMS, Warning)
	l.holdings.tombstones.forgetBroker(peer)
	peer.setDeployment(deployment)
	peer.epoch = epoch
}

package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// announcements sends hello (until every broker has sent welcome), heartbeats, and bye. `random` returns numbers in
// [0, 1), for the jitter of the intervals.
type announcements struct {
	helloAtMS     float64
	heartbeatAtMS float64
	isForCredit   bool // the next heartbeat was requested only because places move
	config        *Config
	random        func() float64
	brokers       *brokers
	holdings      *holdings
	credit        *credit
	out           *outgoing
	helloWaitMS   float64
	helloSentMS   float64
	helloN        int64
	mayMoveCredit bool
}

func newAnnouncements(
	config *Config, random func() float64, brokers *brokers, holdings *holdings, credit *credit, out *outgoing,
) *announcements {
	return &announcements{
		helloAtMS: Never, heartbeatAtMS: Never, config: config, random: random, brokers: brokers, holdings: holdings,
		credit: credit, out: out, helloWaitMS: codec.HelloRetryMS, helloSentMS: math.Inf(-1), mayMoveCredit: true,
	}
}

func (a *announcements) start(nowMS float64) {
	a.helloAtMS = nowMS
	a.heartbeatAtMS = nowMS + a.heartbeatEveryMS()
}

// requestHello begins to send hello again. The pause since the last hello is at least that of the first retry.
func (a *announcements) requestHello(nowMS float64) {
	a.helloWaitMS = codec.HelloRetryMS
	soonestMS := a.helloSentMS + a.spread(codec.HelloRetryMS, codec.HelloJitter)
	a.helloAtMS = math.Min(a.helloAtMS, math.Max(nowMS, soonestMS))
}

// requestHelloAfter begins to send hello again after this pause, because this broker keeps ending the session. Another
// broker that has no session either does not wait for it.
func (a *announcements) requestHelloAfter(waitMS float64, peer *brokerPeer, nowMS float64) {
	a.helloWaitMS = codec.HelloRetryMS
	atMS := nowMS + waitMS
	for _, other := range a.brokers.all {
		if other != peer && other.session == "" {
			a.helloAtMS = math.Min(a.helloAtMS, atMS)
			return
		}
	}
	a.helloAtMS = atMS
}

// requestHeartbeat sends a heartbeat with the next actions, because the brokers must be informed at once.
func (a *announcements) requestHeartbeat(nowMS float64) { a.heartbeatAtMS = nowMS }

// recallCredit sends a heartbeat with the next actions, because a broker is no longer idle, and its share was lent. The
// remainder of the split does not rotate with it.
func (a *announcements) recallCredit(nowMS float64) {
	a.mayMoveCredit = true
	a.requestCredit(nowMS)
}

// moveCredit sends a heartbeat with the next actions, because places have become free for another broker. At most once
// between two other heartbeats: each ack of one could cause the next.
func (a *announcements) moveCredit(nowMS float64) {
	if a.mayMoveCredit {
		a.mayMoveCredit = false
		a.requestCredit(nowMS)
	}
}

func (a *announcements) requestCredit(nowMS float64) {
	if a.heartbeatAtMS > nowMS {
		a.heartbeatAtMS = nowMS
		a.isForCredit = true
	}
}

// stopHelloIfWelcomed stops sending hello, if every broker has answered a hello that was sent after its last drop or
// `here`.
func (a *announcements) stopHelloIfWelcomed() {
	for _, peer := range a.brokers.all {
		if peer.session == "" || peer.nAfter >= a.helloN {
			return
		}
	}
	if len(a.brokers.all) > 0 {
		a.helloAtMS = Never
	}
}

func (a *announcements) hello(nowMS float64) {
	c := a.config
	n := a.out.nextTimedN(nowMS)
	free, slotsFree := a.credit.offerAll(n, nowMS)
	hello := &codec.Hello{
		Worker: c.Worker, N: n, Next: a.brokers.nextNumbers(), Sessions: a.brokers.sessions(), Labels: c.Labels,
		Slots: int64(c.Slots), Prefetch: int64(c.queueMax()), Free: free, SlotsFree: slotsFree,
		Holding: a.holdings.report(nowMS), HeartbeatMS: c.HeartbeatMS, Lang: c.Lang, SDK: c.SDK, Host: c.Host,
		PID: c.PID, PIDStarted: c.PIDStarted, Proof: c.Proof, MaxMessageBytes: c.MaxMessageBytes,
		HandlerVersion: c.HandlerVersion,
	}
	for _, offer := range c.Offers {
		hello.Handlers = append(hello.Handlers, offer.Pattern)
		if offer.ShadowSafe {
			hello.ShadowSafe = append(hello.ShadowSafe, offer.Pattern)
		}
	}
	a.out.sendToAll(hello)
	a.helloSentMS = nowMS
	a.helloN = n
	a.helloAtMS = nowMS + a.spread(a.helloWaitMS, codec.HelloJitter)
	a.helloWaitMS = math.Min(a.helloWaitMS*2, codec.HelloRetryMaxMS)
	a.stopHelloIfWelcomed()
}

// heartbeat sends a heartbeat; while draining, also a bye.
func (a *announcements) heartbeat(nowMS float64) {
	n := a.out.nextTimedN(nowMS)
	free, slotsFree := a.credit.offerAll(n, nowMS)
	a.out.sendToAll(&codec.Heartbeat{
		Worker: a.out.worker, N: n, Next: a.brokers.nextNumbers(), Sessions: a.brokers.sessions(), Free: free,
		SlotsFree: slotsFree, Holding: a.holdings.report(nowMS),
	})
	if a.credit.isDraining {
		a.out.sendToAll(&codec.Bye{Worker: a.out.worker, N: a.out.nextTimedN(nowMS)})
	}
	a.heartbeatAtMS = nowMS + a.spread(a.heartbeatEveryMS(), codec.HeartbeatJitter)
	a.mayMoveCredit = a.mayMoveCredit || !a.isForCredit
	a.isForCredit = false
}

func (a *announcements) heartbeatEveryMS() float64 {
	everyMS := float64(a.config.HeartbeatMS)
	for _, peer := range a.brokers.all {
		if peer.session != "" {
			everyMS = math.Min(everyMS, float64(peer.heartbeatMS))
		}
	}
	return math.Max(codec.HeartbeatMinMS, math.Min(everyMS, codec.LeaseMS))
}

func (a *announcements) spread(ms, jitter float64) float64 { return ms * (1 + jitter*(2*a.random()-1)) }

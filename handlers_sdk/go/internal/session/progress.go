package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const progressEveryMS = 200

// progress has the latest progress of each run that was not sent yet: only that is sent, at most five times a second.
type progress struct {
	sendAtMS float64
	holdings *holdings
	out      *outgoing
	latest   *ordered[codec.Item, codec.ProgressItem]
	sentMS   float64
}

func newProgress(holdings *holdings, out *outgoing) *progress {
	return &progress{Never, holdings, out, newOrdered[codec.Item, codec.ProgressItem](), math.Inf(-1)}
}

func (p *progress) add(entry codec.ProgressItem, nowMS float64) {
	p.latest.set(entry.Item, entry)
	p.sendAtMS = math.Max(nowMS, p.sentMS+progressEveryMS)
}

func (p *progress) forget(held *heldDelivery) { p.latest.remove(held.item) }

func (p *progress) send(nowMS float64) {
	p.sendAtMS = Never
	p.sentMS = nowMS
	byPeer := newOrdered[*brokerPeer, []codec.ProgressItem]()
	for _, entry := range p.latest.take() {
		if held := p.holdings.get(entry.Item); held != nil && held.peer.session != "" {
			entries, _ := byPeer.get(held.peer)
			byPeer.set(held.peer, append(entries, entry))
		}
	}
	for e := byPeer.first; e != nil; e = e.behind {
		peer := e.key
		inParts(e.value, func(part []codec.ProgressItem) {
			p.out.sendTo(peer, &codec.Progress{Worker: p.out.worker, Session: peer.session, Items: part})
		})
	}
}

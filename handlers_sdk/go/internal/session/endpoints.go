package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const checkEveryMS = 1_000

// endpoints are the connected links, and the broker at each link if it is known ("" if not). They decide which to
// connect, when to connect again, and which to disconnect.
type endpoints struct {
	checkAtMS   float64
	hasCurve    bool
	brokerOf    *ordered[Link, string]
	connectedMS map[Link]float64
	listedMS    *ordered[Link, float64]         // of links learned from a list: when a list last named the broker
	lists       map[*brokerPeer]map[string]bool // the brokers that each broker listed in its open session
	keys        map[string][]string             // the CURVE keys that each broker lists for itself, the current one first
	key         map[Link]string                 // of links whose latest key is not the configured one
	moved       map[string]Connect              // by broker: the listed address and key, if another one is connected
	ignored     map[string]bool                 // brokers that need CURVE keys, which the worker does not have
	brokers     *brokers
	holdings    *holdings
	out         *outgoing
}

func newEndpoints(config *Config, brokers *brokers, holdings *holdings, out *outgoing) *endpoints {
	e := &endpoints{
		checkAtMS: Never, hasCurve: config.Curve, brokerOf: newOrdered[Link, string](),
		connectedMS: map[Link]float64{}, listedMS: newOrdered[Link, float64](),
		lists: map[*brokerPeer]map[string]bool{}, ignored: map[string]bool{}, brokers: brokers, holdings: holdings,
		keys: map[string][]string{}, key: map[Link]string{}, moved: map[string]Connect{}, out: out,
	}
	for _, link := range config.Links {
		e.brokerOf.set(link, "")
	}
	return e
}

func (e *endpoints) start(nowMS float64) {
	for each := e.brokerOf.first; each != nil; each = each.behind {
		e.connectedMS[each.key] = nowMS
	}
	e.checkAtMS = nowMS + codec.ServerKeyRetryMS
}

// learn connects to the brokers that this broker lists. A configured endpoint may be the same broker with another
// address.
func (e *endpoints) learn(peer *brokerPeer, listed []codec.Endpoints, nowMS float64) {
	names := map[string]bool{}
	for _, entry := range listed {
		names[entry.Broker] = true
	}
	e.lists[peer] = names
	known := map[string]bool{}
	for each := e.brokerOf.first; each != nil; each = each.behind {
		if each.value != "" {
			known[each.value] = true
		}
	}
	for _, entry := range listed {
		link := Link{entry.Steps, entry.Results}
		if broker, ok := e.brokerOf.get(link); ok && broker == "" && isComplete(entry) {
			e.brokerOf.set(link, entry.Broker)
			known[entry.Broker] = true
		}
	}
	unnamed := e.unnamed()
	if !known[peer.id] && len(unnamed) == 1 {
		e.brokerOf.set(unnamed[0], peer.id)
		unnamed = nil
	}
	for _, entry := range listed {
		link := Link{entry.Steps, entry.Results}
		if !isComplete(entry) || e.brokers.get(entry.Broker) != nil || known[entry.Broker] || len(unnamed) > 0 {
			continue
		}
		if entry.ServerKey != "" && !e.hasCurve {
			e.ignore(entry.Broker)
			continue
		}
		known[entry.Broker] = true
		e.brokerOf.set(link, entry.Broker)
		e.connectedMS[link] = nowMS
		e.listedMS.set(link, nowMS)
		e.out.add(Connect{link, entry.ServerKey})
	}
	e.noteAddresses(listed)
	if e.hasCurve {
		e.followKey(peer.id, listed, nowMS)
	}
}

// noteAddresses notes the addresses of brokers that were learned from a list, if others are connected. The first entry
// of each broker counts.
func (e *endpoints) noteAddresses(listed []codec.Endpoints) {
	noted := map[string]bool{}
	for _, entry := range listed {
		connected, ok := e.linkOf(entry.Broker)
		if !isComplete(entry) || noted[entry.Broker] {
			continue
		}
		noted[entry.Broker] = true
		if !ok || !e.listedMS.has(connected) {
			continue
		}
		link := Link{entry.Steps, entry.Results}
		if link == connected || (entry.ServerKey != "" && !e.hasCurve) {
			delete(e.moved, entry.Broker)
		} else {
			e.moved[entry.Broker] = Connect{link, entry.ServerKey}
		}
	}
}

// followKey connects again with the broker's current key if it has changed.
func (e *endpoints) followKey(broker string, listed []codec.Endpoints, nowMS float64) {
	var keys []string
	for _, entry := range listed {
		if entry.Broker == broker && entry.ServerKey != "" && isComplete(entry) {
			keys = append(keys, entry.ServerKey)
		}
	}
	if len(keys) == 0 {
		return
	}
	before, ok := e.keys[broker]
	e.keys[broker] = keys
	link, isLinked := e.linkOf(broker)
	if ok && isLinked && before[0] != keys[0] && e.key[link] != keys[0] {
		e.connectWith(link, keys[0], nowMS)
		e.out.log(Info, "server_key_changed", Facts{"link": link, "broker": broker})
	}
}

func (e *endpoints) connectWith(link Link, key string, nowMS float64) {
	e.key[link] = key
	e.connectedMS[link] = nowMS
	e.out.add(Disconnect{link})
	e.out.add(Connect{link, key})
}

// nextKey returns the key for the next attempt. A broker that has listed several keys may have changed its key
// meanwhile.
func (e *endpoints) nextKey(link Link, keys []string) string {
	used := e.key[link]
	if used == "" && len(keys) > 1 {
		used = keys[0]
	}
	for i, key := range keys {
		if key == used {
			return keys[(i+1)%len(keys)]
		}
	}
	return keys[0]
}

func isComplete(entry codec.Endpoints) bool { return entry.Steps != "" && entry.Results != "" }

func (e *endpoints) unnamed() []Link {
	var unnamed []Link
	for each := e.brokerOf.first; each != nil; each = each.behind {
		if each.value == "" {
			unnamed = append(unnamed, each.key)
		}
	}
	return unnamed
}

func (e *endpoints) named() map[string]bool {
	named := map[string]bool{}
	for each := e.brokerOf.first; each != nil; each = each.behind {
		named[each.value] = true
	}
	return named
}

// linkOf returns the link to this broker, if it is known.
func (e *endpoints) linkOf(broker string) (Link, bool) {
	for each := e.brokerOf.first; each != nil; each = each.behind {
		if each.value == broker && broker != "" {
			return each.key, true
		}
	}
	return Link{}, false
}

// withoutSession returns the links to brokers that no session is open with.
func (e *endpoints) withoutSession() []Link {
	named := e.named()
	strangers := 0
	for _, peer := range e.brokers.all {
		if peer.session != "" && !named[peer.id] {
			strangers++
		}
	}
	var closed []Link
	for each := e.brokerOf.first; each != nil; each = each.behind {
		if each.value == "" {
			continue
		}
		if peer := e.brokers.get(each.value); peer == nil || peer.session == "" {
			closed = append(closed, each.key)
		}
	}
	if unnamed := e.unnamed(); strangers < len(unnamed) {
		closed = append(closed, unnamed...)
	}
	return closed
}

// check disconnects brokers that are no longer listed, and connects silent ones again.
func (e *endpoints) check(nowMS float64) {
	e.disconnectUnlisted(nowMS)
	e.rebuildSilent(nowMS)
	e.checkAtMS = nowMS + checkEveryMS
}

// disconnectUnlisted disconnects brokers that were learned from a list, are absent from every list for long, and own
// nothing.
func (e *endpoints) disconnectUnlisted(nowMS float64) {
	listed := map[string]bool{}
	for peer, names := range e.lists {
		if peer.session != "" {
			for broker := range names {
				listed[broker] = true
			}
		}
	}
	for each := e.listedMS.first; each != nil; {
		link, listedMS := each.key, each.value
		each = each.behind
		broker, _ := e.brokerOf.get(link)
		peer := e.brokers.get(broker)
		if listed[broker] {
			e.listedMS.set(link, nowMS)
		} else if nowMS-listedMS >= codec.UnlistedMS && (peer == nil || e.isUnused(peer)) {
			e.listedMS.remove(link)
			e.brokerOf.remove(link)
			delete(e.connectedMS, link)
			delete(e.keys, broker)
			delete(e.moved, broker)
			delete(e.key, link)
			if peer != nil {
				delete(e.lists, peer)
				e.brokers.forget(peer)
			}
			e.out.add(Disconnect{link})
			e.out.log(Info, "link_removed", Facts{"link": link, "broker": broker})
		}
	}
}

func (e *endpoints) isUnused(peer *brokerPeer) bool {
	return peer.session == "" && len(e.holdings.ofBroker(peer)) == 0
}

// rebuildSilent connects silent links again. A refused or dead connection reports no error, and never recovers by
// itself.
func (e *endpoints) rebuildSilent(nowMS float64) {
	named, unnamed := e.named(), len(e.unnamed())
	sinceMS := nowMS - codec.SocketRebuildMS
	strangers := 0
	for _, peer := range e.brokers.all {
		if peer.session != "" && !named[peer.id] && peer.answeredMS > sinceMS {
			strangers++
		}
	}
	last := e.brokerOf.last
	for each, isLast := e.brokerOf.first, false; each != nil && !isLast; each = each.behind {
		link, broker := each.key, each.value
		isLast = each == last // a link that is moved is added behind it
		if broker == "" && strangers >= unnamed {
			continue
		}
		answeredMS := math.Inf(-1)
		if peer := e.brokers.get(broker); peer != nil {
			answeredMS = peer.answeredMS
		}
		keys, silentMS := e.keys[broker], float64(codec.SocketRebuildMS)
		if len(keys) > 1 {
			silentMS = codec.ServerKeyRetryMS
		}
		if math.Max(answeredMS, e.connectedMS[link]) <= nowMS-silentMS {
			moved, isMoved := e.moved[broker]
			delete(e.moved, broker)
			if isMoved && !e.brokerOf.has(moved.Link) {
				e.move(link, moved, nowMS)
				continue
			}
			if len(keys) > 0 {
				e.connectWith(link, e.nextKey(link, keys), nowMS)
			} else {
				e.connectedMS[link] = nowMS
				e.out.add(Rebuild{link})
			}
			e.out.log(Debug, "link_rebuilt", Facts{"link": link, "broker": broker})
		}
	}
}

// move connects a broker at the address that a list named last, instead of this one.
func (e *endpoints) move(link Link, to Connect, nowMS float64) {
	broker, _ := e.brokerOf.remove(link)
	e.brokerOf.set(to.Link, broker)
	listedMS, _ := e.listedMS.remove(link)
	e.listedMS.set(to.Link, listedMS)
	delete(e.connectedMS, link)
	e.connectedMS[to.Link] = nowMS
	delete(e.key, link)
	if to.ServerKey != "" {
		e.key[to.Link] = to.ServerKey
	}
	e.out.add(Disconnect{link})
	e.out.add(to)
	e.out.log(Info, "link_moved", Facts{"link": to.Link, "broker": broker})
}

// ignore does not connect to a broker that requires CURVE keys. Logged once for each broker.
func (e *endpoints) ignore(broker string) {
	if !e.ignored[broker] {
		e.ignored[broker] = true
		e.out.log(Warning, "broker_ignored", Facts{"broker": broker})
	}
}

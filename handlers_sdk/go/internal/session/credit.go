package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const (
	outboxBytesMax  = 64 * 1024 * 1024 // above this, no credit: brokers that send no acks may send no steps
	waitingMax      = 2_000            // steps for which the observed pace makes room
	waitingBytesMax = 16 * 1024 * 1024 // the same in bytes
	returnEveryMS   = 20.0             // interval of the search for steps that no longer fit
	returnFactor    = 2                // steps are returned when this many times the room is in use: the pace may vary
	idleKeeps       = 1                // places that an idle broker does not lend, so that its next step need not wait
)

// credit is the credit of each broker: how many steps the worker has room for, and how the room is divided.
//
// A worker has its slots, and room for steps that wait: as many as it really finishes in PrefetchMS. Short steps then
// never run out between two messages, and long steps stay at the broker, where another worker can take them. A declared
// prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer, the room
// shrinks, and the worker returns the steps that no longer fit.
//
// Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
// rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
// An idle broker keeps one place of its share, and lends the rest to the others. Each place is promised to one broker at
// a time: it is offered to another one only when its former holder has acknowledged a smaller number.
type credit struct {
	returnAtMS  float64
	isQuiet     bool // set by the program: accept no new steps
	isFull      bool // the runner accepts no steps at the moment
	isDraining  bool
	slots       int
	prefetch    int
	largest     int     // the largest capacity that was offered
	stepBytes   float64 // of a recent step
	idleAfterMS float64
	brokers     *brokers
	holdings    *holdings
	outbox      *outbox
	rotation    int
}

func newCredit(config *Config, brokers *brokers, holdings *holdings, outbox *outbox) *credit {
	return &credit{
		returnAtMS: Never, slots: config.Slots, prefetch: config.Prefetch, largest: config.Slots + config.queueMax(),
		idleAfterMS: 2 * float64(config.HeartbeatMS), brokers: brokers, holdings: holdings, outbox: outbox,
	}
}

// rotate gives the remainder of the split to the next broker.
func (c *credit) rotate() { c.rotation++ }

// ahead is the number of steps that are expected to end in PrefetchMS, and that may wait, here or in the runner.
func (c *credit) ahead(nowMS float64) int {
	if c.prefetch == 0 {
		return 0
	}
	stepsMax := float64(waitingMax)
	if c.stepBytes != 0 {
		stepsMax = math.Min(stepsMax, waitingBytesMax/c.stepBytes)
	}
	return int(math.Min(c.holdings.pace.stepsIn(codec.PrefetchMS, nowMS), stepsMax) + 0.5)
}

// room is the number of steps that may wait for a slot.
func (c *credit) room(nowMS float64) int { return max(max(c.prefetch, 0), c.ahead(nowMS)) }

// places is the number of further steps that are not refused: credits given to several brokers may cross.
func (c *credit) places() int { return 2*c.largest - c.holdings.load }

// noteSize notes the size of the steps in a message.
func (c *credit) noteSize(stepBytes float64) { c.stepBytes += (stepBytes - c.stepBytes) / 4 }

// offerAll returns the members `free` and `slots_free` of the hello or heartbeat with this number, which promise this
// credit.
func (c *credit) offerAll(n int64, nowMS float64) (free, slotsFree []codec.Count) {
	for _, peer := range c.brokers.all {
		places, slotsPlaces := c.place(peer, nowMS)
		peer.promises.announce(n, places)
		free = append(free, codec.Count{Broker: peer.id, N: int64(places)})
		slotsFree = append(slotsFree, codec.Count{Broker: peer.id, N: int64(slotsPlaces)})
	}
	return free, slotsFree
}

// offer returns the members `free` and `slots_free` of another message to this broker, which promises this credit.
func (c *credit) offer(peer *brokerPeer, nowMS float64) (free, slotsFree int64) {
	places, slotsPlaces := c.place(peer, nowMS)
	peer.promises.name(places)
	return int64(places), int64(slotsPlaces)
}

// moves is true if another broker was held back by promises, and may get places that this one no longer has.
func (c *credit) moves(peer *brokerPeer) bool {
	for _, other := range c.brokers.all {
		if other != peer && other.isHeldBack && other.session != "" {
			return true
		}
	}
	return false
}

// isWaking is true if this broker was idle until now, and its share was lent to another one.
func (c *credit) isWaking(peer *brokerPeer, nowMS float64) bool {
	for _, other := range c.brokers.all {
		if other != peer && other.session != "" {
			return c.isIdle(peer, nowMS)
		}
	}
	return false
}

func (c *credit) place(peer *brokerPeer, nowMS float64) (free, slotsFree int) {
	free, slotsFree, peer.isHeldBack = c.split(peer, nowMS)
	return free, slotsFree
}

// split returns the number of further steps, how many of them would start at once, and whether promises to others hold
// the broker back.
func (c *credit) split(peer *brokerPeer, nowMS float64) (free, slotsFree int, isHeldBack bool) {
	if c.isClosed(peer) {
		return 0, 0, false
	}
	capacity := c.slots + c.room(nowMS)
	c.largest = max(c.largest, capacity)
	load := c.holdings.load
	if len(c.brokers.all) == 1 {
		return max(0, capacity-load), max(0, c.slots-load), false
	}
	left := min(c.shareLeft(capacity, peer, nowMS), capacity-load)
	promised := 0
	for _, other := range c.brokers.all {
		if other.session != "" && other != peer {
			promised += other.promises.promised()
		}
	}
	free = max(0, min(left, capacity-load-promised))
	slotsLeft := min(c.shareLeft(c.slots, peer, nowMS), c.slots-load)
	return free, max(0, min(free, slotsLeft)), free < left
}

func (c *credit) isClosed(peer *brokerPeer) bool {
	return c.isDraining || c.isQuiet || c.isFull || peer.isQuiet || c.outbox.bytes > outboxBytesMax
}

// shareLeft is the part of this broker's share of the capacity that it does not use yet; negative if it uses more.
func (c *credit) shareLeft(capacity int, peer *brokerPeer, nowMS float64) int {
	var claims []claim
	index := 0
	for _, other := range c.brokers.all {
		if other.session == "" && other != peer {
			continue
		}
		if other == peer {
			index = len(claims)
		}
		claims = append(claims, claim{other.load, c.isIdle(other, nowMS)})
	}
	return split(capacity, claims, index, c.rotation)
}

func (c *credit) isIdle(peer *brokerPeer, nowMS float64) bool {
	return peer.load == 0 && peer.stepsMS+c.idleAfterMS <= nowMS
}

// -- return -----------------------------------------------------------------------------------------------------------

// watch looks for steps that no longer fit, after a while, if more are held than there are slots.
func (c *credit) watch(nowMS float64) {
	if c.holdings.load > c.slots+max(c.prefetch, 0) {
		c.returnAtMS = math.Min(c.returnAtMS, nowMS+returnEveryMS)
	}
}

// excess returns the number of steps that no longer fit, and the brokers that may get them back. Called at returnAtMS.
//
// A broker that still has credit would send the steps again at once, so none is returned while some are left. That is
// also why steps that wait for their handler's concurrency are not returned while they fit into the slots. Of several
// brokers, those get steps back that use their whole share.
func (c *credit) excess(nowMS float64) (int, map[*brokerPeer]bool) {
	c.returnAtMS = Never
	c.watch(nowMS)
	load, room := c.holdings.load, c.room(nowMS)
	capacity := c.slots + room
	fitting, tolerated := capacity, c.slots+returnFactor*room
	if len(c.brokers.all) > 1 { // credit that was promised before steps became longer
		fitting = 2 * capacity
		tolerated = fitting
	}
	if load <= tolerated {
		return 0, nil
	}
	full := map[*brokerPeer]bool{}
	for _, peer := range c.brokers.all {
		if c.isClosed(peer) || c.shareLeft(capacity, peer, nowMS) <= 0 {
			full[peer] = true
		}
	}
	return load - fitting, full
}

// claim is the load of one live broker, and whether it is idle.
type claim struct {
	load   int
	isIdle bool
}

// split returns the places of the broker at `index` that it does not use yet; negative if it uses more than its places.
func split(capacity int, claims []claim, index, rotation int) int {
	mine := claims[index]
	places := share(capacity, len(claims), index, rotation)
	borrowers, rank, lent := 0, 0, 0
	for i, each := range claims {
		if each.isIdle {
			lent += max(0, share(capacity, len(claims), i, rotation)-idleKeeps)
			continue
		}
		borrowers++
		if i < index {
			rank++
		}
	}
	if mine.isIdle && borrowers > 0 {
		places = min(places, idleKeeps)
	} else if !mine.isIdle {
		places += share(lent, borrowers, rank, rotation)
	}
	return places - mine.load
}

func share(capacity, among, index, rotation int) int {
	whole, rest := capacity/among, capacity%among
	if (index+rotation)%among < rest {
		whole++
	}
	return whole
}

package session

import "github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"

const classesMax = 10_000 // handler classes whose offer is remembered

// Offer is a handler of this worker, by name or pattern.
type Offer struct {
	Pattern     string
	Concurrency int   // maximum number of runs at a time; 0: the number of slots
	TimeoutMS   int64 // shortens the timeout of the step; 0: does not
	ShadowSafe  bool
}

// Label is a label of the worker, which selectors match.
type Label = codec.Named

// Config is the worker's identity and capacity: the content of its `hello`.
type Config struct {
	Worker          string
	Offers          []Offer
	Slots           int
	Prefetch        int // the least room for steps that wait; negative: only what the observed pace says
	Labels          []Label
	Links           []Link
	Curve           bool // the sockets have CURVE keys
	HeartbeatMS     int64
	AcceptDelayMS   float64 // an accept waits this long for results that make it superfluous
	MaxMessageBytes int64
	Lang            string
	SDK             string
	Host            string
	PID             int64
	PIDStarted      int64
	Proof           bool
	HandlerVersion  string // the release of the handlers
}

// queueMax is the number of steps that may wait for a slot before any has ended: the member `prefetch` of hello.
func (c *Config) queueMax() int {
	if c.Prefetch >= 0 {
		return c.Prefetch
	}
	if c.Slots > codec.PrefetchMin {
		return c.Slots
	}
	return codec.PrefetchMin
}

// offers are the worker's offers by number, and the offer for each handler_class.
type offers struct {
	byNumber []Offer
	numberOf map[string]int
}

func newOffers(list []Offer) *offers { return &offers{list, map[string]int{}} }

// find returns the number of the offer for this handler_class; -1 if no offer matches.
func (o *offers) find(handlerClass string) int {
	number, ok := o.numberOf[handlerClass]
	if !ok {
		if len(o.numberOf) >= classesMax {
			o.numberOf = map[string]int{}
		}
		number = FindOffer(o.byNumber, handlerClass)
		o.numberOf[handlerClass] = number
	}
	return number
}

// FindOffer returns the number of the offer with this exact name, otherwise of the first pattern that matches, or -1.
func FindOffer(list []Offer, handlerClass string) int {
	first := -1
	for i, offer := range list {
		if offer.Pattern == handlerClass {
			return i
		}
		if first < 0 && codec.IsPattern(offer.Pattern) && codec.Matches(offer.Pattern, handlerClass) {
			first = i
		}
	}
	return first
}

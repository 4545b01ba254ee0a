package codec

import (
	"bytes"
	"unicode/utf8"
)

// DecodeBroker decodes a message of a broker. Every error is an *Invalid; one with the code unknown_type is ignored.
func DecodeBroker(body []byte) (FromBroker, error) {
	if !utf8.Valid(body) {
		return nil, &Invalid{"not_json", "the JSON is not UTF-8"}
	}
	kind, err := typeOf(body)
	if err != nil {
		return nil, err
	}
	decode, ok := decoders[kind]
	if !ok {
		return nil, &Invalid{"unknown_type", "type " + string(cut([]byte(kind)))}
	}
	r := &reader{data: body}
	d := &decoder{reader: r}
	message := decode(d)
	r.end()
	if r.err != nil {
		return nil, r.err
	}
	return message, nil
}

// The decoder of each type of message.
var decoders = map[string]func(*decoder) FromBroker{
	"here":          decodeHere,
	"welcome":       decodeWelcome,
	"heartbeat_ack": decodeHeartbeatAck,
	"steps":         decodeSteps,
	"go":            decodeGo,
	"cancel":        decodeCancel,
	"ack":           decodeAck,
	"adopt":         decodeAdopt,
	"reset":         decodeReset,
	"refused":       decodeRefused,
}

var typeFirst = []byte(`{"type":"`)

// typeOf reads the member `type`, which encoders write first.
func typeOf(body []byte) (string, error) {
	if bytes.HasPrefix(body, typeFirst) {
		rest := body[len(typeFirst):]
		if end := bytes.IndexByte(rest, '"'); end >= 0 && bytes.IndexByte(rest[:end], '\\') < 0 {
			return string(rest[:end]), nil
		}
	}
	r := &reader{data: body}
	kind, isThere := "", false
	r.object(func(key []byte) {
		if string(key) == "type" {
			kind, isThere = r.str(), true
		} else {
			r.skip()
		}
	})
	r.end()
	if r.err == nil && !isThere {
		r.fail("bad_field", "`type` is missing")
	}
	return kind, r.fault()
}

// decoder reads the members of one message. `seen` has a bit for each member that must be present.
type decoder struct {
	*reader
	from    From
	session string
	seen    uint
}

const (
	seenV uint = 1 << iota
	seenBroker
	seenEpoch
	seenSession
	seenA // and so on: the members of the message itself
	seenB
	seenC
	seenD
	seenE
	seenF
	seenG
)

var names = map[uint]string{seenV: "v", seenBroker: "broker", seenEpoch: "epoch", seenSession: "session"}

// message reads an object with the members of every message, and passes the others to `own`.
func (d *decoder) message(required uint, own func(key []byte) bool) {
	d.object(func(key []byte) {
		switch string(key) {
		case "v":
			d.version()
		case "broker":
			d.seen |= seenBroker
			if d.from.Broker = d.str(); d.err == nil && !isBroker(d.from.Broker) {
				d.fail("bad_field", "`broker` must have a form like b1")
			}
		case "epoch":
			d.seen |= seenEpoch
			d.from.Epoch = d.integer(0)
		default:
			if !own(key) {
				d.skip()
			}
		}
	})
	if d.err == nil && d.seen&seenV == 0 {
		d.fail("missing_version", "v is missing")
	}
	d.require(required | seenBroker | seenEpoch)
}

func (d *decoder) require(required uint) {
	if missing := required &^ d.seen; d.err == nil && missing != 0 {
		name := names[missing&-missing]
		if name == "" {
			name = "a member"
		}
		d.fail("bad_field", "%s is missing", name)
	}
}

func (d *decoder) version() {
	d.seen |= seenV
	if d.next() != '"' {
		if d.skip(); d.err == nil {
			d.fail("unknown_version", "`v` must be text, because a version is a string like 2.0")
		}
		return
	}
	if v := d.str(); d.err == nil && v != Version && !isVersion2(v) {
		d.fail("unknown_version", "v is %q, supported: %s", cut([]byte(v)), Version)
	}
}

func isVersion2(v string) bool {
	return len(v) >= 3 && len(v) <= 6 && v[0] == '2' && v[1] == '.' && isDigits(v[2:])
}

func (d *decoder) sessionID() {
	d.seen |= seenSession
	if d.session = d.str(); d.err == nil && !isSession(d.session) {
		d.fail("bad_field", "`session` must have a form like 7.1")
	}
}

func (d *decoder) batchID() string {
	batch := d.str()
	if d.err == nil && (batch == "" || utf8.RuneCountInString(batch) > 128) {
		d.fail("bad_field", "`batch_id` must have 1 to 128 characters")
	}
	return batch
}

func (d *decoder) items() []Item {
	var items []Item
	d.array(func(index int) {
		if index >= BatchItemsMax {
			d.fail("bad_field", "`items` must have at most %d items", BatchItemsMax)
			return
		}
		var item Item
		length := 0
		d.array(func(at int) {
			length = at + 1
			switch at {
			case 0:
				item.StepID = d.integer(1)
			case 1:
				item.Delivery = d.integer(1)
			default:
				d.skip()
			}
		})
		if d.err == nil && length != 2 {
			d.fail("bad_field", "an item must be a list of 2 numbers")
		}
		items = append(items, item)
	})
	return items
}

// textOrNull reads a text; null is "".
func (d *decoder) textOrNull() string {
	if d.null() {
		return ""
	}
	return d.str()
}

func (d *decoder) texts() {
	d.array(func(int) { d.str() })
}

func (d *decoder) endpoints() []Endpoints {
	list := []Endpoints{}
	d.array(func(int) {
		var entry Endpoints
		seen := 0
		d.object(func(key []byte) {
			switch string(key) {
			case "broker":
				seen |= 1
				entry.Broker = d.str()
			case "steps":
				seen |= 2
				entry.Steps = d.str()
			case "results":
				seen |= 4
				entry.Results = d.str()
			case "server_key":
				if d.null() {
					entry.ServerKey = ""
				} else if entry.ServerKey = d.str(); d.err == nil && !IsCurveKey(entry.ServerKey) {
					d.fail("bad_field", "`server_key` must be a key of 40 characters in Z85")
				}
			default:
				d.skip()
			}
		})
		if d.err == nil && seen != 7 {
			d.fail("bad_field", "an entry of `brokers` needs broker, steps and results")
		}
		list = append(list, entry)
	})
	return list
}

func (d *decoder) oneOf(values ...string) string {
	text := d.str()
	if d.err != nil {
		return ""
	}
	for _, value := range values {
		if text == value {
			return value
		}
	}
	d.fail("bad_field", "%q is not one of %q", cut([]byte(text)), values)
	return ""
}

func decodeHere(d *decoder) FromBroker {
	m := &Here{}
	d.message(seenA|seenB, func(key []byte) bool {
		switch string(key) {
		case "deployment":
			d.seen |= seenA
			m.Deployment = d.str()
		case "versions":
			d.seen |= seenB
			d.texts()
		default:
			return false
		}
		return true
	})
	m.From = d.from
	return m
}

func decodeWelcome(d *decoder) FromBroker {
	m := &Welcome{}
	d.message(seenSession|seenA|seenB|seenC|seenD|seenE, func(key []byte) bool {
		switch string(key) {
		case "session":
			d.sessionID()
		case "deployment":
			d.seen |= seenA
			m.Deployment = d.str()
		case "n":
			d.seen |= seenB
			m.N = d.integer(0)
		case "lease_ms":
			d.seen |= seenC
			m.LeaseMS = d.integer(1)
		case "heartbeat_ms":
			d.seen |= seenD
			m.HeartbeatMS = d.integer(0)
		case "max_message_bytes":
			d.seen |= seenE
			m.MaxMessageBytes = d.integer(1)
		case "brokers":
			m.Brokers = d.endpoints()
		default:
			return false
		}
		return true
	})
	m.From, m.Session = d.from, d.session
	return m
}

func decodeHeartbeatAck(d *decoder) FromBroker {
	m := &HeartbeatAck{}
	d.message(seenSession|seenA, func(key []byte) bool {
		switch string(key) {
		case "session":
			d.sessionID()
		case "n":
			d.seen |= seenA
			m.N = d.integer(0)
		case "quiet":
			m.Quiet = d.boolean()
		case "quit":
			m.Quit = d.boolean()
		case "brokers":
			if !d.null() {
				m.Brokers, m.HasBrokers = d.endpoints(), true
			}
		default:
			return false
		}
		return true
	})
	m.From, m.Session = d.from, d.session
	return m
}

func decodeGo(d *decoder) FromBroker {
	m := &Go{}
	m.Items = d.sessionAndItems(nil)
	m.From, m.Session = d.from, d.session
	return m
}

func decodeAdopt(d *decoder) FromBroker {
	m := &Adopt{}
	m.Items = d.sessionAndItems(nil)
	m.From, m.Session = d.from, d.session
	return m
}

func decodeCancel(d *decoder) FromBroker {
	m := &Cancel{}
	m.Items = d.sessionAndItems(&m.Reason)
	m.From, m.Session = d.from, d.session
	return m
}

func (d *decoder) sessionAndItems(reason *string) []Item {
	var items []Item
	required := seenSession | seenA
	if reason != nil {
		required |= seenB
	}
	d.message(required, func(key []byte) bool {
		switch {
		case string(key) == "session":
			d.sessionID()
		case string(key) == "items":
			d.seen |= seenA
			items = d.items()
		case string(key) == "reason" && reason != nil:
			d.seen |= seenB
			*reason = d.oneOf("not_granted", "timeout", "task_cancelled", "superseded")
		default:
			return false
		}
		return true
	})
	return items
}

func decodeAck(d *decoder) FromBroker {
	m := &Ack{}
	d.message(seenA, func(key []byte) bool {
		if string(key) != "rids" {
			return false
		}
		d.seen |= seenA
		d.array(func(int) { m.Rids = append(m.Rids, d.integer(1)) })
		return true
	})
	m.From = d.from
	return m
}

func decodeReset(d *decoder) FromBroker {
	m := &Reset{}
	d.message(seenA|seenB, func(key []byte) bool {
		switch string(key) {
		case "next":
			d.seen |= seenA
			m.Next = d.integer(0)
		case "code":
			d.seen |= seenB
			m.Code = d.oneOf("unknown_session", "expired", "version", "unauthorized", "shutdown")
		case "versions":
			d.texts()
		default:
			return false
		}
		return true
	})
	m.From = d.from
	return m
}

func decodeRefused(d *decoder) FromBroker {
	m := &Refused{}
	d.message(seenA|seenB, func(key []byte) bool {
		switch string(key) {
		case "code":
			d.seen |= seenA
			m.Code = d.str()
		case "message":
			d.seen |= seenB
			m.Message = d.str()
		case "refused":
			m.Refused = d.textOrNull()
		case "rid":
			if !d.null() {
				m.Rid = d.integer(-IntegerMax)
			}
		default:
			return false
		}
		return true
	})
	m.From = d.from
	return m
}

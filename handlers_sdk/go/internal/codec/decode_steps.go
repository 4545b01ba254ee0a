package codec

import (
	"bytes"
	"unicode/utf8"
)

func decodeSteps(d *decoder) FromBroker {
	m := &Steps{}
	d.message(seenSession|seenA|seenB|seenC, func(key []byte) bool {
		switch string(key) {
		case "session":
			d.sessionID()
		case "batch_id":
			d.seen |= seenA
			m.BatchID = d.batchID()
		case "protocol_version":
			d.seen |= seenB
			m.ProtocolVersion = d.str()
		case "steps":
			d.seen |= seenC
			d.array(func(int) { m.Steps = append(m.Steps, d.step()) })
		default:
			return false
		}
		return true
	})
	m.From, m.Session = d.from, d.session
	if mayNeedOpening(d.data) {
		for _, step := range m.Steps {
			step.MayNeedOpening = true
		}
	}
	return m
}

// mayNeedOpening searches a whole message for the beginning of $secret and $sealed, so that most steps cost nothing
// more. A key may also be written with escapes.
func mayNeedOpening(message []byte) bool {
	return bytes.Contains(message, []byte("$se")) || bytes.Contains(message, []byte(`\u00`))
}

var emptyObject = []byte("{}")

func (d *decoder) step() *StepRequest {
	s := &StepRequest{
		HandlerConfig: emptyObject, TaskContext: emptyObject, PreviousResults: emptyObject, DeliveryMode: AtLeastOnce,
	}
	seen := 0
	d.object(func(key []byte) {
		switch string(key) {
		case "step_id":
			seen |= 1
			s.StepID = d.integer(1)
		case "task_id":
			seen |= 2
			s.TaskID = d.integer(1)
		case "step_name":
			seen |= 4
			s.StepName = d.str()
		case "handler_class":
			seen |= 8
			s.HandlerClass = d.str()
		case "handler_config":
			s.HandlerConfig = d.raw()
		case "task_context":
			s.TaskContext = d.raw()
		case "previous_results":
			s.PreviousResults = d.raw()
		case "input":
			s.Input = d.raw()
		case "delivery":
			seen |= 16
			s.Delivery = d.integer(1)
		case "delivery_mode":
			s.DeliveryMode = d.oneOf(AtLeastOnce, AtMostOnce)
		case "metadata":
			seen |= 32
			d.metadata(&s.Metadata)
		default:
			d.skip()
		}
	})
	if d.err == nil && seen != 63 {
		d.fail("bad_field", "a step needs step_id, task_id, step_name, handler_class, delivery and metadata")
	}
	return s
}

func (d *decoder) metadata(m *StepMetadata) {
	m.DeadlineMS = -1
	seen := 0
	d.object(func(key []byte) {
		switch string(key) {
		case "attempt":
			seen |= 1
			m.Attempt = d.integer(0)
		case "retry_limit":
			seen |= 2
			m.RetryLimit = d.integer(0)
		case "timeout_ms":
			seen |= 4
			m.TimeoutMS = d.integer(0)
		case "idempotency_key":
			seen |= 8
			m.IdempotencyKey = d.str()
		case "traceparent":
			m.Traceparent = d.textOrNull()
		case "tracestate":
			if m.Tracestate = d.textOrNull(); utf8.RuneCountInString(m.Tracestate) > TracestateMax {
				d.fail("bad_field", "`tracestate` must have at most %d characters", TracestateMax)
			}
		case "deadline_ms":
			if !d.null() {
				m.DeadlineMS = d.integer(0)
			}
		case "shadow":
			m.Shadow = d.boolean()
		default:
			d.skip()
		}
	})
	if d.err == nil && seen != 15 {
		d.fail("bad_field", "`metadata` needs attempt, retry_limit, timeout_ms and idempotency_key")
	}
}

// Remains are the members of a `steps` message that a refusal needs.
type Remains struct {
	Type, Broker, Session, BatchID string
	Items                          []Item
}

// DecodeRemains reads the items of a `steps` message that DecodeBroker refused. False: they cannot be read.
func DecodeRemains(body []byte) (Remains, bool) {
	var remains Remains
	if !utf8.Valid(body) {
		return remains, false
	}
	r := &reader{data: body}
	r.object(func(key []byte) {
		switch string(key) {
		case "type":
			remains.Type = r.str()
		case "broker":
			remains.Broker = r.str()
		case "session":
			remains.Session = r.str()
		case "batch_id":
			remains.BatchID = r.str()
		case "steps":
			r.array(func(int) {
				var item Item
				r.object(func(key []byte) {
					switch string(key) {
					case "step_id":
						item.StepID = r.integer(1)
					case "delivery":
						item.Delivery = r.integer(1)
					default:
						r.skip()
					}
				})
				if item.StepID == 0 || item.Delivery == 0 {
					r.fail("bad_field", "a step without its ids")
				}
				remains.Items = append(remains.Items, item)
			})
		default:
			r.skip()
		}
	})
	r.end()
	return remains, r.err == nil
}

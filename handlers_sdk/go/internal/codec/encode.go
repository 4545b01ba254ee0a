package codec

import (
	"math"
	"strconv"
)

// Message is a message of a worker. AppendJSON appends its JSON, compact, with members in the order of SPEC.md and
// without those at their default.
type Message interface{ AppendJSON(out []byte) []byte }

// Encode returns the JSON of a message, as it follows the topic.
func Encode(message Message) []byte { return message.AppendJSON(make([]byte, 0, 256)) }

func head(out []byte, kind, worker string) []byte {
	out = append(out, `{"type":"`...)
	out = append(out, kind...)
	out = append(out, `","v":"`+Version+`","worker":`...)
	return appendString(out, worker)
}

func member(out []byte, name string) []byte {
	out = append(out, ',', '"')
	out = append(out, name...)
	return append(out, '"', ':')
}

func text(out []byte, name, value string) []byte { return appendString(member(out, name), value) }

func number(out []byte, name string, value int64) []byte {
	return strconv.AppendInt(member(out, name), value, 10)
}

func textUnlessEmpty(out []byte, name, value string) []byte {
	if value == "" {
		return out
	}
	return text(out, name, value)
}

func numberUnless(out []byte, name string, value, usual int64) []byte {
	if value == usual {
		return out
	}
	return number(out, name, value)
}

func counts(out []byte, name string, values []Count) []byte {
	if len(values) == 0 {
		return out
	}
	out = append(member(out, name), '{')
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, value.Broker), ':')
		out = strconv.AppendInt(out, value.N, 10)
	}
	return append(out, '}')
}

func named(out []byte, name string, values []Named) []byte {
	if len(values) == 0 {
		return out
	}
	out = append(member(out, name), '{')
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, value.Name), ':')
		out = appendString(out, value.Text)
	}
	return append(out, '}')
}

func texts(out []byte, name string, values []string) []byte {
	out = append(member(out, name), '[')
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendString(out, value)
	}
	return append(out, ']')
}

func appendItem(out []byte, item Item) []byte {
	out = strconv.AppendInt(append(out, '['), item.StepID, 10)
	return strconv.AppendInt(append(out, ','), item.Delivery, 10)
}

func items(out []byte, values []Item) []byte {
	out = append(member(out, "items"), '[')
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendItem(out, value), ']')
	}
	return append(out, ']')
}

func heldItems(out []byte, name string, values []HeldItem) []byte {
	out = append(member(out, name), '[')
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendItem(out, value.Item), ',', '"')
		out = append(append(out, value.State...), '"', ',')
		out = append(strconv.AppendInt(out, value.AgeMS, 10), ']')
	}
	return append(out, ']')
}

// AppendJSON implements Message.
func (m *Hello) AppendJSON(out []byte) []byte {
	out = number(head(out, "hello", m.Worker), "n", m.N)
	out = texts(out, "versions", []string{Version})
	out = named(counts(out, "next", m.Next), "sessions", m.Sessions)
	out = texts(out, "handlers", m.Handlers)
	if len(m.ShadowSafe) > 0 {
		out = texts(out, "shadow_safe", m.ShadowSafe)
	}
	out = named(out, "labels", m.Labels)
	out = numberUnless(number(out, "slots", m.Slots), "prefetch", m.Prefetch, 0)
	out = counts(counts(out, "free", m.Free), "slots_free", m.SlotsFree)
	if len(m.Holding) > 0 {
		out = heldItems(out, "holding", m.Holding)
	}
	out = numberUnless(out, "heartbeat_ms", m.HeartbeatMS, HeartbeatMS)
	out = textUnlessEmpty(textUnlessEmpty(out, "lang", m.Lang), "sdk", m.SDK)
	out = textUnlessEmpty(textUnlessEmpty(out, "handler_version", m.HandlerVersion), "host", m.Host)
	out = numberUnless(numberUnless(out, "pid", m.PID, 0), "pid_started", m.PIDStarted, 0)
	if m.Proof {
		out = append(out, `,"proof":true`...)
	}
	return append(numberUnless(out, "max_message_bytes", m.MaxMessageBytes, MessageBytesMax), '}')
}

// AppendJSON implements Message.
func (m *Heartbeat) AppendJSON(out []byte) []byte {
	out = number(head(out, "heartbeat", m.Worker), "n", m.N)
	out = named(counts(out, "next", m.Next), "sessions", m.Sessions)
	out = counts(counts(out, "free", m.Free), "slots_free", m.SlotsFree)
	if len(m.Holding) > 0 {
		out = heldItems(out, "holding", m.Holding)
	}
	return append(out, '}')
}

// AppendJSON implements Message.
func (m *Bye) AppendJSON(out []byte) []byte {
	return append(number(head(out, "bye", m.Worker), "n", m.N), '}')
}

// AppendJSON implements Message.
func (m *Accept) AppendJSON(out []byte) []byte {
	out = text(text(head(out, "accept", m.Worker), "session", m.Session), "batch_id", m.BatchID)
	return append(number(number(out, "free", m.Free), "slots_free", m.SlotsFree), '}')
}

// AppendJSON implements Message.
func (m *Refuse) AppendJSON(out []byte) []byte {
	out = text(text(head(out, "refuse", m.Worker), "session", m.Session), "batch_id", m.BatchID)
	out = text(items(out, m.Items), "code", m.Code)
	return append(number(numberUnless(out, "free", m.Free, 0), "slots_free", m.SlotsFree), '}')
}

// AppendJSON implements Message.
func (m *Start) AppendJSON(out []byte) []byte {
	return append(items(text(head(out, "start", m.Worker), "session", m.Session), m.Items), '}')
}

// AppendJSON implements Message.
func (m *Results) AppendJSON(out []byte) []byte {
	out = text(text(head(out, "results", m.Worker), "session", m.Session), "deployment", m.Deployment)
	out = text(text(out, "batch_id", m.BatchID), "protocol_version", Version)
	out = numberUnless(number(out, "rid", m.Rid), "n", m.N, 0)
	out = number(number(out, "free", m.Free), "slots_free", m.SlotsFree)
	out = append(member(out, "results"), '[')
	for i, result := range m.Results {
		if i > 0 {
			out = append(out, ',')
		}
		out = result.appendJSON(out)
	}
	return append(out, ']', '}')
}

// A result has all its members, also those at their default.
func (r *Result) appendJSON(out []byte) []byte {
	out = strconv.AppendInt(append(out, `{"step_id":`...), r.StepID, 10)
	out = text(number(out, "delivery", r.Delivery), "status", r.Status)
	out = member(out, "output")
	if r.Output == nil {
		out = append(out, "null"...)
	} else {
		out = append(out, r.Output...)
	}
	out = member(out, "error")
	if r.Error == nil {
		out = append(out, "null"...)
	} else {
		out = r.Error.appendJSON(out)
	}
	out = member(out, "metadata")
	if r.Metadata == nil {
		out = append(out, "null"...)
	} else {
		out = r.Metadata.appendJSON(out)
	}
	return append(out, '}')
}

// optional writes members of an object of which each may be absent.
type optional struct {
	out   []byte
	isOne bool
}

func (o *optional) member(name string) {
	if o.isOne {
		o.out = append(o.out, ',')
	}
	o.isOne = true
	o.out = append(append(append(o.out, '"'), name...), '"', ':')
}

func (o *optional) text(name, value string) {
	if value != "" {
		o.member(name)
		o.out = appendString(o.out, value)
	}
}

func (o *optional) boolean(name string, value *bool) {
	if value != nil {
		o.member(name)
		o.out = strconv.AppendBool(o.out, *value)
	}
}

func (e *ErrorDetail) appendJSON(out []byte) []byte {
	o := optional{out: append(out, '{')}
	o.text("message", e.Message)
	o.text("code", e.Code)
	o.text("category", e.Category)
	o.boolean("retryable", e.Retryable)
	if e.RetryAfterMS >= 0 {
		o.member("retry_after_ms")
		o.out = strconv.AppendInt(o.out, e.RetryAfterMS, 10)
	}
	if e.Backtrace != nil {
		o.member("backtrace")
		o.out = append(o.out, '[')
		for i, line := range e.Backtrace {
			if i > 0 {
				o.out = append(o.out, ',')
			}
			o.out = appendString(o.out, line)
		}
		o.out = append(o.out, ']')
	}
	return append(o.out, '}')
}

func (m *ResultMetadata) appendJSON(out []byte) []byte {
	o := optional{out: append(out, '{')}
	if m.ExecutionTimeMS != "" {
		o.member("execution_time_ms")
		o.out = append(o.out, m.ExecutionTimeMS...)
	}
	o.text("handler_version", m.HandlerVersion)
	o.boolean("retryable", m.Retryable)
	o.text("stderr", m.Stderr)
	return append(o.out, '}')
}

// AppendJSON implements Message.
func (m *Adopted) AppendJSON(out []byte) []byte {
	return append(heldItems(text(head(out, "adopted", m.Worker), "session", m.Session), "items", m.Items), '}')
}

// AppendJSON implements Message.
func (m *Progress) AppendJSON(out []byte) []byte {
	out = text(head(out, "progress", m.Worker), "session", m.Session)
	out = append(member(out, "items"), '[')
	for i, item := range m.Items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendItem(out, item.Item), ',')
		out = append(appendCount(out, item.Done), ',')
		if item.Total == nil {
			out = append(out, "null"...)
		} else {
			out = appendCount(out, *item.Total)
		}
		out = append(out, ',')
		if item.Note == nil {
			out = append(out, "null"...)
		} else {
			out = appendString(out, *item.Note)
		}
		out = append(out, ']')
	}
	return append(out, ']', '}')
}

// appendCount writes a whole number as an integer, as people count.
func appendCount(out []byte, value float64) []byte {
	if value == math.Trunc(value) && math.Abs(value) <= IntegerMax {
		return strconv.AppendInt(out, int64(value), 10)
	}
	return appendFloat(out, value)
}

package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// outbox has the results messages that are not acknowledged yet, by rid. They are kept and resent.
type outbox struct {
	bytes      int
	resendAtMS float64
	messages   *ordered[int64, *resultsMessage]
	out        *outgoing
}

func newOutbox(out *outgoing) *outbox {
	return &outbox{resendAtMS: Never, messages: newOrdered[int64, *resultsMessage](), out: out}
}

// send sends the message, and keeps it until it is acknowledged.
func (o *outbox) send(message *resultsMessage) {
	o.messages.set(message.rid, message)
	o.bytes += len(message.body)
	o.resendAtMS = math.Min(o.resendAtMS, message.atMS)
	o.out.send(message.peer.topic, message.body)
}

// remove returns nil for an unknown rid.
func (o *outbox) remove(rid int64) *resultsMessage {
	message, ok := o.messages.remove(rid)
	if ok {
		o.bytes -= len(message.body)
	}
	return message
}

// discard removes the messages for a broker whose database was replaced. It returns their number.
func (o *outbox) discard(peer *brokerPeer) int {
	discarded := 0
	for _, message := range o.messages.values() {
		if message.peer == peer {
			o.remove(message.rid)
			discarded++
		}
	}
	return discarded
}

// resend resends the messages that are due, and schedules the next attempt of each.
func (o *outbox) resend(nowMS float64) {
	atMS := Never
	for e := o.messages.first; e != nil; e = e.behind {
		message := e.value
		if message.atMS <= nowMS {
			o.renew(message)
			message.tries++
			message.waitMS = math.Min(message.waitMS*2, codec.ResultsRetransmitMaxMS)
			message.atMS = nowMS + message.waitMS
			o.out.send(message.peer.topic, message.body)
			if message.tries >= codec.ResultsBroadcastFromTry {
				// The owner may be gone, and the worker cannot know which broker owns its steps now.
				o.out.send(codec.TopicResults, message.body)
			}
		}
		atMS = math.Min(atMS, message.atMS)
	}
	o.resendAtMS = atMS
}

// hasten sends this message with the next actions.
func (o *outbox) hasten(message *resultsMessage, nowMS float64) {
	message.atMS = nowMS
	o.resendAtMS = nowMS
}

// hastenAll sends the messages for this broker with the next actions, because its session has just opened.
func (o *outbox) hastenAll(peer *brokerPeer, nowMS float64) {
	for e := o.messages.first; e != nil; e = e.behind {
		if e.value.peer == peer {
			o.hasten(e.value, nowMS)
		}
	}
}

// renew puts the current session into the message. `n` and `free` stay unchanged: an old `n` marks old credit.
func (o *outbox) renew(message *resultsMessage) {
	session := message.peer.session
	if session == "" || session == message.session {
		return
	}
	o.bytes -= len(message.body)
	message.session = session
	message.message.Session = session
	message.message.Deployment = message.peer.deployment
	message.body = codec.Encode(message.message)
	o.bytes += len(message.body)
}

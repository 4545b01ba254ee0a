package session

import (
	"math"
	"strings"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// intake receives steps, and sends `accept` and `refuse`. A repeated `steps` message is answered again, or the broker
// would resend it forever.
type intake struct {
	acceptAtMS    float64
	offers        *offers
	acceptDelayMS float64
	brokers       *brokers
	holdings      *holdings
	credit        *credit
	outbox        *outbox
	out           *outgoing
	unaccepted    *ordered[batchKey, float64] // when to accept a batch
}

// batchKey names a batch. Two brokers may have sessions, and batches, of the same name.
type batchKey struct {
	peer             *brokerPeer
	session, batchID string
}

func newIntake(
	offers *offers, acceptDelayMS float64, brokers *brokers, holdings *holdings, credit *credit, outbox *outbox,
	out *outgoing,
) *intake {
	return &intake{
		Never, offers, acceptDelayMS, brokers, holdings, credit, outbox, out, newOrdered[batchKey, float64](),
	}
}

// refusals are the refused items by code, in the order in which the codes occurred.
type refusals = ordered[string, []codec.Item]

func refuseItem(refused *refusals, code string, item codec.Item) {
	items, _ := refused.get(code)
	refused.set(code, append(items, item))
}

// onSteps receives a batch. `size` is the number of bytes of the message.
func (in *intake) onSteps(peer *brokerPeer, message *codec.Steps, size int, nowMS float64) {
	peer.promises.use(len(message.Steps))
	if major, _, _ := strings.Cut(message.ProtocolVersion, "."); major != "2" {
		items := make([]codec.Item, len(message.Steps))
		for i, step := range message.Steps {
			items[i] = step.Item()
		}
		in.refuseUnread(peer, message.Session, message.BatchID, items, "bad_message", nowMS)
		return
	}
	batch := newHeldBatch(message.BatchID, message.Session, len(message.Steps))
	in.credit.noteSize(float64(size) / float64(max(1, len(message.Steps))))
	refused := newOrdered[string, []codec.Item]()
	isAccepted, isRepeated := false, false
	places := in.credit.places()
	peer.stepsMS = nowMS
	for _, step := range message.Steps {
		item := step.Item()
		if held := in.holdings.get(item); held != nil {
			isRepeated = in.answerAgain(peer, held, refused, nowMS) || isRepeated
			continue
		}
		code := ""
		offer := -1
		if in.holdings.tombstones.has(item) || batch.number >= 0 && batch.number <= peer.floor {
			code = "stale"
		} else if offer = in.offers.find(step.HandlerClass); offer < 0 {
			code = "unknown_handler"
		} else if in.credit.isDraining {
			code = "draining"
		} else if places <= 0 || in.holdings.isOrphan(item) {
			code = "busy"
		} else {
			in.holdings.add(newHeldDelivery(step, peer, batch, offer, nowMS))
			isAccepted = true
			places--
			continue
		}
		refuseItem(refused, code, item)
		if code != "stale" {
			in.holdings.tombstones.add(item, peer, batch, nowMS)
		}
	}
	if isAccepted || isRepeated {
		atMS := nowMS
		if !isRepeated {
			atMS += in.acceptDelayMS
		}
		in.unaccepted.set(batchKey{peer, message.Session, message.BatchID}, atMS)
		in.acceptAtMS = math.Min(in.acceptAtMS, atMS)
	}
	for e := refused.first; e != nil; e = e.behind {
		in.refuse(peer, message.BatchID, e.value, e.key, nowMS, false)
	}
}

// cancelAccept sends no accept for this batch, because its results were sent and are an answer, too.
func (in *intake) cancelAccept(peer *brokerPeer, session, batchID string) {
	in.unaccepted.remove(batchKey{peer, session, batchID})
}

func (in *intake) acceptDue(nowMS float64) {
	atMS := Never
	for e := in.unaccepted.first; e != nil; {
		key, dueMS := e.key, e.value
		e = e.behind
		if dueMS > nowMS {
			atMS = math.Min(atMS, dueMS)
			continue
		}
		in.unaccepted.remove(key)
		if key.peer.session == key.session {
			free, slotsFree := in.credit.offer(key.peer, nowMS)
			in.out.sendTo(key.peer, &codec.Accept{
				Worker: in.out.worker, Session: key.session, BatchID: key.batchID, Free: free, SlotsFree: slotsFree,
			})
		}
	}
	in.acceptAtMS = atMS
}

// giveBack ends these deliveries, whose runs have not begun and never will, and returns the steps to their brokers.
func (in *intake) giveBack(withdrawn []*heldDelivery, code string, nowMS float64) {
	type key struct {
		peer    *brokerPeer
		batchID string
	}
	byBatch := newOrdered[key, []codec.Item]()
	for _, held := range withdrawn {
		of := key{held.peer, held.batch.id}
		items, _ := byBatch.get(of)
		byBatch.set(of, append(items, held.item))
		in.holdings.bury(held, nowMS)
	}
	for e := byBatch.first; e != nil; e = e.behind {
		in.refuse(e.key.peer, e.key.batchID, e.value, code, nowMS, true)
	}
}

// refuse refuses these items. `isReturn`: they were accepted before.
func (in *intake) refuse(
	peer *brokerPeer, batchID string, items []codec.Item, code string, nowMS float64, isReturn bool,
) {
	if peer.session == "" {
		return
	}
	free, slotsFree := in.credit.offer(peer, nowMS)
	inParts(distinct(items), func(part []codec.Item) {
		in.out.sendTo(peer, &codec.Refuse{
			Worker: in.out.worker, Session: peer.session, BatchID: batchID, Items: part, Code: code, Free: free,
			SlotsFree: slotsFree,
		})
	})
	if code == "stale" {
		return
	}
	level := Warning
	if isReturn {
		level = Debug // returns keep the queues short, and many may be sent in a second: no operator has to act
	} else if code == "draining" {
		level = Info
	}
	in.out.log(level, "steps_refused", Facts{"broker": peer.id, "batch_id": batchID, "code": code, "steps": len(items)})
}

// onUnreadable refuses the steps of a message that cannot be read, or its broker would resend it forever.
func (in *intake) onUnreadable(body []byte, code, why string, nowMS float64) {
	in.out.log(Error, "message_unreadable", Facts{"code": code, "why": why})
	remains, ok := codec.DecodeRemains(body)
	if !ok {
		return
	}
	peer := in.brokers.get(remains.Broker)
	if remains.Type == "steps" && peer != nil && peer.session != "" && peer.session == remains.Session &&
		remains.BatchID != "" && len(remains.Items) > 0 {
		in.refuseUnread(peer, remains.Session, remains.BatchID, remains.Items, code, nowMS)
	}
}

// answerAgain answers a delivery that is held already. True: its batch is accepted again.
func (in *intake) answerAgain(peer *brokerPeer, held *heldDelivery, refused *refusals, nowMS float64) bool {
	switch {
	case held.peer != peer:
		refuseItem(refused, "stale", held.item) // another broker has adopted the delivery meanwhile
	case held.message != nil:
		in.outbox.hasten(held.message, nowMS)
	case held.state != done:
		return true
	}
	return false
}

func (in *intake) refuseUnread(
	peer *brokerPeer, session, batchID string, items []codec.Item, code string, nowMS float64,
) {
	in.holdings.buryUnread(peer, newHeldBatch(batchID, session, len(items)), items, nowMS)
	in.refuse(peer, batchID, items, code, nowMS, false)
}

package session

import (
	"fmt"
	"math"
	"strconv"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const (
	holdMS = 1.0
	mib    = 1024 * 1024
)

// OutcomeUnknown is the code of a run whose effect may or may not have happened.
const OutcomeUnknown = "outcome_unknown"

// With these codes the broker does not refuse the content of a results message, so other content would not help.
var hopeless = map[string]bool{
	"wrong_batch": true, "wrong_sender": true, "unknown_delivery": true, "unknown_session": true, "unknown_type": true,
}

// reporting sends the results of finished runs, and ends their deliveries when a broker acknowledges or refuses the
// message. A message holds results of one batch, so a result waits at most holdMS for others of its batch: until the
// batch is whole, or nothing runs, or the observed pace promises none in that time.
type reporting struct {
	sendAtMS float64
	holdings *holdings
	credit   *credit
	intake   *intake
	outbox   *outbox
	out      *outgoing
	ready    *ordered[*heldBatch, *heldBatch] // batches with results that are not sent
	whole    []*heldBatch                     // those of them whose steps have all ended
	rid      int64
}

func newReporting(holdings *holdings, credit *credit, intake *intake, outbox *outbox, out *outgoing) *reporting {
	return &reporting{
		sendAtMS: Never, holdings: holdings, credit: credit, intake: intake, outbox: outbox, out: out,
		ready: newOrdered[*heldBatch, *heldBatch](),
	}
}

func (r *reporting) add(held *heldDelivery, result *codec.Result, nowMS float64) {
	batch := held.batch
	batch.ready = append(batch.ready, doneResult{held, result})
	batch.open--
	if batch.open == 0 {
		r.whole = append(r.whole, batch)
	}
	r.ready.set(batch, batch)
	if r.sendAtMS == Never {
		r.sendAtMS = nowMS + holdMS
	}
}

// hasWhole is true if all steps of a batch have ended, so its results can be sent.
func (r *reporting) hasWhole() bool { return len(r.whole) > 0 }

// isDue is true if results must be sent now. `runs` is the number of steps that could still add to them.
func (r *reporting) isDue(nowMS float64, runs int) bool {
	if r.sendAtMS == Never {
		return false
	}
	return nowMS >= r.sendAtMS || runs == 0 || len(r.whole) > 0 || !r.expectsMore(nowMS)
}

func (r *reporting) expectsMore(nowMS float64) bool {
	return r.holdings.pace.stepsIn(holdMS, nowMS) >= 1
}

// sendDue sends the results of whole batches; all results, if none is expected in time. Called if isDue.
func (r *reporting) sendDue(nowMS float64, runs int) {
	ready := r.whole
	r.whole = nil
	if nowMS < r.sendAtMS && runs > 0 && r.expectsMore(nowMS) {
		for _, batch := range ready {
			r.ready.remove(batch)
		}
	} else {
		ready = r.ready.take()
	}
	if r.ready.len() == 0 {
		r.sendAtMS = Never
	}
	for _, batch := range ready {
		byOwner := newOrdered[*brokerPeer, []doneResult]()
		for _, each := range batch.ready {
			if each.held.state == done {
				own, _ := byOwner.get(each.held.peer)
				byOwner.set(each.held.peer, append(own, each))
			}
		}
		batch.ready = nil
		for e := byOwner.first; e != nil; e = e.behind {
			peer := e.key
			inParts(e.value, func(part []doneResult) { r.send(peer, batch, part, nowMS, false) })
		}
	}
}

func (r *reporting) onAck(message *codec.Ack, nowMS float64) {
	for _, rid := range message.Rids {
		if acked := r.outbox.remove(rid); acked != nil {
			for _, held := range acked.done {
				r.holdings.bury(held, nowMS)
			}
		}
	}
}

func (r *reporting) onRefused(message *codec.Refused, nowMS float64) {
	r.out.log(Error, "message_refused", Facts{
		"broker": message.Broker, "refused": message.Refused, "code": message.Code, "message": message.Message,
	})
	refused := r.outbox.remove(message.Rid)
	if refused == nil {
		return
	}
	if refused.isReplacement || hopeless[message.Code] {
		for _, held := range refused.done {
			r.holdings.bury(held, nowMS)
		}
		return
	}
	// The broker will never accept these results. If they were only dropped, the steps would run again.
	for _, held := range refused.done {
		failure := sdkFailure(held, "result_refused", message.Code+": "+message.Message)
		r.send(refused.peer, refused.batch, []doneResult{{held, failure}}, nowMS, true)
	}
}

// changeOwner moves results to the broker that now owns their deliveries. Results for the previous owner get a separate
// message.
func (r *reporting) changeOwner(message *resultsMessage, adopted []*heldDelivery, peer *brokerPeer, nowMS float64) {
	isAdopted := map[codec.Item]bool{}
	for _, held := range adopted {
		isAdopted[held.item] = true
	}
	var rest []*heldDelivery
	for _, held := range message.done {
		if !isAdopted[held.item] {
			rest = append(rest, held)
		}
	}
	if rest == nil {
		message.peer = peer
		return
	}
	resultOf := map[codec.Item]*codec.Result{}
	for _, result := range message.message.Results {
		resultOf[result.Item()] = result
	}
	r.outbox.remove(message.rid)
	for _, part := range []struct {
		owner *brokerPeer
		done  []*heldDelivery
	}{{message.peer, rest}, {peer, adopted}} {
		pairs := make([]doneResult, len(part.done))
		for i, held := range part.done {
			pairs[i] = doneResult{held, resultOf[held.item]}
		}
		r.send(part.owner, message.batch, pairs, nowMS, message.isReplacement)
	}
}

// send sends one results message, or two halves if the broker does not accept its size.
func (r *reporting) send(peer *brokerPeer, batch *heldBatch, finished []doneResult, nowMS float64, isReplacement bool) {
	session := peer.session
	if session == "" {
		session = batch.session
	}
	rid := r.rid + 1
	free, slotsFree := r.credit.offer(peer, nowMS)
	message := &codec.Results{
		Worker: r.out.worker, Session: session, Deployment: peer.deployment, BatchID: batch.id, Rid: rid,
		N: r.out.nextN(), Free: free, SlotsFree: slotsFree, Results: make([]*codec.Result, len(finished)),
	}
	for i, each := range finished {
		message.Results[i] = each.result
	}
	body := codec.Encode(message)
	if int64(len(body)) > peer.bytesMax {
		if len(finished) > 1 {
			half := len(finished) / 2
			r.send(peer, batch, finished[:half], nowMS, isReplacement)
			r.send(peer, batch, finished[half:], nowMS, isReplacement)
			return
		}
		if !isReplacement {
			r.sendSmaller(peer, batch, finished[0], len(body), nowMS)
			return
		}
	}
	r.rid = rid
	kept := &resultsMessage{
		rid: rid, peer: peer, batch: batch, session: session, message: message, body: body,
		done: make([]*heldDelivery, len(finished)), isReplacement: isReplacement, tries: 1,
		waitMS: codec.ResultsRetransmitMS, atMS: nowMS + codec.ResultsRetransmitMS,
	}
	for i, each := range finished {
		kept.done[i] = each.held
		if each.held.message == nil { // a replacement counts once
			batch.unsent--
		}
		each.held.message = kept
	}
	r.outbox.send(kept)
	if batch.unsent == 0 {
		r.intake.cancelAccept(peer, session, batch.id)
	}
}

// sendSmaller sends one result without its standard error, which is for people only and must not cost the outcome. If
// it has none, the run has failed: no message can carry its output.
func (r *reporting) sendSmaller(peer *brokerPeer, batch *heldBatch, one doneResult, bodyBytes int, nowMS float64) {
	if metadata := one.result.Metadata; metadata != nil && metadata.Stderr != "" {
		result, without := *one.result, *metadata
		without.Stderr = ""
		result.Metadata = &without
		r.send(peer, batch, []doneResult{{one.held, &result}}, nowMS, false)
		return
	}
	text := fmt.Sprintf("the output has %s; the limit is %s: store it elsewhere and return a reference",
		sizeOf(int64(bodyBytes)), sizeOf(peer.bytesMax))
	failure := sdkFailure(one.held, "too_large", text)
	r.out.add(ResultTooLarge{one.held.run.Step, failure})
	r.send(peer, batch, []doneResult{{one.held, failure}}, nowMS, true)
}

// withoutVerdict is the result without a verdict on an at_most_once step: a failure after a request to stop does not
// prove that the step had no effect.
func withoutVerdict(held *heldDelivery, result *codec.Result) *codec.Result {
	if !held.isAtMostOnce || result.Error == nil {
		return result
	}
	changed, detail := *result, *result.Error
	detail.Code = OutcomeUnknown
	changed.Error = &detail
	return &changed
}

// sizeOf is rounded up, so that a size above a limit also reads as one.
func sizeOf(bytes int64) string {
	if bytes < mib {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return strconv.FormatFloat(math.Ceil(float64(bytes)/mib*10)/10, 'g', 6, 64) + " MiB"
}

// sdkFailure is the result of a step that ran, but whose result cannot be delivered.
func sdkFailure(held *heldDelivery, code, text string) *codec.Result {
	detail := &codec.ErrorDetail{RetryAfterMS: -1}
	if held.isAtMostOnce {
		detail.Message, detail.Code = code+": "+text, OutcomeUnknown
	} else {
		isRetryable := false
		detail.Message, detail.Code, detail.Retryable = text, code, &isRetryable
	}
	return &codec.Result{
		StepID: held.item.StepID, Delivery: held.item.Delivery, Status: codec.StatusError, Error: detail,
	}
}

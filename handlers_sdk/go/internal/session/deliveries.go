package session

import (
	"math"
	"strings"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Records of what a worker holds: deliveries, the batches that contained them, and the messages with their results.
//
// A delivery passes through these states in this order: queued waits in the session; asking (at_most_once) has a slot
// and waits for the broker's go; running was handed to the runner, and its run begins when a slot is free; done has a
// result that is kept until a broker acknowledges it. In any of them it can end, and then becomes a tombstone.
const (
	queued  = codec.Queued
	asking  = codec.Asking
	running = codec.Running
	done    = codec.Done
	ended   = codec.HeldState("") // no longer held
)

// heldBatch has the steps of one message. Their results are reported together if possible.
type heldBatch struct {
	id      string
	number  int64
	session string
	open    int // accepted steps that have not ended
	unsent  int // steps without a sent result
	ready   []doneResult
}

// doneResult is a finished delivery with its result.
type doneResult struct {
	held   *heldDelivery
	result *codec.Result
}

func newHeldBatch(id, session string, size int) *heldBatch {
	return &heldBatch{id: id, number: batchNumber(id), session: session, unsent: size}
}

// heldDelivery is one delivery in this process.
type heldDelivery struct {
	item          codec.Item
	step          *codec.StepRequest // nil after the run has ended, when only the result is needed
	peer          *brokerPeer        // the broker that owns the delivery; changed by an adoption
	batch         *heldBatch
	offer         int
	receivedMS    float64
	run           *Run // since its hand-over to the runner
	state         codec.HeldState
	isAtMostOnce  bool
	isStopping    bool // was asked to stop
	isInterrupted bool // the same, or lost its broker: a failure of an at_most_once step proves nothing
	askAtMS       float64
	askWaitMS     float64
	message       *resultsMessage
}

func newHeldDelivery(step *codec.StepRequest, peer *brokerPeer, batch *heldBatch, offer int, nowMS float64) *heldDelivery {
	return &heldDelivery{
		item: step.Item(), step: step, peer: peer, batch: batch, offer: offer, receivedMS: nowMS, state: queued,
		isAtMostOnce: step.DeliveryMode == codec.AtMostOnce,
	}
}

func (h *heldDelivery) timeoutAtMS() float64 {
	if h.run == nil {
		return Never
	}
	return h.run.TimeoutAtMS()
}

func (h *heldDelivery) startedMS() (float64, bool) {
	if h.run == nil {
		return 0, false
	}
	return h.run.started()
}

// reportedState is the state for brokers, for which a step runs from its start to its end, also if the session has not
// heard of that yet. A granted step counts as running at once.
func (h *heldDelivery) reportedState() codec.HeldState {
	if h.state != running {
		return h.state
	}
	if _, hasBegun := h.startedMS(); !hasBegun {
		if h.isAtMostOnce {
			return running
		}
		return queued
	}
	if h.run.ended() {
		return done
	}
	return running
}

// ageMS is the time since the start of the run, or since the receipt if the run has not started. A granted run that
// begins now has no age: the time for which it waited for its go is not part of its timeout.
func (h *heldDelivery) ageMS(nowMS float64) int64 {
	sinceMS, hasBegun := h.startedMS()
	if !hasBegun {
		if h.reportedState() == running {
			return 0
		}
		sinceMS = h.receivedMS
	}
	return int64(math.Max(0, nowMS-sinceMS))
}

// withdraw is true if the run has not begun, and now never will. The caller then ends the delivery.
func (h *heldDelivery) withdraw() bool {
	if h.state == running {
		return h.run != nil && h.run.takeBack()
	}
	return h.state == queued || h.state == asking
}

// resultsMessage is a results message that no broker has acknowledged yet.
type resultsMessage struct {
	rid           int64
	peer          *brokerPeer
	batch         *heldBatch
	session       string
	message       *codec.Results
	body          []byte
	done          []*heldDelivery
	isReplacement bool // carries an error in place of a result that no broker accepts
	tries         int
	waitMS        float64
	atMS          float64
}

// batchNumber is the increasing number n of `batch_<nonce>_<n>`. An id of another form has -1, and is never refused as
// stale by its number.
func batchNumber(batchID string) int64 {
	text := batchID[strings.LastIndexByte(batchID, '_')+1:]
	if len(text) == 0 || len(text) > 16 {
		return -1
	}
	var number int64
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return -1
		}
		number = number*10 + int64(text[i]-'0')
	}
	return number
}

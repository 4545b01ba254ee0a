package stepwire

import (
	"context"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/clock"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

// call is one run, with its handler.
type call struct {
	run     *session.Run
	handler *handler
	info    *StepInfo
	edge    *edge.Edge
	mutex   sync.Mutex
	cancel  context.CancelFunc // nil before the start
}

// OfferNumber is the number of the offer that handles the step.
func (c *call) OfferNumber() int { return c.run.Offer }

// callEnd is the end of a call. Without a result, the step is given back: it was not started, or had no effect.
type callEnd struct {
	item   codec.Item
	result *codec.Result
}

// stop asks the handler to stop, or informs it that its lease was lost.
func (c *call) stop(reason string) {
	if !c.info.stop(reason) {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// perform runs the handler, if that may still begin. It writes the result into `end`, also if the handler ends its
// goroutine.
func (c *call) perform(log *runLog, end *callEnd) {
	end.item = c.run.Item
	atMS := clock.NowMS()
	if !c.run.Begin(atMS) {
		return
	}
	ctx, cancel := newRunContext(c.info, c.run.TimeoutAtMS(), atMS)
	defer cancel()
	c.mutex.Lock()
	c.cancel = cancel
	c.mutex.Unlock()
	if c.info.StopReason() != "" {
		return
	}
	opened, ok := c.open(log, end)
	if !ok {
		return
	}
	o := &outcome{}
	defer func() {
		o.tookMS = clock.NowMS() - atMS
		result := c.handler.resultOf(c.info, o)
		log.ended(c.info, o, result)
		end.result = c.edge.Close(opened, result)
	}()
	c.handler.invoke(ctx, c.info, o)
}

// open opens the step, if it needs that. False: the handler must not be called, because the step cannot be opened, or
// because the lease ended meanwhile.
func (c *call) open(log *runLog, end *callEnd) (*edge.Opened, bool) {
	if !c.edge.IsNeeded(c.run.Step) {
		return nil, true
	}
	opened, refusal := c.edge.Open(c.run.Step)
	if opened != nil {
		c.info.open(opened)
	}
	if refusal != nil {
		isRetryable := true
		result := errorResult(c.info, refusal.Code, refusal.Message, &isRetryable, nil)
		result.Error.Category = refusal.Category
		log.notReported(c.info, result)
		end.result = c.edge.Close(opened, result)
		return nil, false
	}
	return opened, !c.isTooLate()
}

// isTooLate reports whether the lease ended while the step was opened. A lease that ended counts although a new session
// has begun since: the broker may have given the step to another worker.
func (c *call) isTooLate() bool {
	return c.run.IsLeaseOver(clock.NowMS()) || c.info.isLeaseLost()
}

// runContext is the context of a run. Its cancellation follows the session, which enforces the timeout.
type runContext struct {
	context.Context
	info        *StepInfo
	deadline    time.Time
	hasDeadline bool
}

func newRunContext(info *StepInfo, timeoutAtMS, nowMS float64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	deadline, hasDeadline := deadlineOf(timeoutAtMS, nowMS)
	return &runContext{ctx, info, deadline, hasDeadline}, cancel
}

// Deadline is the time of the timeout.
func (c *runContext) Deadline() (time.Time, bool) { return c.deadline, c.hasDeadline }

// Err is context.DeadlineExceeded after a timeout, as in every context with a deadline.
func (c *runContext) Err() error {
	err := c.Context.Err()
	if err != nil && c.info.StopReason() == session.ReasonTimeout {
		return context.DeadlineExceeded
	}
	return err
}

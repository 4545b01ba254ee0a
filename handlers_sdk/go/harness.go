package stepwire

import (
	"fmt"
	"strings"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/clock"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/harness"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

func init() { harness.Run = runOnce }

// runOnce runs a handler for the package stepwiretest, with the decoding, encoding and mapping of errors of a worker.
func runOnce(
	worker any, step *codec.StepRequest, secrets map[string]string, report func(codec.ProgressItem),
) (*codec.Result, error) {
	w := worker.(*Worker)
	if len(w.faults) > 0 {
		return nil, w.faults[0]
	}
	var offers []session.Offer
	var names []string
	for _, h := range w.handlers {
		offers = append(offers, h.offer)
		names = append(names, h.offer.Pattern)
	}
	number := session.FindOffer(offers, step.HandlerClass)
	if number < 0 {
		return nil, configurationError("the worker does not offer '%s'; it offers %s",
			step.HandlerClass, strings.Join(append(names, "nothing else"), ", "))
	}
	h := w.handlers[number]
	opener := w.edge
	if secrets != nil {
		var err error
		if opener, err = edge.New(edge.Settings{TypeName: typeName, Secrets: func(name string) (string, error) {
			value, ok := secrets[name]
			if !ok {
				return "", ErrUnknownSecret
			}
			return value, nil
		}}); err != nil {
			return nil, err
		}
	}
	timeoutMS := session.Never
	for _, limitMS := range []int64{step.Metadata.TimeoutMS, h.offer.TimeoutMS} {
		if limitMS > 0 && float64(limitMS) < timeoutMS {
			timeoutMS = float64(limitMS)
		}
	}
	run := session.NewRun(step, number, session.NewLease(session.Never), timeoutMS, session.Never)
	c := &call{run: run, handler: h, info: newStepInfo(step, w.config.Logger, report), edge: opener}
	if timeoutMS != session.Never {
		timer := time.AfterFunc(time.Duration(timeoutMS*float64(time.Millisecond)), func() { c.stop(session.ReasonTimeout) })
		defer timer.Stop()
	}
	end := make(chan callEnd, 1)
	go func() { // a handler that ends its goroutine must not end the test
		var ended callEnd
		defer func() { end <- ended }()
		c.perform(&runLog{w.config.Logger}, &ended)
	}()
	ended := <-end
	if ended.result == nil {
		return nil, fmt.Errorf("the run was not started at %v ms", clock.NowMS())
	}
	return ended.result, nil
}

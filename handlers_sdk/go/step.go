package stepwire

import (
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

// Step is one delivery of a step, with its typed input: the second argument of every handler.
type Step[In any] struct {
	*StepInfo
	Input In // the step's `input` if its workflow defines one, otherwise the whole task context
}

// StepInfo has everything about a delivery except its typed input.
//
// IdempotencyKey is the same for every attempt and delivery of the step: pass it to every service that must not act
// twice. Delivery only increases: a store that keeps the highest value can refuse writes of an earlier run.
type StepInfo struct {
	TaskID         int64
	StepID         int64
	StepName       string
	HandlerClass   string
	Attempt        int // the number of failed attempts before this one
	RetryLimit     int
	Delivery       int64
	DeliveryMode   string // at_least_once or at_most_once
	IdempotencyKey string
	Traceparent    string // W3C; pass it on together with Tracestate
	Tracestate     string
	IsShadow       bool // the result is only compared, so the run must have no effects
	RawInput       json.RawMessage
	RawConfig      json.RawMessage
	RawResults     json.RawMessage // the outputs of the steps that this step depends on, by step name
	Log            *StepLogger

	report    func(codec.ProgressItem)
	mutex     sync.Mutex
	reason    string // why the run must stop; "" if it need not
	leaseLost chan struct{}
	results   map[string]json.RawMessage
	isSealed  bool // notes of progress are not sent, and texts of errors are not logged
}

// open replaces what the wire brought by what the handler receives, before the handler is called.
func (s *StepInfo) open(opened *edge.Opened) {
	s.RawInput, s.RawConfig, s.RawResults = opened.Step.RawInput(), opened.Step.HandlerConfig, opened.Step.PreviousResults
	s.isSealed = opened.IsSealed()
}

func newStepInfo(step *codec.StepRequest, logger Logger, report func(codec.ProgressItem)) *StepInfo {
	m := &step.Metadata
	info := &StepInfo{
		TaskID: step.TaskID, StepID: step.StepID, StepName: step.StepName, HandlerClass: step.HandlerClass,
		Attempt: int(m.Attempt), RetryLimit: int(m.RetryLimit), Delivery: step.Delivery,
		DeliveryMode: step.DeliveryMode, IdempotencyKey: m.IdempotencyKey, Traceparent: m.Traceparent,
		Tracestate: m.Tracestate, IsShadow: m.Shadow, RawInput: step.RawInput(), RawConfig: step.HandlerConfig,
		RawResults: step.PreviousResults, report: report, leaseLost: make(chan struct{}),
	}
	info.Log = &StepLogger{logger, info}
	return info
}

// Config decodes the step's `handler_config` into a variable.
func (s *StepInfo) Config(into any) error { return json.Unmarshal(s.RawConfig, into) }

// Results decodes the outputs of the steps that this step depends on, by step name.
func (s *StepInfo) Results() (map[string]json.RawMessage, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.results == nil {
		if err := json.Unmarshal(s.RawResults, &s.results); err != nil {
			return nil, err
		}
	}
	return s.results, nil
}

// Result decodes the output of one step that this step depends on. An unknown name is a *ConfigurationError.
func (s *StepInfo) Result(stepName string, into any) error {
	results, err := s.Results()
	if err != nil {
		return err
	}
	raw, ok := results[stepName]
	if !ok {
		return configurationError("step '%s' has no result of a step '%s': its workflow must name it in depends_on",
			s.StepName, stepName)
	}
	return json.Unmarshal(raw, into)
}

// Progress reports the progress of this run: `done` of `total` (0: unknown), and a short note for people.
//
// Calls are cheap: only the latest report of a run is sent, at most five times a second. A note with more than 200
// characters is cut after 199, and ends with `…`; a note of a sealed step is not sent. Numbers that are not finite or above 2^53 are a *ConfigurationError.
func (s *StepInfo) Progress(done, total float64, note string) error {
	for _, number := range []float64{done, total} {
		if math.IsNaN(number) || math.Abs(number) > 1<<53 {
			return configurationError("Progress(%v, %v): both must be finite numbers up to 2^53", done, total)
		}
	}
	entry := codec.ProgressItem{Item: codec.Item{StepID: s.StepID, Delivery: s.Delivery}, Done: done}
	if total != 0 {
		entry.Total = &total
	}
	if note != "" && !s.isSealed {
		note = shortened(note, noteCharsMax)
		entry.Note = &note
	}
	s.report(entry)
	return nil
}

// StopReason is why the context of the run was cancelled: timeout, task_cancelled, superseded, not_granted or shutdown.
// "" before.
func (s *StepInfo) StopReason() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.reason
}

// LeaseLost is closed when the broker may run the step on another worker, because this worker lost contact. That stops
// nothing: this run may still be the only one.
func (s *StepInfo) LeaseLost() <-chan struct{} { return s.leaseLost }

func (s *StepInfo) isLeaseLost() bool {
	select {
	case <-s.leaseLost:
		return true
	default:
		return false
	}
}

// stop notes why the run must stop. True: it must stop, and was not asked before.
func (s *StepInfo) stop(reason string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if reason == session.ReasonLeaseLost {
		if !s.isLeaseLost() {
			close(s.leaseLost)
		}
		return false
	}
	if s.reason != "" {
		return false
	}
	s.reason = reason
	return true
}

// deadlineOf is the time of the timeout as contexts need it. False: the run has none.
func deadlineOf(timeoutAtMS, nowMS float64) (time.Time, bool) {
	if timeoutAtMS == session.Never {
		return time.Time{}, false
	}
	return time.Now().Add(time.Duration((timeoutAtMS - nowMS) * float64(time.Millisecond))), true
}

func (s *StepInfo) title() string {
	// People count from 1.
	return fmt.Sprintf("task %d step %d %s attempt %d of %d",
		s.TaskID, s.StepID, s.StepName, s.Attempt+1, s.RetryLimit+1)
}

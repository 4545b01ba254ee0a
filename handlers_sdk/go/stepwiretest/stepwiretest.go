// Package stepwiretest runs a handler without a broker, in a unit test.
//
//	outcome := stepwiretest.Run(t, ship, Order{OrderID: 7}, stepwiretest.Result("pay", Payment{ID: "t1"}))
//	if outcome.Status != stepwiretest.Completed {
//		t.Fatal(outcome)
//	}
package stepwiretest

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/harness"
)

// Status is how a run ended.
type Status string

// The statuses. Failed: the handler failed the step. Error: the step could not be run, or its output not be sent.
const (
	Completed Status = codec.StatusCompleted
	Failed    Status = codec.StatusFailed
	Error     Status = codec.StatusError
)

// Progress is one call of step.Progress.
type Progress struct {
	Done  float64
	Total float64 // 0: unknown
	Note  string
}

// Outcome is the result that a worker would have reported.
type Outcome struct {
	Status     Status
	Output     json.RawMessage // as a dependent step would read it
	Message    string          // why the run did not complete
	Code       string
	Category   string
	Retryable  *bool          // nil: not stated
	RetryAfter *time.Duration // nil: not stated
	Backtrace  []string       // of a panic
	Progress   []Progress
}

// Decode decodes the output into a variable.
func (o *Outcome) Decode(into any) error { return json.Unmarshal(o.Output, into) }

func (o *Outcome) String() string {
	if o.Status == Completed {
		return fmt.Sprintf("completed: %s", o.Output)
	}
	return fmt.Sprintf("%s: %s (code %s)", o.Status, o.Message, o.Code)
}

// Option sets a fact of the step.
type Option func(*options) error

type options struct {
	step    codec.StepRequest
	results map[string]json.RawMessage
	secrets map[string]string
}

// Secrets are the values of the secrets to which the input and the configuration refer.
func Secrets(values map[string]string) Option {
	return func(o *options) error {
		o.secrets = values
		return nil
	}
}

// Result is the output of a step that this step depends on.
func Result(stepName string, output any) Option {
	return func(o *options) (err error) {
		o.results[stepName], err = json.Marshal(output)
		return err
	}
}

// Config is the step's `handler_config`.
func Config(config any) Option {
	return func(o *options) (err error) {
		o.step.HandlerConfig, err = json.Marshal(config)
		return err
	}
}

// Attempt is the number of failed attempts before this one.
func Attempt(attempt int) Option {
	return func(o *options) error {
		o.step.Metadata.Attempt = int64(attempt)
		return nil
	}
}

// AtMostOnce : the step is an at_most_once step.
func AtMostOnce() Option {
	return func(o *options) error {
		o.step.DeliveryMode = codec.AtMostOnce
		return nil
	}
}

// Timeout is the timeout of the step; 30 s without this option.
func Timeout(timeout time.Duration) Option {
	return func(o *options) error {
		o.step.Metadata.TimeoutMS = timeout.Milliseconds()
		return nil
	}
}

// IdempotencyKey is the key of the step.
func IdempotencyKey(key string) Option {
	return func(o *options) error {
		o.step.Metadata.IdempotencyKey = key
		return nil
	}
}

// Trace is the trace context of the step.
func Trace(traceparent, tracestate string) Option {
	return func(o *options) error {
		o.step.Metadata.Traceparent, o.step.Metadata.Tracestate = traceparent, tracestate
		return nil
	}
}

// Run runs a function as a handler once. The input may be any value of the step's workflow, also one that does not fit.
func Run[In, Out any](
	t testing.TB, function stepwire.Func[In, Out], input any, settings ...Option,
) *Outcome {
	t.Helper()
	worker, err := stepwire.New(stepwire.Config{Name: "tested", Logger: testLogger{t}})
	if err != nil {
		t.Fatal(err)
	}
	stepwire.Handle(worker, "tested", function)
	return RunWorker(t, worker, "tested", input, settings...)
}

// RunWorker runs the handler of a worker for this handler_class, as the worker would find it.
func RunWorker(
	t testing.TB, worker *stepwire.Worker, handlerClass string, input any, settings ...Option,
) *Outcome {
	t.Helper()
	o := &options{results: map[string]json.RawMessage{}, step: codec.StepRequest{
		StepID: 2, TaskID: 1, StepName: "step", HandlerClass: handlerClass, HandlerConfig: []byte("{}"), Delivery: 1,
		DeliveryMode: codec.AtLeastOnce, Metadata: codec.StepMetadata{
			RetryLimit: 3, TimeoutMS: codec.TimeoutDefaultMS, IdempotencyKey: "test/step", DeadlineMS: -1,
		},
	}}
	for _, setting := range settings {
		if err := setting(o); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if o.step.TaskContext, err = json.Marshal(input); err != nil {
		t.Fatal(err)
	}
	if o.step.PreviousResults, err = json.Marshal(o.results); err != nil {
		t.Fatal(err)
	}
	o.step.MayNeedOpening = true
	outcome := &Outcome{}
	var mutex sync.Mutex // a handler may report from several goroutines
	result, err := harness.Run(worker, &o.step, o.secrets, func(entry codec.ProgressItem) {
		mutex.Lock()
		defer mutex.Unlock()
		outcome.Progress = append(outcome.Progress, progressOf(entry))
	})
	if err != nil {
		t.Fatal(err)
	}
	outcome.fill(result)
	return outcome
}

func progressOf(entry codec.ProgressItem) Progress {
	progress := Progress{Done: entry.Done}
	if entry.Total != nil {
		progress.Total = *entry.Total
	}
	if entry.Note != nil {
		progress.Note = *entry.Note
	}
	return progress
}

func (o *Outcome) fill(result *codec.Result) {
	o.Status, o.Output = Status(result.Status), result.Output
	if detail := result.Error; detail != nil {
		o.Message, o.Code, o.Category = detail.Message, detail.Code, detail.Category
		o.Retryable, o.Backtrace = detail.Retryable, detail.Backtrace
		if detail.RetryAfterMS >= 0 {
			after := time.Duration(detail.RetryAfterMS) * time.Millisecond
			o.RetryAfter = &after
		}
	}
}

// testLogger shows the records with the test.
type testLogger struct{ t testing.TB }

func (l testLogger) Log(record stepwire.Record) { l.t.Logf("%s %s", record.Level, record.Text) }

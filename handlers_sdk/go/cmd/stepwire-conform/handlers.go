package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go"
)

const crashCode = 70

type kindInput struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
	Log  string `json:"log"`
}

// or is the text of the input, or this one.
func (i *kindInput) or(text string) string {
	if i.Text != "" {
		return i.Text
	}
	return text
}

type msInput struct {
	MS     float64 `json:"ms"`
	Ignore bool    `json:"ignore"`
}

type progressInput struct {
	MS   float64 `json:"ms"`
	Note *string `json:"note"`
}

type waited struct {
	Stopped *string `json:"stopped"`
	MS      int64   `json:"ms"`
}

func echo(_ context.Context, step *stepwire.Step[json.RawMessage]) (json.RawMessage, error) {
	return step.Input, nil
}

func fail(_ context.Context, step *stepwire.Step[kindInput]) (any, error) {
	input := &step.Input
	if input.Log != "" {
		step.Log.Infof("%s", input.Log)
	}
	switch input.Kind {
	case "permanent":
		return nil, stepwire.Permanent(input.or("a permanent error"), stepwire.Code("conform"))
	case "retry":
		return nil, stepwire.Retry(1500*time.Millisecond, input.or("a retryable error"))
	case "unknown":
		return nil, stepwire.OutcomeUnknown(input.or("the outcome is unknown"))
	case "unavailable":
		return nil, stepwire.Failed(input.or("a resource is unavailable"), stepwire.Category("unavailable"))
	default:
		return nil, errors.New(input.or("an ordinary error"))
	}
}

func crash(context.Context, *stepwire.Step[any]) (any, error) {
	os.Exit(crashCode)
	return nil, nil
}

// wait runs until a request to stop, or for `ms`. With `ignore`, the request is ignored.
func wait(ctx context.Context, step *stepwire.Step[msInput]) (waited, error) {
	begun := time.Now()
	asked := ctx.Done()
	if step.Input.Ignore {
		asked = nil
	}
	var result waited
	select {
	case <-asked:
		reason := step.StopReason()
		result.Stopped = &reason
	case <-time.After(time.Duration(step.Input.MS * float64(time.Millisecond))):
	}
	result.MS = time.Since(begun).Milliseconds()
	return result, nil
}

func compute(_ context.Context, step *stepwire.Step[msInput]) (map[string]float64, error) {
	until := time.Now().Add(time.Duration(step.Input.MS * float64(time.Millisecond)))
	for time.Now().Before(until) {
		continue
	}
	return map[string]float64{"ms": step.Input.MS}, nil
}

func big(_ context.Context, step *stepwire.Step[struct{ Bytes int }]) (map[string]string, error) {
	return map[string]string{"text": strings.Repeat("x", step.Input.Bytes)}, nil
}

// badOutput returns what is no JSON. A string in Go cannot hold half of a surrogate pair, so that kind is a string too.
func badOutput(_ context.Context, step *stepwire.Step[kindInput]) (map[string]any, error) {
	values := map[string]any{
		"nan": math.NaN(), "bigint": int64(1<<53 + 1), "nul": "a\x00b", "surrogate": json.RawMessage(`"\ud800"`),
		"object": make(chan int),
	}
	return map[string]any{"value": values[step.Input.Kind]}, nil
}

type described struct {
	StepID         int64           `json:"step_id"`
	TaskID         int64           `json:"task_id"`
	StepName       string          `json:"step_name"`
	DeliveryMode   string          `json:"delivery_mode"`
	Attempt        int             `json:"attempt"`
	Delivery       int64           `json:"delivery"`
	IdempotencyKey string          `json:"idempotency_key"`
	Traceparent    *string         `json:"traceparent"`
	Tracestate     *string         `json:"tracestate"`
	Config         json.RawMessage `json:"config"`
	Results        json.RawMessage `json:"results"`
	HandlerClass   string          `json:"handler_class"`
}

func describe(_ context.Context, step *stepwire.Step[json.RawMessage]) (described, error) {
	return described{
		step.StepID, step.TaskID, step.StepName, step.DeliveryMode, step.Attempt, step.Delivery, step.IdempotencyKey,
		textOrNull(step.Traceparent), textOrNull(step.Tracestate), step.RawConfig, step.RawResults, step.HandlerClass,
	}, nil
}

func trace(_ context.Context, step *stepwire.Step[json.RawMessage]) (map[string]*string, error) {
	return map[string]*string{"traceparent": textOrNull(step.Traceparent)}, nil
}

func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// progress reports, and waits `ms`: a run that ends at once may send no progress message.
func progress(ctx context.Context, step *stepwire.Step[progressInput]) (struct{}, error) {
	note := "half"
	if step.Input.Note != nil {
		note = *step.Input.Note
	}
	if err := step.Progress(1, 2, note); err != nil {
		return struct{}{}, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(step.Input.MS * float64(time.Millisecond))):
	}
	return struct{}{}, nil
}

type order struct {
	OrderID int64   `json:"order_id" stepwire:"required"`
	Note    *string `json:"note,omitempty"`
}

func typed(_ context.Context, step *stepwire.Step[order]) (order, error) { return step.Input, nil }

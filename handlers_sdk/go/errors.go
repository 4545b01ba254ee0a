package stepwire

import (
	"fmt"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
)

// ErrUnknownSecret is what Config.Secrets returns for a name that it does not know.
var ErrUnknownSecret = edge.ErrUnknownSecret

const retryAfterMax = 10 * 365 * 24 * time.Hour

// ConfigurationError : a worker or handler cannot be set up as requested. The message names the setting at fault.
type ConfigurationError struct{ Message string }

func (e *ConfigurationError) Error() string { return e.Message }

func configurationError(format string, values ...any) error {
	return &ConfigurationError{fmt.Sprintf(format, values...)}
}

type kind int

const (
	ordinary kind = iota
	permanent
	retryLater
	outcomeUnknown
)

// StepError is what a handler returns to say more about a failure than an ordinary error says. Failed, Permanent, Retry
// and OutcomeUnknown make one; errors.As finds one in a chain.
type StepError struct {
	Message  string
	Code     string // for programs, for example card_declined
	Category string // unavailable: the handler cannot reach a resource that it needs
	Cause    error
	kind     kind
	after    time.Duration
}

func (e *StepError) Error() string {
	if e.Cause == nil {
		return e.Message
	}
	if e.Message == "" {
		return e.Cause.Error()
	}
	return e.Message + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Cause }

// ErrorOption adds to a StepError.
type ErrorOption func(*StepError)

// Code sets the code of a failure, for programs.
func Code(code string) ErrorOption { return func(e *StepError) { e.Code = code } }

// Category sets the category of a failure. With the category "unavailable", the broker may stop sending steps to the
// handler for a while.
func Category(category string) ErrorOption { return func(e *StepError) { e.Category = category } }

// Cause sets the error that led to the failure.
func Cause(cause error) ErrorOption { return func(e *StepError) { e.Cause = cause } }

// Failed : the step failed. The step's policy decides about a retry, as for any error.
func Failed(message string, options ...ErrorOption) error {
	return stepError(ordinary, 0, message, options)
}

// Permanent : the step failed, and a retry cannot help: a declined card, an address that does not exist.
func Permanent(message string, options ...ErrorOption) error {
	return stepError(permanent, 0, message, options)
}

// Retry : the step failed, and must not be retried before this time has passed. The time is 0 to ten years.
func Retry(after time.Duration, message string, options ...ErrorOption) error {
	if after < 0 {
		after = 0
	}
	if after > retryAfterMax {
		after = retryAfterMax
	}
	return stepError(retryLater, after, message, options)
}

// OutcomeUnknown : the effect may or may not have happened, and the handler cannot find out. The broker retries an
// at_least_once step, and holds an at_most_once step for an operator.
func OutcomeUnknown(message string, options ...ErrorOption) error {
	return stepError(outcomeUnknown, 0, message, options)
}

func stepError(kind kind, after time.Duration, message string, options []ErrorOption) error {
	e := &StepError{Message: message, kind: kind, after: after}
	for _, option := range options {
		option(e)
	}
	return e
}

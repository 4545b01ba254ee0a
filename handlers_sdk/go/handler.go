package stepwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

var handlerName = regexp.MustCompile(`^[A-Za-z0-9_.:*-]{1,128}$`)

// outputDepth is the depth of an output in its message: {"results":[{"output":…}]}.
const outputDepth = 3

// Func is a handler: it does the work of one step, and returns the step's output or an error.
//
// The context is cancelled when the run must stop, and has the deadline of the run. An ordinary error is a failure that
// the step's policy may retry; Failed, Permanent, Retry and OutcomeUnknown say more. A panic is an ordinary failure.
type Func[In, Out any] func(ctx context.Context, step *Step[In]) (Out, error)

// handler is a registered function with its settings.
type handler struct {
	offer   session.Offer
	version string
	// call decodes the input and calls the function. The first error is about the input, the second is the function's.
	call func(ctx context.Context, info *StepInfo) (output any, inputFault, err error)
}

// HandlerOption is a setting of a handler.
type HandlerOption func(*handler) error

// Concurrency is the maximum number of runs of this handler at a time. Without it, the worker's slots are the limit.
func Concurrency(runs int) HandlerOption {
	return func(h *handler) error {
		if runs < 1 {
			return configurationError("handler '%s': concurrency is %d: it needs to be at least 1", h.offer.Pattern, runs)
		}
		h.offer.Concurrency = runs
		return nil
	}
}

// Timeout shortens the timeout of the step.
func Timeout(timeout time.Duration) HandlerOption {
	return func(h *handler) error {
		if timeout < time.Millisecond {
			return configurationError("handler '%s': the timeout is %s: it needs to be at least 1ms", h.offer.Pattern, timeout)
		}
		h.offer.TimeoutMS = timeout.Milliseconds()
		return nil
	}
}

// ShadowSafe : the handler may receive shadow steps, whose results are only compared.
func ShadowSafe() HandlerOption {
	return func(h *handler) error {
		h.offer.ShadowSafe = true
		return nil
	}
}

// HandlerVersion is the version of this handler, which results name.
func HandlerVersion(version string) HandlerOption {
	return func(h *handler) error {
		h.version = clean(version, codeCharsMax)
		return nil
	}
}

// Handle registers a function for a handler_class, or for a pattern (`Billing::**`), before the worker starts. The input
// is decoded by encoding/json: an input of another type is an `error` with the code bad_input, and is not retried. A
// member with the tag `stepwire:"required"` must be present.
//
// A wrong setting is reported by Run and Start, so that a program needs to check only there.
func Handle[In, Out any](w *Worker, name string, function Func[In, Out], options ...HandlerOption) {
	required := requiredMembers[In]()
	w.register(name, func(ctx context.Context, info *StepInfo) (any, error, error) {
		step := &Step[In]{StepInfo: info}
		if err := decodeInput(info.RawInput, &step.Input, required); err != nil {
			return nil, err, nil
		}
		output, err := function(ctx, step)
		return output, nil, err
	}, options)
}

func newHandler(
	name string, call func(context.Context, *StepInfo) (any, error, error), options []HandlerOption,
) (*handler, error) {
	if !handlerName.MatchString(name) {
		return nil, configurationError(
			"handler name '%s': it needs 1 to 128 letters, digits, _ . : - and, for patterns, *", name)
	}
	h := &handler{offer: session.Offer{Pattern: name}, call: call}
	for _, option := range options {
		if err := option(h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// -- outcomes ---------------------------------------------------------------------------------------------------------

// outcome is how a call of a handler ended.
type outcome struct {
	output     any
	inputFault error
	err        error
	panicked   any
	hasPanic   bool
	stack      []string
	hasExited  bool // runtime.Goexit: the goroutine ends
	tookMS     float64
}

// invoke calls the handler, and turns a panic into an outcome.
func (h *handler) invoke(ctx context.Context, info *StepInfo, o *outcome) {
	hasReturned := false
	defer func() {
		if hasReturned {
			return
		}
		if o.panicked = recover(); o.panicked != nil {
			o.hasPanic = true
			o.stack = stackOfPanic(string(debug.Stack()))
		} else {
			o.hasExited = true
		}
	}()
	o.output, o.inputFault, o.err = h.call(ctx, info)
	hasReturned = true
}

// resultOf makes the result for the broker. nil: the step is given back, because a shutdown stopped its run, which may
// be repeated elsewhere.
func (h *handler) resultOf(info *StepInfo, o *outcome) *codec.Result {
	reason := info.StopReason()
	switch {
	case o.inputFault != nil:
		text := fmt.Sprintf("the input of '%s' does not fit handler '%s': %v", info.StepName, h.offer.Pattern, o.inputFault)
		isRetryable := false
		return errorResult(info, "bad_input", text, &isRetryable, nil)
	case o.hasExited:
		text := "Goexit: the handler called runtime.Goexit or panic(nil): return an error instead"
		return h.failed(info, o, newDetail(text, "Goexit"))
	case o.hasPanic || o.err != nil:
		if reason != "" && (reason == session.ReasonTimeout || errors.Is(o.err, context.Canceled)) {
			if reason == session.ReasonShutdown && info.DeliveryMode == codec.AtLeastOnce {
				return nil
			}
			return h.stopped(info, reason, o)
		}
		if o.hasPanic {
			detail := newDetail(panicText(o.panicked), "panic")
			detail.Backtrace = o.stack
			return h.failed(info, o, detail)
		}
		return h.failed(info, o, detailOf(o.err))
	}
	output, err := encodeOutput(o.output)
	if err != nil {
		text := fmt.Sprintf("the output of '%s' cannot be sent as JSON: %v", h.offer.Pattern, err)
		isRetryable := false
		return sdkFailure(info, "bad_output", text, &isRetryable, h.metadata(o))
	}
	return &codec.Result{
		StepID: info.StepID, Delivery: info.Delivery, Status: codec.StatusCompleted, Output: output,
		Metadata: h.metadata(o),
	}
}

func (h *handler) failed(info *StepInfo, o *outcome, detail *codec.ErrorDetail) *codec.Result {
	return &codec.Result{
		StepID: info.StepID, Delivery: info.Delivery, Status: codec.StatusFailed, Error: detail, Metadata: h.metadata(o),
	}
}

func newDetail(message, code string) *codec.ErrorDetail {
	return &codec.ErrorDetail{Message: clean(message, messageCharsMax), Code: clean(code, codeCharsMax), RetryAfterMS: -1}
}

// stopped is the result of a run that stopped because of a timeout or a cancel.
func (h *handler) stopped(info *StepInfo, reason string, o *outcome) *codec.Result {
	text, code := "the run was cancelled: "+reason, "cancelled"
	if reason == session.ReasonTimeout {
		text, code = "the run exceeded its timeout", "timeout"
	}
	if info.DeliveryMode == codec.AtMostOnce {
		code = session.OutcomeUnknown
	}
	return h.failed(info, o, newDetail(text, code))
}

// metadata rounds the time to microseconds.
func (h *handler) metadata(o *outcome) *codec.ResultMetadata {
	return &codec.ResultMetadata{
		ExecutionTimeMS: strconv.FormatFloat(math.Round(o.tookMS*1000)/1000, 'f', -1, 64), HandlerVersion: h.version,
	}
}

// detailOf describes the error of a handler. The message of an ordinary error begins with its type, because
// `no such host` alone would not say who says so. A StepError's message is the handler's own sentence.
func detailOf(err error) *codec.ErrorDetail {
	var step *StepError
	if !errors.As(err, &step) {
		return newDetail(summary(err), typeName(err))
	}
	detail := newDetail(textOf(err), step.Code)
	detail.Category = clean(step.Category, codeCharsMax)
	isRetryable := step.kind != permanent
	switch step.kind {
	case outcomeUnknown:
		detail.Code = session.OutcomeUnknown
	case retryLater:
		detail.RetryAfterMS = step.after.Milliseconds()
		detail.Retryable = &isRetryable
	default:
		detail.Retryable = &isRetryable
	}
	return detail
}

// sdkFailure is the result of a handler that was called, but whose outcome the SDK cannot report.
func sdkFailure(info *StepInfo, code, text string, retryable *bool, metadata *codec.ResultMetadata) *codec.Result {
	if info.DeliveryMode == codec.AtMostOnce {
		return errorResult(info, session.OutcomeUnknown, code+": "+text, nil, metadata)
	}
	return errorResult(info, code, text, retryable, metadata)
}

func errorResult(info *StepInfo, code, text string, retryable *bool, metadata *codec.ResultMetadata) *codec.Result {
	if metadata == nil {
		metadata = &codec.ResultMetadata{}
	}
	detail := newDetail(text, code)
	detail.Retryable = retryable
	return &codec.Result{
		StepID: info.StepID, Delivery: info.Delivery, Status: codec.StatusError, Error: detail, Metadata: metadata,
	}
}

// encodeOutput writes the output as JSON that every language can read and every database can store.
func encodeOutput(value any) (body []byte, err error) {
	defer func() {
		if fault := recover(); fault != nil { // a MarshalJSON of the handler's own
			body, err = nil, errors.New(panicText(fault))
		}
	}()
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, advice(err)
	}
	body = bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))
	if err := codec.CheckValue(body, outputDepth); err != nil {
		return nil, advice(err)
	}
	return body, nil
}

// What is wrong with an output, and what to return instead: the same sentences in every SDK.
const notANumber = "it holds NaN or Infinity, which JSON does not have: return null instead"

var refusedOutputs = map[string]string{
	"not_a_number":         notANumber,
	"integer_out_of_range": "it holds an integer outside ±(2^53 - 1): return it as text",
	"nul_character":        "it holds U+0000, which databases cannot store: remove it, or return the text as Base64",
	"lone_surrogate":       "it holds half of a surrogate pair: return well-formed text, or Base64",
}

// advice says what to do about an output that encoding/json or the strict check refuses.
func advice(err error) error {
	var (
		value   *json.UnsupportedValueError
		kind    *json.UnsupportedTypeError
		invalid *codec.Invalid
	)
	switch {
	case errors.As(err, &value) && (value.Str == "NaN" || strings.HasSuffix(value.Str, "Inf")):
		return errors.New(notANumber)
	case errors.As(err, &kind):
		return fmt.Errorf("it holds a value of the type %s, which has no form in JSON: return plain data", kind.Type)
	case errors.As(err, &invalid) && refusedOutputs[invalid.Code] != "":
		return errors.New(refusedOutputs[invalid.Code])
	case errors.As(err, &invalid):
		return errors.New(invalid.Message)
	}
	return err
}

// -- texts of errors --------------------------------------------------------------------------------------------------

// textOf is the text of an error, also if its own method panics.
func textOf(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", err)
		}
	}()
	return err.Error()
}

func summary(err error) string { return typeName(err) + ": " + textOf(err) }

// typeName is the type of the first error in the chain that says more than a text: net.OpError; otherwise `error`.
func typeName(err error) string {
	for each := err; each != nil; each = errors.Unwrap(each) {
		name := strings.TrimPrefix(fmt.Sprintf("%T", each), "*")
		if !strings.HasPrefix(name, "fmt.") && !strings.HasPrefix(name, "errors.") {
			return name
		}
	}
	return "error"
}

func panicText(value any) string {
	if err, ok := value.(error); ok {
		return "panic: " + textOf(err)
	}
	return fmt.Sprintf("panic: %v", value)
}

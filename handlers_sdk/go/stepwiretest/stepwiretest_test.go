package stepwiretest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go"
	"github.com/stepwire/stepwire/handlers_sdk/go/stepwiretest"
)

type order struct {
	OrderID int64  `json:"order_id" stepwire:"required"`
	Note    string `json:"note,omitempty"`
}

type payment struct {
	ID string `json:"id"`
}

func ship(_ context.Context, step *stepwire.Step[order]) (map[string]string, error) {
	var paid payment
	if err := step.Result("pay", &paid); err != nil {
		return nil, err
	}
	return map[string]string{"tracking": fmt.Sprint("T", step.Input.OrderID), "paid": paid.ID}, nil
}

func TestAHandlerReadsItsInputAndTheResultsItDependsOn(t *testing.T) {
	outcome := stepwiretest.Run(t, ship, order{OrderID: 7}, stepwiretest.Result("pay", payment{"t1"}))
	var output map[string]string
	if err := outcome.Decode(&output); err != nil || output["tracking"] != "T7" || output["paid"] != "t1" {
		t.Fatal(outcome, err)
	}
}

func TestAnInputOfAnotherTypeIsBadInput(t *testing.T) {
	for input, want := range map[string]string{
		`{"order_id":"7"}`:  "cannot unmarshal string",
		`{"order_id":7.5}`:  "cannot unmarshal number 7.5",
		`{"note":"x"}`:      "`order_id` is missing",
		`[1]`:               "cannot unmarshal array",
		`{"order_id":1e30}`: "cannot unmarshal number 1e30",
	} {
		outcome := stepwiretest.Run(t, ship, json.RawMessage(input))
		if outcome.Status != stepwiretest.Error || outcome.Code != "bad_input" || !strings.Contains(outcome.Message, want) ||
			outcome.Retryable == nil || *outcome.Retryable {
			t.Errorf("%s: %v", input, outcome)
		}
	}
}

func failing(err error) stepwire.Func[any, any] {
	return func(context.Context, *stepwire.Step[any]) (any, error) { return nil, err }
}

func TestErrorsBecomeTheFailureThatTheyName(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
	yes, no := "true", "false"
	for _, each := range []struct {
		err                         error
		message, code, category, re string
		after                       time.Duration
	}{
		{errors.New("boom"), "error: boom", "error", "", "", -1},
		{fmt.Errorf("paying: %w", dial), "net.OpError: paying: dial tcp: refused", "net.OpError", "", "", -1},
		{stepwire.Failed("no stock", stepwire.Code("stock")), "no stock", "stock", "", yes, -1},
		{stepwire.Failed("down", stepwire.Category("unavailable"), stepwire.Cause(dial)), "down: dial tcp: refused", "",
			"unavailable", yes, -1},
		{stepwire.Permanent("declined", stepwire.Code("declined")), "declined", "declined", "", no, -1},
		{fmt.Errorf("wrapped: %w", stepwire.Permanent("declined")), "wrapped: declined", "", "", no, -1},
		{stepwire.Retry(1500*time.Millisecond, "busy"), "busy", "", "", yes, 1500 * time.Millisecond},
		{stepwire.OutcomeUnknown("who knows"), "who knows", "outcome_unknown", "", "", -1},
		{errors.New("nul \x00, bad \xff"), "error: nul \ufffd, bad \ufffd", "error", "", "", -1},
	} {
		outcome := stepwiretest.Run(t, failing(each.err), nil)
		retryable := ""
		if outcome.Retryable != nil {
			retryable = fmt.Sprint(*outcome.Retryable)
		}
		after := time.Duration(-1)
		if outcome.RetryAfter != nil {
			after = *outcome.RetryAfter
		}
		if outcome.Status != stepwiretest.Failed || outcome.Message != each.message || outcome.Code != each.code ||
			outcome.Category != each.category || retryable != each.re || after != each.after {
			t.Errorf("%v: %+v", each.err, outcome)
		}
	}
}

func deepest() int {
	var none []int
	return none[3]
}

func TestAPanicIsAnOrdinaryFailureWithTheStackOfTheHandler(t *testing.T) {
	outcome := stepwiretest.Run(t, func(context.Context, *stepwire.Step[any]) (int, error) { return deepest(), nil }, nil)
	if outcome.Status != stepwiretest.Failed || outcome.Code != "panic" || outcome.Retryable != nil ||
		outcome.Message != "panic: runtime error: index out of range [3] with length 0" {
		t.Fatal(outcome)
	}
	stack := strings.Join(outcome.Backtrace, "\n")
	if len(outcome.Backtrace) != 2 || !strings.Contains(outcome.Backtrace[0], "deepest") ||
		strings.Contains(stack, "harness") || strings.Contains(stack, "runtime/") {
		t.Errorf("the stack is\n%s", stack)
	}
}

func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	for name, end := range map[string]func(){"Goexit": runtime.Goexit, "panic(nil)": func() { panic(nil) }} {
		outcome := stepwiretest.Run(t, func(context.Context, *stepwire.Step[any]) (any, error) {
			end()
			return nil, nil
		}, nil)
		if outcome.Status != stepwiretest.Failed {
			t.Error(name, outcome)
		}
	}
}

type loop struct{ Inner *loop }

type panicking struct{}

func (panicking) MarshalJSON() ([]byte, error) { panic("no") }

func TestAnOutputThatIsNoJSONIsBadOutput(t *testing.T) {
	deep := &loop{}
	for i := 0; i < 40; i++ {
		deep = &loop{deep}
	}
	for want, value := range map[string]any{
		"it holds NaN or Infinity":       math.NaN(),
		"which JSON does not have":       map[string]any{"a": math.Inf(1)},
		"return it as text":              int64(1 << 53),
		"U+0000":                         "a\x00b",
		"a value of the type chan int":   make(chan int),
		"deeper than 32":                 deep,
		"half of a surrogate pair":       json.RawMessage(`"\ud800"`),
		"invalid character":              json.RawMessage(`{"a":`),
		"occurs twice":                   json.RawMessage(`{"a":1,"a":2}`),
		"panic: no":                      panicking{},
		"too large for a double":         json.RawMessage(`1e999`),
		"a value of the type func()":     func() {},
		"an integer outside ±(2^53 - 1)": int64(math.MaxInt64),
	} {
		value := value
		returns := func(context.Context, *stepwire.Step[any]) (any, error) { return value, nil }
		outcome := stepwiretest.Run(t, returns, nil)
		isUnexpected := outcome.Status != stepwiretest.Error || outcome.Code != "bad_output"
		if isUnexpected || !strings.Contains(outcome.Message, want) {
			if want != "invalid character" || isUnexpected { // the wording of encoding/json differs between releases
				t.Errorf("%s: %v", want, outcome)
			}
		}
		if unknown := stepwiretest.Run(t, returns, nil, stepwiretest.AtMostOnce()); unknown.Code != "outcome_unknown" {
			t.Errorf("%s, at_most_once: %v", want, unknown)
		}
	}
}

func TestLargeAndOrdinaryOutputsPass(t *testing.T) {
	for want, value := range map[string]any{
		"9007199254740991": int64(1<<53 - 1), "null": nil, `"<&>"`: "<&>", "[]": []int{}, "1.5": 1.5,
	} {
		value := value
		outcome := stepwiretest.Run(t, func(context.Context, *stepwire.Step[any]) (any, error) { return value, nil }, nil)
		if outcome.Status != stepwiretest.Completed || string(outcome.Output) != want {
			t.Errorf("%s: %v", want, outcome)
		}
	}
}

func TestAnOutputMayHaveTheLevelsThatItsMessageLeaves(t *testing.T) {
	for levels, want := range map[int]stepwiretest.Status{29: stepwiretest.Completed, 30: stepwiretest.Error} {
		value := json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
		returns := func(context.Context, *stepwire.Step[any]) (any, error) { return value, nil }
		if outcome := stepwiretest.Run(t, returns, nil); outcome.Status != want {
			t.Error(levels, outcome)
		}
	}
}

func TestATimeoutEndsTheContextAndIsReported(t *testing.T) {
	waits := func(ctx context.Context, step *stepwire.Step[any]) (any, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("gave up: %w", ctx.Err())
	}
	for _, mode := range []struct {
		options []stepwiretest.Option
		code    string
	}{
		{[]stepwiretest.Option{stepwiretest.Timeout(20 * time.Millisecond)}, "timeout"},
		{[]stepwiretest.Option{stepwiretest.Timeout(20 * time.Millisecond), stepwiretest.AtMostOnce()}, "outcome_unknown"},
	} {
		if outcome := stepwiretest.Run(t, waits, nil, mode.options...); outcome.Code != mode.code {
			t.Error(outcome)
		}
	}
}

func TestTheStepShowsWhatTheBrokerSent(t *testing.T) {
	stepwiretest.Run(t, func(ctx context.Context, step *stepwire.Step[json.RawMessage]) (any, error) {
		var config struct{ Region string }
		if err := step.Config(&config); err != nil {
			return nil, err
		}
		got := fmt.Sprintln(config.Region, step.Attempt, step.IdempotencyKey, step.Traceparent, step.Tracestate,
			step.DeliveryMode, string(step.Input), step.StopReason())
		if got != "eu 2 k/pay 00-a-b-01 v=1 at_least_once {\"a\":1} \n" {
			t.Error(got)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the context has no deadline")
		}
		select {
		case <-step.LeaseLost():
			t.Error("the lease is lost")
		default:
		}
		return nil, nil
	}, map[string]int{"a": 1}, stepwiretest.Config(map[string]string{"region": "eu"}), stepwiretest.Attempt(2),
		stepwiretest.IdempotencyKey("k/pay"), stepwiretest.Trace("00-a-b-01", "v=1"))
}

func TestProgressIsRecordedAndChecked(t *testing.T) {
	outcome := stepwiretest.Run(t, func(_ context.Context, step *stepwire.Step[any]) (any, error) {
		if step.Progress(math.NaN(), 1, "") == nil || step.Progress(1, math.Inf(1), "") == nil {
			t.Error("progress of no number was accepted")
		}
		return nil, step.Progress(1, 2, strings.Repeat("ä", 300))
	}, nil)
	if len(outcome.Progress) != 1 || outcome.Progress[0].Note != strings.Repeat("ä", 199)+"…" || outcome.Progress[0].Total != 2 {
		t.Error(outcome.Progress)
	}
}

func TestAWorkerIsSearchedAsABrokerWould(t *testing.T) {
	worker, err := stepwire.New(stepwire.Config{})
	if err != nil {
		t.Fatal(err)
	}
	named := func(name string) stepwire.Func[any, string] {
		return func(context.Context, *stepwire.Step[any]) (string, error) { return name, nil }
	}
	stepwire.Handle(worker, "Billing::**", named("pattern"))
	stepwire.Handle(worker, "Billing::Charge", named("name"))
	for class, want := range map[string]string{"Billing::Charge": `"name"`, "Billing::a::b": `"pattern"`} {
		if outcome := stepwiretest.RunWorker(t, worker, class, nil); string(outcome.Output) != want {
			t.Error(class, outcome)
		}
	}
}

func TestAReferenceToASecretIsReplacedAndItsValueLeavesTheRunNowhere(t *testing.T) {
	const value = "sk_live_5eb63bbbe01eeed0"
	secrets := stepwiretest.Secrets(map[string]string{"stripe/live": value})
	config := stepwiretest.Config(map[string]any{"key": map[string]string{"$secret": "stripe/live"}})
	var seen string
	pay := func(_ context.Context, step *stepwire.Step[map[string]any]) (map[string]string, error) {
		var config struct{ Key string }
		if err := step.Config(&config); err != nil {
			return nil, err
		}
		seen = config.Key
		if err := step.Progress(1, 2, "using "+config.Key); err != nil {
			return nil, err
		}
		if step.Input["panic"] == true {
			panic("refused " + config.Key)
		}
		if step.Input["fail"] == true {
			return nil, errors.New("refused " + config.Key)
		}
		return map[string]string{"authorization": "Bearer " + config.Key}, nil
	}
	outcome := stepwiretest.Run(t, pay, map[string]bool{}, secrets, config)
	if seen != value || string(outcome.Output) != `{"authorization":"Bearer [secret stripe/live]"}` {
		t.Error(seen, outcome)
	}
	if note := outcome.Progress[0].Note; note != "using [secret stripe/live]" {
		t.Error(note)
	}
	for _, kind := range []string{"fail", "panic"} {
		outcome = stepwiretest.Run(t, pay, map[string]bool{kind: true}, secrets, config)
		if text := fmt.Sprint(outcome, outcome.Backtrace); strings.Contains(text, value) || !strings.Contains(text, "[secret ") {
			t.Error(text)
		}
	}
	outcome = stepwiretest.Run(t, pay, map[string]bool{}, stepwiretest.Secrets(map[string]string{}), config)
	if outcome.Status != stepwiretest.Error || outcome.Code != "secret_unavailable" || !*outcome.Retryable ||
		outcome.Message != "secret 'stripe/live': the resolver of this worker does not know it" {
		t.Error(outcome)
	}
}

func TestAnInputThatDoesNotFitIsRefusedWithoutTheValueOfASecret(t *testing.T) {
	input := map[string]any{"order_id": map[string]string{"$secret": "card"}}
	secrets := stepwiretest.Secrets(map[string]string{"card": "4929-7654-0001"})
	outcome := stepwiretest.Run(t, ship, input, secrets)
	if outcome.Code != "bad_input" || strings.Contains(outcome.Message, "4929") {
		t.Error(outcome)
	}
}

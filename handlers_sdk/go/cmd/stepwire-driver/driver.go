package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"sort"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/slots"
)

// op is one line of the kit. A member that is absent is nil or at its zero value.
type op struct {
	Op          string          `json:"op"`
	NowMS       float64         `json:"now_ms"`
	Frame       string          `json:"frame"`
	FrameBase64 *string         `json:"frame_base64"`
	StepID      int64           `json:"step_id"`
	Delivery    int64           `json:"delivery"`
	Output      json.RawMessage `json:"output"`
	Metadata    *struct {
		ExecutionTimeMS json.RawMessage `json:"execution_time_ms"`
		HandlerVersion  string          `json:"handler_version"`
		Retryable       *bool           `json:"retryable"`
		Stderr          string          `json:"stderr"`
	} `json:"metadata"`
	Message      string   `json:"message"`
	Status       string   `json:"status"`
	Code         string   `json:"code"`
	Category     string   `json:"category"`
	Retryable    *bool    `json:"retryable"`
	RetryAfterMS *int64   `json:"retry_after_ms"`
	Done         float64  `json:"done"`
	Total        *float64 `json:"total"`
	Note         *string  `json:"note"`
	IsFull       bool     `json:"is_full"`
	startOp
}

// startOp has the members of the op `start`.
type startOp struct {
	Worker string `json:"worker"`
	Offers []struct {
		Pattern     string `json:"pattern"`
		Concurrency int    `json:"concurrency"`
		TimeoutMS   int64  `json:"timeout_ms"`
		ShadowSafe  bool   `json:"shadow_safe"`
	} `json:"offers"`
	Slots           int                               `json:"slots"`
	Prefetch        *int                              `json:"prefetch"`
	HeartbeatMS     *int64                            `json:"heartbeat_ms"`
	Labels          map[string]string                 `json:"labels"`
	Links           []struct{ Steps, Results string } `json:"links"`
	Curve           bool                              `json:"curve"`
	MaxMessageBytes *int64                            `json:"max_message_bytes"`
	AcceptDelayMS   float64                           `json:"accept_delay_ms"`
	Lang            *string                           `json:"lang"`
	SDK             string                            `json:"sdk"`
	Host            string                            `json:"host"`
	PID             int64                             `json:"pid"`
	PIDStarted      int64                             `json:"pid_started"`
	Proof           bool                              `json:"proof"`
	HandlerVersion  string                            `json:"handler_version"`
}

type reply = map[string]any

// driver passes ops to one session at a time. The op `start` creates it.
type driver struct {
	session *session.Session
	slots   *slots.RunSlots[*session.Run]
	running map[codec.Item]*session.Run
	begun   []*session.Run // begun since the last action that was written
}

func (d *driver) answer(line []byte) (answer reply) {
	defer func() {
		if fault := recover(); fault != nil {
			answer = reply{"error": fmt.Sprint("panic: ", fault)}
		}
	}()
	var o op
	if err := json.Unmarshal(line, &o); err != nil {
		return reply{"error": err.Error()}
	}
	if err := d.apply(&o); err != nil {
		return reply{"error": err.Error()}
	}
	actions := d.actions(o.NowMS)
	var wakeAtMS any
	if at := d.session.WakeAt(); at != session.Never {
		wakeAtMS = math.Max(o.NowMS, at)
	}
	holding := [][]any{}
	for _, held := range d.session.Holding(o.NowMS) {
		holding = append(holding, []any{held.StepID, held.Delivery, held.State, held.AgeMS})
	}
	return reply{"actions": actions, "wake_at_ms": wakeAtMS, "holding": holding}
}

func (d *driver) apply(o *op) error {
	if o.Op != "start" && d.session == nil {
		return fmt.Errorf("op %q before start", o.Op)
	}
	switch o.Op {
	case "start":
		d.start(o)
	case "receive":
		return d.receive(o)
	case "tick": // the reply has the actions that are due
	case "complete":
		output, err := codec.Compact(o.Output)
		if err != nil {
			return err
		}
		result := &codec.Result{Status: codec.StatusCompleted, Output: output}
		if m := o.Metadata; m != nil {
			result.Metadata = &codec.ResultMetadata{
				HandlerVersion: m.HandlerVersion, Retryable: m.Retryable, Stderr: m.Stderr,
			}
			if number, err := codec.Compact(m.ExecutionTimeMS); err == nil && string(number) != "null" {
				result.Metadata.ExecutionTimeMS = string(number)
			}
		}
		d.finish(o, result)
	case "fail":
		detail := &codec.ErrorDetail{
			Message: o.Message, Code: o.Code, Category: o.Category, Retryable: o.Retryable, RetryAfterMS: -1,
		}
		if o.RetryAfterMS != nil {
			detail.RetryAfterMS = *o.RetryAfterMS
		}
		status := o.Status
		if status == "" {
			status = codec.StatusFailed
		}
		d.finish(o, &codec.Result{Status: status, Error: detail})
	case "progress":
		if item := o.item(); d.running[item] != nil {
			d.session.Progressed(codec.ProgressItem{Item: item, Done: o.Done, Total: o.Total, Note: o.Note}, o.NowMS)
		}
	case "quiet":
		d.session.Quiet(o.NowMS)
	case "full":
		d.session.Full(o.IsFull, o.NowMS)
	case "drain":
		d.session.Drain(o.NowMS)
	case "expel":
		d.session.Expel()
	default:
		return fmt.Errorf("unknown op %q", o.Op)
	}
	return nil
}

func (o *op) item() codec.Item { return codec.Item{StepID: o.StepID, Delivery: o.Delivery} }

// -- the ops ----------------------------------------------------------------------------------------------------------

func (d *driver) start(o *op) {
	config := &session.Config{
		Worker: o.Worker, Slots: o.Slots, Prefetch: -1, HeartbeatMS: codec.HeartbeatMS, Curve: o.Curve,
		AcceptDelayMS: o.AcceptDelayMS, MaxMessageBytes: codec.MessageBytesMax, Lang: "go", SDK: o.SDK, Host: o.Host,
		PID: o.PID, PIDStarted: o.PIDStarted, Proof: o.Proof, HandlerVersion: o.HandlerVersion,
	}
	if o.Prefetch != nil {
		config.Prefetch = *o.Prefetch
	}
	if o.HeartbeatMS != nil {
		config.HeartbeatMS = *o.HeartbeatMS
	}
	if o.MaxMessageBytes != nil {
		config.MaxMessageBytes = *o.MaxMessageBytes
	}
	if o.Lang != nil {
		config.Lang = *o.Lang
	}
	for name, text := range o.Labels {
		config.Labels = append(config.Labels, session.Label{Name: name, Text: text})
	}
	sort.Slice(config.Labels, func(i, j int) bool { return config.Labels[i].Name < config.Labels[j].Name })
	for _, link := range o.Links {
		config.Links = append(config.Links, session.Link{Steps: link.Steps, Results: link.Results})
	}
	if config.Links == nil {
		config.Links = []session.Link{{Steps: "ipc://steps", Results: "ipc://results"}}
	}
	concurrency := make([]int, len(o.Offers))
	for i, offer := range o.Offers {
		config.Offers = append(config.Offers, session.Offer{
			Pattern: offer.Pattern, Concurrency: offer.Concurrency, TimeoutMS: offer.TimeoutMS,
			ShadowSafe: offer.ShadowSafe,
		})
		concurrency[i] = offer.Concurrency
	}
	d.session = session.New(config, func() float64 { return 0.5 })
	d.slots = slots.New[*session.Run](o.Slots, concurrency)
	d.running = map[codec.Item]*session.Run{}
	d.begun = nil
	d.session.Start(o.NowMS)
}

func (d *driver) receive(o *op) error {
	frame := []byte(o.Frame)
	if o.FrameBase64 != nil {
		decoded, err := base64.StdEncoding.DecodeString(*o.FrameBase64)
		if err != nil {
			return err
		}
		frame = decoded
	}
	if topic, body, ok := codec.Split(frame); ok { // a worker ignores a frame without a topic
		d.session.Receive(topic, body, o.NowMS)
	}
	return nil
}

// finish ends a run, and begins the one that gets its slot. A run that has not begun cannot end.
func (d *driver) finish(o *op, result *codec.Result) {
	item := o.item()
	run := d.running[item]
	if run == nil {
		return
	}
	delete(d.running, item)
	result.StepID, result.Delivery = item.StepID, item.Delivery
	following, ok := d.slots.Release(run)
	d.session.Finished(item, result, o.NowMS)
	if ok {
		d.begin(following, o.NowMS)
	}
}

// -- the actions ------------------------------------------------------------------------------------------------------

// begin does as a runner does: begin a run that has a slot, or give its step back and begin the next one.
func (d *driver) begin(run *session.Run, nowMS float64) {
	for !run.Begin(nowMS) {
		following, ok := d.slots.Release(run)
		d.session.GiveBack(run.Item, nowMS)
		if !ok {
			return
		}
		run = following
	}
	d.running[run.Item] = run
	d.begun = append(d.begun, run)
}

// actions returns the due actions. A run is written when it begins, which may be long after its hand-over.
func (d *driver) actions(nowMS float64) []reply {
	written := d.takeBegun([]reply{})
	for _, action := range d.session.Actions(nowMS) {
		if run, ok := action.(*session.Run); ok {
			for _, started := range d.slots.Add(run) {
				d.begin(started, nowMS)
			}
			written = d.takeBegun(written)
		} else if line := asLine(action); line != nil {
			written = append(written, line)
		}
	}
	return written
}

func (d *driver) takeBegun(written []reply) []reply {
	for _, run := range d.begun {
		written = append(written, reply{"action": "run", "step_id": run.Item.StepID, "delivery": run.Item.Delivery})
	}
	d.begun = nil
	return written
}

// asLine is the action as the kit reads it. nil: the kit has no use for this action.
func asLine(action session.Action) reply {
	switch a := action.(type) {
	case session.Send:
		return reply{"action": "send", "frame": a.Topic + string(a.Body)}
	case session.CancelRun:
		return reply{
			"action": "request_stop", "step_id": a.Item.StepID, "delivery": a.Item.Delivery, "reason": a.Reason,
		}
	case session.Connect:
		var key any
		if a.ServerKey != "" {
			key = a.ServerKey
		}
		return reply{"action": "connect", "steps": a.Link.Steps, "results": a.Link.Results, "server_key": key}
	case session.Disconnect:
		return reply{"action": "disconnect", "steps": a.Link.Steps, "results": a.Link.Results}
	case session.Rebuild:
		return reply{"action": "rebuild", "steps": a.Link.Steps, "results": a.Link.Results}
	case session.Quit:
		return reply{"action": "quit"}
	case session.Log:
		return reply{"action": "log", "level": a.Level.String(), "event": a.Event}
	}
	return nil
}
